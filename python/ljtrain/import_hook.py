"""Runs callbacks right after a named module has been imported, so that a part can wait for what it
changes.

A finder at the front of `sys.meta_path` wraps the loader of just the modules asked for, lets
Python's own machinery do the rest, and removes itself when nothing is left to wait for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _NotifyingLoader(importlib.abc.Loader):
    """Loads by the original loader, then tells the hook."""

    def __init__(self, original: importlib.abc.Loader, hook: ImportHook) -> None:
        self._original = original
        self._hook = hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must not be able to tell: it gets back its own loader before its first line
        # runs.
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._hook.imported(module)


class ImportHook(importlib.abc.MetaPathFinder):
    """Waits for modules by name. A callback that fails is reported to `on_fault` and breaks no
    import.
    """

    def __init__(self, on_fault: Callable[[str, Exception], None]) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._finding: set[str] = set()
        self._on_fault = on_fault

    def after_import(self, name: str, callback: Callback) -> None:
        """Calls `callback(module)` when `name` has been imported: now, if it has been."""
        self._callbacks.setdefault(name, []).append(callback)
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            self.imported(module)
        elif self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def imported(self, module: ModuleType) -> None:
        for callback in self._callbacks.pop(module.__name__, []):
            try:
                callback(module)
            except Exception as fault:
                self._on_fault(module.__name__, fault)
        if not self._callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        self._notify_finished()
        if fullname not in self._callbacks or fullname in self._finding:
            return None
        self._finding.add(fullname)  # the search below comes through here again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self)
        return spec

    def _notify_finished(self) -> None:
        """Catches up with modules that were half imported when they were asked for, as nothing
        announces their end.
        """
        for name in list(self._callbacks):
            module = sys.modules.get(name)
            if module is not None and name not in self._finding and not _is_initializing(module):
                self.imported(module)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))

"""Loads `ljtrain._C`, the compiled part, or says in one line why it does not load."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

_log = logging.getLogger("ljtrain")
_reason: str | None = None
_module: ModuleType | None = None


def load() -> ModuleType | None:
    """The compiled part, or None; a failure is logged once and training goes on without what it
    measures.
    """
    global _module, _reason
    if _module is None and _reason is None:
        import torch  # noqa: F401 - brings the libraries that _C is linked to

        try:
            _module = importlib.import_module("ljtrain._C")
        except ImportError as error:
            _reason = str(error).strip().splitlines()[0]
            _log.warning(
                "ljtrain._C does not load, so breakdown and allocator peak are not measured: %s",
                _reason,
            )
    return _module


def why_not() -> str | None:
    """Why `load` returned None; None if it was not tried or did load."""
    return _reason

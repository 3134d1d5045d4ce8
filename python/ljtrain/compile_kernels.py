"""Compiles the C++ kernels of a graph together instead of one by one.

Inductor gives every kernel a file and a run of the C++ compiler, and nine tenths of such a run read
headers. Here the kernels of a graph become a few files, as many as there are processors, and are
compiled while Inductor goes on with the next graph: a forward's while its backward is lowered. The
files have a place in Inductor's cache like its own.
"""

from __future__ import annotations

import contextvars
import functools
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

ENTRY = "kernel"  # Inductor's name of every kernel's function
# How Inductor's C++ begins a kernel, and where its Python bindings fall into parts.
DEFINITION = re.compile(rf'extern "C"\s+void\s+{ENTRY}\(')
FUNCTION, METHODS = "static PyObject* {entry_func}_py", "static PyMethodDef py_methods[]"
METHOD = '{{"{entry_func}", {entry_func}_py, METH_VARARGS, ""}},'
PREFIX = "torch/csrc/inductor/cpp_prefix.h"
FEWEST = 4  # kernels that are worth a file of their own

Kernel = Callable[..., Any]
_underway: list[Future[Any]] = []


def _code_cache() -> Any:
    """Inductor is not imported before something is compiled: that takes a second."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache


def _can_be_merged(source: str) -> bool:
    """Whether a kernel can share a file: macros could mean something else in the next one."""
    directives = [line.split()[0] for line in source.splitlines() if line.startswith("#")]
    return len(DEFINITION.findall(source)) == 1 and set(directives) <= {"#include", "#pragma"}


def _bindings(parts: list[tuple[str, list[str]]]) -> str:
    """Inductor's Python bindings, for several functions of one module."""
    template = _code_cache().suffix_template
    before, rest = template.split(FUNCTION)
    function, module = rest.split(METHODS)
    plain = {"entry_func": ENTRY, "extra_parse_arg": "", "arg_len": 0, "call_entry_func": ""}
    texts = [before.format(**plain)]
    for name, types in parts:
        arguments = ", ".join(
            f"parse_arg<{kind.replace('const ', '')}>(args, {n})" for n, kind in enumerate(types)
        )
        call = _code_cache().call_entry_function.replace(ENTRY, name, 1)
        texts.append(
            (FUNCTION + function).format(
                entry_func=name, arg_len=len(types), call_entry_func=call.format(arguments)
            )
        )
    methods = "\n".join(METHOD.format(entry_func=name) for name, _ in parts)
    head, tail = (METHODS + module).split(METHOD)
    return "".join([*texts, head.format(**plain), methods, tail.format(**plain)])


def merged(kernels: list[tuple[list[str], str]]) -> str:
    """One file of several kernels, `kernel_0` to `kernel_N`: (types of arguments, source) each."""
    includes: dict[str, None] = {}
    bodies, parts = [], []
    for number, (types, source) in enumerate(kernels):
        name = f"{ENTRY}_{number}"
        lines = source.splitlines()
        includes |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        body = DEFINITION.sub(f'extern "C" void {name}(', body)
        bodies.append(f"namespace graph_{number} {{\n{body}\n}}\nusing graph_{number}::{name};")
        parts.append((name, types))
    return "\n".join([*includes, *bodies, _bindings(parts)])


@dataclass
class Batch:
    """The kernels of one graph."""

    kernels: list[tuple[list[str], str]] = field(default_factory=list)
    futures: list[Future[Kernel]] = field(default_factory=list)

    def add(self, types: list[str], source: str) -> Future[Kernel]:
        self.kernels.append((types, source))
        self.futures.append(Future())
        return self.futures[-1]

    def start(self) -> None:
        """Compiles in threads, a file each, one for each processor of the machine."""
        if not self.kernels:
            return
        count = max(1, min(len(_processors()), len(self.kernels) // FEWEST))
        for number in range(count):
            share = slice(number, None, count)
            done: Future[Any] = Future()
            _underway.append(done)
            _in_thread(_compile, self.kernels[share], self.futures[share], done)
        self.kernels, self.futures = [], []


def _in_thread(run: Callable[..., Any], *args: Any) -> None:
    # In this thread's context, as that holds the settings of PyTorch's compiler.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run, *args), daemon=True).start()


def _compile(
    kernels: list[tuple[list[str], str]], futures: list[Future[Kernel]], done: Future[Any]
) -> None:
    try:
        # A rank is bound to a processor, but those of the ranks that wait for this one are idle.
        os.sched_setaffinity(0, _processors())
        module = _code_cache().load(merged(kernels), "cpu")
        for number, future in enumerate(futures):
            future.set_result(getattr(module, f"{ENTRY}_{number}"))
        done.set_result(None)
    except BaseException as error:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        done.set_exception(error)


@functools.cache
def _processors() -> frozenset[int]:
    """What this process may run on if it asks for all."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        return frozenset(os.sched_getaffinity(0))
    except OSError:
        return frozenset(before)
    finally:
        os.sched_setaffinity(0, before)


@functools.cache
def prepare() -> None:
    """Starts to do what comes before the first kernel on any machine: Inductor reads PyTorch's own
    files, of which its keys are made, and its headers ahead. Nobody waits for it, nor for its
    failure.
    """
    if torch.cuda.is_available():
        return
    _in_thread(_prepare)


def _prepare() -> None:
    with suppress(Exception):
        from torch._inductor.codecache import torch_key

        torch_key()
        _code_cache().load_async(f"#include <{PREFIX}>")


def finish() -> None:
    """Waits for what is being compiled; raises what the C++ compiler said."""
    while _underway:
        _underway.pop().result()


class _Awaited:
    """Stands for a kernel in the module of a graph until its first call."""

    def __init__(self, scope: dict[str, Any], name: str, future: Future[Kernel]) -> None:
        self._scope, self._name, self._future = scope, name, future

    def __call__(self, *args: Any) -> Any:
        kernel = self._future.result()
        self._scope[self._name] = kernel
        return kernel(*args)


def batched(pybinding: Kernel, wait: Kernel) -> tuple[Kernel, Kernel]:
    """AsyncCompile's two methods, for kernels in batches."""

    from torch._inductor.codecache import CodeCacheFuture

    class Pending(CodeCacheFuture):
        def __init__(self, future: Future[Kernel]) -> None:
            self.future = future

        def result(self, timeout: float | None = None) -> Kernel:
            return self.future.result(timeout)

    def cpp_pybinding(self: Any, argtypes: list[str], source_code: str) -> Any:
        if not _can_be_merged(source_code):
            return pybinding(self, argtypes, source_code)
        batch = vars(self).setdefault("ljtrain_batch", Batch())
        return Pending(batch.add(argtypes, source_code))

    def wait_for(self: Any, scope: dict[str, Any]) -> None:
        batch = vars(self).pop("ljtrain_batch", None)
        if batch is not None:
            batch.start()
        for name, value in list(scope.items()):
            if isinstance(value, Pending):
                scope[name] = _Awaited(scope, name, value.future)
        wait(self, scope)

    return cpp_pybinding, wait_for


def supported() -> bool:
    """Whether Inductor's bindings look as they did in the version this was written for."""
    template = _code_cache().suffix_template
    return _code_cache().entry_function == ENTRY and all(
        template.count(part) == 1 for part in (FUNCTION, METHODS, METHOD)
    )

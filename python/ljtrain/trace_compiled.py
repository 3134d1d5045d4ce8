"""Layers compiled as `layer.forward = torch.compile(layer.forward, fullgraph=True)`, for tracing.

Inductor decides by fusion which tensors exist at all, so its generated code is what is recorded: it
runs on small real tensors, with its C++ kernels left out (they compute, they allocate nothing) and
its allocations, which bypass the dispatcher, reported.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Report = Callable[[torch.Tensor, str], None]


class _Reporter:
    """Stands for Inductor's allocation function; generated modules keep the object they find."""

    def __init__(self, original: Callable[..., torch.Tensor]) -> None:
        self._original = original
        self.report: Report | None = None

    def __call__(self, *args: Any) -> torch.Tensor:
        tensor = self._original(*args)
        if self.report is not None:
            self.report(tensor, "inductor.buffer")
        return tensor


@contextlib.contextmanager
def kernels_left_out() -> Iterator[_Reporter]:
    """Inductor compiles no C++ in here; its generated code allocates through the reporter."""
    from torch._inductor import async_compile, config

    guards: Any = importlib.import_module("torch._C._dynamo.guards")
    reporter = _Reporter(guards._empty_strided_cpu)
    original = guards._empty_strided_cpu
    compiler: Any = async_compile.AsyncCompile
    cpp_pybinding = compiler.cpp_pybinding
    torch._dynamo.reset()
    guards._empty_strided_cpu = reporter
    compiler.cpp_pybinding = lambda *_, **__: lambda *_, **__: None
    try:
        with config.patch(force_disable_caches=True, cpp_wrapper=False):
            yield reporter
    finally:
        guards._empty_strided_cpu = original
        compiler.cpp_pybinding = cpp_pybinding
        torch._dynamo.reset()


def compile_layers(layers: list[torch.nn.Module]) -> None:
    for layer in layers:
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)

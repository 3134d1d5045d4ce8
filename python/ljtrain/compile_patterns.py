"""Loads Inductor's patterns of attention only for a graph that could hold one.

Before its first graph Inductor loads some sixty ways to write attention, to replace them by
`scaled_dot_product_attention`: the longest part of that graph's passes. Each has a softmax in it,
and a graph that calls `scaled_dot_product_attention` already has none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

Load = Callable[..., Any]
EXPONENTIALS = ("exp", "exp_")  # of a softmax that is written out


class OnDemand:
    """Stands for Inductor's loader, which it calls once a device."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.needed = False
        self._put_off: list[Any] = []

    def __call__(self, input_device: Any = None) -> None:
        if self.needed:
            self.load(input_device)
        else:
            self._put_off.append(input_device)

    def require(self) -> None:
        self.needed = True
        if not self._put_off:
            return
        from torch._inductor.pattern_matcher import init_once_fakemode

        load = init_once_fakemode(self.load)
        while self._put_off:
            load(self._put_off.pop())


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def may_hold_attention(module: torch.fx.GraphModule) -> bool:
    names = {
        _name(node.target)
        for submodule in module.modules()
        if isinstance(submodule, torch.fx.GraphModule)
        for node in submodule.graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
    }
    return any("softmax" in name.lower() or name in EXPONENTIALS for name in names)


def before(module: torch.fx.GraphModule) -> None:
    """Called before Inductor gets a graph."""
    from torch._inductor.fx_passes import fuse_attention

    loader = fuse_attention._sfdp_init
    if isinstance(loader, OnDemand) and not loader.needed and may_hold_attention(module):
        loader.require()


def replace_loader() -> Callable[[], None]:
    """Returns what puts Inductor's own loader back."""
    fuse_attention: Any = importlib.import_module("torch._inductor.fx_passes.fuse_attention")
    joint_graph: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    original = fuse_attention._sfdp_init
    fuse_attention._sfdp_init = OnDemand(original)

    def back() -> None:
        fuse_attention._sfdp_init = original
        joint_graph.lazy_init.cache_clear()  # so that the next graph asks for it again

    return back

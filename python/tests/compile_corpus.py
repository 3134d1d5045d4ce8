"""Constructs that break graphs, each in the middle of a layer.

The lines that end in `# graph` must be in a compiled graph, those in `# eager` in none; what a
comment says of neither is Python that leaves nothing in a graph. `FAST` are the ones that `make
test` runs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import os
import pickle
import random
import threading
import time
import warnings
import weakref
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compile_corpus_model import CONSTRUCTS, HIDDEN, Layer, Tensor, build, construct
from torch import nn

__all__ = ["CONSTRUCTS", "FAST", "build", "marked_lines"]

FAST = (
    "print",
    "item_branch",
    "data_dependent_shape",
    "generator",
    "context_manager",
    "try_except",
    "autograd_function",
    "numpy_call",
    "disabled_function",
    "library_operator",
)
# An address is unknown while Dynamo traces, and the error that it raises then ends the tracing of
# the layer's own code: only what its submodules compute is compiled.
ONLY_SUBMODULES = ("address",)


Line = tuple[str, int]  # file name and line


def marked_lines(name: str) -> tuple[set[Line], set[Line]]:
    """Lines that must be in a graph, and that must not."""
    compiled, eager = set(), set()
    for function in (CONSTRUCTS[name], Layer.forward.__wrapped__):  # type: ignore[attr-defined]
        lines, first = inspect.getsourcelines(function)
        file = Path(inspect.getfile(function)).name
        for number, line in enumerate(lines, start=first):
            if line.rstrip().endswith("# graph"):
                compiled.add((file, number))
            elif line.rstrip().endswith("# eager"):
                eager.add((file, number))
    if name in ONLY_SUBMODULES:
        return set(), compiled | eager
    return compiled, eager


# ---- talking to the outside ----


@construct
def print_(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    print("in the middle")  # eager
    return x + 1  # graph


@construct
def print_tensor(self: Any, x: Tensor) -> Tensor:
    norm = x.detach().float().norm()  # graph
    print("norm", norm)  # eager
    return x + 1  # graph


@construct
def logging_(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    logging.getLogger("corpus").info("in the middle")  # eager
    return x + 1  # graph


@construct
def warning(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    warnings.warn("in the middle", stacklevel=1)
    return x + 1  # graph


@construct
def f_string(self: Any, x: Tensor) -> Tensor:
    self.seen["text"] = f"{x.shape}"
    return x * len(self.seen["text"])  # graph


@construct
def clock(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    began = time.time()  # eager
    return x + 0 * (began > 0)  # graph


@construct
def environment(self: Any, x: Tensor) -> Tensor:
    return x * (2 if os.environ.get("CORPUS", "no") == "no" else 3)  # graph


@construct
def pickled(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    size = len(pickle.dumps({"a": 1}))  # eager
    return x + size  # graph


# ---- values and shapes that depend on data ----


@construct
def item_branch(self: Any, x: Tensor) -> Tensor:
    total = (x * 2).detach().sum()  # graph
    if total.item() > 1000:
        return x - 1
    if total.item() < 1000:
        return x + 1  # graph
    return x


@construct
def item_value(self: Any, x: Tensor) -> Tensor:
    scale = x.detach().abs().max().item()  # graph
    return x * scale  # graph


@construct
def tensor_branch(self: Any, x: Tensor) -> Tensor:
    large = (x * 2).mean() > 100  # graph
    if large:  # eager
        return x - 1
    return x + 1  # graph


@construct
def data_dependent_shape(self: Any, x: Tensor) -> Tensor:
    rows = (x.detach()[..., 0] > 0).nonzero()  # graph
    return x + rows.float().sum() * 0.01  # graph


@construct
def boolean_mask(self: Any, x: Tensor) -> Tensor:
    return x + x[x > 0].sum() * 0.01  # graph


@construct
def while_loop(self: Any, x: Tensor) -> Tensor:
    largest = x.detach().abs().max() * 4  # graph
    while largest > 1:
        largest = largest / 2
    return x * largest


@construct
def to_list(self: Any, x: Tensor) -> Tensor:
    first = x.detach()[0, 0, :2].float().tolist()  # graph
    return x * first[0] + first[1]  # graph


@construct
def sorted_by_value(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    order = sorted(range(3), key=lambda index: float(x[0, index, 0].detach()))
    return x + order[0]


@construct
def assertion(self: Any, x: Tensor) -> Tensor:
    assert x.detach().abs().sum() >= 0, "negative"
    return x + 1  # graph


@construct
def unique(self: Any, x: Tensor) -> Tensor:
    kinds = torch.unique((x.detach() > 0).int())  # graph
    return x + kinds.numel()  # graph


# ---- control flow ----


@construct
def generator(self: Any, x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        for factor in (1, 2, 3):
            yield x * factor

    return sum(parts(), start=x)  # graph


@construct
def generator_with_print(self: Any, x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        for factor in (1, 2):
            print(factor)
            yield x * factor

    x = x * 2  # eager
    return sum(parts(), start=x)  # eager


@contextlib.contextmanager
def doubled(values: list[int]) -> Iterator[int]:
    values.append(2)
    try:
        yield values[-1]
    finally:
        values.pop()


@construct
def context_manager(self: Any, x: Tensor) -> Tensor:
    with doubled([]) as factor:
        return x * factor  # graph


@construct
def context_manager_with_print(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    with doubled([]) as factor:
        print(factor)  # eager
        x = x * factor  # eager
    return x + 1  # graph


@construct
def no_grad(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().mean()  # graph
    return x * scale  # graph


THE_LOCK = threading.Lock()


@construct
def lock(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    with THE_LOCK:  # eager
        x = x + 1  # eager
    return x * 2  # graph


@construct
def try_except(self: Any, x: Tensor) -> Tensor:
    try:
        x = x * {"a": 2}["b"]
    except KeyError:
        x = x * 3  # graph
    return x + 1  # graph


@construct
def try_except_with_print(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    try:
        print("trying")  # eager
        x = x + 1  # eager
    except ValueError:
        x = x - 1
    return x * 3  # graph


@construct
def loop_with_print(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    for factor in (1, 2):
        print(factor)  # eager
        x = x * factor  # eager
    return x + 1  # graph


@construct
def try_finally(self: Any, x: Tensor) -> Tensor:
    try:
        x = x * 2  # graph
    finally:
        self.seen["done"] = True
    return x + 1  # graph


@construct
def recursion(self: Any, x: Tensor) -> Tensor:
    def down(value: Tensor, depth: int) -> Tensor:
        return value if depth == 0 else down(value * 2, depth - 1)

    return down(x, 3) + 1  # graph


@construct
def map_filter_zip(self: Any, x: Tensor) -> Tensor:
    factors = map(lambda pair: pair[0] * pair[1], zip((1, 2, 3), (3, 2, 1), strict=True))
    return x * sum(factor for factor in filter(None, factors) if factor > 3)  # graph


# ---- closures and state ----


@construct
def closure(self: Any, x: Tensor) -> Tensor:
    count = 0

    def more(value: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return value * count  # graph

    return more(more(x))  # graph


@construct
def attribute_changed(self: Any, x: Tensor) -> Tensor:
    self.seen["calls"] = 1
    return x * self.seen["calls"]  # graph


@construct
def counter(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x * (1 + self.calls % 7)


@construct
def buffer_in_place(self: Any, x: Tensor) -> Tensor:
    self.total.add_(1)  # graph
    return x + self.total * 0  # graph


@construct
def module_attribute_set(self: Any, x: Tensor) -> Tensor:
    self.last_width = x.shape[-1]
    return x * (self.last_width / HIDDEN)  # graph


@functools.lru_cache
def cached(width: int) -> int:
    return width + 1


@construct
def cached_function(self: Any, x: Tensor) -> Tensor:
    return x * cached(2)  # graph


Pair = namedtuple("Pair", ["left", "right"])


@construct
def named_tuple(self: Any, x: Tensor) -> Tensor:
    pair = Pair(x * 2, x + 1)  # graph
    return pair.left + pair.right  # graph


@dataclasses.dataclass
class Parts:
    left: Tensor
    right: Tensor


@construct
def data_class(self: Any, x: Tensor) -> Tensor:
    parts = Parts(x * 2, x + 1)  # graph
    return parts.left + parts.right  # graph


@construct
def copied(self: Any, x: Tensor) -> Tensor:
    values = copy.deepcopy({"factor": 2})
    return x * values["factor"]  # graph


@construct
def weak_reference(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    alive = weakref.ref(self)() is not None
    return x + int(alive)  # graph


@construct
def inspected(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    arguments = len(inspect.signature(cached.__wrapped__).parameters)
    return x + arguments  # graph


# ---- autograd ----


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2


class Talking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        print("forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2


@construct
def autograd_function(self: Any, x: Tensor) -> Tensor:
    return Doubled.apply(x) + 1  # graph


@construct
def autograd_function_with_print(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    x = Talking.apply(x)  # eager
    return x + 1  # graph


@construct
def tensor_hook(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 2)
    return x + 1  # graph


@construct
def forward_hook(self: Any, x: Tensor) -> Tensor:
    if not self.before._forward_hooks:
        self.before.register_forward_hook(lambda module, args, output: output * 2)  # eager
    return x + 1  # graph


@construct
def detached(self: Any, x: Tensor) -> Tensor:
    return x * x.detach().sigmoid()  # graph


# ---- aliasing ----


@construct
def in_place(self: Any, x: Tensor) -> Tensor:
    y = x * 2  # graph
    y.add_(1)  # graph
    y[..., :4].mul_(3)  # graph
    return y


@construct
def in_place_on_a_view(self: Any, x: Tensor) -> Tensor:
    y = x.clone()  # graph
    rows = y.view(-1, HIDDEN)  # graph
    rows[0] = 0  # graph
    return y + rows.view_as(y)  # graph


@construct
def address(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # eager
    aligned = x.data_ptr() % 2 == 0  # eager
    return x + int(aligned)  # eager


# ---- chance ----


@construct
def python_random(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    factor = random.Random(3).random()
    return x * factor  # graph


@construct
def dropout(self: Any, x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.1, training=False) + 1  # graph


@construct
def numpy_call(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    factor = np.tanh(np.ones(3)).sum()
    return x * float(factor)  # graph


@construct
def numpy_of_a_tensor(self: Any, x: Tensor) -> Tensor:
    values = x.detach().float().cpu().numpy()  # graph
    return x + torch.from_numpy(np.abs(values)).to(x.dtype)  # graph


@construct
def numpy_random(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    factor = np.random.RandomState(3).rand()  # eager
    return x * factor  # graph


# ---- what the compiler must leave alone ----


@torch.compiler.disable
def never_compiled(x: Tensor) -> Tensor:
    return x * 3


@construct
def disabled_function(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    x = never_compiled(x)  # eager
    return x + 1  # graph


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * 3


@construct
def scripted_function(self: Any, x: Tensor) -> Tensor:
    x = x * 2  # graph
    x = scripted(x)  # graph
    return x + 1  # graph


@torch.library.custom_op("corpus::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x * 3


@tripled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


tripled.register_autograd(lambda ctx, gradient: gradient * 3, setup_context=lambda *_, **__: None)


@construct
def library_operator(self: Any, x: Tensor) -> Tensor:
    return tripled(x * 2) + 1  # graph


_library = torch.library.Library("corpus", "FRAGMENT")
_library.define("opaque(Tensor x) -> Tensor")
_library.impl("opaque", lambda x: torch.mul(x, 3), "CompositeImplicitAutograd")
_library.define("without_fake(Tensor x) -> Tensor")
_library.impl("without_fake", lambda x: x.clone(), "CPU")


@construct
def composite_operator(self: Any, x: Tensor) -> Tensor:
    return torch.ops.corpus.opaque(x * 2) + 1  # graph


@construct
def operator_without_fake(self: Any, x: Tensor) -> Tensor:
    scale = x.detach() * 2  # graph
    scale = torch.ops.corpus.without_fake(scale)  # eager
    return x * scale  # graph


CPP_SOURCE = """
#include <torch/library.h>
#include <ATen/ATen.h>
static at::Tensor quadrupled(const at::Tensor& x) { return x * 4; }
TORCH_LIBRARY(corpus_cpp, m) { m.def("quadrupled(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(corpus_cpp, CompositeImplicitAutograd, m) { m.impl("quadrupled", quadrupled); }
"""


@functools.cache
def load_cpp_operator() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load_inline(
        "corpus_cpp", CPP_SOURCE, is_python_module=False, no_implicit_headers=True
    )


@construct
def cpp_operator(self: Any, x: Tensor) -> Tensor:
    return torch.ops.corpus_cpp.quadrupled(x * 2) + 1  # graph

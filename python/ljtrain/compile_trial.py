"""Runs a layer on copies of its inputs, forward and backward, without a trace in the training: no
gradient is accumulated, no hook of an engine fires, random numbers and buffers are as before.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ljtrain import compile_inputs
from ljtrain.compile_layers import PLAIN

Run = Callable[..., Any]
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15
BUDGET_S = 0.5  # of measuring both ways, once a layer kind


@dataclass(frozen=True)
class Call:
    """A call of a layer's forward. `varying`: sizes to compile for any value of."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    varying: frozenset[int] = frozenset()


@contextmanager
def no_trace(layer: nn.Module) -> Iterator[None]:
    """Puts back what a layer's forward may change: random state, buffers, plain attributes."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in layer.buffers()]
    plain = [
        (module, {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)})
        for module in layer.modules()
    ]
    with ExitStack() as stack:
        devices = _devices(layer)
        stack.enter_context(torch.random.fork_rng(devices=devices, enabled=True))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        # The hooks of a checkpoint around this call must not see what is saved here.
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        )
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for module, attributes in plain:
                vars(module).update(attributes)


@contextmanager
def without_reentry(layer: nn.Module) -> Iterator[None]:
    """A reentrant checkpoint refuses autograd.grad, which is what leaves no trace; the other kind
    computes the same.
    """
    checkpoint: Any = vars(layer).get("_gradient_checkpointing_func")
    reentrant = isinstance(checkpoint, functools.partial) and checkpoint.keywords.get(
        "use_reentrant", False
    )
    if not reentrant:
        yield
        return
    layer._gradient_checkpointing_func = functools.partial(  # type: ignore[assignment]
        checkpoint.func, *checkpoint.args, **{**checkpoint.keywords, "use_reentrant": False}
    )
    try:
        yield
    finally:
        layer._gradient_checkpointing_func = checkpoint


def _devices(layer: nn.Module) -> list[int]:
    device = next((parameter.device for parameter in layer.parameters()), torch.device("cpu"))
    return [device.index or 0] if device.type == "cuda" else []


def step(run: Run, call: Call) -> float:
    """Seconds of forward, and of backward where gradients are wanted."""
    layer = call.layer
    args, kwargs = compile_inputs.copy_to_try((call.args, call.kwargs))
    if call.varying:
        compile_inputs.mark_dynamic((args, kwargs), call.varying)
    _synchronize(layer)
    began = time.perf_counter()
    output = run(layer, *args, **kwargs)
    if torch.is_grad_enabled():
        _backward(output, layer, args, kwargs)
    _synchronize(layer)
    return time.perf_counter() - began


@torch.no_grad()
def forward_alone(run: Run, call: Call) -> float:
    """Seconds of forward with nothing kept for a backward."""
    args, kwargs = compile_inputs.copy_to_try((call.args, call.kwargs))
    _synchronize(call.layer)
    began = time.perf_counter()
    run(call.layer, *args, **kwargs)
    _synchronize(call.layer)
    return time.perf_counter() - began


def _backward(output: Any, layer: nn.Module, args: Any, kwargs: Any) -> None:
    outputs = [
        value
        for value in compile_inputs.values(output)
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    inputs = [
        value
        for value in compile_inputs.values((args, kwargs))
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    wanted = inputs + [
        parameter
        for parameter in layer.parameters()
        if parameter.requires_grad and parameter.numel() > 0
    ]
    if outputs and wanted:
        torch.autograd.grad(
            outputs, wanted, [torch.ones_like(value) for value in outputs], allow_unused=True
        )


def _synchronize(layer: nn.Module) -> None:
    if _devices(layer):
        torch.cuda.synchronize()


def compare(one: Run, other: Run, call: Call) -> tuple[float, float]:
    """Median seconds of two ways to run a layer, in turns; both have run before. Where each run of
    one way is slower than each of the other, a few tell.
    """
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while len(times[0]) < FEWEST_ROUNDS or (
        len(times[0]) < MOST_ROUNDS
        and time.perf_counter() - began < BUDGET_S
        and min(times[0]) <= max(times[1])
        and min(times[1]) <= max(times[0])
    ):
        times[0].append(step(one, call))
        times[1].append(step(other, call))
    return statistics.median(times[0]), statistics.median(times[1])

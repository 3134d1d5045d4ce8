"""Compiles and tries every kind of layer before the first step has computed anything.

The first batch, once it reaches the model, goes through it ahead of the training: what comes before
the layers runs as it is, one layer of each kind is compiled and tried on the inputs that reach it
(see compile_kind), the others hand on that layer's outputs, and behind the last one, or the loss
where that is compiled too, the pass ends.
No hook of an engine is called: the pass gathers what it needs itself, so neither ZeRO's record of
the order of its modules nor anything else in the training shows that it has been.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ljtrain import compile_backend, compile_inputs, compile_trial
from ljtrain.compile_kind import CompiledKind
from ljtrain.compile_loss import Loss

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Hooks of these packages are part of what a model computes (inputs that need gradients). Those of
# engines and users have effects that a pass before the training must not have.
KEPT = ("ljtrain", "transformers", "peft")

_log = logging.getLogger("ljtrain")


class _Enough(BaseException):
    """Ends the model's forward behind its last layer; nothing may catch it as a failure."""


class DryPass:
    """One training's pass. `both`: layers may be checkpointed or not later on, so that each kind is
    compiled for both.
    """

    def __init__(self, model: nn.Module, kinds: list[CompiledKind], *, both: bool) -> None:
        self.seconds = 0.0
        self.failure: str | None = None
        self.done = False
        self._model = model
        self._kinds = kinds
        self._both = both
        self._expected = {id(layer) for kind in kinds for layer in kind.kind.layers}
        self._outputs: dict[Any, Any] = {}
        # The first of all hooks: an engine's have not gathered or recorded anything yet.
        self._handle = model.register_forward_pre_hook(self._start, prepend=True, with_kwargs=True)

    def remove(self) -> None:
        self._handle.remove()

    def report(self) -> dict[str, Any]:
        return {"done": self.done, "seconds": self.seconds, "failure": self.failure}

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return  # an evaluation before the training
        self.remove()
        began = time.perf_counter()
        try:
            self._run(args, kwargs)
            self.done = True
        except Exception as error:  # what has not been met compiles at its first call
            _log.debug("the pass before the first step", exc_info=error)
            self.failure = compile_backend.short_cause(error)
        self._outputs.clear()
        torch.clear_autocast_cache()
        self.seconds = time.perf_counter() - began

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layers = [layer for kind in self._kinds for layer in kind.kind.layers]
        inside = {id(part) for layer in layers for part in layer.modules() if part is not layer}
        outside = [module for module in self._model.modules() if id(module) not in inside]
        args, kwargs = compile_inputs.copy_to_try((args, kwargs))
        if kwargs.get("labels") is None:  # the loss is computed by somebody else
            self._expected -= {id(layer) for layer in layers if isinstance(layer, Loss)}
        with ExitStack() as stack:
            stack.enter_context(compile_trial.no_trace(self._model))
            stack.enter_context(_undiscovered(outside))
            stack.enter_context(_without_hooks(outside))
            stack.enter_context(_gathering(outside, self._expected, self._model))
            for kind in self._kinds:
                kind.rehearse = self._call
                stack.callback(setattr, kind, "rehearse", None)
            try:
                self._model.forward(*args, **kwargs)
            except _Enough:
                return

    def _call(self, kind: CompiledKind, layer: nn.Module, args: Any, kwargs: Any) -> Any:
        """Stands for a layer's forward."""
        args, kwargs = _cast(layer, args, kwargs)
        signature = compile_inputs.signature((args, kwargs), sizes=True)
        key = (id(kind), kind.variant_key(layer), signature)
        if key not in self._outputs:
            with _gathered(layer, layer.parameters()):
                kind.prepare(layer, args, kwargs)
                if self._both and hasattr(layer, "gradient_checkpointing"):
                    with _other_way(layer):
                        kind.prepare(layer, args, kwargs)
                if self._expected <= {id(layer)}:
                    raise _Enough
                with compile_trial.no_trace(layer):
                    self._outputs[key] = kind.forward(layer, *args, **kwargs)
        self._expected.discard(id(layer))
        if not self._expected:
            raise _Enough
        return self._outputs[key]


@contextmanager
def _other_way(layer: Any) -> Iterator[None]:
    """The layer checkpointed where it is not, and the other way round."""
    before = layer.gradient_checkpointing
    layer.gradient_checkpointing = not before
    try:
        yield
    finally:
        layer.gradient_checkpointing = before


# ---- what engines do around modules ----


def _owner(hook: Callable[..., Any]) -> str:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", None) or "").split(".", maxsplit=1)[0]


@contextmanager
def _without_hooks(modules: Iterable[nn.Module]) -> Iterator[None]:
    before = []
    for module in modules:
        for name in HOOKS:
            hooks = vars(module).get(name)
            if hooks:
                kept = ((key, hook) for key, hook in hooks.items() if _owner(hook) in KEPT)
                before.append((module, name, hooks))
                vars(module)[name] = OrderedDict(kept)
    try:
        yield
    finally:
        for module, name, hooks in before:
            vars(module)[name] = hooks


@contextmanager
def _undiscovered(modules: Iterable[nn.Module]) -> Iterator[None]:
    """DeepSpeed takes a parameter that is read while it is not gathered for one that the reading
    module always needs, and would remember it.
    """
    watching: list[Any] = [
        module._parameters
        for module in modules
        if getattr(module._parameters, "_in_forward", False)
    ]
    for parameters in watching:
        parameters._in_forward = False
    try:
        yield
    finally:
        for parameters in watching:
            parameters._in_forward = True


def _gathered(module: nn.Module, parameters: Iterable[torch.Tensor]) -> AbstractContextManager[Any]:
    """Parameters whole, and as they were afterwards, under any engine."""
    partitioned = [
        parameter
        for parameter in parameters
        if getattr(getattr(parameter, "ds_status", None), "name", "") == "NOT_AVAILABLE"
    ]
    stack = ExitStack()
    if partitioned:
        from deepspeed import zero

        stack.enter_context(zero.GatheredParameters(partitioned))
    elif _is_fsdp(module):
        sharded: Any = module
        sharded.unshard()
        stack.callback(sharded.reshard)
    return stack


def _is_fsdp(module: nn.Module) -> bool:
    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _cast(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """FSDP2's mixed precision, which a hook of it does."""
    if not _is_fsdp(module):
        return args, kwargs
    sharded: Any = module
    cast: tuple[Any, Any] = sharded._get_fsdp_state()._cast_forward_inputs(args, kwargs)
    return cast


@contextmanager
def _gathering(modules: list[nn.Module], layers: set[int], model: nn.Module) -> Iterator[None]:
    """Each of the modules gathered while it runs; layers gather themselves."""
    running: list[tuple[nn.Module, AbstractContextManager[Any]]] = []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        running.append((module, _gathered(module, module.parameters(recurse=False))))
        return _cast(module, args, kwargs)

    def end(module: nn.Module, *_: Any) -> None:
        while running:
            last, context = running.pop()
            context.__exit__(None, None, None)
            if last is module:
                return

    handles: list[Any] = []
    for module in modules:
        if id(module) in layers or module is model:
            continue
        handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
        handles.append(module.register_forward_hook(end))
    begin(model, (), {})
    try:
        yield
    finally:
        end(model)
        for handle in handles:
            handle.remove()

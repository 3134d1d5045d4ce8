"""The layers whose activations may be recomputed, and how each is told what to keep.

Three kinds of layers can be told one by one, at step boundaries: transformers' own
(`GradientCheckpointingLayer` reads two attributes of its instance at each call), those that
accelerate or PyTorch's FSDP recipes have put into a `CheckpointWrapper`, and the repeated layers of
any other model, whose `forward` is put into a checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from ljtrain import compile_layers, patches

NONE, SELECTED, FULL = "none", "selected", "full"
Function = Callable[..., Any]

# What checkpoint functions call a choice that only checkpoints without re-entrance can make.
CONTEXT = "context_fn"


@dataclass(frozen=True)
class Policy:
    """What each layer keeps for its backward: `none` keeps all that autograd saves, `full` the
    layer's input, `selected` its input and the outputs of `kept` operators (`aten.mm`).
    """

    layers: tuple[str, ...]
    kept: frozenset[str] = frozenset()

    @classmethod
    def first(cls, layers: int, recomputed: int) -> Policy:
        """The first `recomputed` layers fully: the last ones' activations are freed first."""
        return cls((FULL,) * recomputed + (NONE,) * (layers - recomputed))

    @property
    def recomputed(self) -> int:
        return sum(choice != NONE for choice in self.layers)


@dataclass
class Layers:
    """A model's layers, first to last, and what they were before they were told anything."""

    modules: list[nn.Module]
    how: str  # "transformers", "wrapper" or "plain"
    names: list[str] = field(default_factory=list)
    restore: list[Callable[[], None]] = field(default_factory=list)
    checkpoints: list[Function] = field(default_factory=list)  # as asked for, one a layer
    choices: list[_PlainChoice] = field(default_factory=list)  # of plain layers
    _selective: dict[frozenset[str], dict[int, Function]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def can_select(self) -> bool:
        """Whether operators can be chosen: not where the checkpoint was asked to be re-entrant."""
        return self.how == "plain" or all(
            _keywords(function).get("use_reentrant") is False for function in self.checkpoints
        )

    def selective(self, number: int, kept: frozenset[str]) -> Function:
        """The layer's own checkpoint, with the outputs of `kept` operators kept."""
        if not self.can_select:
            raise ValueError("a re-entrant checkpoint cannot keep the outputs of some operators")
        made = self._selective.setdefault(kept, {})
        if number not in made:
            made[number] = functools.partial(
                self.checkpoints[number], **{CONTEXT: functools.partial(_contexts, kept)}
            )
        return made[number]

    def take_back(self) -> None:
        """Leaves every layer as it was found."""
        for restore in reversed(self.restore):
            restore()
        self.restore.clear()


def _keywords(function: Function) -> dict[str, Any]:
    return dict(getattr(function, "keywords", {}))


def _contexts(kept: frozenset[str]) -> Any:
    must, recompute = (
        torch_checkpoint.CheckpointPolicy.MUST_SAVE,
        torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE,
    )

    def choose(_: Any, operator: Any, *__: Any, **___: Any) -> Any:
        return must if str(getattr(operator, "overloadpacket", operator)) in kept else recompute

    forward, backward = torch_checkpoint.create_selective_checkpoint_contexts(choose)
    return forward, _KeptOnly(kept, backward)


class _KeptOnly(TorchDispatchMode):
    """A recomputation's context that looks at kept operators alone. PyTorch's own refuses every
    operator that the forward did not run in the same place, and ZeRO-3 gathers when it has to.
    """

    def __init__(self, kept: frozenset[str], cached: Any) -> None:
        super().__init__()
        self._kept = kept
        self._cached = cached

    def __enter__(self) -> Any:
        self._cached.func_counter.clear()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func.overloadpacket) in self._kept:
            return self._cached.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


# ---- finding them ----


def find(model: nn.Module) -> Layers | None:
    """The layers that can be told what to recompute; None: the model has none that are known."""
    return _transformers_layers(model) or _wrapped_layers(model) or _plain_layers(model)


def asked_for(model: nn.Module) -> bool:
    """Whether the model's own checkpointing is on, in whole or in part."""
    return any(
        bool(getattr(module, "gradient_checkpointing", False)) for module in model.modules()
    ) or any(_is_wrapper(module) for module in model.modules())


def _outermost(
    model: nn.Module, wanted: Callable[[nn.Module], bool]
) -> list[tuple[str, nn.Module]]:
    found: list[tuple[str, nn.Module]] = []

    def look(module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if wanted(child):
                found.append((path, child))
            else:
                look(child, f"{path}.")

    look(model, "")
    return found


def _transformers_layers(model: nn.Module) -> Layers | None:
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:  # a plain PyTorch environment
        return None
    # Not one whose forward somebody has replaced: it would not read the attribute. A compiled
    # layer's calls the original.
    found = _outermost(
        model,
        lambda module: (
            isinstance(module, GradientCheckpointingLayer)
            and hasattr(module, "_gradient_checkpointing_func")
        ),
    )
    if not found:
        return None
    layers = Layers([module for _, module in found], "transformers", [name for name, _ in found])
    for _, module in found:
        function: Any = module._gradient_checkpointing_func
        layers.checkpoints.append(function)
        on = bool(module.gradient_checkpointing)
        layers.restore.append(functools.partial(_set_transformers, module, on, function))
    return layers


def _set_transformers(module: Any, on: bool, function: Function) -> None:
    module.gradient_checkpointing = on
    module._gradient_checkpointing_func = function


def _is_wrapper(module: nn.Module) -> bool:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

    return isinstance(module, CheckpointWrapper)


def _wrapped_layers(model: nn.Module) -> Layers | None:
    found = _outermost(model, _is_wrapper)
    if not found:
        return None
    layers = Layers([module for _, module in found], "wrapper", [name for name, _ in found])
    for _, module in found:
        function: Any = module.checkpoint_fn
        layers.checkpoints.append(function)
        layers.restore.append(functools.partial(setattr, module, "checkpoint_fn", function))
    return layers


def _keep_all(function: Function, *args: Any, **kwargs: Any) -> Any:
    """A checkpoint that recomputes nothing."""
    return function(*args, **kwargs)


def _plain_layers(model: nn.Module) -> Layers | None:
    found = [
        (name, layer)
        for name, layer in compile_layers.find_layers(model)
        if any(parameter.requires_grad for parameter in layer.parameters())
    ]
    if len(found) < compile_layers.FEWEST_LAYERS:
        return None
    layers = Layers([module for _, module in found], "plain", [name for name, _ in found])
    for _, module in found:
        layers.checkpoints.append(
            functools.partial(torch_checkpoint.checkpoint, use_reentrant=False)
        )
        choice = _PlainChoice(module.forward)
        layers.choices.append(choice)
        layers.restore.append(patches.LAYER_FORWARD.apply(module, choice))
    return layers


class _PlainChoice:
    """Stands for the forward of a layer that knows no checkpointing."""

    def __init__(self, forward: Function) -> None:
        self.forward = forward
        self.layer: Any = getattr(forward, "__self__", None)
        self.checkpoint: Function | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self.layer is None or self.layer.training
        if self.checkpoint is None or not training or not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return self.checkpoint(functools.partial(self.forward, **kwargs), *args)


# ---- telling them ----


def set_policy(
    layers: Layers, policy: Sequence[str] | Policy, kept_operators: Iterable[str] = ()
) -> None:
    """What each layer keeps from its next forward on. Between steps only: a layer whose forward has
    run must be recomputed as it was run.
    """
    if not isinstance(policy, Policy):
        policy = Policy(tuple(policy), frozenset(kept_operators))
    if len(policy.layers) != len(layers):
        raise ValueError(
            f"a policy for {len(policy.layers)} layers, and the model has {len(layers)}"
        )
    for number, choice in enumerate(policy.layers):
        _tell(layers, number, choice, policy.kept)


def _tell(layers: Layers, number: int, choice: str, kept: frozenset[str]) -> None:
    module: Any = layers.modules[number]
    function: Function | None = None
    if choice == FULL:
        function = layers.checkpoints[number]
    elif choice == SELECTED:
        function = layers.selective(number, kept)
    elif choice != NONE:
        raise ValueError(f"a layer's policy is none, selected or full, not {choice}")
    if layers.how == "transformers":
        module.gradient_checkpointing = function is not None
        module._gradient_checkpointing_func = function or layers.checkpoints[number]
    elif layers.how == "wrapper":
        module.checkpoint_fn = function or _keep_all
    else:
        layers.choices[number].checkpoint = function

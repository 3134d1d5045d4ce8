"""The loss behind a model's head, compiled as one more kind of layer.

The logits are the largest tensor of a step wherever the vocabulary is large, and transformers'
losses make float32 of them and go over them a dozen times. In one graph they are read as the head
left them, and float32 stays in registers: what is kept for the backward is the logits themselves.

A model of transformers takes another function as its `loss_function`. What stands for it here is a
module without parameters, so that all that is done for a layer is done for it: compiled and tried
before the first step, kept only where it beats eager, eager again if it fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ljtrain.compile_layers import LayerKind

Function = Callable[..., Any]
ITEMS = "num_items_in_batch"


class Loss(nn.Module):
    """`function` as a layer."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _with_head(model: nn.Module) -> PreTrainedModel | None:
    """The outermost model of transformers whose output is a vocabulary's logits."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None:
            return module
    return None


def find(model: nn.Module) -> tuple[PreTrainedModel, LayerKind] | None:
    """The model that computes its own loss, and that loss."""
    owner = _with_head(model)
    if owner is None or getattr(owner, "loss_type", None) is None:
        return None
    function = owner.loss_function
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    signature = (getattr(function, "__module__", ""), name, code.co_code if code else None)
    return owner, LayerKind(name, signature, [Loss(function)], ["loss_function"])


def _differentiated(value: Any) -> bool:
    # No subclass: tensors that are sharded, or that are being traced.
    return type(value) is torch.Tensor and value.requires_grad and torch.is_grad_enabled()


def install(owner: PreTrainedModel, loss: Any) -> Callable[[], None]:
    """Puts the loss into the model; returns what takes it out again."""
    before = vars(owner).get("_loss_function")

    @functools.wraps(loss.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        logits: Any = args[0] if args else kwargs.get("logits")
        if not owner.training or not _differentiated(logits):
            return loss.function(*args, **kwargs)
        if type(kwargs.get(ITEMS)) in (int, float):  # another number every step: not a constant
            kwargs = {**kwargs, ITEMS: torch.tensor(kwargs[ITEMS], device=logits.device)}
        return loss(*args, **kwargs)

    owner.loss_function = run

    def back() -> None:
        del owner._loss_function
        if before is not None:
            owner.loss_function = before

    return back

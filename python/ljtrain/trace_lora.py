"""Low-rank adapters as peft computes them, for tracing.

    y = base(x) + B(A(x)) * scale,  A [rank, in], B [out, rank], base frozen

(Hu et al. 2021; peft/tuners/lora/layer.py, Linear.forward without dropout: the input is cast to the
adapter's type, and nothing else is kept.)
"""

from __future__ import annotations

from typing import Any

import torch

SCALE = 2.0


class LoraLinear(torch.nn.Module):
    def __init__(self, base: torch.nn.Module, rank: int, inputs: int, outputs: int) -> None:
        super().__init__()
        dtype = base.weight.dtype
        self.base_layer = base
        self.lora_A = torch.nn.Linear(inputs, rank, bias=False, dtype=dtype)
        self.lora_B = torch.nn.Linear(rank, outputs, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base_layer(x)
        result_dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(x)) * SCALE
        return result.to(result_dtype)


def adapt(model: Any, layers: list[torch.nn.Module], rank: int) -> None:
    """Freezes `model` and gives every linear module of its layers an adapter (peft's target
    "all-linear").
    """
    from transformers.pytorch_utils import Conv1D

    model.requires_grad_(False)
    for layer in layers:
        for module in list(layer.modules()):
            for name, child in list(module.named_children()):
                if isinstance(module, LoraLinear):
                    continue
                if isinstance(child, torch.nn.Linear):
                    adapted = LoraLinear(child, rank, child.in_features, child.out_features)
                elif isinstance(child, Conv1D):
                    adapted = LoraLinear(child, rank, child.nx, child.nf)
                else:
                    continue
                setattr(module, name, adapted)

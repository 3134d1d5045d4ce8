"""Memory that PyTorch's CPU kernels allocate inside one operator, where no dispatch mode sees it.

Found by measuring every operator of real steps with the measuring allocator; each rule names its
source. They hold on hosts: profiles give them the role "host_temporary", so that a prediction for a
device leaves them out. Not modelled: the scratch of oneDNN's bfloat16 matrix products, 0.1 to 1.4
MB whatever the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_POINTWISE = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"
# Rows of queries and columns of keys in one block, from 768 positions (192 and fewer take less).
_QUERY_BLOCK, _KEY_BLOCK = 256, 512


@dataclass(frozen=True)
class Temporary:
    """A buffer that lives within one operator."""

    shape: tuple[int, ...]
    item_bytes: int

    @property
    def bytes(self) -> int:
        total = self.item_bytes
        for size in self.shape:
            total *= size
        return total


def temporaries(name: str, args: Sequence[Any]) -> list[Temporary]:
    """The buffers that the CPU kernel of operator `name` holds beside its outputs, all at once."""
    if name in _POINTWISE:
        return _promoted(args)
    if name == _FLASH:
        return _flash_blocks(args[0])
    return []


def _promoted(args: Sequence[Any]) -> list[Temporary]:
    """An operand of another type is first copied to the common one (TensorIterator.cpp,
    compute_types); a CUDA kernel converts as it loads.
    """
    tensors = [argument for argument in args[:2] if isinstance(argument, torch.Tensor)]
    if len(tensors) < 2 or any(tensor.dim() == 0 for tensor in tensors):
        return []
    common = torch.promote_types(tensors[0].dtype, tensors[1].dtype)
    return [
        Temporary(tuple(tensor.shape), common.itemsize)
        for tensor in tensors
        if tensor.dtype != common
    ]


def _flash_blocks(query: torch.Tensor) -> list[Temporary]:
    """One thread's block of scores, its row sums and its block of outputs, in float32, and the
    scores once more in a type that is not (native/cpu/FlashAttentionKernel.cpp, size_per_thread).
    """
    head_dim = query.shape[-1]
    blocks = [
        Temporary((_QUERY_BLOCK, _KEY_BLOCK + 2), 4),
        Temporary((_QUERY_BLOCK, head_dim), 4),
    ]
    if query.dtype != torch.float32:
        blocks.append(Temporary((_QUERY_BLOCK, _KEY_BLOCK), query.element_size()))
    return blocks

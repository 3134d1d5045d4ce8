"""Memory that PyTorch's CPU kernels allocate inside one operator, where no dispatch mode sees it.

Each rule names its source. They hold for tensors on hosts; profiles mark what comes from them, so
that a prediction for a device leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Temporary:
    """A buffer that lives within one operator."""

    shape: tuple[int, ...]
    item_bytes: int
    reason: str

    @property
    def bytes(self) -> int:
        total = self.item_bytes
        for size in self.shape:
            total *= size
        return total


def temporaries(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[torch.Tensor]
) -> list[Temporary]:
    """The buffers that the CPU kernel of operator `name` allocates beside its outputs."""
    return []

"""How the ranks decide alike: each step they take the largest of what each of them says.

One all-reduce of a few numbers a step, at a place that every rank reaches with every step, so that
it can neither be missed nor cross another. Everything that is decided follows from what it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed


class Ranks:
    """The ranks that train together."""

    def __init__(self) -> None:
        self.size, self.rank = 1, 0
        self._group: Any = None
        self._device = torch.device("cpu")
        if not distributed.is_available() or not distributed.is_initialized():
            return
        self.size, self.rank = distributed.get_world_size(), distributed.get_rank()
        if self.size > 1 and not self._cpu_collectives():
            if distributed.is_gloo_available():
                self._group = distributed.new_group(backend="gloo")
            else:
                self._device = torch.device("cuda", torch.cuda.current_device())

    @staticmethod
    def _cpu_collectives() -> bool:
        """Whether the existing group moves tensors of hosts, too."""
        group: Any = distributed.group.WORLD
        return torch.device("cpu") in group._device_types

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number over the ranks."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(list(numbers), dtype=torch.float64, device=self._device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return [float(number) for number in tensor.tolist()]

"""What a step would take if communication cost nothing: `ljperf benchmark --collectives none`.

The engine partitions, gathers and reduces as ever, but after the second step (until when it checks
that ranks agree) its process groups are PyTorch's own FakeProcessGroup: an all-gather copies the
rank's part into every place, so that what is computed stays finite; every other collective returns
at once. Ranks train apart; the loss means nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import FakeProcessGroup, ProcessGroup
from torch.distributed import distributed_c10d
from transformers import TrainerCallback

CHECKED_STEPS = 2  # ZeRO-3 compares what its ranks fetch while it records them


def remove_communication() -> None:
    """From now on no group of this process exchanges anything between hosts' tensors."""
    for group in distributed_c10d._world.pg_map:
        fake = FakeProcessGroup._create_internal(group.rank(), group.size())
        # A type that the group has no backend of yet: for one that it has, it keeps the old one.
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, fake)


class NoCommunication(TrainerCallback):
    """Takes communication away once the engine has stopped checking that ranks agree."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == CHECKED_STEPS:
            remove_communication()

"""What a step would take if communication cost nothing: `ljperf benchmark --collectives none`.

The engine partitions, gathers and reduces as ever, but its process groups are PyTorch's own
FakeProcessGroup: an all-gather copies the rank's part into every place (so that what is computed
stays finite), every other collective returns at once. Ranks train apart; the loss means nothing.
"""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import FakeProcessGroup

from ljtrain import patches


class _MakesFakes(type):
    """The type of a class that makes FakeProcessGroups where PyTorch makes Gloo's, and that they
    are instances of.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, FakeProcessGroup)

    def __call__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        return FakeProcessGroup._create_internal(rank, size)


class NoCommunication(metaclass=_MakesFakes):
    """Stands for ProcessGroupGloo."""


def remove_communication() -> None:
    """From now on groups on hosts exchange nothing."""
    patches.GLOO_IN_C10D.apply(NoCommunication)
    # Not by deepspeed.comm.torch's name alone: importing it early costs nothing here, ranks do so
    # anyway.
    patches.DEEPSPEED_SHARED_MEMORY.apply()

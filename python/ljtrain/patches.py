"""Every upstream name that ljtrain changes in memory, with the reason and the version it was
checked on.

Nothing on disk is changed. A patch goes here when no official extension point does the job, and
leaves when one does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """`apply` replaces `name` in memory; it is safe to call twice."""

    name: str
    reason: str
    checked_on: str
    apply: Callable[[], None]


def _fsdp2_on_hosts() -> None:
    import torch
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import MixedPrecisionPolicy

    original = AcceleratorState.__init__
    if getattr(original, "ljtrain_patched", False):
        return

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin")
        if plugin is None or self.distributed_type != DistributedType.MULTI_CPU:
            return
        # What accelerate does for every other device, but gradients are reduced in float32, as
        # PyTorch's own trainers do, and outputs keep their type: in bfloat16 the loss would have
        # three digits.
        if self._mixed_precision == "bf16" and plugin.mixed_precision_policy is None:
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        self.fsdp_plugin = plugin
        self.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patched.ljtrain_patched = True  # type: ignore[attr-defined]
    AcceleratorState.__init__ = patched


FSDP2_ON_HOSTS = Patch(
    name="accelerate.state.AcceleratorState.__init__",
    reason=(
        "accelerate leaves CPU out of the devices that FSDP may run on and silently trains with "
        "DDP instead; with the state set as on other devices its own FSDP2 path (fully_shard on "
        "each layer, embedding and head, bf16 parameters with float32 masters, DTensor gradient "
        "clipping) runs on Gloo unchanged"
    ),
    checked_on="accelerate 1.15.0",
    apply=_fsdp2_on_hosts,
)

ALL = (FSDP2_ON_HOSTS,)

"""The parts that can change how training runs: what switches each on, and what it waits for.

A part of ljtrain adds one entry here and one module. The module's `activate` is called when
everything in `after` has been imported, and only if the part was asked for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Integration:
    """One part. `module` is None while the part is not in this release: asking for it then says
    so.
    """

    part: str
    variable: str  # the environment variable that asks for it
    after: tuple[str, ...]  # imported modules that it changes
    module: str | None = None
    by_default: bool = False  # the variable switches it off

    def asked_for(self, environment: Mapping[str, str] = os.environ) -> bool:
        value = environment.get(self.variable, "").strip().lower()
        return value not in NO if self.by_default else value in YES

    def demanded(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Asked for by name, so that doing without it would be wrong."""
        return environment.get(self.variable, "").strip().lower() in YES

    def activate(self) -> None:
        if self.module is not None:
            importlib.import_module(self.module).activate()


INTEGRATIONS = (
    Integration("accl", "LJTRAIN_ACCL", after=("torch.distributed",), module="ljtrain.accl"),
    Integration(
        "compile",
        "LJTRAIN_COMPILE",
        after=("transformers.trainer",),
        module="ljtrain.compile",
        by_default=True,  # and changes something only where torch_compile=True
    ),
    Integration(
        "recompute",
        "CHECKPOINT_OPTIMIZATION",
        after=("transformers.trainer",),
        module="ljtrain.recompute",
    ),
)

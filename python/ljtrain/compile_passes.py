"""What torch_compile=True consists of, each part of which LJTRAIN_COMPILE_WITHOUT leaves out, so
that what it is worth can be measured.
"""

from __future__ import annotations

import os

from ljtrain import announce

VARIABLE = "LJTRAIN_COMPILE_WITHOUT"
LEAF_MODULES, PREFETCH, DRY_PASS = "leaf-modules", "prefetch", "dry-pass"
TRIAL, DYNAMIC_SHAPES, BATCHED_KERNELS = "trial", "dynamic-shapes", "batched-kernels"
LOSS = "loss"
PASSES = {
    LEAF_MODULES: "layers as DeepSpeed's leaf modules, gathered as a whole",
    PREFETCH: "ZeRO-3's prefetch and persistence sizes fitted to the layers",
    DRY_PASS: "every kind compiled before the first step, not at its first call",
    TRIAL: "a layer compiled only where it beats eager here",
    DYNAMIC_SHAPES: "the second length compiled for any length",
    BATCHED_KERNELS: "a graph's C++ kernels compiled together",
    LOSS: "the loss compiled, and not the layers only",
}


def left_out() -> list[str]:
    """Names of the variable that are passes, in the order of PASSES."""
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    unknown = sorted(names - PASSES.keys())
    if unknown:
        announce.say(
            f"{VARIABLE} names {', '.join(unknown)}, which is no pass of the compiler: it has "
            f"{', '.join(PASSES)}.",
            "warning",
        )
    return [name for name in PASSES if name in names]


def on(name: str) -> bool:
    return name not in left_out()

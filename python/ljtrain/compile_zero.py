"""ZeRO-3 by the layer: a layer's parameters are gathered and released together, outside of what is
compiled, and the next layer's while this one computes.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ljtrain import announce, compile_passes
from ljtrain.compile_layers import LayerKind, numel_of

# A gathered layer, in elements, that DeepSpeed itself would refuse to hold (its default for
# stage3_max_live_parameters).
MAX_LIVE_PARAMETERS = 1_000_000_000
# Parameters that stay whole may take this share of the weights on every rank.
PERSISTENT_SHARE = 0.02
PREFETCH, PERSISTENCE, LIVE = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
)
DEEPSPEEDS = {PREFETCH: 50_000_000, PERSISTENCE: 100_000}  # its defaults


def settings() -> dict[str, Any] | None:
    """DeepSpeed's `zero_optimization` where accelerate is about to use ZeRO-3, else None."""
    from accelerate.state import AcceleratorState

    plugin = getattr(AcceleratorState(), "deepspeed_plugin", None)
    if plugin is None:
        return None
    zero = plugin.hf_ds_config.config.get("zero_optimization")
    if not isinstance(zero, dict) or zero.get("stage") != 3:
        return None
    return zero


def largest_unit(zero: dict[str, Any]) -> int:
    """Elements above which a layer is gathered in parts: half of what may be whole at a time, as
    the next layer is fetched meanwhile.
    """
    live = zero.get(LIVE, "auto")
    return int(float(live) if live != "auto" else MAX_LIVE_PARAMETERS) // 2


def _persistence_threshold(model: nn.Module) -> int:
    """The largest size up to which parameters together stay within PERSISTENT_SHARE."""
    sizes = sorted(
        int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in model.parameters()
    )
    allowed, threshold = int(sum(sizes) * PERSISTENT_SHARE), 0
    for size in sizes:
        allowed -= size
        if allowed < 0:
            break
        threshold = size
    # Sizes equal to the threshold all stay, so the last size counts only if it fits completely.
    if allowed < 0 and sizes.count(threshold) * threshold > int(sum(sizes) * PERSISTENT_SHARE):
        return max((size for size in sizes if size < threshold), default=0)
    return threshold


def fit(zero: dict[str, Any], model: nn.Module, kinds: list[LayerKind]) -> dict[str, int]:
    """Fills prefetch and persistence sizes that the user left empty or `auto`; returns what is
    in force.
    """
    largest = max(numel_of(layer) for kind in kinds for layer in kind.layers)
    for name, value in ((PREFETCH, largest), (PERSISTENCE, _persistence_threshold(model))):
        if zero.get(name, "auto") == "auto":
            fitted = compile_passes.on(compile_passes.PREFETCH)
            zero[name] = value if fitted else DEEPSPEEDS[name]
    given = int(float(zero[PREFETCH]))
    if given < largest:
        parts = -(-largest // given) if given else None
        announce.say(
            f"compile keeps {PREFETCH}={given}, but a layer has {largest} parameters: "
            + (
                "nothing of the next layer is gathered ahead"
                if parts is None
                else f"only 1/{parts} of the next layer is gathered while one computes"
            )
            + ', and the rest is waited for ("auto" fits it).'
        )
    return {
        "layer_numel": largest,
        "prefetch_numel": given,
        "persistence_numel": int(float(zero[PERSISTENCE])),
        # What is whole at the same time at most: the layer that computes and what was fetched
        # ahead (DeepSpeed fetches whole parameters until the bucket is full).
        "gathered_numel": largest + max(given, 0),
    }


def mark_leaves(model: nn.Module, kinds: list[LayerKind]) -> None:
    """DeepSpeed's own switch; must happen before the engine is made."""
    from deepspeed.utils import set_z3_leaf_modules_by_name

    set_z3_leaf_modules_by_name(model, [name for kind in kinds for name in kind.names])

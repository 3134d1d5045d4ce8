"""What a training's recomputing says of itself: lines, and the record's `recompute`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ljtrain import announce
from ljtrain.recompute_estimate import Choice, Shape
from ljtrain.recompute_layers import FULL, Policy
from ljtrain.recompute_memory import shown

if TYPE_CHECKING:
    from ljtrain.recompute_control import Controller
    from ljtrain.recompute_failure import Failure

# Lines about every change of policy are for the first steps; later ones are for debugging.
FIRST_STEPS = 20


def what(policy: Policy) -> str:
    """`3 of 8 layers are recomputed`, and what they keep."""
    count = f"{policy.recomputed} of {len(policy.layers)} layers are recomputed"
    whole = sum(choice == FULL for choice in policy.layers)
    if not policy.kept or whole == policy.recomputed:
        return count
    kept = ", ".join(sorted(policy.kept))
    some = f"{policy.recomputed - whole} of them " if whole else ""
    return f"{count}, {some}except for the outputs of {kept}"


def say_plan(controller: Controller, shape: Shape, choice: Choice, limit: float) -> None:
    gain = controller.estimator.gain_over_full(shape, choice)
    faster = (
        f"; a step should take {100 * gain:.0f} % less time than with all recomputed"
        if gain is not None
        else ""
    )
    peak = shown(choice.predicted_bytes) if choice.predicted_bytes else "not yet measured"
    announce.say(
        f"recompute: {what(choice.policy)} at {shape[0]} x {shape[1]} tokens; predicted peak "
        f"{peak} of {shown(limit)} ({controller.limit.source}){faster}.",
        "info" if controller.steps < FIRST_STEPS else "debug",
    )


def failure_sentence(
    controller: Controller, shape: Shape, failure: Failure, next_start: str | None
) -> str:
    """Rank, place, component, and what to do."""
    components = controller.estimator.components(shape, controller.policy)
    part = max(components, key=lambda name: components[name], default="")
    largest = (
        f"the largest part is {part.replace('_', ' ')} ({shown(components[part])}); "
        if part
        else ""
    )
    place = f"the {failure.where} pass"
    if failure.layer is not None:
        place += f" of layer {failure.layer}"
    advice = (
        f"start again: {next_start}"
        if next_start is not None
        else "use a smaller micro-batch, shorter sequences, a higher ZeRO stage or more ranks"
    )
    return (
        f"rank {controller.ranks.rank} ran out of memory in {place} of step "
        f"{controller.steps + 1}, at {shape[0]} x {shape[1]} tokens with "
        f"{what(controller.policy)}; {largest}{advice}. ({failure.sentence})"
    )


def say_end(controller: Controller) -> None:
    predicted, measured = controller.predicted_peak, controller.largest_peak
    off = f", {100 * (predicted / measured - 1):+.1f} % off" if measured else ""
    announce.say(
        f"recompute: {what(controller.policy)} at the end; predicted peak {shown(predicted)}, "
        f"measured {shown(measured)}{off}; {controller.moves} changes in {controller.steps} steps."
    )


def summary(controller: Controller) -> dict[str, Any]:
    """Of the whole training, for records."""
    policy, trial = controller.policy, controller.trial
    return {
        "layers": policy.recomputed,
        "of": len(controller.layers),
        "predicted_peak_bytes": int(controller.predicted_peak) or None,
        "measured_peak_bytes": int(controller.largest_peak) or None,
        "limit_bytes": int(controller.limit.bytes - controller.overhead),
        "limit_source": controller.limit.source,
        "policy": list(policy.layers),
        "kept_operators": sorted(policy.kept),
        "kept_operators_faster": trial.decision if trial.seconds[True] else None,
        "moves": controller.moves,
        "retries": controller.retries,
    }

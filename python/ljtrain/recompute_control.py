"""One training's recomputing: from a safe plan to the one that fits best, step by step.

At the start of a step the ranks agree on its longest micro-batch and on what the last step took;
from that alone each chooses the policy of the step. Nothing changes inside of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ljtrain import announce, recompute_describe, recompute_layers
from ljtrain.recompute_agree import Ranks
from ljtrain.recompute_describe import NotDescribed, Training
from ljtrain.recompute_estimate import Choice, Estimator, Shape
from ljtrain.recompute_layers import FULL, Layers, Policy
from ljtrain.recompute_memory import Limit, Memory, find_limit, shown
from ljtrain.worker_config import BadInput

# Steps of a policy after which its peak is what it stays: ZeRO-3 records what it gathers in the
# first two and prefetches after. (The optimizer's state is there from a training's second step on.)
SETTLES_AFTER = {"ZeRO-3": 3}


@dataclass
class Step:
    """One step under way."""

    shape: Shape
    choice: Choice
    began: float
    limit: float


class Controller:
    """Tells a model's layers what to recompute. One a training; see `ljtrain.recompute.apply`."""

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        training: Training,
        *,
        selected: bool = True,
        memory: Memory | None = None,
    ) -> None:
        self.layers = layers
        self.training = training
        self.memory = memory or Memory()
        self.limit: Limit = find_limit()
        self.ranks = Ranks()
        self.step: Step | None = None
        self.steps = 0
        self.retries = 0
        self.moves = 0
        self.largest_peak = 0.0
        self.predicted_peak = 0.0  # of the step with the largest peak, before it was measured
        self.state: dict[str, Any] = {}
        self._policy: Policy | None = None
        self._steps_of_policy = 0
        self._foretold = 0.0
        self._foretold_for: Shape | None = None
        self._last: tuple[Shape, Policy, bool] | None = None
        self._seen: list[float] = [0.0, 0.0]  # this rank's peak of the last step, state after it
        self._overhead = 0.0
        self._settles = SETTLES_AFTER.get(training.engine, 1)
        training.knobs.setdefault("leaf_layers", recompute_describe.leaf_layers(layers.modules))
        # Operators cannot be chosen in compiled layers, whose kernels are none, nor where ZeRO-3
        # gathers inside of layers: what a recomputation gathers again is no part of its forward.
        gathers_inside = training.engine == "ZeRO-3" and not training.knobs["leaf_layers"]
        self._selected = (
            selected and layers.can_select and not training.compiled and not gathers_inside
        )
        self.estimator = Estimator(
            len(layers),
            lambda shape: recompute_describe.describe(model, len(layers), training, *shape),
        )

    def begin(self) -> None:
        """Before the first step, when the engine has the model."""
        self.memory.enforce(self.limit)

    # ---- steps ----

    def begin_step(self, shapes: Iterable[Shape]) -> None:
        """`shapes` of the step's micro-batches. Every rank must call it, once a step."""
        shapes = list(shapes) or [(0, 0)]
        self._overhead = max(self._overhead, self.memory.overhead(self.limit))
        mine = [
            max(shape[0] for shape in shapes),
            max(shape[1] for shape in shapes),
            -(self.limit.bytes - self._overhead),
            *self._seen,
        ]
        batch, tokens, room, peak, state = self.ranks.largest(mine)
        self._learn(peak, state)
        shape, limit = (int(batch), int(tokens)), -room
        if min(shape) == 0:
            return
        choice = self.estimator.choose(shape, limit, self._selected)
        self._check(shape, choice, limit)
        self._switch(shape, choice)
        self._say(shape, choice, limit)
        self.step = Step(shape, choice, time.perf_counter(), limit)
        self.memory.reset_peak()

    def end_step(self) -> None:
        """When optimizer and gradients are done with."""
        if self.step is None:
            return
        self._seen = [self.memory.peak(), self.memory.current()]
        if self._seen[0] >= self.largest_peak:
            self.largest_peak, self.predicted_peak = self._seen[0], self._foretold
        self._steps_of_policy += 1
        settled = self._steps_of_policy >= self._settles and self.steps > 0
        self._last = (self.step.shape, self.step.choice.policy, settled)
        self.steps += 1
        self.step = None

    def end(self) -> None:
        """Leaves layers and allocator as they were found."""
        self.memory.release()
        self.layers.take_back()

    def _learn(self, peak: float, state: float) -> None:
        if self._last is None or not self.memory.measures:
            return
        shape, policy, settled = self._last
        self._last = None
        if self.steps > 1:  # the first step ends with moments that it did not begin with
            self.estimator.state_bytes = state
        self.estimator.learn(shape, policy, peak, settled)

    def _check(self, shape: Shape, choice: Choice, limit: float) -> None:
        """Before the first step: a limit that recomputing everything cannot meet."""
        if self.steps or choice.fits:
            return
        least = self.estimator.least(shape)
        if least <= limit:
            return
        raise BadInput(
            f"recomputing all {len(self.layers)} layers takes {shown(least)} at {shape[0]} x "
            f"{shape[1]} tokens, and the limit is {shown(limit)} ({self.limit.source}): "
            "use a smaller micro-batch, shorter sequences, a higher ZeRO stage or more ranks, or "
            "raise LJTRAIN_MEMORY_LIMIT."
        )

    def _switch(self, shape: Shape, choice: Choice) -> None:
        if choice.policy != self._policy or shape != self._foretold_for:
            # Before it is measured: what a prediction is worth.
            self._foretold, self._foretold_for = choice.predicted_bytes, shape
        if choice.policy == self._policy:
            return
        recompute_layers.set_policy(self.layers, choice.policy)
        if self._policy is not None:
            self.moves += 1
        self._policy = choice.policy
        self._steps_of_policy = 0

    # ---- what is said ----

    def _say(self, shape: Shape, choice: Choice, limit: float) -> None:
        text = self.sentence(shape, choice, limit)
        announce.say(text, "info" if self.steps < FIRST_STEPS else "debug")

    def sentence(self, shape: Shape, choice: Choice, limit: float) -> str:
        gain = self.estimator.gain_over_full(shape, choice)
        return (
            f"recompute: {what(choice.policy)} at {shape[0]} x {shape[1]} tokens; predicted peak "
            f"{shown(choice.predicted_bytes)} of {shown(limit)} ({self.limit.source}); a step "
            f"should take {100 * gain:.0f} % less time than with all recomputed."
        )

    @property
    def policy(self) -> Policy:
        """The one in force; before the first step the one that was asked for."""
        return self._policy or Policy.first(len(self.layers), len(self.layers))

    def summary(self) -> dict[str, Any]:
        """Of the whole training, for records and the last line."""
        policy = self.policy
        return {
            "layers": policy.recomputed,
            "of": len(self.layers),
            "predicted_peak_bytes": int(self.predicted_peak) or None,
            "measured_peak_bytes": int(self.largest_peak) or None,
            "limit_bytes": int(self.limit.bytes - self._overhead),
            "limit_source": self.limit.source,
            "policy": list(policy.layers),
            "kept_operators": sorted(policy.kept),
            "moves": self.moves,
            "retries": self.retries,
        }


# Lines about every change of policy are for the first steps; later ones are for debugging.
FIRST_STEPS = 20


def what(policy: Policy) -> str:
    """`3 of 8 layers`, and what they keep."""
    count = f"{policy.recomputed} of {len(policy.layers)} layers are recomputed"
    whole = sum(choice == FULL for choice in policy.layers)
    if not policy.kept or whole == policy.recomputed:
        return count
    kept = ", ".join(sorted(policy.kept))
    some = f"{policy.recomputed - whole} of them " if whole else ""
    return f"{count}, {some}except for the outputs of {kept}"


def described(controller: Controller, shape: Shape) -> str | None:
    """Why the memory model cannot describe this training; None: it can."""
    try:
        controller.estimator.model(shape)
    except (NotDescribed, ValueError, AttributeError, TypeError, KeyError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return None

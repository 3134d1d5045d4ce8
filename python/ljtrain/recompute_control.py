"""One training's recomputing: from a safe plan to the one that fits best, step by step.

At the start of a step the ranks agree on its longest micro-batch and on what the last step took;
from that alone each chooses the policy of the step. Nothing changes inside of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ljtrain import (
    announce,
    recompute_describe,
    recompute_failure,
    recompute_layers,
    recompute_report,
)
from ljtrain.recompute_agree import Ranks
from ljtrain.recompute_describe import NotDescribed, Training
from ljtrain.recompute_estimate import Choice, Estimator, Shape
from ljtrain.recompute_failure import Failure, State, StepOutOfMemory
from ljtrain.recompute_layers import Layers, Policy
from ljtrain.recompute_measured import MeasuredEstimator
from ljtrain.recompute_memory import Limit, Memory, find_limit, shown
from ljtrain.recompute_trial import OperatorTrial
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
        self._state_path: Path | None = None
        self._policy: Policy | None = None
        self._steps_of_policy = 0
        self._foretold = 0.0
        self._foretold_for: Shape | None = None
        self._last: tuple[Shape, Policy, bool] | None = None
        # This rank's peak of the last step, the state after it, and its seconds.
        self._seen: list[float] = [0.0, 0.0, 0.0]
        self._described = False
        self._failed = False  # on this rank, in the last step
        self.overhead = 0.0  # what counts against the limit beside tensors
        self._settles = SETTLES_AFTER.get(training.engine, 1)
        training.knobs.setdefault("leaf_layers", recompute_describe.leaf_layers(layers.modules))
        # Compiled layers have kernels instead of operators.
        self.trial = OperatorTrial(selected and layers.can_select and not training.compiled)
        self.estimator: Estimator | MeasuredEstimator = Estimator(
            len(layers),
            lambda shape: recompute_describe.describe(model, len(layers), training, *shape),
        )

    def begin(self, state: Path | None = None) -> None:
        """Before the first step, when the engine has the model. `state`: where what an earlier
        start has learned is, and this one leaves it.
        """
        self._state_path = state
        earlier = recompute_failure.read_state(state)
        if earlier is not None and earlier.limit_bytes < self.limit.bytes:
            earlier = None  # there is more memory now
        agreed = self.ranks.largest(
            [earlier.margin, earlier.least_recomputed, -earlier.tokens]
            if earlier is not None
            else [0.0, 0.0, -float("inf")]
        )
        if agreed[0]:
            self.estimator.start_margin = max(self.estimator.start_margin, agreed[0])
            self.estimator.floor = (int(agreed[1]), -agreed[2])
            announce.say(
                f"recompute starts with a margin of {100 * agreed[0]:.0f} % and at least "
                f"{int(agreed[1])} of {len(self.layers)} layers, as an earlier start ran out of "
                f"memory ({state})."
            )

    # ---- steps ----

    def begin_step(self, shapes: Iterable[Shape]) -> None:
        """`shapes` of the step's micro-batches. Every rank must call it, once a step."""
        shapes = list(shapes) or [(0, 0)]
        self.overhead = max(self.overhead, self.memory.overhead(self.limit))
        mine = [
            max(shape[0] for shape in shapes),
            max(shape[1] for shape in shapes),
            -self.memory.room(self.limit, self.overhead),
            *self._seen,
            float(self._failed),
        ]
        batch, tokens, room, peak, state, seconds, failed = self.ranks.largest(mine)
        self._learn(peak, state, seconds, -room, failed > 0)
        self._failed = False
        shape, limit = (int(batch), int(tokens)), -room
        if min(shape) == 0:
            return
        self._check_described(shape)
        wanted = self.trial.wants_operators(shape)
        choice = self.estimator.choose(shape, limit, wanted)
        if wanted and not choice.policy.kept:
            self.trial.impossible()
        self._check(shape, choice, limit)
        moved = choice.policy != self._policy
        self._switch(shape, choice)
        if moved:
            recompute_report.say_plan(self, shape, choice, limit)
        self.step = Step(shape, choice, time.perf_counter(), limit)
        self.memory.reset_peak()
        if not self.steps:  # not before the limit has been looked at
            self.memory.enforce(self.limit)

    def end_step(self) -> None:
        """When optimizer and gradients are done with."""
        if self.step is None:
            return
        seconds = time.perf_counter() - self.step.began
        self._seen = [self.memory.peak(), self.memory.current(), seconds]
        # The first step is like no other: no moments yet, and where layers are compiled, a pass
        # ahead of it.
        if self._seen[0] >= self.largest_peak or self.steps == 1:
            self.largest_peak, self.predicted_peak = self._seen[0], self._foretold
        self._steps_of_policy += 1
        settled = self._steps_of_policy >= self._settles and self.steps > 0
        self._last = (self.step.shape, self.step.choice.policy, settled)
        self.steps += 1
        self.step = None

    def end(self) -> None:
        """Leaves layers and allocator as they were found."""
        if isinstance(self.estimator, MeasuredEstimator):
            self.estimator.end()
        self.memory.release()
        self.layers.take_back()

    def _check_described(self, shape: Shape) -> None:
        """Once: a model that the memory model does not know is planned by measurement alone."""
        if self._described or isinstance(self.estimator, MeasuredEstimator):
            return
        self._described = True
        try:
            self.estimator.model(shape)
        except (NotDescribed, ValueError, AttributeError, TypeError, KeyError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        else:
            return
        state, floor = self.estimator.state_bytes, self.estimator.floor
        self.estimator = MeasuredEstimator(self.layers.modules, self.memory, why)
        self.estimator.state_bytes, self.estimator.floor = state, floor
        announce.say(
            f"recompute begins with all {len(self.layers)} layers, as asked, and goes by "
            f"measured steps alone: {why}.",
            "warning",
        )

    def _learn(self, peak: float, state: float, seconds: float, limit: float, failed: bool) -> None:
        if self._last is None or not self.memory.measures:
            return
        shape, policy, settled = self._last
        self._last = None
        if failed:  # what was measured is of the step as it was computed again
            self.estimator.failed(shape, policy, limit)
            self._policy = None  # on every rank, whichever recomputed more
            return
        self.trial.learn(bool(policy.kept), settled, seconds)
        if self.steps > 1:  # the first step ends with moments that it did not begin with
            self.estimator.state_bytes = state
        self.estimator.learn(shape, policy, peak, settled)

    # ---- an allocation failed ----

    def recompute_more(self, failure: Failure) -> bool:
        """All layers, for the rest of this rank's step; False where all were recomputed."""
        everything = Policy.first(len(self.layers), len(self.layers))
        if self.step is None or self.policy == everything:
            return False
        announce.say(
            f"recompute: step {self.steps + 1} ran out of memory in its {failure.where} under "
            f"{recompute_report.what(self.policy)}, and is computed again with all recomputed.",
            "warning",
        )
        recompute_layers.set_policy(self.layers, everything)
        self._policy = everything
        self._steps_of_policy = 0
        self._failed = True
        self.retries += 1
        return True

    def give_up(self, failure: Failure) -> StepOutOfMemory:
        """What to raise: the step cannot be computed again."""
        assert self.step is not None
        self.memory.release()
        step, policy = self.step, self.policy
        least = min(policy.recomputed + 1, len(self.layers))
        written = recompute_failure.write_state(
            self._state_path,
            State(
                margin=2 * self.estimator.start_margin,
                least_recomputed=least,
                tokens=step.shape[0] * step.shape[1],
                limit_bytes=self.limit.bytes,
                reason=failure.sentence,
            ),
        )
        again = written and policy.recomputed < len(self.layers)
        advice = (
            f"it will recompute at least {least} layers ({self._state_path})" if again else None
        )
        return StepOutOfMemory(recompute_report.failure_sentence(self, step.shape, failure, advice))

    def _check(self, shape: Shape, choice: Choice, limit: float) -> None:
        """Before the first step: a limit that recomputing everything cannot meet."""
        if self.steps or choice.fits:
            return
        least = self.estimator.least(shape)
        if least <= limit:
            return
        self.end()
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
        self.trial.moved(bool(choice.policy.kept))
        if self._policy is not None:
            self.moves += 1
        self._policy = choice.policy
        self._steps_of_policy = 0

    @property
    def policy(self) -> Policy:
        """The one in force; before the first step the one that was asked for."""
        return self._policy or Policy.first(len(self.layers), len(self.layers))

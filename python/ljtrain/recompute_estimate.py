"""What a policy will need at its highest moment: the memory model, corrected by measured steps.

A step of a shape (micro-batch, tokens) that was measured under one policy tells what it needs under
another: measured + (predicted - predicted). Other shapes take the largest error seen so far. All
numbers are the ranks' agreed ones, so that every rank decides the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ljtrain.recompute_layers import NONE, Policy

Shape = tuple[int, int]  # sequences of a micro-batch, tokens of the longest

# Shares of the rise above the state between steps. The model's worst error over 63 measured
# configurations was 4.98 % (docs/recompute.md): what a plan starts with, until a step is measured.
UNMEASURED = 0.05
OTHER_SHAPE = 0.02  # measured, but not at this shape
# Of the difference between the measured policy and another.
DIFFERENCE = 0.02
# Operators are worth choosing where that saves this share of the step, by the roofline.
LEAST_GAIN = 0.01
MOST_SHAPES = 4096  # whose predictions are kept


@dataclass(frozen=True)
class Choice:
    """A policy for a shape, and what it is expected to need."""

    policy: Policy
    peak_bytes: float  # expected, margin included
    predicted_bytes: float  # by the memory model, corrected, without margin
    fits: bool
    recompute_share: float  # of the time of a step that recomputes nothing, by the roofline


@dataclass
class _Measured:
    peak: float = 0.0
    steps: int = 0
    settled: bool = False


@dataclass
class Estimator:
    """For one model under one training. `describe(shape)` gives the memory model's description."""

    layers: int
    describe: Callable[[Shape], dict[str, Any]]
    start_margin: float = UNMEASURED
    state_bytes: float | None = None  # between steps, measured
    # At least so many layers are recomputed from so many tokens on: an earlier start failed below.
    floor: tuple[int, float] = (0, 0.0)
    _measured: dict[Shape, dict[Policy, _Measured]] = field(default_factory=dict)
    _rise: float | None = None  # largest measured over predicted rise so far

    def __post_init__(self) -> None:
        self.model = functools.lru_cache(maxsize=MOST_SHAPES)(self._make_model)
        self._whole = functools.lru_cache(maxsize=MOST_SHAPES)(self._predict_whole)

    def _make_model(self, shape: Shape) -> Any:
        from ljtrain import _recompute

        return _recompute.Model(json.dumps(self.describe(shape)))

    def _predict_whole(self, shape: Shape) -> tuple[list[float], float]:
        """([peak with the first 0, 1, ... layers recomputed], state between steps), bytes."""
        model = self.model(shape)
        return model.peaks(), model.predict([NONE] * self.layers)["static_bytes"]

    def _predict(self, shape: Shape, policy: Policy) -> tuple[float, float]:
        """(peak, state between steps), bytes, as the model has them."""
        peaks, static = self._whole(shape)
        if policy == Policy.first(self.layers, policy.recomputed):
            return peaks[policy.recomputed], static
        return float(self.model(shape).peak(list(policy.layers), policy.kept)), static

    def predicted(self, shape: Shape, policy: Policy) -> float:
        """Corrected by what was measured, without margin."""
        return self._expect(shape, policy)[0]

    def expected(self, shape: Shape, policy: Policy) -> float:
        """What to count on: with the margin for what has not been measured."""
        value, margin = self._expect(shape, policy)
        return value + margin

    def _expect(self, shape: Shape, policy: Policy) -> tuple[float, float]:
        """(bytes, margin in bytes)."""
        own = self._measured.get(shape, {}).get(policy)
        if own is not None and own.settled:
            return own.peak, 0.0
        value, margin = self._by_same_shape(shape, policy) or self._by_other_shapes(shape, policy)
        return (value if own is None else max(value, own.peak)), margin

    def _by_same_shape(self, shape: Shape, policy: Policy) -> tuple[float, float] | None:
        """Measured under another policy, and the predicted difference to it."""
        offsets = [
            (found.peak - self._predict(shape, other)[0], other)
            for other, found in self._measured.get(shape, {}).items()
            if found.settled
        ]
        if not offsets:
            return None
        peak = self._predict(shape, policy)[0]
        offset = max(offset for offset, _ in offsets)
        moved = min(abs(peak - self._predict(shape, other)[0]) for _, other in offsets)
        return peak + offset, DIFFERENCE * moved

    def _by_other_shapes(self, shape: Shape, policy: Policy) -> tuple[float, float]:
        peak, static = self._predict(shape, policy)
        rise = peak - static
        state = static if self.state_bytes is None else self.state_bytes
        if self._rise is None:
            expected, highest = self.model(shape).bound(static, peak)
            wider = self.start_margin / UNMEASURED  # by earlier starts that failed
            return state + expected - static, wider * (highest - expected)
        return state + self._rise * rise, OTHER_SHAPE * rise

    # ---- measured steps ----

    def learn(self, shape: Shape, policy: Policy, peak: float, settled: bool) -> None:
        """A step's measured peak. `settled`: engine and optimizer have all that they will have."""
        own = self._measured.setdefault(shape, {}).setdefault(policy, _Measured())
        own.peak = max(own.peak, peak)
        own.steps += 1
        own.settled = own.settled or settled
        if not settled or self.state_bytes is None:
            return
        predicted, static = self._predict(shape, policy)
        if predicted > static:
            ratio = (peak - self.state_bytes) / (predicted - static)
            self._rise = ratio if self._rise is None else max(self._rise, ratio)

    def failed(self, shape: Shape, policy: Policy, limit: float) -> None:
        """The step did not fit: it needs more than the limit, however much was predicted."""
        own = self._measured.setdefault(shape, {}).setdefault(policy, _Measured())
        predicted, static = self._predict(shape, policy)
        rise = max(predicted - static, 1.0)
        state = static if self.state_bytes is None else self.state_bytes
        # At least as much as it takes to leave this policy and the next below.
        own.peak = max(own.peak, limit + OTHER_SHAPE * rise)
        own.settled = True
        ratio = (own.peak - state) / rise
        self._rise = ratio if self._rise is None else max(self._rise, ratio)

    # ---- choosing ----

    def choose(self, shape: Shape, limit: float, selected: bool = False) -> Choice:
        """The least recomputing that is expected to fit; recomputing all where nothing is."""
        whole = self._whole_layers(shape, limit)
        if not selected or whole.policy.recomputed == 0 or self.floor[0]:
            return whole
        return self._with_operators(shape, limit, whole) or whole

    def _choice(self, shape: Shape, policy: Policy, limit: float, share: float) -> Choice:
        expected = self.expected(shape, policy)
        return Choice(policy, expected, self.predicted(shape, policy), expected <= limit, share)

    def whole_layers(self, shape: Shape, recomputed: int, limit: float) -> Choice:
        policy = Policy.first(self.layers, recomputed)
        return self._choice(shape, policy, limit, self._share(shape, recomputed))

    def _whole_layers(self, shape: Shape, limit: float) -> Choice:
        """The first ones are recomputed, whose activations live longest."""
        least, tokens = self.floor
        first = least if shape[0] * shape[1] >= tokens else 0
        for recomputed in range(first, self.layers + 1):
            if self.expected(shape, Policy.first(self.layers, recomputed)) <= limit:
                return self.whole_layers(shape, recomputed, limit)
        return self.whole_layers(shape, self.layers, limit)

    def _with_operators(self, shape: Shape, limit: float, whole: Choice) -> Choice | None:
        # The planner knows the model's numbers only: the limit is moved by what they lack.
        lacking = whole.peak_bytes - self._predict(shape, whole.policy)[0]
        found = self.model(shape).plan(limit - lacking, True)
        policy = Policy(tuple(found["layers"]), frozenset(found["kept"]))
        if not found["fits"] or not policy.kept:
            return None
        again = found["recompute_seconds"]
        share = again / max(found["step_seconds"] - again, 1e-12)
        choice = self._choice(shape, policy, limit, share)
        return choice if choice.fits and whole.recompute_share - share > LEAST_GAIN else None

    def least(self, shape: Shape) -> float:
        """What recomputing everything takes at least, by the model's margin."""
        peak, static = self._predict(shape, Policy.first(self.layers, self.layers))
        return peak - self.start_margin * (peak - static)

    # ---- time, by the roofline ----

    def _share(self, shape: Shape, recomputed: int) -> float:
        """Seconds of recomputing the first layers over those of the step without."""
        step, layers = self.model(shape).seconds()
        return float(sum(layers[:recomputed]) / step)

    def gain_over_full(self, shape: Shape, choice: Choice) -> float:
        """How much shorter than recomputing everything, as a share of that."""
        return 1 - (1 + choice.recompute_share) / (1 + self._share(shape, self.layers))

    def components(self, shape: Shape, policy: Policy) -> dict[str, float]:
        found: dict[str, float] = self.model(shape).predict(list(policy.layers), policy.kept)[
            "components"
        ]
        return found

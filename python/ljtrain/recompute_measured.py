"""Layers of a model that the memory model does not know: from recomputing all, one measured move at
a time.

Recomputing a layer in backward brings back all that it would have saved, so the rise of a step that
recomputes everything is more than one layer saves: where that fits on top, one layer is left alone.
That layer's forward then shows what a layer saves, and the rest is a division. Sequences longer
than any measured so far begin anew.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ljtrain.recompute_estimate import DIFFERENCE, UNMEASURED, Choice, Shape
from ljtrain.recompute_layers import Policy
from ljtrain.recompute_memory import Memory


class MeasuredEstimator:
    """Stands for `Estimator` where `why_not` the memory model describes a model."""

    def __init__(self, modules: list[nn.Module], memory: Memory, why_not: str) -> None:
        self.layers = len(modules)
        self.why_not = why_not
        self.start_margin = UNMEASURED
        self.state_bytes: float | None = None
        self.floor: tuple[int, float] = (0, 0.0)
        self._modules = modules
        self._memory = memory
        self._tokens = 0  # largest micro-batch measured
        self._peaks: dict[int, float] = {}  # by the number of recomputed layers, at `_tokens`
        self._layer_bytes: float | None = None
        self._probes: list[Any] = []

    # ---- measured steps ----

    def learn(self, shape: Shape, policy: Policy, peak: float, settled: bool) -> None:
        tokens = shape[0] * shape[1]
        if tokens > self._tokens:
            self._tokens, self._layer_bytes = tokens, None
            self._peaks.clear()
        if not settled:
            return
        known = self._peaks.get(policy.recomputed, 0.0)
        if tokens == self._tokens or known:
            self._peaks[policy.recomputed] = max(known, peak)
        if tokens == self._tokens and policy.recomputed < self.layers and not self._layer_bytes:
            self._probe()

    def failed(self, shape: Shape, policy: Policy, limit: float) -> None:
        self.floor = (max(self.floor[0], min(policy.recomputed + 1, self.layers)), 0.0)

    def _probe(self) -> None:
        """Measures what the last layer, the last to be recomputed, saves in its next forward."""
        before = 0.0

        def begins(*_: Any) -> None:
            nonlocal before
            before = self._memory.current()

        def ends(module: nn.Module, *_: Any) -> None:
            if module.training:
                self._layer_bytes = max(self._memory.current() - before, 0.0)
                self.end()

        if not self._probes:
            last = self._modules[-1]
            self._probes = [
                last.register_forward_pre_hook(begins),
                last.register_forward_hook(ends),
            ]

    def end(self) -> None:
        for probe in self._probes:
            probe.remove()
        self._probes = []

    # ---- choosing ----

    def choose(self, shape: Shape, limit: float, selected: bool = False) -> Choice:
        everything = self._choice(self.layers, limit)
        if shape[0] * shape[1] > self._tokens or not self._peaks or self.state_bytes is None:
            return everything
        fewest = min(self._peaks)
        recomputed = next(
            (count for count in range(self.floor[0], self.layers) if self._fits(count, limit)),
            self.layers,
        )
        if self._layer_bytes is None:  # one at a time
            recomputed = max(recomputed, fewest - (self.layers == fewest))
        return self._choice(recomputed, limit)

    def _fits(self, recomputed: int, limit: float) -> bool:
        return self._expect(recomputed) <= limit

    def _expect(self, recomputed: int) -> float:
        """The highest that it can be, as a layer saves no more."""
        if recomputed in self._peaks:
            return self._peaks[recomputed]
        more = [count for count in self._peaks if count > recomputed]
        if not more:
            return max(self._peaks.values(), default=0.0)
        nearest = min(more)
        saved = self._layer_bytes
        if saved is None:
            saved = self._peaks[max(self._peaks)] - (self.state_bytes or 0.0)
        return self._peaks[nearest] + (nearest - recomputed) * saved * (1 + DIFFERENCE)

    def _choice(self, recomputed: int, limit: float) -> Choice:
        expected = self._expect(recomputed)
        policy = Policy.first(self.layers, recomputed)
        return Choice(policy, expected, expected, expected <= limit, 0.0)

    # ---- what only a memory model can say ----

    def least(self, shape: Shape) -> float:
        return 0.0

    def gain_over_full(self, shape: Shape, choice: Choice) -> float | None:
        return None

    def components(self, shape: Shape, policy: Policy) -> dict[str, float]:
        return {}

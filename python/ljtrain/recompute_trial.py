"""Whether keeping outputs of some operators is faster than recomputing whole layers, as measured.

The roofline says how much arithmetic a kept output saves, not what keeping it costs: PyTorch looks
at every operator of such a layer from Python. So where a training's batches have one shape, a few
steps are made with each and the faster way stays; where shapes vary, whole layers do.
"""

from __future__ import annotations

from ljtrain.recompute_estimate import Shape

TIMED_STEPS = 3  # of each way, after memory and engine have settled


class OperatorTrial:
    """One training's. All it is told are the ranks' agreed numbers."""

    def __init__(self, possible: bool) -> None:
        self.decision: bool | None = None if possible else False
        self.seconds: dict[bool, list[float]] = {False: [], True: []}  # by: operators kept
        self._shape: Shape | None = None

    def wants_operators(self, shape: Shape) -> bool:
        """For the next step."""
        if self._shape is not None and shape != self._shape and self.decision is None:
            self.decision = False
        self._shape = shape
        if self.decision is not None:
            return self.decision
        return len(self.seconds[False]) >= TIMED_STEPS

    def moved(self, kept: bool) -> None:
        """Another policy of that kind: what was timed before was not it."""
        self.seconds[kept].clear()

    def learn(self, kept: bool, settled: bool, seconds: float) -> None:
        """A step's time, the slowest rank's."""
        if self.decision is not None or not settled:
            return
        self.seconds[kept].append(seconds)
        if len(self.seconds[True]) >= TIMED_STEPS:
            # The least: what else runs on the machine only ever adds.
            self.decision = min(self.seconds[True]) < min(self.seconds[False][-TIMED_STEPS:])

    def impossible(self) -> None:
        """There is no such policy that would fit and save time."""
        if self.decision is None and not self.seconds[True]:
            self.decision = False

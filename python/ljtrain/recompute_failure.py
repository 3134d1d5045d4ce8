"""When an allocation fails all the same: where it was, whether the step can be computed again, and
what the next start should know.

A step is computed again where no other rank can stand inside of a collective that this one has
left: alone, and with peers only as long as nothing of the micro-batch has been reduced. ZeRO-3 and
FSDP gather in every layer, so there the rank ends, and a small file lets the next start plan safer.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

STATE_VARIABLE = "LJTRAIN_STATE"
STATE_FILE = "ljtrain-recompute.json"
STATE_VERSION = 1
PHRASES = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
FORWARD, BACKWARD = "forward", "backward"
# Engines whose forward has no collective; those of the rest have one in each layer.
LOCAL_FORWARD = ("one rank", "DDP", "ZeRO-0", "ZeRO-1", "ZeRO-2")


class StepOutOfMemory(RuntimeError):
    """A step that could not be saved; the message says where and what to do."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in PHRASES)


@dataclass(frozen=True)
class Failure:
    """Where an allocation failed; holds no reference to what the step had computed."""

    where: str  # FORWARD or BACKWARD
    layer: int | None
    sentence: str  # the allocator's


def failure_of(error: BaseException, layers: list[nn.Module]) -> Failure:
    """Takes the failed computation apart, so that its tensors are freed."""
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    where, layer = BACKWARD, None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "compute_loss":
            where = FORWARD
        layer = numbers.get(id(frame.f_locals.get("self")), layer)
    lines = str(error).strip().splitlines()
    sentence = lines[0] if lines else type(error).__name__
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current.__traceback__ = None
        current = current.__context__
    return Failure(where, layer, sentence)


def random_state() -> list[Any]:
    device = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [torch.get_rng_state(), device]


def restore_random_state(state: list[Any]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


class Attempts:
    """The micro-batches of one optimizer step, so that they can be computed again."""

    def __init__(
        self,
        engine: str,
        ranks: int,
        model: nn.Module,
        layers: list[nn.Module],
        ddp: Any = None,
    ) -> None:
        self._engine = engine
        self._ddp = ddp
        self._ranks = ranks
        self._parameters = [item for item in model.parameters() if item.requires_grad]
        self._layers = layers
        self._done: list[tuple[Callable[[], Any], list[Any]]] = []

    def begin_step(self) -> None:
        self._done.clear()

    def run(
        self,
        compute: Callable[[], Any],
        more: Callable[[Failure], bool],
        synchronises: bool,
    ) -> Any:
        """One micro-batch. `more` has the layers recompute more, False where they recompute all;
        `synchronises`: whether its backward reduces gradients with other ranks.
        """
        before = random_state()
        while True:
            result, failure = self._try(compute)
            if failure is None:
                self._done.append((compute, before))
                return result
            again = self._repeatable(failure, synchronises)
            if again is None or not more(failure):
                return failure
            for earlier, state in again:
                restore_random_state(state)
                self._without_collectives()
                repeated, failed = self._try(earlier)
                del repeated
                if failed is not None:
                    return failed
            restore_random_state(before)
            self._without_collectives()

    def _without_collectives(self) -> None:
        """DDP broadcasts buffers before a forward; the peers have taken part once already."""
        if self._ddp is not None:
            self._ddp.require_forward_param_sync = False

    def _try(self, compute: Callable[[], Any]) -> tuple[Any, Failure | None]:
        failure = None
        try:
            return compute(), None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = failure_of(error, self._layers)
        gc.collect()  # graphs are cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None, failure

    def _repeatable(
        self, failure: Failure, synchronises: bool
    ) -> list[tuple[Callable[[], Any], list[Any]]] | None:
        """Which earlier micro-batches must be computed again with this one; None: it cannot be."""
        if self._engine not in LOCAL_FORWARD:
            return None
        if failure.where == FORWARD:
            return []  # no gradient of it has been added yet
        if self._engine not in ("one rank", "DDP"):
            return None
        if self._ranks > 1 and synchronises:
            # A gradient that is there has told the reducer, and its bucket may be on the way.
            untouched = not self._done and all(item.grad is None for item in self._parameters)
            return [] if untouched else None
        for parameter in self._parameters:
            parameter.grad = None
        return list(self._done)


# ---- what the next start should know ----


@dataclass(frozen=True)
class State:
    """Of a training that ended for want of memory: plan with this margin from then on, and
    recompute at least so many layers for so many tokens within this limit.
    """

    margin: float
    least_recomputed: int
    tokens: int
    limit_bytes: float
    reason: str = ""


def state_path(output_folder: str | None) -> Path | None:
    given = os.environ.get(STATE_VARIABLE, "").strip()
    if given:
        return Path(given)
    return Path(output_folder) / STATE_FILE if output_folder else None


def read_state(path: Path | None) -> State | None:
    """None where there is none that can be read: planning starts from its own margin then."""
    if path is None:
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema_version") != STATE_VERSION:
            return None
        return State(**document)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_state(path: Path | None, state: State) -> bool:
    """Whole or not at all; several ranks may write."""
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        document = {"schema_version": STATE_VERSION, **asdict(state)}
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:
        return False
    return True

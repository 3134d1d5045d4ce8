"""What stands between Dynamo and Inductor: it records every graph, every break and its line, and
turns a failure of the compiler into one eager graph instead of a failure of the training.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import exc

from ljtrain import compile_kernels, compile_patterns

Compiled = Callable[..., Any]
# Frames of these packages are not the user's: a line of theirs names nothing he can mend.
NOT_THE_USERS = (
    "/torch/",
    "/ljtrain/",
    "/transformers/modeling_layers.py",
)
LONGEST_CAUSE = 160
# (file, line) of statements that compile_outline took out of a function: what they broke on.
outlined: dict[tuple[str, int], str] = {}
PLACE = "ljtrain_place"  # on a backend's exception: the first line of its graph


@dataclass
class Break:
    """Why a graph ended, and the line that runs eagerly because of it."""

    file: str
    line: int
    cause: str

    def __str__(self) -> str:
        return self.cause if self.file == "?" else f"{self.file}:{self.line}: {self.cause}"


@dataclass
class Graph:
    """One graph: how many operators, the source lines they came from, what ended it, and when its
    forward ran (where that is watched), as (began, ended) in seconds.
    """

    operators: int
    lines: set[tuple[str, int]]
    compiled: bool = True
    ended_by: Break | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Recorder:
    """What became of one compiled function."""

    graphs: list[Graph] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    failures: list[Break] = field(default_factory=list)

    def add_break(self, found: Break) -> None:
        if found not in self.breaks:
            self.breaks.append(found)


def _user_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    for frame in reversed(frames):
        if not any(part in frame.filename for part in NOT_THE_USERS):
            return frame
    return None


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else "no reason given"
    return line if len(line) <= LONGEST_CAUSE else line[: LONGEST_CAUSE - 4] + " ..."


def explained(text: str) -> str:
    """The sentence in which Dynamo says what it does not do, where it has one."""
    before, mark, after = text.partition("Explanation:")
    # It may begin on the next line, and be empty where an operator gives none.
    after = after.partition("Hint:")[0].partition("Developer debug context:")[0]
    return _first_line(after if mark and after.strip() else before)


def short_cause(error: BaseException) -> str:
    """One line: what Dynamo or the backend could not do."""
    text = explained(str(error))
    if isinstance(error, exc.BackendCompilerFailed) and error.inner_exception is not None:
        inner = error.inner_exception
        text = f"{type(inner).__name__}: {_first_line(str(inner))}"
    return text


def where(error: BaseException) -> tuple[str, int]:
    """file and line of the user's code that an error of the compiler is about."""
    for one in (error, getattr(error, "inner_exception", None)):
        place = getattr(one, PLACE, None)
        if place is not None:
            return place
    stack = getattr(error, "real_stack", None) or []
    frame = _user_frame(list(stack))
    if frame is None:
        frame = _user_frame(traceback.extract_tb(error.__traceback__))
    if frame is None and stack:
        frame = stack[-1]
    return (frame.filename, frame.lineno or 0) if frame is not None else ("?", 0)


def short_place(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"


def _lines_of(module: torch.fx.GraphModule) -> set[tuple[str, int]]:
    """Source lines of a graph's operators, also of those inside a checkpointed region."""
    lines: set[tuple[str, int]] = set()
    for submodule in module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            trace = node.meta.get("stack_trace") or node.stack_trace or ""
            for line in trace.splitlines():
                place = _place_in(line)
                if place is not None:
                    lines.add(place)
    return lines


def _first_line_of(module: torch.fx.GraphModule) -> tuple[str, int] | None:
    """Where the model's own code does what comes first in the graph."""
    for submodule in module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            places = [_place_in(line) for line in (node.stack_trace or "").splitlines()]
            for place in reversed(places):
                if place is not None and not any(part in place[0] for part in NOT_THE_USERS):
                    return place
    return None


def _place_in(line: str) -> tuple[str, int] | None:
    text = line.strip()
    if not text.startswith('File "') or ", line " not in text:
        return None
    file, rest = text[6:].split('", line ', maxsplit=1)
    return file, int(rest.split(",", maxsplit=1)[0])


def _operators(module: torch.fx.GraphModule) -> int:
    return sum(
        node.op in ("call_function", "call_method", "call_module")
        for submodule in module.modules()
        if isinstance(submodule, torch.fx.GraphModule)
        for node in submodule.graph.nodes
    )


class NotWanted(Exception):
    """Another process has found out meanwhile that this is no way to run the layer."""


class RecordingBackend:
    """A Dynamo backend: Inductor, watched.

    `may_fail`: a failure is raised (the caller has another way), instead of running that one graph
    eagerly. `wanted` is asked once a graph has been traced, and waits where another process is
    compiling the same.
    """

    watch = False  # note when each graph runs, for compile_explain

    def __init__(
        self, recorder: Recorder, mode: str | None, wanted: Callable[[], bool], *, may_fail: bool
    ) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._may_fail = may_fail
        self._inductor: Any = torch._TorchCompileInductorWrapper(mode or "default", None, None)

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        if not self._wanted():
            if self._may_fail:
                raise NotWanted
            return module.forward
        graph = Graph(_operators(module), _lines_of(module))
        self._recorder.graphs.append(graph)
        reason = getattr(module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break and reason.user_stack:
            frame = reason.user_stack[-1]
            place = (frame.filename, frame.lineno or 0)
            cause = outlined.get(place) or explained(reason.reason)
            graph.ended_by = Break(*place, cause)
            self._recorder.add_break(graph.ended_by)
        try:
            compile_patterns.before(module)
            compiled: Compiled = self._inductor(module, inputs)
            compile_kernels.finish()
        except exc.RestartAnalysis:
            raise  # a request to trace again, with other shapes
        except Exception as error:
            file, line = _first_line_of(module) or where(error)
            if self._may_fail:
                setattr(error, PLACE, (file, line))
                raise
            graph.compiled = False
            self._recorder.failures.append(
                Break(file, line, f"{type(error).__name__}: {_first_line(str(error))}")
            )
            return module.forward
        return _watched(compiled, graph) if self.watch else compiled


def _watched(compiled: Compiled, graph: Graph) -> Compiled:
    def run(*args: Any) -> Any:
        began = time.perf_counter()
        result = compiled(*args)
        graph.spans.append((began, time.perf_counter()))
        return result

    return run


# What torch.compile raises by itself, as opposed to what the layer's own code raises.
COMPILER_ERRORS = (exc.TorchDynamoException, exc.FailOnRecompileLimitHit)


def as_break(error: BaseException) -> Break:
    file, line = where(error)
    return Break(file, line, short_cause(error))

"""From recorded steps to a profile: segments, roles of their tensors, expressions in sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ljtrain.trace_expressions import Expression, Solver
from ljtrain.trace_families import LAYERS
from ljtrain.trace_model import Record
from ljtrain.trace_record import RECOMPUTED, Call, Event, Mark, Read

MIDDLE = LAYERS // 2
AUTOCAST_ENDS = 0  # an event that frees every cast of a parameter that nothing else frees


class TraceError(RuntimeError):
    """A trace that does not have the form that profiles describe."""


@dataclass
class Segment:
    """One segment of one record: storages by number, events in order."""

    forward: list[Event] = field(default_factory=list)
    backward: list[Event] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)
    recomputed: int = 0  # leading events of backward that belong to a recomputed forward


@dataclass(frozen=True)
class Crossing:
    """The storages that pass between segments: hidden states and their gradients."""

    input: int | None
    output: int | None
    output_gradient: int | None
    input_gradient: int | None


def split(record: Record) -> dict[str, Segment]:
    """Prologue, middle layer and epilogue of a recorded step."""
    forward, backward = _halves(record.events)
    marks = {event.name: event.storage for event in record.events if isinstance(event, Mark)}
    segments = {name: Segment() for name in ("prologue", "layer", "epilogue")}
    last = f"layer {LAYERS - 1} done"
    segments["prologue"].forward = _between(forward, "prologue", "layer 0")
    segments["layer"].forward = _between(forward, f"layer {MIDDLE}", f"layer {MIDDLE + 1}")
    segments["epilogue"].forward = _from_first_allocation(_between(forward, last, None))
    first = f"backward layer {LAYERS - 1}"
    segments["epilogue"].backward = _between(backward, "backward", first)
    segments["layer"].backward = _between(
        backward, f"backward layer {MIDDLE}", f"backward layer {MIDDLE - 1}"
    )
    segments["layer"].recomputed = _recomputed(
        backward, f"backward layer {MIDDLE}", f"backward layer {MIDDLE - 1}"
    )
    prologue_gradient = marks.get("backward prologue")
    if prologue_gradient is not None:
        segments["prologue"].backward = _between(backward, "backward prologue", "end")
    else:  # a frozen embedding: what the first layer would pass on goes nowhere
        passed_on_to_nobody = marks[f"backward layer {MIDDLE - 1}"]
        assert passed_on_to_nobody is not None
        prologue_gradient = passed_on_to_nobody
        segments["prologue"].backward = [-passed_on_to_nobody]
    # The loss and its gradient end with the step: the epilogue shares them, nobody frees them.
    # What the prologue shares may end when the model's forward returns: it frees that itself.
    early, late = segments["prologue"], segments["epilogue"]
    allocated_early, _ = _numbers(early.forward)
    allocated_late, _ = _numbers(late.forward + late.backward)
    passed_on = {mark.storage for mark in record.events if isinstance(mark, Mark)}
    early.backward = _without_frees(early.backward, allocated_late - passed_on)
    late.forward = _without_frees(late.forward, allocated_early)
    late.forward = _end_of_autocast(late.forward, record.casts - allocated_late)
    _end_with_layer(
        segments["layer"], forward, marks[f"layer {MIDDLE}"], marks[f"layer {MIDDLE} done"]
    )
    late.forward = _own_frees(late.forward, marks[last])
    crossing = {
        "prologue": Crossing(None, marks["layer 0"], prologue_gradient, None),
        "layer": Crossing(
            marks[f"layer {MIDDLE}"],
            marks[f"layer {MIDDLE} done"],
            marks[f"backward layer {MIDDLE}"],
            marks[f"backward layer {MIDDLE - 1}"],
        ),
        "epilogue": Crossing(marks[last], None, None, marks[first]),
    }
    for name, segment in segments.items():
        _assign_roles(segment, record, name, crossing[name])
    return {name: _in_order(segment) for name, segment in segments.items()}


def _halves(events: list[Event]) -> tuple[list[Event], list[Event]]:
    at = next(i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == "backward")
    return events[:at], events[at:]


def _between(events: list[Event], begin: str, end: str | None) -> list[Event]:
    names = [event.name if isinstance(event, Mark) else None for event in events]
    start = names.index(begin)
    stop = len(events) if end is None else names.index(end, start)
    return [event for event in events[start:stop] if not isinstance(event, Mark)]


def _recomputed(events: list[Event], begin: str, end: str) -> int:
    """Allocations and frees up to the end of a recomputed forward, its own frees included."""
    start = next(i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == begin)
    stop = next(i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == end)
    window = events[start:stop]
    last = max((i for i, event in enumerate(window) if event is RECOMPUTED), default=-1) + 1
    if last:
        while isinstance(window[last], int) and window[last] < 0:  # type: ignore[operator]
            last += 1
    return sum(isinstance(event, int) for event in window[:last])


def _from_first_allocation(events: list[Event]) -> list[Event]:
    """Without the frees that belong to the layer before: the caller's old hidden states."""
    at = next(i for i, event in enumerate(events) if not (isinstance(event, int) and event < 0))
    return events[at:]


def _own_frees(events: list[Event], input_: int | None) -> list[Event]:
    """Without the frees of what another segment allocated, its hidden states excepted."""
    allocated, freed = _numbers(events)
    return _without_frees(events, freed - allocated - {input_})


def _end_with_layer(
    layer: Segment, forward: list[Event], input_: int | None, output: int | None
) -> None:
    """Some loops hold all that a layer returns until the next has returned (mpt's attention
    weights). The profile frees it with the layer: backward, where the peak is, sees none of it.
    """
    kept = _own_frees(layer.forward, input_)
    foreign = len(layer.forward) - len(kept)
    allocated, freed = _numbers(kept)
    _, freed_in_forward = _numbers(forward)
    left = sorted((allocated & freed_in_forward) - freed - {output})
    if len(left) < foreign:
        raise TraceError("a layer frees what no layer allocated")
    if foreign:
        layer.forward = kept + [-number for number in left]


def _without_frees(events: list[Event], numbers: set[int]) -> list[Event]:
    return [event for event in events if not (isinstance(event, int) and -event in numbers)]


def _end_of_autocast(events: list[Event], casts: set[int]) -> list[Event]:
    """With one mark where autocast lets go of the casts that layers made, not one free for each."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, int) and -event in casts:
            if AUTOCAST_ENDS not in result:
                result.append(AUTOCAST_ENDS)
        else:
            result.append(event)
    return result


def _assign_roles(segment: Segment, record: Record, name: str, crossing: Crossing) -> None:
    output_gradient, input_gradient = crossing.output_gradient, crossing.input_gradient
    if output_gradient is not None and output_gradient == input_gradient:
        # One storage is both, as where a residual's gradients are added in place.
        if output_gradient in map(_number, segment.backward):
            raise TraceError(f"{name}: the gradient that passes through is freed")
        replacement = max(record.storages) + 1
        record.storages[replacement] = record.storages[input_gradient]
        segment.backward += [-output_gradient, replacement]
        input_gradient = replacement
    if name == "prologue":
        _share(segment, record, crossing.output)
    in_forward, freed_forward = _numbers(segment.forward)
    in_backward, freed_backward = _numbers(segment.backward)
    by_storage = {
        crossing.input: "input",
        crossing.output: "output",
        output_gradient: "output_gradient",
        input_gradient: "input_gradient",
    }
    for number in in_forward | in_backward | freed_forward | freed_backward:
        if number in by_storage:
            role = by_storage[number]
        elif number in record.gradients:
            role = f"weight_gradient:{record.gradients[number][1]}"
        elif number in record.casts and number in in_forward and number not in freed_forward:
            role = "weight_cast"
        elif record.storages[number].inside_kernel:
            role = "host_temporary"
        elif number not in in_forward | in_backward:
            role = "foreign"
        elif number in in_forward and number in freed_backward:
            role = "activation"
        elif number not in freed_forward | freed_backward:
            role = "shared"
        else:
            role = "temporary"
        segment.roles[number] = role


def _share(segment: Segment, record: Record, output: int | None) -> None:
    """What the prologue leaves behind, but for the hidden states: rotary tables and masks live
    until its backward. (Some of it ends a little earlier, with the first layer's backward.) What
    only the model's loop holds (embeddings, position ids) ends with the prologue here: in truth
    when the loop returns, before the loss, which no peak falls into.
    """
    allocated, freed = _numbers(segment.forward)
    _, freed_backward = _numbers(segment.backward)
    forward, backward = _halves(record.events)
    left = allocated - freed - freed_backward - {output}
    held = left & _numbers(forward)[1]
    saved = left & _numbers(backward)[1]
    segment.forward = segment.forward + [-number for number in sorted(held)]
    segment.backward = [-number for number in sorted(saved)] + segment.backward


def _number(event: Event) -> int:
    return abs(event) if isinstance(event, int) else 0


def _numbers(events: list[Event]) -> tuple[set[int], set[int]]:
    integers = [event for event in events if isinstance(event, int) and event != AUTOCAST_ENDS]
    return {e for e in integers if e > 0}, {-e for e in integers if e < 0}


# ---- several records of one segment to its JSON ----


def describe(
    name: str, records: Sequence[Record], segments: Sequence[Segment], solver: Solver
) -> dict[str, Any]:
    """The JSON of a segment, from the same segment in every record of the solver's traces."""
    order = _aligned(name, segments)
    tensors = []
    for numbers in order:
        role = segments[0].roles[numbers[0]]
        if role == "foreign":
            operator = records[0].storages[numbers[0]].operator
            raise TraceError(f"{name} frees a tensor of another segment (from {operator})")
        storages = [r.storages[n] for r, n in zip(records, numbers, strict=True)]
        tensors.append([str(_bytes(storages, solver)), storages[0].operator, role])
    index = {numbers[0]: position + 1 for position, numbers in enumerate(order)}
    return {
        "tensors": tensors,
        "forward": _indexed(segments[0].forward, index),
        "backward": _indexed(segments[0].backward, index),
        "work": _work(segments, solver),
        "parameters": _parameters(name, records, solver),
        "uses": _uses(name, records[0], segments[0]),
        **({"recompute_events": segments[0].recomputed} if segments[0].recomputed else {}),
    }


def _in_order(segment: Segment) -> Segment:
    """Frees that follow each other, in the order of allocation: in truth it may depend on the
    order of a dictionary, and no peak does on it.
    """

    def sorted_runs(events: list[Event]) -> list[Event]:
        ordered: list[Event] = []
        run: list[int] = []
        for event in [*events, AUTOCAST_ENDS]:
            if isinstance(event, int) and event < 0:
                run.append(event)
                continue
            ordered += sorted(run, reverse=True)
            run = []
            ordered.append(event)
        return ordered[:-1]

    forward, backward = sorted_runs(segment.forward), sorted_runs(segment.backward)
    return replace(segment, forward=forward, backward=backward)


def _uses(name: str, record: Record, segment: Segment) -> list[list[int]]:
    """[parameter, index into forward]: the event before which each parameter is first read."""
    first: dict[int, int] = {}
    position = 0
    for event in segment.forward:
        if isinstance(event, int):
            position += 1
        elif isinstance(event, Read) and event.address in record.addresses:
            owner, ordinal = record.addresses[event.address]
            if owner == name:
                first.setdefault(ordinal, position)
    return [[ordinal, at] for ordinal, at in first.items()]


def _aligned(name: str, segments: Sequence[Segment]) -> list[tuple[int, ...]]:
    """The storages of the segments in order of appearance, the same one of each side by side."""
    first = segments[0]
    columns = []
    for segment in segments:
        shape = [_kind(e, segment) for e in segment.forward + segment.backward]
        reference = [_kind(e, first) for e in first.forward + first.backward]
        if shape != reference:
            at = next(
                (i for i, (a, b) in enumerate(zip(shape, reference, strict=False)) if a != b),
                min(len(shape), len(reference)),
            )
            raise TraceError(f"{name}: at other sizes another step happens (event {at})")
        seen: dict[int, None] = {}
        for event in segment.forward + segment.backward:
            if isinstance(event, int) and event != AUTOCAST_ENDS:
                seen.setdefault(abs(event))
        columns.append(list(seen))
    return list(zip(*columns, strict=True))


def _kind(event: Event, segment: Segment) -> str:
    if event == AUTOCAST_ENDS:
        return "autocast ends"
    if isinstance(event, int):
        return f"{'+' if event > 0 else '-'}{segment.roles[abs(event)]}"
    return event.operator if isinstance(event, Call) else ""


def _bytes(storages: Sequence[Any], solver: Solver) -> Expression:
    elements = solver.product([storage.shape for storage in storages])
    result = elements * storages[0].item_bytes
    for storage, sizes in zip(storages, solver.traces, strict=True):
        if result.evaluate(sizes) != storage.bytes:
            return solver.solve([storage.bytes for storage in storages])
    return result


def _indexed(events: list[Event], index: dict[int, int]) -> list[int]:
    return [
        event and (index[event] if event > 0 else -index[-event])
        for event in events
        if isinstance(event, int)
    ]


def _work(segments: Sequence[Segment], solver: Solver) -> list[list[str]]:
    calls = [[e for e in segment.forward if isinstance(e, Call)] for segment in segments]
    work = []
    for same in zip(*calls, strict=True):
        inputs = [
            (solver.product([call.inputs[i][0] for call in same]), same[0].inputs[i][1])
            for i in range(len(same[0].inputs))
        ]
        outputs = [
            (solver.product([call.outputs[i][0] for call in same]), same[0].outputs[i][1])
            for i in range(len(same[0].outputs))
        ]
        moved = Expression()
        for elements, item_bytes in inputs + outputs:
            moved = moved + elements * item_bytes
        work.append([same[0].operator, str(_flops(same, solver)), str(moved)])
    return work


def _flops(calls: Sequence[Call], solver: Solver) -> Expression:
    """2*m*n*k of matrix products, attention's two products (half of them where causal)."""
    operator = calls[0].operator

    def size(position: int, dimension: int) -> Expression:
        return solver.solve([call.inputs[position][0][dimension] for call in calls])

    if operator in ("aten.mm", "aten.addmm"):
        left = 0 if operator == "aten.mm" else 1
        return size(left, 0) * size(left, 1) * size(left + 1, 1) * 2
    if operator == "aten.bmm":
        return size(0, 0) * size(0, 1) * size(0, 2) * size(1, 2) * 2
    if "scaled_dot_product" in operator:
        query = size(0, 0) * size(0, 1) * size(0, 2)
        products = query * size(1, 2) * (size(0, 3) + size(2, 3)) * 2
        return products.halved() if calls[0].causal else products
    if not calls[0].outputs:
        return Expression()
    return solver.product([call.outputs[0][0] for call in calls])


def _parameters(segment: str, records: Sequence[Record], solver: Solver) -> list[list[Any]]:
    columns = [record.parameters[segment] for record in records]
    return [
        [same[0].name, str(solver.product([p.shape for p in same])), same[0].trainable]
        for same in zip(*columns, strict=True)
    ]

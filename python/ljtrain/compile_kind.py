"""Runs the layers of one kind: as one graph, as several, or eagerly, whichever works and is faster.

A layer's `forward` is replaced on the instance, inside the hooks by which engines gather its
parameters. One compiled function serves all layers of the kind. The first call with inputs of a new
form compiles, tries and measures on copies of them (see compile_trial), so that a failure is known
before a layer has computed anything, and outside of any recomputation.
"""

from __future__ import annotations

import functools
import logging
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from ljtrain import (
    compile_backend,
    compile_cache,
    compile_inputs,
    compile_outline,
    compile_passes,
    compile_trial,
)
from ljtrain.compile_backend import Break, Recorder
from ljtrain.compile_cache import EAGER, PARTS, WHOLE, Decision
from ljtrain.compile_layers import LayerKind
from ljtrain.compile_loss import Loss
from ljtrain.compile_trial import Call

Forward = Callable[..., Any]
Undo = Callable[[], None]
CHECKPOINTED = "forward_with_checkpointing"  # transformers' name of the function and of its cell
# Dynamo's own limit must not strike in the middle of a step: ours does, between two steps.
DYNAMO_LIMIT = 64
MOST_RECOMPILATIONS = 8
MODES = (WHOLE, PARTS, EAGER)  # in the order in which they are tried
MOST_ROUNDS = 6  # of outlining statements that graphs cannot begin in again

_log = logging.getLogger("ljtrain")


def with_inner(forward: Forward, inner: Callable[[Forward], Forward]) -> Forward:
    """transformers' checkpointing forward around another inner forward; plain ones are replaced.

    GradientCheckpointingLayer keeps the layer's own forward in the closure of the one that
    checkpoints, so a copy of that function with another cell checkpoints just the same.
    """
    code = getattr(forward, "__code__", None)
    if code is None or code.co_name != CHECKPOINTED or "forward" not in code.co_freevars:
        return inner(forward)
    cells = dict(zip(code.co_freevars, forward.__closure__ or (), strict=True))
    cells["forward"] = types.CellType(inner(cells["forward"].cell_contents))
    return types.FunctionType(
        code,
        forward.__globals__,
        forward.__name__,
        None,
        tuple(cells[name] for name in code.co_freevars),
    )


def _tried(run: Forward, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with compile_trial.without_reentry(layer):
        return run(layer, *args, **kwargs)


def _to_the_end(run: Forward, *args: Any, **kwargs: Any) -> Any:
    """A recomputation that stopped inside a graph, at the last tensor it needs, would leave out
    what the graph's code does to Python objects afterwards.
    """
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return run(*args, **kwargs)


def checkpoints(layer: nn.Module) -> bool:
    return bool(getattr(layer, "gradient_checkpointing", False)) and layer.training


@dataclass
class Variant:
    """One way in which layers of a kind are called: training or not, checkpointed or not."""

    name: str
    mode: str | None = None  # None: nothing is known yet
    run: Forward | None = None
    known: set[compile_inputs.Signature] = field(default_factory=set)
    refused: set[compile_inputs.Signature] = field(default_factory=set)  # until the next switch
    first: compile_inputs.Signature | None = None
    dynamic: bool = False
    decision: Decision | None = None
    recorder: Recorder = field(default_factory=Recorder)
    switched: bool = False  # runs otherwise than its first trial decided
    compilations: int = 0
    seconds: float = 0.0  # compiling, trying and waiting for other ranks
    first_graphs: int = 0  # of the first compilation


class CompiledKind:
    """The layers of a kind, and how each variant of a call runs."""

    def __init__(
        self,
        kind: LayerKind,
        mode: str | None,
        on_decision: Callable[[CompiledKind, Variant], None],
        on_late_failure: Callable[[CompiledKind, Variant, Break], None],
    ) -> None:
        self.kind = kind
        self.forward: Forward = type(kind.layers[0]).forward
        self.variants: dict[tuple[Any, ...], Variant] = {}
        # Stands for the layers while they are compiled before the first step (compile_dry).
        self.rehearse: Callable[[CompiledKind, nn.Module, Any, Any], Any] | None = None
        self._mode = mode
        self._on_decision = on_decision
        self._on_late_failure = on_late_failure
        self._turn: compile_cache.Turn | None = None  # while inputs of a new form are prepared for

    # ---- the call ----

    def call(self, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a layer's `forward` is while training."""
        if torch.compiler.is_compiling():
            return self.forward(layer, *args, **kwargs)
        if self.rehearse is not None:
            return self.rehearse(self, layer, args, kwargs)
        if not torch.is_grad_enabled():
            args, kwargs = compile_inputs.without_gradients((args, kwargs))
        variant = self._variant(layer)
        if not self._ready(variant, layer, args, kwargs):
            return self.forward(layer, *args, **kwargs)
        assert variant.run is not None
        try:
            return variant.run(layer, *args, **kwargs)
        except compile_backend.COMPILER_ERRORS as error:
            # Raised before the graph ran, so the layer has not computed anything yet.
            self._on_late_failure(self, variant, compile_backend.as_break(error))
            return self.forward(layer, *args, **kwargs)

    def prepare(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles and tries what a call with these inputs needs, without making it."""
        self._ready(self._variant(layer), layer, args, kwargs)

    def _ready(
        self, variant: Variant, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the call can be made compiled."""
        if variant.mode == EAGER:
            return False
        signature = compile_inputs.signature((args, kwargs), sizes=not variant.dynamic)
        return signature in variant.known or self._meet(variant, layer, args, kwargs)

    def variant_key(self, layer: nn.Module) -> tuple[Any, ...]:
        return (
            layer.training,
            torch.is_grad_enabled(),
            checkpoints(layer),
            torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        )

    def _variant(self, layer: nn.Module) -> Variant:
        key = self.variant_key(layer)
        variant = self.variants.get(key)
        if variant is None:
            name = ("training" if key[0] else "evaluation") + (
                ", checkpointed" * (key[2] and key[1])
            )
            variant = self.variants[key] = Variant(
                name + ", no gradients" * (key[0] and not key[1])
            )
        return variant

    # ---- new inputs ----

    def _meet(
        self, variant: Variant, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Prepares for inputs of a new form; False: run this call eagerly."""
        if torch._C._current_graph_task_id() != -1:
            return False  # a recomputation: what its forward did not compile, it does not either
        if any(hasattr(value, "get_seq_length") for value in compile_inputs.values((args, kwargs))):
            return False  # a cache of keys and values: generating
        exact = compile_inputs.signature((args, kwargs), sizes=True)
        if exact in variant.refused:
            return False
        began = time.perf_counter()
        varying: frozenset[int] = frozenset()
        if variant.first is not None and compile_passes.on(compile_passes.DYNAMIC_SHAPES):
            varying = compile_inputs.changed_sizes(variant.first, exact)
        variant.dynamic |= bool(varying)
        call = compile_trial.Call(layer, args, kwargs, varying)
        try:
            with compile_cache.turn(self._key(variant, call, exact)) as self._turn:
                cause = self._prepare(variant, self._turn, call)
        finally:
            self._turn = None
        variant.seconds += time.perf_counter() - began
        if cause is not None:
            variant.refused.add(exact)
            self._on_late_failure(self, variant, cause)
            return False
        if variant.switched and variant.mode == EAGER:  # here, but perhaps not on other ranks
            cause = (
                variant.recorder.failures[-1] if variant.recorder.failures else Break("?", 0, "")
            )
            self._on_late_failure(self, variant, cause)
        variant.first = variant.first or exact
        variant.known.add(compile_inputs.signature((args, kwargs), sizes=not variant.dynamic))
        return variant.mode != EAGER

    def _key(self, variant: Variant, call: Call, exact: Any) -> str:
        inner = getattr(self.forward, "__wrapped__", self.forward)
        code = getattr(inner, "__code__", None)
        attention: Any = getattr(call.layer, "self_attn", None)
        config: Any = getattr(call.layer, "config", getattr(attention, "config", None))
        return compile_cache.key_of(
            self.kind.signature,
            variant.name,
            "any sizes" if call.varying else exact,
            compile_inputs.signature((call.args, call.kwargs), sizes=False),
            code.co_code if code is not None else None,
            str(config.to_dict()) if hasattr(config, "to_dict") else None,
            self._mode,
            compile_passes.left_out(),
            compile_cache.environment(),
        )

    def _prepare(self, variant: Variant, turn: compile_cache.Turn, call: Call) -> Break | None:
        """The cause, if a variant that has been running cannot be compiled for this call: how it
        runs then changes between two steps only.
        """
        with compile_trial.no_trace(call.layer):
            if variant.first is not None:
                cause = self._compile_again(variant, call)
                if cause is not None:
                    return cause
            else:
                self._compile(variant, call)
            turn.wait()
            known = turn.decision
            if known is None:
                known = self._decide(variant, call)
                if known.compiled_s is not None:  # a failure may be another process's own
                    turn.decide(known)
        variant.decision = known
        if known.mode == EAGER:
            variant.mode, variant.run = EAGER, None
        self._on_decision(self, variant)
        return None

    def _compile_again(self, variant: Variant, call: Call) -> Break | None:
        assert variant.run is not None
        try:
            compile_trial.step(variant.run, call)
        except Exception as error:
            _log.debug("%s again", self.kind.name, exc_info=error)
            return compile_backend.as_break(error)
        variant.compilations += 1
        return None

    def _compile(self, variant: Variant, call: Call) -> None:
        """Compiles by trying: one graph, else several, else none."""
        not_whole: list[Break] = []
        for attempt in (WHOLE, PARTS):
            if not self._wanted(attempt) or (attempt == WHOLE and variant.mode == PARTS):
                continue
            if variant.mode != attempt:
                self._begin(variant, attempt)
            assert variant.run is not None
            try:
                if attempt == WHOLE:
                    compile_trial.step(variant.run, call)
                else:
                    self._step_in_parts(variant, call)
            except Exception as error:
                _log.debug("%s as %s", self.kind.name, attempt, exc_info=error)
                if self._wanted(attempt):
                    not_whole.append(compile_backend.as_break(error))
                continue
            variant.compilations += 1
            variant.first_graphs = variant.first_graphs or len(variant.recorder.graphs)
            if any(graph.compiled for graph in variant.recorder.graphs):
                if not variant.recorder.breaks:  # what broke one graph is eager in no other way
                    variant.recorder.failures += not_whole
                return
        variant.recorder.failures += not_whole
        variant.mode, variant.run = EAGER, None

    def _wanted(self, mode: str) -> bool:
        """False: another process has found that this does not work, or does not pay."""
        known = self._turn.decision if self._turn is not None else None
        return known is None or MODES.index(known.mode) <= MODES.index(mode)

    def _wanted_in_turn(self, mode: str) -> bool:
        if self._turn is not None:
            self._turn.wait()
        return self._wanted(mode)

    def _begin(self, variant: Variant, mode: str) -> None:
        variant.recorder = Recorder(failures=variant.recorder.failures)
        variant.mode, variant.run = mode, self._build(variant.recorder, mode)

    def _step_in_parts(self, variant: Variant, call: Call) -> None:
        """Tries; where Dynamo gave up a function because of one statement, without that one."""
        for left in reversed(range(MOST_ROUNDS)):
            assert variant.run is not None
            with compile_outline.failures() as failed:
                compile_trial.step(functools.partial(_tried, variant.run), call)
            if left == 0 or not self._wanted(PARTS) or not compile_outline.mend(failed):
                return
            self._begin(variant, PARTS)

    def _build(self, recorder: Recorder, mode: str) -> Forward:
        wanted = functools.partial(self._wanted_in_turn, mode)
        backend = compile_backend.RecordingBackend(
            recorder, self._mode, wanted, may_fail=mode == WHOLE
        )
        compiled = functools.partial(
            torch.compile,
            backend=backend,
            fullgraph=mode == WHOLE,
            dynamic=None if compile_passes.on(compile_passes.DYNAMIC_SHAPES) else False,
            isolate_recompiles=True,
            recompile_limit=DYNAMO_LIMIT,
        )
        if mode == WHOLE:
            return compiled(self.forward)
        return functools.partial(_to_the_end, with_inner(self.forward, compiled))

    def _decide(self, variant: Variant, call: Call) -> Decision:
        if variant.mode == EAGER or variant.run is None:
            cause = variant.recorder.failures[-1] if variant.recorder.failures else "no graph"
            return Decision(EAGER, None, None, str(cause))
        if not compile_passes.on(compile_passes.TRIAL):
            return Decision(variant.mode or EAGER, None, None, "not tried against eager")
        with_eager_checkpoint = functools.partial(_tried, self.forward)
        try:
            if isinstance(call.layer, Loss):
                clear = self._clearly_faster(variant.run, call)
                if clear is not None:
                    return Decision(variant.mode or EAGER, None, clear, "faster than eager")
            compile_trial.step(with_eager_checkpoint, call)
            eager, compiled = compile_trial.compare(with_eager_checkpoint, variant.run, call)
        except Exception as error:  # a trial must not cost the training
            _log.debug("%s eagerly", self.kind.name, exc_info=error)
            cause = compile_backend.short_cause(error)
            return Decision(variant.mode or EAGER, None, None, f"not measured: {cause}")
        if compiled < eager:
            return Decision(variant.mode or EAGER, eager, compiled, "faster than eager")
        return Decision(EAGER, eager, compiled, "eager is faster here")

    def _clearly_faster(self, run: Forward, call: Call) -> float | None:
        """Seconds of the compiled forward and backward where they are fewer than eager's forward
        takes alone. Eager's backward of a loss takes more memory than the step that is compiled.
        """
        rounds = range(compile_trial.FEWEST_ROUNDS)
        eager = min(compile_trial.forward_alone(self.forward, call) for _ in rounds)
        compiled = max(compile_trial.step(run, call) for _ in rounds)
        return compiled if compiled < eager else None

    # ---- in and out ----

    def switch(self, variant: Variant, mode: str) -> None:
        """Between two steps: from the next call on, this variant runs otherwise."""
        variant.known.clear()
        variant.refused.clear()
        variant.first = None
        variant.switched = True
        variant.mode, variant.run = mode, None
        if mode != EAGER:
            self._begin(variant, mode)

    def install(self, replace: Callable[[nn.Module, Any], Undo]) -> list[Undo]:
        return [replace(layer, types.MethodType(self.call, layer)) for layer in self.kind.layers]

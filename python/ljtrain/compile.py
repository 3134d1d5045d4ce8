"""`torch_compile=True` by the layer: what LJTRAIN_COMPILE=0 switches off.

Stock PyTorch compiles the whole model, and the hooks in which ZeRO, FSDP and DDP communicate cut
it to pieces. Here the layers are compiled, inside those hooks; under ZeRO-3 they become DeepSpeed's
leaf modules, gathered as a whole. A Trainer callback does it, so that everything else of
transformers, accelerate and DeepSpeed runs as it is.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from ljtrain import (
    announce,
    autoload,
    compile_kernels,
    compile_layers,
    compile_loss,
    compile_outline,
    compile_passes,
    compile_zero,
    patches,
    versions,
)
from ljtrain.compile_agreement import Agreement
from ljtrain.compile_backend import Break, short_place
from ljtrain.compile_cache import EAGER, PARTS, WHOLE
from ljtrain.compile_dry import DryPass
from ljtrain.compile_kind import MOST_RECOMPILATIONS, CompiledKind, Variant
from ljtrain.compile_layers import LayerKind

REGIONAL_VARIABLE = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
_runs = itertools.count()
_reports: list[CompileCallback] = []
left_to_stock: list[str] = []  # why, where torch_compile=True was asked for


def _why_not(args: TrainingArguments, kinds: list[LayerKind]) -> str | None:
    """Why torch_compile=True stays what it is in stock PyTorch; None: it does not."""
    untested = versions.untested("torch")
    if untested is not None:
        return untested.rstrip(".")
    if args.torch_compile_backend != "inductor":
        return f"the backend {args.torch_compile_backend} was asked for"
    if os.environ.get(REGIONAL_VARIABLE, "").lower() in ("1", "true", "yes", "on"):
        return f"{REGIONAL_VARIABLE} is set"
    if not kinds:
        return "the model has no list of repeated layers"
    return None


class CompileCallback(TrainerCallback):
    """One Trainer's compiled layers, from its making to the end of its training."""

    def __init__(self) -> None:
        self.kinds: list[CompiledKind] = []  # the loss is the last one
        self.loss: CompiledKind | None = None
        self.zero: dict[str, int] | None = None
        self.dry: DryPass | None = None
        self.left_out: list[str] = []
        self._found: list[LayerKind] = []
        self._agreement: Agreement | None = None
        self._step = 0
        self._restore: list[Any] = []
        self._late: set[tuple[int, str]] = set()

    # ---- before the engine is made ----

    def on_init_end(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        model = kwargs.get("model")
        if not args.torch_compile or not isinstance(model, nn.Module):
            return
        zero = compile_zero.settings()
        largest = compile_zero.largest_unit(zero) if zero is not None else None
        found = compile_layers.find_kinds(model, largest)
        why_not = _why_not(args, found)
        if why_not is not None:
            left_to_stock.append(why_not)
            announce.say(
                f"compile leaves torch_compile=True to stock PyTorch: {why_not}.", "warning"
            )
            return
        self._found = found
        for package in versions.TESTED:
            sentence = versions.untested(package)
            if sentence is not None:
                announce.say(sentence, "warning")
        patches.NO_STOCK_COMPILE.apply()
        self.left_out = compile_passes.left_out()
        if self.left_out:
            announce.say(f"compile leaves out {', '.join(self.left_out)}, as asked.", "warning")
        if compile_passes.on(compile_passes.BATCHED_KERNELS):
            self._restore.append(patches.TRUSTED_PROCESSOR.apply())
            compile_kernels.prepare()
        if zero is not None:
            if compile_passes.on(compile_passes.LEAF_MODULES):
                compile_zero.mark_leaves(model, found)
            self.zero = compile_zero.fit(zero, model, found)

    # ---- training ----

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        model = kwargs.get("model")
        if not self._found or not isinstance(model, nn.Module):
            return
        kinds = compile_layers.find_kinds(model, self._largest())
        self.begin(model, kinds, args.torch_compile_mode)
        if compile_passes.on(compile_passes.DRY_PASS):
            # With recomputing by plan, a layer's checkpoint may come and go between two steps.
            both = bool(args.gradient_checkpointing) and "recompute" in autoload.active
            self.dry = DryPass(model, self.kinds, both=both)
            self._restore.append(self.dry.remove)
        _reports.append(self)

    def begin(self, model: nn.Module, found: list[LayerKind], mode: str | None) -> None:
        """Puts compiled forwards into the layers; `on_train_end` takes them out again."""
        self._agreement = Agreement(next(_runs))
        self._step = 0
        self._restore += [patch.apply() for patch in patches.COMPILER_SETTINGS]
        if compile_passes.on(compile_passes.BATCHED_KERNELS):
            self._restore += [patches.KERNELS_IN_BATCHES.apply(), patches.TRUSTED_PROCESSOR.apply()]
        logger = logging.getLogger("torch._dynamo.convert_frame")  # suppressed errors: ours say it
        self._restore.append(functools.partial(logger.setLevel, logger.level))
        logger.setLevel(logging.CRITICAL)
        if self.zero is not None:
            patches.STOCK_LINEAR_IN_GRAPHS.apply()
        self.kinds, self.loss = [], None
        for layers in found:
            kind = CompiledKind(layers, mode, self._decided, self._failed_late)
            self._restore += kind.install(patches.LAYER_FORWARD.apply)
            self.kinds.append(kind)
        self._restore += [_input_gradients(self.kinds), _without_cache(model)]
        if compile_passes.on(compile_passes.LOSS):
            self._compile_loss(model, mode)

    def _compile_loss(self, model: nn.Module, mode: str | None) -> None:
        found = compile_loss.find(model)
        if found is None:
            return
        owner, loss = found
        self.loss = CompiledKind(loss, mode, self._decided, self._failed_late)
        self._restore += self.loss.install(patches.LAYER_FORWARD.apply)
        self._restore.append(compile_loss.install(owner, loss.layers[0]))
        self.kinds.append(self.loss)

    def _largest(self) -> int | None:
        zero = compile_zero.settings()
        return compile_zero.largest_unit(zero) if zero is not None else None

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._agreement is None:
            return
        for number, kind in enumerate(self.kinds):
            for variant in kind.variants.values():
                self._check_recompilations(number, kind, variant)
        for post in self._agreement.due(self._step):
            self._switch(post)
        self._step += 1

    def on_train_end(self, *_: Any, **__: Any) -> None:
        for restore in reversed(self._restore):
            restore()
        self._restore = []
        compile_outline.restore()
        self._agreement = None

    # ---- what was decided, and what fails later ----

    def _decided(self, kind: CompiledKind, variant: Variant) -> None:
        for line in _sentences(kind, variant):
            announce.say(line)

    def _failed_late(self, kind: CompiledKind, variant: Variant, cause: Break) -> None:
        variant.recorder.failures.append(cause)
        self._post(kind, variant, cause, PARTS if variant.mode == WHOLE else EAGER)

    def _check_recompilations(self, number: int, kind: CompiledKind, variant: Variant) -> None:
        most = MOST_RECOMPILATIONS * max(1, variant.compilations)
        graphs = len(variant.recorder.graphs)
        if variant.mode == EAGER or graphs <= most * max(1, variant.first_graphs):
            return
        cause = Break(
            "?", 0, f"compiled {graphs} graphs, as its inputs or attributes keep changing"
        )
        self._post(kind, variant, cause, EAGER)

    def _post(self, kind: CompiledKind, variant: Variant, cause: Break, mode: str) -> None:
        number = self.kinds.index(kind)
        if self._agreement is None or (number, variant.name) in self._late:
            return
        self._late.add((number, variant.name))
        self._agreement.post(
            self._step,
            {"kind": number, "variant": variant.name, "mode": mode, "cause": str(cause)},
        )

    def _switch(self, post: dict[str, Any]) -> None:
        kind = self.kinds[post["kind"]]
        self._late.discard((post["kind"], post["variant"]))
        concerned = [
            variant
            for variant in kind.variants.values()
            if variant.name == post["variant"] and variant.mode != post["mode"]
        ]
        if not concerned:  # another rank's post came first
            return
        for variant in concerned:
            kind.switch(variant, post["mode"])
        how = "in parts" if post["mode"] == PARTS else "eagerly"
        announce.say(
            f"compile: {kind.kind.name} ({post['variant']}) runs {how} from step "
            f"{self._step + 2} on: {post['cause']}.",
            "warning",
        )

    # ---- what was done ----

    def report(self) -> dict[str, Any]:
        return {
            "kinds": [_kind_report(kind) for kind in self.kinds if kind is not self.loss],
            "loss": _kind_report(self.loss) if self.loss is not None else None,
            "zero3": self.zero,
            "dry_pass": self.dry.report() if self.dry is not None else None,
            "left_out": self.left_out,
        }


def _sentences(kind: CompiledKind, variant: Variant) -> list[str]:
    """One line for the decision, and one for each line of source that runs eagerly."""
    decision = variant.decision
    subject = f"compile: {kind.kind.name} x {len(kind.kind.layers)} ({variant.name})"
    if decision is None:
        return []
    speed = f", {decision.speedup:.2f} x eager's speed" if decision.speedup is not None else ""
    if decision.mode == EAGER:
        return [f"{subject} runs eagerly: {decision.why}{speed}."]
    graphs = variant.recorder.graphs
    how = "one graph" if len(graphs) == 1 else f"{len(graphs)} graphs"
    operators = sum(graph.operators for graph in graphs)
    sizes = "any sizes" if variant.dynamic else "these sizes"
    lines = [f"{subject} is {how} of {operators} operators for {sizes}{speed}."]
    lines += [
        f"compile: {kind.kind.name}: {short_place(item.file, item.line)} runs eagerly: {item.cause}"
        for item in [*variant.recorder.breaks, *variant.recorder.failures]
    ]
    return lines


def _kind_report(kind: CompiledKind) -> dict[str, Any]:
    return {
        "name": kind.kind.name,
        "layers": len(kind.kind.layers),
        "variants": [
            {
                "name": variant.name,
                "mode": variant.mode,
                "dynamic": variant.dynamic,
                "compilations": variant.compilations,
                "recompilations": max(0, variant.compilations - 1),
                "seconds": variant.seconds,
                "graphs": len(variant.recorder.graphs),
                "breaks": [str(item) for item in variant.recorder.breaks],
                "failures": [str(item) for item in variant.recorder.failures],
                "eager_s": variant.decision.eager_s if variant.decision else None,
                "compiled_s": variant.decision.compiled_s if variant.decision else None,
            }
            for variant in kind.variants.values()
        ],
    }


def _input_gradients(kinds: list[CompiledKind]) -> Any:
    """Makes sure that an engine sees when a layer's backward is done.

    DeepSpeed reduces a leaf module's gradients in a full backward hook, which runs when the
    gradient of the first positional inputs is known. With the input given by name, or not
    differentiated (frozen embeddings), it would run before the parameters' gradients are there.
    """

    def ready(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled() or not layer.training:
            return None
        if not args:
            name = _first_parameter(type(layer).forward)
            if name not in kwargs:
                return None
            kwargs = dict(kwargs)
            args = (kwargs.pop(name),)
        hidden = args[0]
        if isinstance(hidden, torch.Tensor) and hidden.is_floating_point() and hidden.is_leaf:
            hidden.requires_grad_(True)
        return args, kwargs

    handles = [
        layer.register_forward_pre_hook(ready, prepend=True, with_kwargs=True)
        for kind in kinds
        for layer in kind.kind.layers
        if any(parameter.requires_grad for parameter in layer.parameters())
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


@functools.cache
def _first_parameter(forward: Callable[..., Any]) -> str:
    """The name of forward's first argument after self."""
    return list(inspect.signature(forward).parameters)[1]


def _without_cache(model: nn.Module) -> Any:
    """A cache of keys and values is written, never read in training, and differs by layer."""
    configs: dict[int, Any] = {
        id(module.config): module.config
        for module in model.modules()
        if getattr(getattr(module, "config", None), "use_cache", False)
    }
    for config in configs.values():
        config.use_cache = False

    def back() -> None:
        for config in configs.values():
            config.use_cache = True

    return back


def totals(report: dict[str, Any]) -> dict[str, Any]:
    """The record's `compile` object: all variants of all kinds of one training run."""
    kinds = [*report["kinds"], *([report["loss"]] if report["loss"] is not None else [])]
    variants = [variant for kind in kinds for variant in kind["variants"]]
    return {
        "graphs": sum(variant["graphs"] for variant in variants),
        "graph_breaks": sum(len(variant["breaks"]) for variant in variants),
        "recompilations": sum(variant["recompilations"] for variant in variants),
        "seconds": sum(variant["seconds"] for variant in variants),
    }


def report() -> list[dict[str, Any]]:
    """What has become of the layers of each training run of this process."""
    return [callback.report() for callback in _reports]


def activate() -> None:
    """Called when transformers' Trainer has been imported, unless LJTRAIN_COMPILE=0."""
    patches.DEFAULT_CALLBACKS.apply(CompileCallback)

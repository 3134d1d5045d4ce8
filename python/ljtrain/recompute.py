"""`CHECKPOINT_OPTIMIZATION=true`: recompute only what the memory limit forces.

`gradient_checkpointing=True` recomputes every layer. With the variable set, each layer is told what
to keep instead: by the memory model's plan at first, by measured steps after that. Under the
Trainer nothing has to be changed; in a loop of one's own:

    recompute = ljtrain.recompute.apply(model)
    for batch in loader:
        with recompute.step(batch):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from ljtrain import (
    announce,
    patches,
    recompute_describe,
    recompute_failure,
    recompute_layers,
    recompute_report,
)
from ljtrain.recompute_control import Controller
from ljtrain.recompute_describe import Training, shape_of
from ljtrain.recompute_failure import Attempts, Failure
from ljtrain.recompute_memory import Memory, given_limit

_reports: list[dict[str, Any]] = []


# ---- under the Trainer ----


def _engine() -> tuple[str, dict[str, Any]]:
    """The engine's name as the memory model has it, and DeepSpeed's configuration."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    state = AcceleratorState()
    kind = state.distributed_type
    if kind == DistributedType.DEEPSPEED:
        config: dict[str, Any] = state.deepspeed_plugin.hf_ds_config.config
        stage = (config.get("zero_optimization") or {}).get("stage", 0)
        return f"ZeRO-{stage}", config
    if kind == DistributedType.FSDP:
        return "FSDP2", {}
    return ("DDP" if recompute_describe.world_size() > 1 else "one rank"), {}


def _training(args: TrainingArguments) -> Training:
    engine, config = _engine()
    name = str(getattr(args.optim, "value", args.optim))
    state = next(
        (size for key, size in recompute_describe.OPTIMIZER_BYTES.items() if key in name), None
    )
    return Training(
        engine=engine,
        ranks=recompute_describe.world_size(),
        precision=None if args.bf16 or args.fp16 else "fp32",
        accumulation=args.gradient_accumulation_steps,
        compiled=bool(args.torch_compile),
        fused_optimizer="fused" in name or "adamw" not in name,
        optimizer_bytes=state,
        knobs=recompute_describe.zero_knobs(config) if config else {},
    )


class RecomputeCallback(TrainerCallback):
    """One Trainer's recomputing, from the start to the end of its training."""

    def __init__(self) -> None:
        self.controller: Controller | None = None
        self._attempts: Attempts | None = None
        self._model: nn.Module | None = None

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        given_limit()  # a bad one is refused, whatever comes of the rest
        model = kwargs.get("model")
        if not isinstance(model, nn.Module):
            return
        if not recompute_layers.asked_for(model):
            announce.say(
                "CHECKPOINT_OPTIMIZATION is set, but gradient_checkpointing is not: nothing is "
                "recomputed, and it has no effect.",
                "warning",
            )
            return
        layers = recompute_layers.find(model)
        if layers is None or layers.how == "plain":
            if layers is not None:
                layers.take_back()
            announce.say(
                f"recompute leaves {type(model).__name__} as it is: it has no layers that can be "
                "told one by one what to recompute.",
                "warning",
            )
            return
        training = _training(args)
        self.controller = Controller(model, layers, training)
        self.controller.begin(recompute_failure.state_path(args.output_dir))
        self._model = model

    def begin_step(self, batches: list[Any]) -> None:
        if self.controller is not None:
            self.controller.begin_step(shape_of(batch) for batch in batches)
        if self._attempts is not None:
            self._attempts.begin_step()

    def micro_batch(self, trainer: Any, compute: Callable[[], Any]) -> Any:
        """Computes one, again if memory ran out and that is possible."""
        controller = self.controller
        if controller is None or controller.step is None:
            return compute()
        wrapped = trainer.model_wrapped
        ddp = wrapped if isinstance(wrapped, nn.parallel.DistributedDataParallel) else None
        if self._attempts is None:
            assert self._model is not None
            self._attempts = Attempts(
                controller.training.engine,
                controller.ranks.size,
                self._model,
                controller.layers.modules,
                ddp,
            )
        synchronises = ddp is None or ddp.require_backward_grad_sync
        try:
            result = self._attempts.run(compute, controller.recompute_more, synchronises)
        except BaseException:  # the process may go on without this training
            controller.memory.release()
            raise
        if isinstance(result, Failure):
            raise controller.give_up(result)
        return result

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.controller is not None:
            self.controller.end_step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self.controller is not None:
            finish(self.controller)
            self.controller = self._attempts = self._model = None


def _callback_of(trainer: Any) -> RecomputeCallback | None:
    found = (
        callback
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, RecomputeCallback)
    )
    return next(found, None)


def _with_plan(fetch: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    batches, items = fetch(trainer, *args, **kwargs)
    callback = _callback_of(trainer)
    if callback is not None:
        callback.begin_step(batches)
    return batches, items


def _with_attempts(run: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    callback = _callback_of(trainer)
    compute = functools.partial(run, trainer, *args, **kwargs)
    return compute() if callback is None else callback.micro_batch(trainer, compute)


# ---- in a loop of one's own ----


class Applied:
    """What `apply` returns."""

    def __init__(self, controller: Controller | None) -> None:
        self.controller = controller

    @contextlib.contextmanager
    def step(self, *batches: Any) -> Iterator[None]:
        """Around one optimizer step, with its micro-batches; every rank must enter it."""
        if self.controller is None:
            yield
            return
        controller = self.controller
        controller.begin_step(shape_of(batch) for batch in batches)
        failure = None
        try:
            yield
        except Exception as error:
            if controller.step is None or not recompute_failure.is_out_of_memory(error):
                controller.memory.release()
                raise
            failure = recompute_failure.failure_of(error, controller.layers.modules)
        if failure is not None:
            raise controller.give_up(failure)
        controller.end_step()

    def report(self) -> dict[str, Any] | None:
        return recompute_report.summary(self.controller) if self.controller is not None else None

    def remove(self) -> None:
        """Leaves the model as it was found, and says what came of the plan."""
        if self.controller is not None:
            finish(self.controller)
            self.controller = None


def apply(
    model: nn.Module,
    *,
    engine: str | None = None,
    precision: str | None = None,
    accumulation: int = 1,
    selected: bool = True,
    state: str | None = None,
) -> Applied:
    """Plans what `model` (wrapped by its engine or not) recomputes, within LJTRAIN_MEMORY_LIMIT or
    the memory there is.

    `engine`: as in `ljperf plan --json`, found by the model's wrapper if not given. `precision`:
    "fp32", "bf16" (parameters, too) or "autocast"; else what the parameters are. `selected`:
    whether layers may keep the outputs of some operators. `state`: folder for what a start that ran
    out of memory leaves to the next one.
    """
    inner, found, config = _unwrapped(model)
    if hasattr(inner, "activation_checkpointing_enable") and not recompute_layers.asked_for(inner):
        enable: Any = inner.activation_checkpointing_enable
        enable()
    layers = recompute_layers.find(inner)
    if layers is None:
        announce.say(
            f"recompute leaves {type(inner).__name__} as it is: it has no list of repeated layers.",
            "warning",
        )
        return Applied(None)
    memory = Memory()
    memory.install()
    training = Training(
        engine=engine or found,
        ranks=recompute_describe.world_size(),
        precision=precision or _precision(inner),
        accumulation=accumulation,
        knobs=recompute_describe.zero_knobs(config) if config else {},
    )
    controller = Controller(inner, layers, training, selected=selected, memory=memory)
    controller.begin(recompute_failure.state_path(state))
    return Applied(controller)


def _precision(model: nn.Module) -> str:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast"
    first = next(model.parameters(), None)
    return "fp32" if first is None or first.dtype == torch.float32 else "bf16"


def _unwrapped(model: nn.Module) -> tuple[nn.Module, str, dict[str, Any]]:
    """(the model itself, its engine, DeepSpeed's configuration)."""
    if type(model).__name__ == "DeepSpeedEngine":
        engine: Any = model
        config = engine.config
        return engine.module, f"ZeRO-{engine.zero_optimization_stage()}", config
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module, "DDP", {}
    if any(base.__name__ == "FSDPModule" for base in type(model).__mro__):
        return model, "FSDP2", {}
    return model, "one rank", {}


# ---- what was done ----


def finish(controller: Controller) -> None:
    """The last line, and the report."""
    controller.end()
    _reports.append(recompute_report.summary(controller))
    if controller.steps:
        recompute_report.say_end(controller)


def report() -> list[dict[str, Any]]:
    """What each training of this process has recomputed."""
    return list(_reports)


def activate() -> None:
    """Called when transformers' Trainer has been imported, if CHECKPOINT_OPTIMIZATION=true."""
    Memory().install()
    patches.BATCHES_OF_A_STEP.apply(_with_plan)
    patches.ONE_MICRO_BATCH.apply(_with_attempts)
    patches.DEFAULT_CALLBACKS.apply(RecomputeCallback)

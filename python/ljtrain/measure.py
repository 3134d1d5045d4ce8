"""Measures a `Trainer` from outside: step times, their breakdown, memory, loss, and which data each
rank saw.

A step lasts from the end of the previous optimizer step to the end of this one (the first: from the
start of training). The training thread's time is booked exclusively to one phase at a time by the
clock in `ljtrain._C`, so the phases of a step sum to it. Communication is what that thread spends
launching collectives and waiting for them: what overlaps with computing costs it nothing and is not
counted.

On CUDA the host's clock says nothing about when a kernel ran: one synchronisation a step gives the
step time, and the breakdown is null.
"""

from __future__ import annotations

import functools
import math
import time
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from ljtrain import extension, patches, worker_allocator
from ljtrain.worker_config import BadInput, NonFiniteLoss, WorkerConfig
from ljtrain.worker_events import EventWriter
from ljtrain.worker_model import describe

PHASES = ("data", "forward", "backward", "communication", "optimizer", "other")
DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER = range(len(PHASES))
NANOSECONDS = 1e9  # a second, as DDP logs time


class Meter(TrainerCallback):
    """Attaches to one Trainer and emits a `step` event after each optimizer step."""

    def __init__(self, config: WorkerConfig, events: EventWriter, device: str) -> None:
        self._config = config
        self._events = events
        self._on_device = device == "cuda"
        wanted = config.instrumentation != "off" and not self._on_device
        self._extension: ModuleType | None = extension.load() if wanted else None
        if self._extension is not None:
            self._extension.allocator_install()
            self._extension.communication_install()
        self._instrumented = self._extension is not None
        self._complete = self._instrumented  # every live allocation has been counted
        self._losses: list[torch.Tensor] = []
        self._tokens = 0
        self._digest = 0
        self._steps = 0
        self._peak: int | None = 0  # over all steps; None once a step's is unknown
        self._startup_peak: int | None = None
        self._began = 0.0
        self._ddp: Any = None
        self._ddp_exposed = 0.0

    # ---- hooks ----

    def attach(self, trainer: Trainer) -> None:
        """Hooks what exists before training; the engine's own parts follow when training begins."""
        self._trainer = trainer
        trainer.add_callback(self)
        patches.GET_BATCH_SAMPLES.apply(
            trainer, lambda fetch: functools.partial(self._fetch, self._in_phase(DATA, fetch))
        )
        patches.TRAINING_STEP.apply(
            trainer, lambda run: functools.partial(self._training_step, run)
        )
        self._hook(trainer, patches.PREPARE_INPUTS, DATA)
        self._hook(trainer, patches.COMPUTE_LOSS, FORWARD)
        self._hook(trainer, patches.CLIP_GRAD_NORM, OPTIMIZER)
        self._hook(trainer, patches.GET_GRAD_NORM, OPTIMIZER)
        patches.BACKWARD.apply(
            trainer.accelerator,
            lambda run: functools.partial(self._backward, self._in_phase(BACKWARD, run)),
        )

    def _hook_engine(self) -> None:
        trainer = self._trainer
        self._hook(trainer.optimizer, patches.OPTIMIZER_STEP, OPTIMIZER)
        self._hook(trainer.lr_scheduler, patches.SCHEDULER_STEP, OPTIMIZER)
        self._hook(trainer.model_wrapped, patches.ZERO_GRAD, OPTIMIZER)
        engine = getattr(trainer.accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None:
            self._hook(engine.engine, patches.DEEPSPEED_STEP, OPTIMIZER)
        if isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel):
            self._ddp = trainer.model_wrapped
            self._ddp._set_ddp_runtime_logging_sample_rate(1)

    def _in_phase(self, phase: int, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._extension is None:
            return function
        enter, leave = self._extension.clock_enter, self._extension.clock_leave

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                leave()

        return timed

    def _hook(self, owner: Any, patch: patches.Patch, phase: int) -> None:
        if self._extension is not None:
            patch.apply(owner, functools.partial(self._in_phase, phase))

    def _fetch(self, fetch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        batches, items = fetch(*args, **kwargs)
        for batch in batches:
            input_ids = batch["input_ids"]
            self._tokens += input_ids.numel()
            self._digest = zlib.crc32(input_ids.cpu().numpy().tobytes(), self._digest)
        return batches, items

    def _training_step(
        self, run: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        loss = run(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def _backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        run(*args, **kwargs)
        if self._ddp is not None and self._instrumented and self._ddp.require_backward_grad_sync:
            self._ddp_exposed += self._ddp_exposed_seconds()

    # ---- steps ----

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self._config.compile:
            self._require_compiled_layers()
        self._hook_engine()
        model = self._trainer.model
        assert isinstance(model, torch.nn.Module)
        self._events.emit("model", **describe(model))
        if self._extension is not None:
            self._startup_peak = self._extension.allocator_statistics()["peak_bytes"]
            self._extension.allocator_reset_peak()
            self._extension.communication_reset()
            self._extension.clock_start()
        elif self._on_device:
            torch.cuda.synchronize()
            self._startup_peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds, breakdown = self._lap()
        loss = float(sum(self._losses).item())  # type: ignore[union-attr]
        peak, current = self._memory()
        self._events.emit(
            "step",
            step=self._steps,
            seconds=seconds,
            loss=loss if math.isfinite(loss) else None,
            tokens=self._tokens,
            breakdown=breakdown,
            peak_bytes=peak,
            current_bytes=current,
            data_digest=f"{self._digest:08x}",
            instrumented=self._instrumented,
        )
        if not math.isfinite(loss):
            raise NonFiniteLoss(
                f"the loss of step {self._steps + 1} is {loss}; "
                "lower the learning rate (--set learning_rate=...) or check the data"
            )
        self._steps += 1
        self._losses.clear()
        self._tokens = self._digest = 0
        self._alternate()

    def _lap(self) -> tuple[float, dict[str, float] | None]:
        """The step's seconds, and by phase where they were measured."""
        if self._extension is None:
            if self._on_device:
                torch.cuda.synchronize()
            now = time.perf_counter()
            seconds, self._began = now - self._began, now
            return seconds, None
        phases = self._extension.clock_lap()
        seconds = sum(phases)
        if not self._instrumented:
            return seconds, None
        exposed, self._ddp_exposed = min(self._ddp_exposed, phases[BACKWARD]), 0.0
        phases[BACKWARD] -= exposed
        phases[COMMUNICATION] += exposed
        return seconds, dict(zip(PHASES, phases, strict=True))

    def _ddp_exposed_seconds(self) -> float:
        """What DDP's reducer waited for all-reduces after the last gradient of the last backward,
        by DDP's own clock.

        The reducer waits in C++ for a future, which no hook sees.
        """
        self._ddp.logger.set_runtime_stats_and_log()
        data = self._ddp._get_ddp_logging_data()
        waited = data.get("backward_comm_time", 0) - data.get(
            "backward_compute_comm_overlap_time", 0
        )
        return float(max(0, waited)) / NANOSECONDS

    def _memory(self) -> tuple[int | None, int | None]:
        if self._on_device:
            peak, current = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        elif self._extension is not None and self._instrumented and self._complete:
            statistics = self._extension.allocator_statistics()
            peak, current = statistics["peak_bytes"], statistics["current_bytes"]
            self._extension.allocator_reset_peak()
        else:
            self._peak = None
            return None, None
        if self._peak is not None:
            self._peak = max(self._peak, peak)
        return peak, current

    def _alternate(self) -> None:
        """Switches instrumentation at a block's end, so that one run shows what it costs."""
        if self._extension is None or self._config.instrumentation != "alternate":
            return
        if self._steps % self._config.block_steps:
            return
        self._instrumented = not self._instrumented
        # What lives on from a block without accounting is unknown: no memory figures after the
        # first such block.
        self._complete = False
        self._extension.allocator_set_enabled(self._instrumented)
        self._extension.communication_set_enabled(self._instrumented)
        self._extension.clock_set_enabled(self._instrumented)
        if self._ddp is not None:
            sampling = 1 if self._instrumented else self._config.steps + 1
            self._ddp._set_ddp_runtime_logging_sample_rate(sampling)

    def summary(self) -> dict[str, Any]:
        """The `done` event's fields."""
        return {
            "steps": self._steps,
            "peak_bytes": self._peak or None,
            "startup_peak_bytes": self._startup_peak,
            "resident_peak_bytes": resident_peak_bytes(),
            "huge_page_bytes": worker_allocator.huge_page_bytes(),
            "collectives": self._extension.communication_statistics()
            if self._extension is not None
            else {},
            "compile": self._compile(),
            "recompute": self._recompute(),
        }

    def _require_compiled_layers(self) -> None:
        """Its callback came first; a measurement of stock compilation would pass for its."""
        from ljtrain import compile as layers

        if not layers.report():
            why = layers.left_to_stock[-1] if layers.left_to_stock else "nothing was found"
            raise BadInput(f"--with compile: torch_compile is left to stock PyTorch: {why}.")

    def _recompute(self) -> dict[str, Any] | None:
        if not self._config.recompute:
            return None
        from ljtrain import recompute

        reports = recompute.report()
        return reports[-1] if reports else None

    def _compile(self) -> dict[str, Any] | None:
        if self._config.stock_compile != "none":
            return compile_counters()
        if not self._config.compile:
            return None
        from ljtrain import compile as layers

        (report,) = layers.report()
        return layers.totals(report) | {"layers": report}


def compile_counters() -> dict[str, Any]:
    """What torch.compile did in this process: graphs, breaks, compilations of code that had been
    compiled before, and the seconds all of it took.
    """
    from torch._dynamo.utils import counters, get_compilation_metrics

    metrics = get_compilation_metrics()
    repeated = [metric for metric in metrics if not str(metric.compile_id).endswith("/0")]
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompilations": len(repeated),
        "seconds": sum(metric.duration_us or 0 for metric in metrics) / 1e6,
    }


def resident_peak_bytes() -> int | None:
    """The process's largest resident set (VmHWM of proc(5)), code and all; null where there is
    no /proc.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None

"""The training script that ljperf launches, one process a rank: `python -m ljtrain.worker
WORKER.json`.

It is what a transformers user would write (arguments, model, data, `Trainer.train()`), plus
measuring. It reports by events on a pipe and ends with 0 (done), 1 (the training failed) or 2 (bad
input).
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
import traceback

from ljtrain import worker_config
from ljtrain.worker_config import BadInput, NonFiniteLoss, WorkerConfig
from ljtrain.worker_events import EventWriter

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
# What PyTorch's CPU allocators say when malloc fails; they raise a plain RuntimeError.
OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory")
# "you tried to allocate 1610612736 bytes" (hosts), "Tried to allocate 1.50 GiB" (GPUs), "Unable to
# allocate 1.50 GiB" (numpy).
ASKED_FOR = re.compile(
    r"(?:tried|unable) to allocate (?:(\d+) bytes|([\d.]+ [KMGTPE]iB))", re.IGNORECASE
)
# What the stack raises for values it cannot use (validation errors of pydantic are ValueErrors).
REFUSALS = (ValueError, TypeError, KeyError, AttributeError, AssertionError, NotImplementedError)
MOST_LINES, LONGEST_MESSAGE = 4, 300
KIBI, UNITS = 1024, ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def _versions() -> dict[str, str | None]:
    import platform
    from importlib import metadata

    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "transformers", "deepspeed", "accelerate", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _require_parts() -> None:
    """What was asked for must be active: a measurement of something else is worse than none."""
    from ljtrain import autoload
    from ljtrain.integrations import INTEGRATIONS
    from ljtrain.status import status

    for integration in INTEGRATIONS:
        asked = integration.module is not None and integration.demanded()
        if asked and integration.part not in autoload.active:
            why = autoload.faults or status()["parts"][integration.part]["why_not"]
            raise BadInput(f"{integration.variable} is set, but not active: {why}.")


def train(config: WorkerConfig, events: EventWriter) -> None:
    """Trains as configured, emitting events; returns when the last step is done."""
    events.phase("import")
    import torch

    rank = int(os.environ["RANK"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    device_name = (
        torch.cuda.get_device_name(int(os.environ["LOCAL_RANK"])) if device == "cuda" else None
    )
    events.emit(
        "start",
        pid=os.getpid(),
        rank=rank,
        versions=_versions(),
        device=device,
        device_name=device_name,
    )
    from transformers import Trainer

    from ljtrain import (
        gemm_peak,
        measure,
        patches,
        worker_data,
        worker_extensions,
        worker_limit,
        worker_model,
    )
    from ljtrain import worker_allocator as allocator

    _require_parts()
    allocator.require(config.allocator_library, huge_pages=config.huge_pages)
    meter = measure.Meter(config, events, device)
    if config.engine == "deepspeed":
        events.phase("operator")
        worker_extensions.build_shared_memory_operator()
    if config.engine == "fsdp":
        patches.FSDP2_ON_HOSTS.apply()
    for patch in (patches.GROUP_TIMEOUT, patches.NCCL_GROUP_TIMEOUT):
        patch.apply(worker_model.group_timeout(config))
    model_config = worker_model.build_model_config(config)
    arguments = worker_model.build_training_arguments(config)
    vocabulary = worker_model.vocabulary_size(model_config)
    dataset = worker_data.build_dataset(config, vocabulary, arguments.world_size)
    if config.gemm_peak:
        events.phase("gemm_peak")
        events.emit(
            "gemm_peak", **gemm_peak.measure(arguments.device, worker_model.precision(arguments))
        )
    events.phase("model")
    model = worker_model.build_model(config, model_config)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    meter.attach(trainer)
    if config.collectives == "none":
        trainer.add_callback(worker_limit.NoCommunication())
    events.phase("train")
    gc.collect()
    trainer.train()
    events.emit("done", **meter.summary())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _classify(error: BaseException, *, configuring: bool = False) -> tuple[str, int]:
    """The `kind` of the error event and the exit status.

    `configuring`: no step has been made. What transformers, DeepSpeed and accelerate refuse then is
    something the user gave: an activation that does not exist, keys that contradict each other.
    """
    if isinstance(error, BadInput):
        return "bad_input", EXIT_BAD_INPUT
    if isinstance(error, NonFiniteLoss):
        return "non_finite_loss", EXIT_FAILED
    phrases = str(error).lower() if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError) or any(phrase in phrases for phrase in OUT_OF_MEMORY_PHRASES):
        return "out_of_memory", EXIT_FAILED
    if configuring and isinstance(error, REFUSALS):
        return "bad_input", EXIT_BAD_INPUT
    return "exception", EXIT_FAILED


def _essence(error: BaseException) -> str:
    """The first lines of an error as one: the first alone often ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:MOST_LINES])
    if len(text) > LONGEST_MESSAGE:
        text = text[:LONGEST_MESSAGE].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _binary(size: int) -> str:
    """Bytes in the unit that leaves at most four digits: 1.5 GiB."""
    power = max(0, size.bit_length() - 1) // 10
    return f"{size / KIBI**power:.1f}".removesuffix(".0") + f" {UNITS[power]}"


def _out_of_memory(text: str) -> str:
    """What to do about it, with the size that was asked for where the allocator named one."""
    found = ASKED_FOR.search(text)
    asked = ""
    if found is not None:
        asked = f" (asked for {found[2] or _binary(int(found[1]))})"
    return (
        f"ran out of memory{asked}; use a smaller --micro-batch, --seq or --scale, or fewer --ranks"
    )


def _report(events: EventWriter, error: BaseException) -> int:
    kind, status = _classify(
        error, configuring="start" in events.told and "step" not in events.told
    )
    if isinstance(error, BadInput | NonFiniteLoss) or type(error).__name__ == "StepOutOfMemory":
        message = str(error)
    elif kind == "out_of_memory":
        message = _out_of_memory(str(error))
    elif kind == "bad_input":
        message = (
            f"this model or these settings are refused before the first step: {_essence(error)}"
        )
    else:
        message = _essence(error)
    trace = "".join(traceback.format_exception(error))
    sys.stderr.write(trace)
    events.emit("error", kind=kind, message=message, traceback=trace)
    return status


def main(arguments: list[str]) -> int:
    # The launcher asks a rank that hangs for its stack, which goes into the rank's log.
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    faulthandler.enable()  # a crash leaves its stack there, too
    events = EventWriter.from_environment()
    try:
        if len(arguments) != 1:
            raise BadInput("usage: python -m ljtrain.worker WORKER.json")
        train(worker_config.load(arguments[0]), events)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the launcher is gone, nobody is left to report to
        return EXIT_FAILED
    except Exception as error:
        return _report(events, error)
    return EXIT_DONE


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure, destructors of process groups would wait for ranks that wait
    # for this one.
    os._exit(exit_status)

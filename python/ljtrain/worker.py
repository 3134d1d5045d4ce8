"""The training script that ljperf launches, one process a rank: `python -m ljtrain.worker
WORKER.json`.

It is what a transformers user would write (arguments, model, data, `Trainer.train()`), plus
measuring. It reports by events on a pipe and ends with 0 (done), 1 (the training failed) or 2 (bad
input).
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Any

from ljtrain import worker_config
from ljtrain.worker_config import BadInput, NonFiniteLoss, WorkerConfig
from ljtrain.worker_events import EventWriter

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
# What PyTorch's CPU allocators say when malloc fails; they raise a plain RuntimeError.
OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory")


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

    from ljtrain import gemm_peak, measure, patches, worker_data, worker_extensions, worker_model

    meter = measure.Meter(config, events, device)
    if config.engine == "deepspeed":
        events.phase("operator")
        worker_extensions.build_shared_memory_operator()
    if config.engine == "fsdp":
        patches.FSDP2_ON_HOSTS.apply()
    model_config = worker_model.build_model_config(config)
    arguments = worker_model.build_training_arguments(config)
    vocabulary = worker_model.vocabulary_size(model_config)
    dataset = worker_data.build_dataset(config, vocabulary, arguments.world_size)
    if config.gemm_peak:
        events.phase("gemm_peak")
        events.emit("gemm_peak", **gemm_peak.measure(arguments.device))
    events.phase("model")
    model = worker_model.build_model(config, model_config)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    meter.attach(trainer)
    events.phase("train")
    gc.collect()
    trainer.train()
    events.emit("done", **meter.summary())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _classify(error: BaseException) -> tuple[str, int]:
    """The `kind` of the error event and the exit status."""
    if isinstance(error, BadInput):
        return "bad_input", EXIT_BAD_INPUT
    if isinstance(error, NonFiniteLoss):
        return "non_finite_loss", EXIT_FAILED
    phrases = str(error).lower() if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError) or any(phrase in phrases for phrase in OUT_OF_MEMORY_PHRASES):
        return "out_of_memory", EXIT_FAILED
    return "exception", EXIT_FAILED


def _report(events: EventWriter, error: BaseException) -> int:
    kind, status = _classify(error)
    lines: list[Any] = str(error).strip().splitlines()
    message = lines[0] if lines else type(error).__name__
    if kind == "exception":
        message = f"{type(error).__name__}: {message}"
    trace = "".join(traceback.format_exception(error))
    sys.stderr.write(trace)
    events.emit("error", kind=kind, message=message, traceback=trace)
    return status


def main(arguments: list[str]) -> int:
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

"""Trains small models on the ranks of this host and reads the allocated memory of a step.

One process imports the stack (seconds) and forks the ranks of each run, so that a sweep costs
little more than its steps. A rank does what `ljtrain.worker` does, with a recorder in place of its
meter: allocated bytes at each layer's start and end, the peak of the last step, and what is there
between steps.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# ZeRO-3 releases and prefetches by its recorded trace from the third step on.
STEPS = 4
DEADLINE_S = 300


@dataclass(frozen=True)
class Run:
    """One configuration. `recomputed`: how many of the first layers are recomputed."""

    model: dict[str, Any]
    engine: str  # deepspeed, fsdp, ddp
    zero: int
    ranks: int
    seq: int
    micro_batch: int
    recomputed: int
    accumulation: int = 1
    task: str = "causal-lm"
    compiled: bool = False
    lora_rank: int = 0
    zero_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Measured:
    """Bytes of rank 0 .. n-1, and the timeline of rank 0: [place, now, highest since the last]."""

    static_bytes: list[int]
    peak_bytes: list[int]
    timeline: list[tuple[str, int, int]]


def deepspeed_config(run: Run) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": run.zero, **run.zero_options},
    }


def _worker_config(run: Run, folder: str) -> Any:
    from ljtrain.worker_config import WorkerConfig

    return WorkerConfig(
        engine=run.engine,
        task=run.task,
        model_config=run.model,
        seq=run.seq,
        micro_batch=run.micro_batch,
        steps=STEPS,
        seed=7,
        data={"kind": "mock"},
        compile=run.compiled,
        training_arguments={
            "output_dir": folder,
            "bf16": True,
            "gradient_checkpointing": run.recomputed > 0,
            "gradient_accumulation_steps": run.accumulation,
        },
        deepspeed=deepspeed_config(run) if run.engine == "deepspeed" else None,
    )


def decoder_layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute_first(model: Any, recomputed: int) -> None:
    """Leaves all but the first `recomputed` layers alone: transformers asks each layer at each
    call."""
    for number, layer in enumerate(decoder_layers(model)):
        layer.gradient_checkpointing = number < recomputed


def _with_adapters(model: Any, rank: int) -> Any:
    """LoRA on every linear module of the layers, as `ljperf plan --lora` means it."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    )
    # Recomputed layers need an input that asks for gradients; the embedding is frozen.
    adapted.enable_input_require_grads()
    return adapted


class Recorder:
    """Allocated bytes over the last step."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self.timeline: list[tuple[str, int, int]] = []
        self.static_bytes = 0
        self.peak_bytes = 0
        self._highest = 0

    def mark(self, place: str) -> None:
        statistics = self._extension.allocator_statistics()
        now, peak = statistics["current_bytes"], statistics["peak_bytes"]
        self.timeline.append((place, now, peak))
        self._highest = max(self._highest, peak)
        self._extension.allocator_reset_peak()

    def begin_step(self) -> None:
        self.timeline.clear()
        self._highest = 0
        self._extension.allocator_reset_peak()
        self.static_bytes = self._extension.allocator_statistics()["current_bytes"]

    def end_step(self) -> None:
        self.mark("end")
        self.peak_bytes = self._highest

    def watch(self, trainer: Any) -> None:
        """Marks the start and end of every layer in both directions, and of backward."""

        def watch_layer(layer: Any, number: int) -> None:
            def begins(_: Any, inputs: tuple[Any, ...]) -> None:
                self.mark(f"forward {number} begins")
                if inputs[0].requires_grad:
                    inputs[0].register_hook(lambda _: self.mark(f"backward {number} ends"))

            def ends(_: Any, __: Any, output: Any) -> None:
                self.mark(f"forward {number} ends")
                hidden = output[0] if isinstance(output, tuple) else output
                hidden.register_hook(lambda _: self.mark(f"backward {number} begins"))

            layer.register_forward_pre_hook(begins)
            layer.register_forward_hook(ends)

        for number, layer in enumerate(decoder_layers(trainer.model)):
            watch_layer(layer, number)
        for owner, name in ((trainer.accelerator, "backward"), (trainer, "compute_loss")):
            function = getattr(owner, name)

            def marked(*args: Any, _function: Any = function, _name: str = name, **kw: Any) -> Any:
                self.mark(f"{_name} begins")
                result = _function(*args, **kw)
                self.mark(f"{_name} ends")
                return result

            setattr(owner, name, marked)


def _train(run: Run, folder: str, timeline: bool) -> Measured:
    import torch
    from ljtrain import extension, patches, worker_data, worker_model
    from transformers import Trainer, TrainerCallback

    torch.set_num_threads(1)
    loaded = extension.load()
    assert loaded is not None, extension.why_not()
    loaded.allocator_install()
    config = _worker_config(run, folder)
    if run.engine == "fsdp":
        patches.FSDP2_ON_HOSTS.apply()
    model_config = worker_model.build_model_config(config)
    arguments = worker_model.build_training_arguments(config)
    vocabulary = worker_model.vocabulary_size(model_config)
    dataset = worker_data.build_dataset(config, vocabulary, arguments.world_size)
    model = worker_model.build_model(config, model_config)
    if run.lora_rank:
        model = _with_adapters(model, run.lora_rank)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    recorder = Recorder(loaded)

    class Steps(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            if run.recomputed:
                recompute_first(trainer.model, run.recomputed)
            if timeline:
                recorder.watch(trainer)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            recorder.begin_step()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            recorder.end_step()

    trainer.add_callback(Steps())
    del model
    gc.collect()
    trainer.train()
    return Measured([recorder.static_bytes], [recorder.peak_bytes], recorder.timeline)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(run: Run, rank: int, port: int, folder: str, timeline: bool) -> int:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(run.ranks),
        LOCAL_WORLD_SIZE=str(run.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    log = os.open(f"{folder}/log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        measured = _train(run, folder, timeline)
        Path(f"{folder}/result.{rank}").write_text(json.dumps(measured.__dict__))
        Path(f"{folder}/modules.{rank}").write_text(json.dumps(sorted(sys.modules)))
        return 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1


def import_stack() -> None:
    """What the forked ranks will need; no tensor is computed, so that no thread pool starts."""
    import deepspeed  # noqa: F401
    import torch  # noqa: F401
    import transformers.integrations.deepspeed  # noqa: F401
    from ljtrain import worker_data, worker_extensions, worker_model  # noqa: F401
    from transformers import Trainer  # noqa: F401

    worker_extensions.build_shared_memory_operator()


def _import_too(folder: str) -> None:
    """What a rank had to import beside, so that the ranks of later runs need not."""
    for name in json.loads(Path(f"{folder}/modules.0").read_text()):
        if name not in sys.modules and not name.startswith(("ljtrain", "__")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def versions() -> str:
    from importlib import metadata

    names = ("torch", "transformers", "deepspeed", "accelerate", "peft")
    found = {each.name for each in metadata.distributions()}
    return ", ".join(f"{name} {metadata.version(name)}" for name in names if name in found)


def measure(run: Run, timeline: bool = False) -> Measured:
    """Forks the run's ranks, waits, and reads what they measured. Raises RuntimeError with the
    log's end when a rank fails.
    """
    port = _free_port()
    # What is imported is no garbage: collections in the ranks need not look at it (and copy it).
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(run.ranks):
            child = os.fork()
            if child == 0:
                os._exit(_rank(run, rank, port, folder, timeline))
            children.append(child)
        status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(status):
            failed = next(rank for rank, code in enumerate(status) if code)
            log = Path(f"{folder}/log.{failed}").read_text(errors="replace")
            raise RuntimeError(f"rank {failed} of {run} ended with {status[failed]}: {log[-3000:]}")
        _import_too(folder)
        ranks = [
            Measured(**json.loads(Path(f"{folder}/result.{rank}").read_text()))
            for rank in range(run.ranks)
        ]
    return Measured(
        [rank.static_bytes[0] for rank in ranks],
        [rank.peak_bytes[0] for rank in ranks],
        ranks[0].timeline,
    )

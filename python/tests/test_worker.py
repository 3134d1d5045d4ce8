"""The worker's other ways to end: bad input, a broken loss, memory; and single-rank variants."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ljtrain import worker, worker_model
from ljtrain import worker_config as configuration
from ljtrain.worker_config import BadInput, NonFiniteLoss
from ljtrain.worker_events import EventWriter
from ranks import PACKAGE_ROOT, launch, worker_config

TINY_BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}


def load(folder: Path, **changes: Any) -> configuration.WorkerConfig:
    path = folder / "WORKER.json"
    path.write_text(json.dumps(worker_config(folder, **changes)))
    return configuration.load(str(path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "megatron"}, "engine is 'megatron'; it must be one of deepspeed, fsdp, ddp"),
        ({"seq": 0}, "seq is 0; it must be a whole number of at least 1"),
        ({"seq": 1}, "at least 2 tokens"),
        ({"micro_batch": "2"}, "micro_batch is '2'"),
        ({"steps": -1}, "steps is -1"),
        ({"engine": "deepspeed"}, "DeepSpeed configuration is null"),
        ({"deepspeed": {}}, "takes no DeepSpeed configuration"),
        ({"data": {"kind": "text"}}, "data.file is missing"),
        (
            {"training_arguments": {"gradient_accumulation_steps": 0}},
            "gradient_accumulation_steps is 0",
        ),
        ({"schema_version": 2}, "schema_version is 2"),
    ],
)
def test_impossible_configurations(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        load(tmp_path, **changes)


def test_training_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no 'learning_rat'; did you mean learning_rate"):
        worker_model.build_training_arguments(
            load(tmp_path, training_arguments={"learning_rat": 1})
        )
    with pytest.raises(BadInput, match="max_steps=7 contradicts the run's 4"):
        worker_model.build_training_arguments(load(tmp_path, training_arguments={"max_steps": 7}))
    with pytest.raises(BadInput, match="TrainingArguments: "):
        worker_model.build_training_arguments(
            load(tmp_path, training_arguments={"lr_scheduler_type": "none such"})
        )


def test_the_launchers_time_limit_comes_first(tmp_path: Path) -> None:
    def seconds(**changes: Any) -> float:
        return worker_model.group_timeout(load(tmp_path, **changes)).total_seconds()

    assert seconds(step_timeout_s=0.4) == 61
    assert seconds(step_timeout_s=300) == 660
    assert seconds(training_arguments={"ddp_timeout": 7}) == 7


@pytest.mark.parametrize(
    ("bf16", "fp16", "expected"),
    [
        (True, False, torch.bfloat16),
        (False, True, torch.float16),
        (False, False, torch.float32),
    ],
)
def test_the_precision_is_that_of_the_arguments(
    bf16: bool, fp16: bool, expected: torch.dtype
) -> None:
    arguments = SimpleNamespace(bf16=bf16, fp16=fp16)
    assert worker_model.precision(arguments) == expected  # type: ignore[arg-type]


def test_model_configurations_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no model_type"):
        worker_model.build_model_config(load(tmp_path, model_config={"hidden_size": 64}))
    with pytest.raises(BadInput, match=r"config.json .no_such_model."):
        worker_model.build_model_config(
            load(tmp_path, model_config={"model_type": "no_such_model"})
        )
    with pytest.raises(BadInput, match="--seq 65 is longer than the model's 64 positions"):
        worker_model.build_model_config(
            load(tmp_path, model_config=TINY_BERT, task="masked-lm", seq=65)
        )


def test_errors_are_classified() -> None:
    assert worker._classify(BadInput("x")) == ("bad_input", 2)
    assert worker._classify(NonFiniteLoss("x")) == ("non_finite_loss", 1)
    assert worker._classify(MemoryError()) == ("out_of_memory", 1)
    assert worker._classify(torch.OutOfMemoryError("CUDA out of memory")) == ("out_of_memory", 1)
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert worker._classify(error.value) == ("out_of_memory", 1)
    assert worker._classify(ValueError("out of memory")) == ("exception", 1)
    assert worker._classify(KeyError("nope"), configuring=True) == ("bad_input", 2)
    assert worker._classify(RuntimeError("gloo"), configuring=True) == ("exception", 1)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 1610612736 bytes. Error code 12 (Cannot allocate me",
            " (asked for 1.5 GiB)",
        ),
        (
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a",
            " (asked for 512.00 MiB)",
        ),
        ("not enough memory: you tried to allocate 1000 bytes.", " (asked for 1000 bytes)"),
        ("CUDA error: out of memory", ""),
    ],
)
def test_running_out_of_memory_says_what_to_do(error: str, asked: str, tmp_path: Path) -> None:
    path = tmp_path / "events"
    with path.open("wb") as pipe:
        status = worker._report(EventWriter(pipe.fileno()), RuntimeError(error))
    event = json.loads(path.read_text())
    assert status == 1
    assert event["kind"] == "out_of_memory"
    assert event["message"] == (
        f"ran out of memory{asked}; use a smaller --micro-batch, --seq or --scale, or fewer --ranks"
    )
    assert error in event["traceback"]


def test_a_hung_rank_shows_its_stack_and_lives_on(tmp_path: Path) -> None:
    """The launcher sends SIGUSR2 to a rank that is silent for too long."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "from ljtrain import worker_config\n"
        "load = worker_config.load\n"
        "def sleeps_here(path):\n"
        "    print('asleep', flush=True)\n"
        "    time.sleep(2)\n"
        "    return load(path)\n"
        "worker_config.load = sleeps_here\n"
    )
    worker_process = subprocess.Popen(
        [sys.executable, "-m", "ljtrain.worker", str(tmp_path / "missing.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE_ROOT}"},
    )
    assert worker_process.stdout is not None
    assert worker_process.stdout.readline() == "asleep\n"
    worker_process.send_signal(signal.SIGUSR2)
    output, log = worker_process.communicate(timeout=60)
    assert "Current thread" in log
    assert "in sleeps_here" in log
    assert "cannot read" in json.loads(output)["message"]  # it went on after the signal
    assert worker_process.returncode == 2


def test_bad_input_is_one_event_and_exit_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ljtrain.worker", str(tmp_path / "missing.json")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 2
    (event,) = (json.loads(line) for line in done.stdout.splitlines())
    assert event["event"] == "error"
    assert event["kind"] == "bad_input"
    assert "cannot read" in event["message"]
    assert "\n" not in event["message"]


def test_an_encoder_with_alternating_instrumentation(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"text": f"line {number} of some text. " * 40}) for number in range(100)
        )
    )
    config = worker_config(
        tmp_path,
        engine="fsdp",
        task="masked-lm",
        model_config=TINY_BERT,
        steps=8,
        instrumentation="alternate",
        block_steps=2,
        data={"kind": "jsonl", "file": str(path)},
    )
    run = launch(config, 1, tmp_path)
    assert run.status == [0], run.logs[0][-3000:]
    steps = run.of(0, "step")
    assert [step["instrumented"] for step in steps] == [True, True, False, False] * 2
    for step in steps:
        assert (step["breakdown"] is not None) == step["instrumented"]
        assert step["seconds"] > 0
    # After a block without accounting, what lives on from it is unknown.
    assert [step["peak_bytes"] is not None for step in steps] == [True, True] + [False] * 6
    assert run.one(0, "done")["peak_bytes"] is None


def test_a_loss_that_is_not_finite_fails_the_run(tmp_path: Path) -> None:
    arguments = {
        "learning_rate": 1e30,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "run_name": 2024,  # not text in JSON, and no reason to fail
    }
    config = worker_config(tmp_path, steps=8, training_arguments=arguments, gemm_peak=True)
    run = launch(config, 1, tmp_path)
    assert run.status == [1]
    assert run.one(0, "gemm_peak")["dtype"] == "float32"  # as the run computes
    error = run.one(0, "error")
    assert error["kind"] == "non_finite_loss"
    last = run.of(0, "step")[-1]
    assert last["loss"] is None
    assert re.fullmatch(
        rf"the loss of step {last['step'] + 1} is (nan|inf|-inf); lower the learning rate "
        r"\(--set learning_rate=\.\.\.\) or check the data",
        error["message"],
    )
    assert run.of(0, "done") == []


def test_a_dead_build_lock_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyTorch would wait for ever for a lock file that a killed process left behind."""
    from deepspeed import accelerator, ops
    from ljtrain import worker_extensions

    seen = []

    class Builder:
        NAME = "deepspeed_shm_comm"

        def load(self, verbose: bool) -> None:
            folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
            assert folder.is_relative_to(tmp_path)
            seen.append((folder / self.NAME / "lock").exists())

    class Accelerator:
        def create_op_builder(self, name: str) -> Builder:
            return Builder()

    monkeypatch.setattr(accelerator, "get_accelerator", Accelerator)
    monkeypatch.setitem(vars(ops), "__compatible_ops__", {Builder.NAME: True})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    folder = worker_extensions._folder() / Builder.NAME
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    worker_extensions.build_shared_memory_operator()
    assert seen == [False]
    # In a folder of the user's own another program may be building: its lock stays.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "own"))
    (tmp_path / "own" / Builder.NAME).mkdir(parents=True)
    (tmp_path / "own" / Builder.NAME / "lock").touch()
    worker_extensions.build_shared_memory_operator()
    assert seen == [False, True]

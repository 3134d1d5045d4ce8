"""Real trainings of a tiny model: what is measured, and what happens when something goes wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf, descendants_of

# Two ranks also where there is one core.
TWO_RANKS = ("--ranks", "2", "--oversubscribe")
QUICK = ("--seq", "64", "--steps", "6", "--warmup", "2")
HANGS_IN_STEP_3 = """
import os, sys, threading, time

def wait_for_ever():
    time.sleep(1e6)

def install():
    while "torch.optim.adamw" not in sys.modules or "transformers.trainer" not in sys.modules:
        time.sleep(0.05)
    adamw, calls = sys.modules["torch.optim.adamw"].AdamW, []
    step = adamw.step
    def slow(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            wait_for_ever()
        return step(self, *args, **kwargs)
    adamw.step = slow

if os.environ.get("RANK") == "1":
    threading.Thread(target=install, daemon=True).start()
"""
DESIGN_KEYS = {
    "record_id", "model", "engine", "proxy", "ranks", "step_time_s", "tokens_per_s",
    "tokens_per_s_per_rank", "model_tflops_per_rank", "flops_convention", "mfu", "hfu",
    "peak_memory_bytes", "breakdown_s", "loss", "components", "recompute", "compile", "environment",
    "schema_version",
}  # fmt: skip


def leftovers() -> set[str]:
    """Files in /dev/shm that no living process maps (a training beside this test has its own)."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += "".join(line for line in maps.open() if "/dev/shm/" in line)
    return {name for name in os.listdir("/dev/shm") if f"/dev/shm/{name}" not in mapped}


def cores(ljperf: Ljperf) -> int:
    """What one rank a core comes to here."""
    hardware = json.loads(ljperf("benchmark", "--env-dump").stdout)["hardware"]
    return min(hardware["cores"], max(1, int(hardware["cpu_quota"] or hardware["cores"])))


def document_of(result: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    before = leftovers()
    processes = descendants_of(os.getpid())
    yield
    assert leftovers() <= before
    assert descendants_of(os.getpid()) <= processes


def wait_for_step(process: subprocess.Popen[str], folder: Path, timeout: float = 120) -> None:
    """Waits until both ranks train, seen by the progress on standard error."""
    assert process.stderr is not None
    deadline = time.monotonic() + timeout
    for line in process.stderr:
        if line.startswith("step "):
            return
        assert time.monotonic() < deadline
    raise AssertionError(f"it ended before its first step; see {folder}")


def rank_pids(process: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> pid of the workers of a running ljperf."""
    pids: dict[int, int] = {}
    for pid in descendants_of(process.pid):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(b"RANK=") and parent == process.pid:
                pids[int(entry[5:])] = pid
    return pids


@pytest.mark.usefixtures("nothing_left_behind")
def test_zero3_measures_all_that_the_design_names(
    ljperf: Ljperf, tiny_config: Path, python_sources: Path
) -> None:
    result = ljperf(
        "benchmark", "--config", tiny_config, "--data", python_sources, "--seq", "64",
        "--micro-batch", "4", "--steps", "40", "--set", "learning_rate=2e-3", "--json",
    )  # fmt: skip
    document = document_of(result)
    assert set(document) >= DESIGN_KEYS
    assert document["zero_stage"] == 3
    assert document["sharding"] == "zero3"
    assert document["ranks"] == cores(ljperf)
    assert len(document["step_time_s"]["all"]) >= 40
    assert document["step_time_s"]["ci95"] is None, "one run has no interval"
    assert len(set(document["data"]["digests"])) == document["ranks"], "ranks see different data"

    median = document["step_time_s"]["median"]
    assert document["tokens_per_s"] == pytest.approx(4 * 64 * document["ranks"] / median)
    parts = document["breakdown_s"]
    assert sum(parts.values()) == pytest.approx(median, rel=0.02)
    assert parts["other"] <= 0.05 * median
    assert min(parts.values()) >= 0
    assert 0 < document["mfu"] <= document["hfu"] <= 1
    assert document["peak_memory_bytes"]["max"] < document["resident_peak_bytes"]["max"]
    if document["ranks"] > 1:
        assert {c["operation"] for c in document["collectives"]} >= {"_allgather_base_"}
    assert document["recompute"]["layers"] == document["recompute"]["of"] == 2

    loss = document["loss"]
    first, last = loss[:5], loss[-5:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / 5)
    assert statistics.mean(first) - statistics.mean(last) > 3 * error

    (stored,) = ljperf.stored_records()
    assert stored == document, "the record is what was printed"
    first_line, *_, last_line = result.stderr.strip().splitlines()
    assert "tiny-llama" in first_line and "full" in first_line
    assert "full" in last_line


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_deepspeed_file_is_followed(ljperf: Ljperf, tiny_config: Path, tmp_path: Path) -> None:
    """transformers refuses arguments that differ from the file; they follow it."""
    file = tmp_path / "ds.json"
    file.write_text(
        json.dumps(
            {
                "gradient_clipping": 0.5,
                "gradient_accumulation_steps": 2,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
                "scheduler": {
                    "type": "WarmupLR",
                    "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 10},
                },
                "bf16": {"enabled": False},
                "zero_optimization": {"stage": 2},
            }
        )
    )
    result = ljperf(
        "benchmark", "--config", tiny_config, "--deepspeed-config", file, *QUICK, "--json"
    )
    document = document_of(result)
    assert document["precision"] == "fp32"
    assert document["zero_stage"] == 2
    assert document["gradient_accumulation"] == 2
    assert document["configuration"]["training_arguments"]["max_grad_norm"] == 0.5
    assert "float32" in document["peak_flops"]["source"]


@pytest.mark.usefixtures("nothing_left_behind")
def test_what_the_stack_refuses_before_step_1_is_bad_input(
    ljperf: Ljperf, write_config: Callable[..., Path]
) -> None:
    config = write_config(hidden_act="nope")
    result = ljperf("benchmark", "--config", config, "--model", "ddp", "--ranks", "1", *QUICK)
    assert result.returncode == 2
    assert "nope" in result.stderr.splitlines()[-1]
    assert not ljperf.stored_records()


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_hung_rank_shows_its_stack(ljperf: Ljperf, tiny_config: Path, tmp_path: Path) -> None:
    """A rank that waits for ever in Python: its log says in which line."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HANGS_IN_STEP_3)
    result = ljperf(
        "benchmark", "--config", tiny_config, "--model", "ddp", "--seq", "64", "--steps", "100000",
        "--step-timeout", "4", "--output", tmp_path / "output", *TWO_RANKS,
        PYTHONPATH=str(site),
    )  # fmt: skip
    assert result.returncode == 1
    assert "no step within --step-timeout 4 s" in result.stderr
    (log,) = (tmp_path / "output").glob("*/run-1/rank-1.log")
    assert "wait_for_ever" in log.read_text()


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_record_that_cannot_be_kept_is_still_printed(ljperf: Ljperf, tiny_config: Path) -> None:
    """The folder vanishes while the run goes on: no figure may be lost."""
    process = ljperf.start(
        "benchmark", "--config", tiny_config, "--model", "ddp", "--ranks", "1", *QUICK, "--json"
    )
    wait_for_step(process, ljperf.folder)
    ljperf.records.rmdir()
    ljperf.records.write_text("no folder any more")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the record could not be kept" in errors
    assert json.loads(output)["step_time_s"]["median"] > 0


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_proxy_says_so_first_and_last(ljperf: Ljperf) -> None:
    result = ljperf(
        "benchmark", "--model", "ddp/llama3-8b", "--scale", "1/8", "--seq", "16", "--steps", "2",
        "--warmup", "1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = result.stdout.strip().splitlines()
    assert "PROXY 1/8 of llama3-8b" in lines[0]
    assert "PROXY 1/8 of llama3-8b" in lines[-1]
    assert all(len(line) <= 100 for line in lines if not line.startswith("record:"))
    (record,) = ljperf.stored_records()
    assert record["proxy"]["is_proxy"] is True
    assert record["zero_stage"] is None
    assert record["breakdown_s"]["communication_exposed"] > 0, "DDP's wait for its reducer counts"


@pytest.mark.usefixtures("nothing_left_behind")
def test_compiled_layers_are_measured_and_change_no_loss(ljperf: Ljperf, tiny_config: Path) -> None:
    run = ("benchmark", "--config", tiny_config, "--model", "deepspeed", *QUICK, "--json")
    stock = document_of(ljperf(*run))
    compiled = document_of(ljperf(*run, "--with", "compile"))
    assert stock["compile"] is None and not stock["components"]["compile"]
    assert compiled["components"]["compile"]
    assert compiled["compile"]["graphs"] >= 1
    assert compiled["compile"]["graph_breaks"] == compiled["compile"]["recompilations"] == 0
    assert compiled["loss"] == pytest.approx(stock["loss"], rel=2e-3)


@pytest.mark.usefixtures("nothing_left_behind")
def test_fsdp_shards_parameters(ljperf: Ljperf, tiny_config: Path) -> None:
    result = ljperf("benchmark", "--config", tiny_config, "--model", "fsdp", *QUICK, "--json")
    document = document_of(result)
    assert document["engine"] == "fsdp"
    assert document["sharding"] == "dtensor"
    assert document["breakdown_s"]["communication_exposed"] > 0


@pytest.mark.usefixtures("nothing_left_behind")
def test_repeats_give_an_interval_over_runs(ljperf: Ljperf, tiny_config: Path) -> None:
    result = ljperf(
        "benchmark", "--config", tiny_config, "--zero", "1", "--ranks", "1", *QUICK,
        "--repeat", "2", "--json",
    )  # fmt: skip
    document = document_of(result)
    low, high = document["step_time_s"]["ci95"]
    assert low < high
    assert document["step_time_s"]["ci95_unit"] == "run"
    assert len(document["runs"]) == 2
    assert document["runs"][0]["steps"][0]["loss"] == document["runs"][1]["steps"][0]["loss"]


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_non_finite_loss_fails_the_run(ljperf: Ljperf, tiny_config: Path) -> None:
    result = ljperf(
        "benchmark", "--config", tiny_config, "--model", "ddp", "--ranks", "1", *QUICK,
        "--set", "learning_rate=1e30", "--set", "max_grad_norm=0", "--json",
    )  # fmt: skip
    document = document_of(result, code=1)
    assert document["status"] == "failed"
    assert "loss" in document["failure"]["sentence"]
    assert len(ljperf.stored_records()) == 1, "what was measured is kept"


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (
            signal.SIGKILL,
            "rank 1 was killed by SIGKILL (not by the kernel's out-of-memory killer) after step",
        ),
        (signal.SIGSEGV, "rank 1 crashed with Segmentation fault after step"),
        (signal.SIGSTOP, "rank 1 is stopped"),
    ],
)
def test_a_rank_that_dies_or_stops_is_named(
    ljperf: Ljperf, tiny_config: Path, number: signal.Signals, expected: str
) -> None:
    process = ljperf.start(
        "benchmark", "--config", tiny_config, "--seq", "64", "--steps", "100000", "--step-timeout",
        "3", "--warmup", "0", "--json", *TWO_RANKS,
        LOCAL_SIZE="2",  # DeepSpeed then leaves files in /dev/shm
    )  # fmt: skip
    wait_for_step(process, ljperf.folder)
    pids = rank_pids(process)
    os.kill(pids[1], number)
    start = time.monotonic()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - start < 15
    assert process.returncode == 1
    assert expected in errors
    document = json.loads(output)
    assert document["failure"]["rank"] == 1
    assert document["status"] == "failed"
    assert document["step_time_s"]["all"], "what was measured is kept"
    for pid in pids.values():
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(
    ljperf: Ljperf, tiny_config: Path, number: signal.Signals
) -> None:
    process = ljperf.start(
        "benchmark", "--config", tiny_config, "--seq", "64", "--steps", "100000", "--warmup", "0",
        "--json",
    )  # fmt: skip
    wait_for_step(process, ljperf.folder)
    time.sleep(1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    document = json.loads(output)
    assert document["status"] == "interrupted"
    assert document["step_time_s"]["median"] > 0
    assert ljperf.stored_records() == [document]


@pytest.mark.usefixtures("nothing_left_behind")
def test_ranks_die_with_a_killed_ljperf(ljperf: Ljperf, tiny_config: Path) -> None:
    process = ljperf.start("benchmark", "--config", tiny_config, "--seq", "64", "--steps", "100000")
    wait_for_step(process, ljperf.folder)
    pids = rank_pids(process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("nothing_left_behind")
def test_running_out_of_memory_is_said_in_one_sentence(
    ljperf: Ljperf, write_config: Callable[..., Path]
) -> None:
    """The workers' address space is limited, so an allocation fails as it does on a full host."""
    config = write_config(hidden_size=512, intermediate_size=2048)
    result = subprocess.run(
        ["bash", "-c", f'ulimit -v 6000000; exec "{ljperf.program}" benchmark --config "{config}" '
         "--model ddp --ranks 1 --seq 512 --micro-batch 512 --steps 3 --warmup 0 "
         "--set gradient_checkpointing=false"],
        env=ljperf.environment(), cwd=ljperf.folder, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "ran out of memory" in result.stderr
    assert "--micro-batch" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup of 6 GiB, version 1 or 2: the file that takes a process in."""
    name = f"ljtrain-test-{os.getpid()}"
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    folder = (v1 if v1.is_dir() else v2) / name
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")
        limit.write_text(str(6 << 30))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder / "cgroup.procs"
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_rank_that_the_kernel_kills_for_memory_is_told_from_another_kill(
    ljperf: Ljperf, tiny_config: Path, memory_cgroup: Path
) -> None:
    """A neighbour in the cgroup eats the memory; the kernel is told to take rank 1 for it."""

    def inside(command: str) -> list[str]:
        return ["bash", "-c", f"echo $$ > {memory_cgroup}; exec {command}"]

    process = subprocess.Popen(
        inside(f"{ljperf.program} benchmark --config {tiny_config} --seq 64 --steps 100000 "
               "--ranks 2 --oversubscribe"),
        env=ljperf.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_step(process, ljperf.folder)
    Path(f"/proc/{rank_pids(process)[1]}/oom_score_adj").write_text("1000")
    eater = subprocess.Popen(
        inside(f"{sys.executable} -c 'import time; held = bytearray(6 << 30); time.sleep(60)'"),
        stderr=subprocess.DEVNULL,
    )
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        eater.kill()
        eater.wait()
    assert process.returncode == 1
    assert "rank 1 was killed by the kernel for lack of memory" in errors

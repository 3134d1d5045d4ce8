"""Real engines: a Slurm and a Ray that the tests start, torchrun over two network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from conftest import Ljperf, descendants_of

pytestmark = pytest.mark.slow

# One rank a host: two ranks and the engine are enough for two cores.
SMALL = ("--seq", "64", "--steps", "3", "--warmup", "1", "--ranks", "1")
ADDRESSES = ("10.213.7.2", "10.213.7.3")
# Trains, keeps what it has after each step, and is killed once in the middle.
RESUMES = """
import os, pathlib, signal, sys, torch, torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, first = folder / "kept.pt", 0
if kept.exists():
    state = torch.load(kept)
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first, 6):
    if step == 3 and rank == 1 and not (folder / "killed").exists():
        (folder / "killed").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.ones(4, 8) * (rank + 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": step + 1}, folder / "new.pt")
        os.replace(folder / "new.pt", kept)
    dist.barrier()
print(f"rank {rank} resumed at {first}, loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
"""
FAILS_ONCE = """
import os, pathlib, sys
mark = pathlib.Path("mark-" + os.environ["RANK"])
print("rank", os.environ["RANK"], "start", os.environ.get("SLURM_RESTART_COUNT", 0), flush=True)
if not mark.exists():
    mark.write_text("")
    sys.exit("the first start fails")
"""
# Told that its time is over, it keeps what it has and ends; started again, it is done at once.
KEEPS = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def keep(*_):
    pathlib.Path("kept-" + rank).write_text("what it has")
    sys.exit(0)
if pathlib.Path("kept-" + rank).exists():
    sys.exit(0)
signal.signal(signal.SIGTERM, keep)
pathlib.Path("up-" + rank).write_text(os.environ["SLURM_JOB_ID"])
time.sleep(300)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.SlurmCluster]:
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(f"no Slurm: {reason}")
    cluster = slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def tiny_benchmark(tiny_config: Path) -> tuple[str | Path, ...]:
    return ("benchmark", "--config", tiny_config, *SMALL)


def check_record(record: dict[str, Any], launcher: str, nodes: int) -> None:
    assert record["status"] == "completed"
    assert record["ranks"] == nodes
    assert record["configuration"]["launcher"]["name"] == launcher
    assert record["configuration"]["launcher"]["nodes"] == nodes
    assert len(record["configuration"]["launcher"]["hosts"]) == nodes
    # Every rank of every host is measured.
    assert all(len(step["seconds_per_rank"]) == nodes for step in record["runs"][0]["steps"])
    assert len(record["peak_memory_bytes"]["per_rank"]) == nodes
    assert record["loss"][-1] < 10


def test_slurm_trains_the_model(
    ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster, tiny_benchmark: tuple[str | Path, ...]
) -> None:
    result = ljperf(
        *tiny_benchmark, "--model", "ddp", "--launcher", "slurm", "--nodes", "2", "--output", "job",
        "--json", timeout=900, **slurm.environment(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    check_record(json.loads(result.stdout), "slurm", 2)
    assert (ljperf.folder / "job" / "result.json").exists()


def test_slurm_trains_the_proxy(ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster) -> None:
    result = ljperf(
        "benchmark", "--model", "ddp/llama3-8b", "--scale", "1/8", *SMALL, "--launcher", "slurm",
        "--nodes", "2", "--output", "proxy", "--json", timeout=1500, **slurm.environment(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    check_record_of_proxy(record)


def check_record_of_proxy(record: dict[str, Any]) -> None:
    assert record["status"] == "completed"
    assert record["proxy"]["is_proxy"] is True
    assert record["ranks"] == 2


def test_slurm_starts_a_failed_job_again(ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster) -> None:
    (ljperf.folder / "train.py").write_text(FAILS_ONCE)
    result = ljperf(
        "train", "--launcher", "slurm", "--nodes", "2", "--ranks", "1", "--max-restarts", "1",
        "--output", "again", "train.py", timeout=600, **slurm.environment(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (log,) = (ljperf.folder / "again").glob("slurm-*.log")
    assert "start 2 of at most 2" in log.read_text()
    ranks = "".join(file.read_text() for file in (ljperf.folder / "again" / "ranks").glob("rank-*"))
    assert "rank 0 start 1" in ranks and "rank 1 start 1" in ranks


def test_slurm_starts_a_job_again_that_was_told_of_its_end(
    ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster
) -> None:
    """USR1 to the batch shell: what Slurm sends 60 s before the time limit, and at a preemption."""
    (ljperf.folder / "train.py").write_text(KEEPS)
    process = ljperf.start(
        "train", "--launcher", "slurm", "--nodes", "2", "--ranks", "1", "--max-restarts", "1",
        "--output", "told", "train.py", **slurm.environment(),
    )  # fmt: skip
    up = [ljperf.folder / f"up-{rank}" for rank in (0, 1)]
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in up):
        time.sleep(0.2)
        assert process.poll() is None and time.monotonic() < deadline
    told = slurm.run("scancel", "--signal=USR1", "--batch", up[0].read_text())
    assert told.returncode == 0, told.stderr
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert (ljperf.folder / "kept-0").exists() and (ljperf.folder / "kept-1").exists()
    (log,) = (ljperf.folder / "told").glob("slurm-*.log")
    assert "requeued before its time is over; start 2 of at most 2" in log.read_text()


def test_srun_inside_an_allocation(ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster) -> None:
    script = ljperf.folder / "train.py"
    script.write_text(
        "import os, sys\nrank = os.environ['RANK']\n"
        "print('rank', rank, 'on', os.environ['SLURMD_NODENAME'], flush=True)\n"
        "sys.exit(5 if sys.argv[1:] == [rank] else 0)\n"
    )
    salloc = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", str(ljperf.program))
    train = ("train", "--launcher", "slurm", "--ranks", "1")

    def both(*arguments: str) -> subprocess.CompletedProcess[str]:
        return slurm.run(*salloc, *train, *arguments, timeout=120)

    done = both(str(script))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["rank 0 on n1", "rank 1 on n2"]
    chosen = both("--hosts", "n2", str(script))
    assert (chosen.returncode, chosen.stdout) == (0, "rank 0 on n2\n"), chosen.stderr
    refused = both("--nodes", "3", str(script))
    assert refused.returncode == 2
    assert "--nodes 3: this Slurm allocation has 2" in refused.stderr
    failed = both(str(script), "1")
    assert failed.returncode == 1
    # srun's own code is the highest of its tasks', those that it ended among them.
    assert failed.stderr.splitlines()[-1].startswith("ljperf: srun ended with exit code ")
    assert "task 1: Exited with exit code 5" in failed.stderr
    assert slurm.run("squeue", "--noheader").stdout == ""


def test_an_interrupt_cancels_the_real_job(
    ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster
) -> None:
    (ljperf.folder / "train.py").write_text(KEEPS)
    process = ljperf.start(
        "train", "--launcher", "slurm", "--ranks", "1", "--output", "cancelled", "train.py",
        **slurm.environment(),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (ljperf.folder / "up-0").exists():
        time.sleep(0.2)
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].endswith("is cancelled")
    while slurm.run("squeue", "--noheader").stdout:
        time.sleep(0.2)
        assert time.monotonic() < deadline
    assert (ljperf.folder / "kept-0").exists()  # its ranks were asked, not killed


def test_slurm_s_reason_is_one_line(ljperf: Ljperf, slurm: slurm_cluster.SlurmCluster) -> None:
    (ljperf.folder / "train.py").write_text("import sys\nsys.exit('no such dataset')\n")
    refused = ljperf(
        "train", "--launcher", "slurm", "--launcher-option=--partition=absent", "train.py",
        timeout=300, **slurm.environment(),
    )  # fmt: skip
    assert refused.returncode == 1
    assert "Invalid partition name" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    failed = ljperf(
        "train", "--launcher", "slurm", "--ranks", "1", "--output", "failed", "train.py",
        timeout=300, **slurm.environment(),
    )  # fmt: skip
    assert failed.returncode == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("ljperf: ")]
    assert "ended as FAILED (NonZeroExitCode, exit code 1): srun ended with exit code 1" in line


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Two hosts as the network sees them, and what reaches them in ssh's place."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = f"lj{os.getpid() % 100000}"
    names = (f"{tag}a", f"{tag}b")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        ip("link", "add", f"{tag}br", "type", "bridge")
        ip("address", "add", "10.213.7.1/24", "dev", f"{tag}br")
        ip("link", "set", f"{tag}br", "up")
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("netns", "add", name)
            ip("link", "add", f"{name}o", "type", "veth", "peer", "name", "eth7", "netns", name)
            ip("link", "set", f"{name}o", "master", f"{tag}br", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth7")
            ip("-n", name, "link", "set", "eth7", "up")
            ip("-n", name, "link", "set", "lo", "up")
        shell = tmp_path / "reach"
        shell.write_text(
            "#!/bin/sh\n"
            f'case "$1" in {ADDRESSES[0]}) n={names[0]} ;; {ADDRESSES[1]}) n={names[1]} ;; esac\n'
            'shift\nexec ip netns exec "$n" sh -c "$*"\n'
        )
        shell.chmod(0o755)
        yield shell, names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "delete", f"{tag}br")


def test_torchrun_resumes_over_two_hosts(
    ljperf: Ljperf, namespaces: tuple[Path, tuple[str, str]], tmp_path: Path
) -> None:
    script = tmp_path / "resumes.py"
    script.write_text(RESUMES)
    before = descendants_of(os.getpid())
    result = ljperf(
        "train", "--launcher", "torchrun", "--hosts", ",".join(ADDRESSES), "--ranks", "1",
        "--remote-shell", namespaces[0], "--max-restarts", "5", script, tmp_path, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "killed").exists()
    finished = [line for line in result.stdout.splitlines() if "resumed at 3" in line]
    assert len(finished) == 2, result.stdout
    assert descendants_of(os.getpid()) <= before
    for name in namespaces[1]:
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=True)
        assert pids.stdout == b""


def test_torchrun_trains_the_model_over_two_hosts(
    ljperf: Ljperf,
    namespaces: tuple[Path, tuple[str, str]],
    tiny_benchmark: tuple[str | Path, ...],
) -> None:
    result = ljperf(
        *tiny_benchmark, "--model", "ddp", "--launcher", "torchrun", "--hosts",
        ",".join(ADDRESSES), "--remote-shell", namespaces[0], "--json", timeout=900,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    check_record(json.loads(result.stdout), "torchrun", 2)


@pytest.fixture
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray", reason="Ray is not installed (tools/set_up_cluster.sh does)")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def test_ray_trains_the_model(
    ljperf: Ljperf, ray_address: str, tiny_benchmark: tuple[str | Path, ...]
) -> None:
    result = ljperf(
        *tiny_benchmark, "--model", "ddp", "--launcher", "ray", "--nodes", "2", "--json",
        timeout=900, RAY_ADDRESS=ray_address,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    check_record(json.loads(result.stdout), "ray", 2)
    # The actors gave back what they held.
    again = ljperf(
        *tiny_benchmark, "--model", "ddp", "--launcher", "ray", "--nodes", "2", "--json",
        timeout=900, RAY_ADDRESS=ray_address,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_a_rank_that_dies_under_ray_is_one_line(ljperf: Ljperf, ray_address: str) -> None:
    script = ljperf.folder / "dies.py"
    script.write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(100)\n"
    )
    result = ljperf(
        "train", "--launcher", "ray", "--nodes", "2", "--ranks", "1", script, timeout=300,
        RAY_ADDRESS=ray_address,
    )  # fmt: skip
    assert result.returncode == 1
    assert "rank 1 ended with SIGKILL" in result.stderr
    running = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, check=False)
    assert running.stdout == b""


def test_no_ray_cluster_is_one_line(ljperf: Ljperf, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (tools/set_up_cluster.sh does)")
    script = tmp_path / "train.py"
    script.write_text("")
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "no-such-host.invalid:6379"):
        result = ljperf("train", "--launcher", "ray", script, timeout=120, RAY_ADDRESS=address)
        assert result.returncode == 1
        assert "no Ray cluster is reached from here" in result.stderr
        assert address in result.stderr

"""`ljperf comm`: what it says, what it verifies, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf, descendants_of

ROOT = Path(__file__).resolve().parent.parent
# Small enough to take a moment, and of every kind: one element a rank, odd, several pages.
QUICK = ("comm", "--blocks", "2", "--min-time", "0.2")
# nccl-tests, doc/PERFORMANCE.md and the sources of the operations.
BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
}
CONTRACT = {
    "library", "interface", "op", "dtype", "ranks", "bytes", "time_us", "algbw_gbps", "busbw_gbps",
    "wrong",
}  # fmt: skip


def shared_memory() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").iterdir()}


def in_use(name: str) -> bool:
    """Mapped by a process that lives: then it is another program's, since ours have ended."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue
    return False


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No file in /dev/shm, no folder of a run, no process."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    before = shared_memory()
    processes = descendants_of(os.getpid())
    yield
    assert [name for name in shared_memory() - before if not in_use(name)] == []
    assert list(scratch.iterdir()) == []
    assert descendants_of(os.getpid()) <= processes


def test_every_operation_is_measured_and_verified(ljperf: Ljperf) -> None:
    result = ljperf(
        *QUICK, "--op", "all", "--sizes", "4,1000,64KiB", "--dtype", "float32,bfloat16",
        "--ranks", "2,3", "--check", "--in-place", "--registered", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["status"] == "completed"
    seen = set()
    for row in document["rows"]:
        assert row.keys() >= CONTRACT
        assert row["interface"] == "c"
        assert row["algbw_gbps"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        if row["library"] == "memcpy":
            assert row["busbw_gbps"] is None and row["wrong"] is None
            continue
        assert row["wrong"] == 0, row
        factor = BUS_FACTORS[row["op"]](row["ranks"])
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * factor)
        assert row["ratio"]["to"] == "memcpy"
        assert row["ratio"]["verdict"] is None  # two blocks are too few for one
        seen.add((row["op"], row["dtype"], row["ranks"], row["in_place"], row["registered"]))
    for dtype in ("float32", "bfloat16"):
        for ranks in (2, 3):
            for op in BUS_FACTORS:
                plain = op == "broadcast"  # in place is its only form
                assert (op, dtype, ranks, plain, False) in seen
                assert (op, dtype, ranks, plain, True) in seen
            assert ("all_gather", dtype, ranks, True, False) in seen


def test_sizes_count_the_whole_buffer_and_the_file_holds_what_was_printed(
    ljperf: Ljperf, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    result = ljperf(
        *QUICK, "--op", "all_gather,all_reduce", "--sizes", "8,1KiB:4KiB:x2", "--ranks", "4",
        "--output", file,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    rows = json.loads(file.read_text())["rows"]
    sizes = {op: sorted({row["bytes"] for row in rows if row["op"] == op}) for op in BUS_FACTORS}
    assert sizes["all_reduce"] == [8, 1024, 2048, 4096]
    assert sizes["all_gather"] == [16, 1024, 2048, 4096]  # one float32 a rank is the least
    assert all(row["wrong"] is None for row in rows)  # not checked is not the same as none wrong
    for words in ("accl", "memcpy", "4 KiB", "all_gather, float32, 4 ranks"):
        assert words in result.stdout


def test_check_finds_one_wrong_element(ljperf: Ljperf) -> None:
    result = ljperf(
        *QUICK, "--sizes", "4KiB", "--check", "--ranks", "2", "--json",
        LJPERF_COMM_CORRUPT="accl:1",
    )  # fmt: skip
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert document["status"] == "failed"
    wrong = {row["library"]: row["wrong"] for row in document["rows"]}
    assert wrong == {"memcpy": None, "accl": 1}
    assert "accl computed 1 wrong element in all_reduce of 4096 bytes" in result.stderr


def test_through_pytorch_beside_gloo(ljperf: Ljperf) -> None:
    """Every operation through c10d; and one wrong element is found."""
    result = ljperf(
        *QUICK, "--op", "all", "--sizes", "8,64KiB", "--check", "--ranks", "2",
        "--peers", "gloo", "--json", LJPERF_COMM_CORRUPT="gloo/c10d:1",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["skipped"] == []
    rows = [row for row in document["rows"] if row["interface"] == "c10d"]
    assert {row["op"] for row in rows} == set(BUS_FACTORS)
    for row in rows:
        has_result = row["op"] not in ("reduce", "gather")  # those of rank 1 are nobody's
        assert row["wrong"] == (1 if row["library"] == "gloo" and has_result else 0), row
        if row["library"] == "gloo":
            assert (row["ratio"]["of"], row["ratio"]["to"]) == ("accl/c10d", "gloo/c10d")
    assert {row["library"] for row in rows} == {"accl", "gloo"}


@pytest.mark.parametrize("peer", ["mpi", "deepspeed_shm"])
def test_peers_in_c(ljperf: Ljperf, tmp_path: Path, peer: str) -> None:
    """Compiled where found; their shared memory is removed."""
    if peer == "mpi" and not shutil.which("mpicxx"):
        pytest.skip("Open MPI is not installed")
    result = ljperf(
        *QUICK, "--op", "all_reduce,all_gather", "--sizes", "8,64KiB,1MiB", "--check",
        "--ranks", "2", "--peers", peer, "--json", XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    if document["skipped"]:
        assert "AVX-512" in document["skipped"][0]["reason"]  # DeepSpeed's kernels need it
        return
    rows = [row for row in document["rows"] if row["library"] == peer]
    assert rows and all(row["wrong"] == 0 for row in rows)
    assert all(row["ratio"]["to"].startswith(peer) for row in rows)
    assert document["summary"][0]["library"] == peer
    assert document["summary"][0]["ratio"]["geometric_mean"] > 0


def test_explain_says_which_algorithm_serves_which_size(ljperf: Ljperf) -> None:
    result = ljperf(
        "comm", "--explain", "--op", "all_reduce,all_gather", "--sizes", "8,16MiB", "--ranks", "2,3"
    )
    assert result.returncode == 0, result.stderr
    assert "topology: 2 ranks" in result.stdout and "topology: 3 ranks" in result.stdout
    for words in ("all_reduce, float32, 2 ranks", "all_gather, float32, 3 ranks"):
        section = result.stdout.split(words)[1].split("\n\n")[0]
        assert re.search(r"\n +8 B  \w+ [\d.]+ us", section) or "all_gather" in words
        assert re.search(r"\n +16 MiB  \w+ [\d.]+ us|\n *1677\d+ B  \w+ [\d.]+ us", section)


def test_explain_as_a_document(ljperf: Ljperf) -> None:
    result = ljperf("comm", "--explain", "--json", "--sizes", "8,1MiB", "--ranks", "2")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert [row["bytes"] for row in document["rows"]] == [8, 1 << 20]
    for row in document["rows"]:
        predicted = [entry["predicted_us"] for entry in row["algorithms"]]
        assert predicted and predicted == sorted(predicted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers", "accl"), "it is always measured"),
        (("--peers", "foo"), "there are gloo, oneccl, mpi, deepspeed_shm, nccl"),
        (("--python", "/nowhere/python"), "no such program"),
        (("--oneccl-root", "/nowhere"), "no such folder"),
    ],
)
def test_what_cannot_be_meant(ljperf: Ljperf, arguments: tuple[str, ...], words: str) -> None:
    result = ljperf("comm", "--sizes", "8", *arguments)
    assert result.returncode == 2
    assert words in result.stderr


def test_a_library_that_dies_while_it_starts_is_a_failure(ljperf: Ljperf, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *"comm_worker gloo"*) kill -9 $$;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    result = ljperf(
        *QUICK, "--sizes", "8", "--ranks", "2", "--peers", "gloo", "--interface", "both",
        "--python", python, "--json",
    )  # fmt: skip
    assert result.returncode == 1, result.stdout
    document = json.loads(result.stdout)
    assert document["status"] == "failed"
    assert "was ended by SIGKILL before it was ready" in document["failure"]["sentence"]
    assert {row["library"] for row in document["rows"]} == {"memcpy", "accl"}


def test_what_is_not_there_is_skipped_by_name(ljperf: Ljperf, tmp_path: Path) -> None:
    result = ljperf(
        *QUICK, "--sizes", "8", "--ranks", "2", "--peers", "mpi,oneccl,deepspeed_shm,gloo,nccl",
        "--python", "/bin/true", "--oneccl-root", tmp_path, "--json", PATH="/nowhere",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    reasons = {entry["library"]: entry["reason"] for entry in document["skipped"]}
    assert reasons.keys() == {
        "mpi", "oneccl", "deepspeed_shm", "accl/c10d", "gloo/c10d", "nccl/c10d",
    }  # fmt: skip
    assert "openmpi-bin" in reasons["mpi"]
    assert "oneccl-devel" in reasons["oneccl"]
    assert "GPU" in reasons["nccl/c10d"] or "PyTorch" in reasons["nccl/c10d"]
    assert {row["library"] for row in document["rows"]} == {"memcpy", "accl"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--sizes", "8:4"), ["--sizes 8:4", "ends before"]),
        (("--sizes", "eight"), ["--sizes", "eight", "8:64MiB:x2"]),
        (("--sizes", "8:64MiB:x1"), ["x1", "above 1"]),
        (("--sizes", "0"), ["0", "16GiB"]),
        (("--op", "allreduce"), ["--op allreduce", "all_reduce"]),
        (("--dtype", "float23"), ["--dtype float23", "float32"]),
        (("--peers", "gloo,mvapich"), ["--peers mvapich"]),
        (("--interface", "d"), ["--interface d"]),
        (("--ranks", "1"), ["--ranks 1"]),
        (("--ranks", "2,many"), ["--ranks"]),
        (("--blocks", "0"), ["--blocks 0"]),
        (("--min-time", "0"), ["--min-time 0"]),
        (("--timeout", "0"), ["--timeout 0"]),
        (("--output", "/proc/nowhere/x.json"), ["--output /proc/nowhere/x.json"]),
        (("--peer", "gloo"), ["--peer", "--peers"]),
        (("--serve", "nothing"), ["--serve nothing"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    ljperf: Ljperf, arguments: tuple[str, ...], expected: list[str]
) -> None:
    result = ljperf("comm", *arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for words in expected:
        assert words in result.stderr


# What the command lines of their ranks look like.
MARKS = {
    "accl": rb"[^\0]+\0comm\0--serve\0accl\0",
    "mpi": rb"[^\0]*/mpi_driver-\w+\0",
    "deepspeed_shm": rb"[^\0]*/deepspeed_driver-\w+\0",
}


def is_rank(pid: int, library: str) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return re.fullmatch(MARKS[library], line) is not None


def start_and_wait_for_ranks(
    ljperf: Ljperf, *arguments: str, library: str = "accl", **environment: str
) -> tuple[subprocess.Popen[str], list[int]]:
    """An endless run, with the ranks of a library at work."""
    run = ljperf.start(
        "comm", "--sizes", "64KiB", "--ranks", "2", "--blocks", "10000", "--json", *arguments,
        **environment,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ranks = sorted(pid for pid in descendants_of(run.pid) if is_rank(pid, library))
        if len(ranks) == 2:
            time.sleep(1)
            return run, ranks
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


@pytest.mark.parametrize("library", MARKS)
def test_a_killed_rank_ends_the_run_at_once(ljperf: Ljperf, library: str, tmp_path: Path) -> None:
    """Also where its peers spin without end, and where a launcher stands between."""
    if library == "mpi" and not shutil.which("mpicxx"):
        pytest.skip("Open MPI is not installed")
    if library == "deepspeed_shm" and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("DeepSpeed's kernels need AVX-512")
    peers = () if library == "accl" else ("--peers", library)
    run, ranks = start_and_wait_for_ranks(
        ljperf, *peers, library=library, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    os.kill(ranks[1], signal.SIGKILL)
    start = time.monotonic()
    output, errors = run.communicate(timeout=30)
    assert time.monotonic() - start < 8
    assert run.returncode == 1
    assert f"of {library} (process {ranks[1]}) " in errors
    assert "ended" in errors and "during all_reduce of 64 KiB float32" in errors
    if library != "mpi":  # whose launcher alone knows the signal
        assert "was ended by SIGKILL" in errors
    document = json.loads(output)
    assert document["status"] == "failed"
    assert library in document["failure"]["sentence"]


def test_a_stopped_rank_is_named(ljperf: Ljperf) -> None:
    run, ranks = start_and_wait_for_ranks(ljperf, "--timeout", "1")
    os.kill(ranks[0], signal.SIGSTOP)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 1
    assert "did not answer within --timeout 1 s during all_reduce of 64 KiB" in errors
    assert "rank 0 stopped" in errors


def test_ctrl_c_keeps_what_was_measured(ljperf: Ljperf, tmp_path: Path) -> None:
    run, _ = start_and_wait_for_ranks(ljperf, "--output", str(tmp_path / "kept.json"))
    run.send_signal(signal.SIGINT)
    output, errors = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "interrupted" in errors
    assert json.loads(output)["status"] == "interrupted"
    assert json.loads((tmp_path / "kept.json").read_text())["status"] == "interrupted"


def test_ranks_do_not_outlive_ljperf(ljperf: Ljperf) -> None:
    run, ranks = start_and_wait_for_ranks(ljperf)
    run.kill()
    run.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(is_rank(pid, "accl") for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for folder in Path(os.environ["TMPDIR"]).iterdir():  # nobody was left to remove it
        shutil.rmtree(folder)


def synthetic_row(library: str, time_us: float, size: int, **more: Any) -> dict[str, Any]:
    row = {
        "library": library, "interface": "c", "op": "all_gather", "dtype": "float32", "ranks": 2,
        "bytes": size, "in_place": False, "registered": False, "time_us": time_us, "ratio": None,
        "blocks_us": [time_us * (1 + 0.01 * (block % 5)) for block in range(20)],
    }  # fmt: skip
    return {**row, **more}


def synthetic_ratio(value: float, verdict: str | None = None) -> dict[str, Any]:
    return {"geometric_mean": value, "ci95": [value * 0.9, value * 1.1], "verdict": verdict}


def test_the_comparison_names_its_misses() -> None:
    """benchmarks/accl: mean, worst case and share of memcpy are judged by their intervals."""
    sys.path.insert(0, str(ROOT / "benchmarks/accl"))
    import compare

    ratios = compare.Ratios(ROOT / "build/release/cnp/cnp_record_tool")
    rows = [
        synthetic_row("accl", 1.0, 8),
        synthetic_row("mpi", 0.5, 8, ratio=synthetic_ratio(0.5, "behind")),
        synthetic_row("accl", 1.0, 1 << 20),
        synthetic_row("mpi", 8.0, 1 << 20, ratio=synthetic_ratio(8, "ahead")),
    ]
    mean, worst = compare.against(rows, "mpi", "C: mpi", ratios, mean=1.3, lowest=None)
    assert mean["verdict"] == "met"  # sqrt(0.5 * 8) = 2
    assert mean["result"].startswith("2x")
    assert worst["verdict"] == "missed"
    assert "all_gather 8 B float32, 2 ranks 0.50x" in worst["result"]
    missed, _ = compare.against(rows, "mpi", "C: mpi", ratios, mean=2.5, lowest=None)
    assert missed["verdict"] == "missed"
    _, lowest = compare.against(rows, "mpi", "C: mpi", ratios, mean=1, lowest=0.5)
    assert lowest["verdict"] == "undecided"  # 0.45 .. 0.55
    assert compare.against(rows, "oneccl", "C: oneccl", ratios, mean=1.3, lowest=None)[0][
        "verdict"
    ] == "not measured"  # fmt: skip
    limit = [
        synthetic_row("accl", 1, 64 << 20, ratio=synthetic_ratio(0.5)),
        synthetic_row("accl", 1, 64 << 20, registered=True, ratio=synthetic_ratio(1.2)),
    ]
    verdicts = [entry["verdict"] for entry in compare.limit_verdicts(limit)]
    assert verdicts == ["missed", "met", "not measured"]
    assert compare.small_verdict([synthetic_row("accl", 31, 8)])[0]["verdict"] == "missed"

"""`ljperf memory`: true to the snapshot and to PyTorch's own readers, and safe."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Ljperf

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20


def _example() -> ModuleType:
    file = ROOT / "examples" / "memory_snapshot.py"
    spec = importlib.util.spec_from_file_location("memory_snapshot", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_snapshot"] = module
    spec.loader.exec_module(module)
    return module


example = _example()


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    return example.make_snapshot(3072 * MIB)


@pytest.fixture(scope="module")
def failing_snapshot() -> dict[str, Any]:
    return example.make_snapshot(1800 * MIB)


def report(ljperf: Ljperf, snapshot: Any, *arguments: str, protocol: int = 4) -> dict[str, Any]:
    file = ljperf.folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    run = ljperf("memory", file, "--json", *arguments)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def refusal(ljperf: Ljperf, content: bytes, *arguments: str) -> str:
    file = ljperf.folder / "bad.pickle"
    file.write_bytes(content)
    run = ljperf("memory", file, *arguments)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1), run
    return run.stderr


def live_peak(trace: list[dict[str, Any]]) -> int:
    live = peak = 0
    for event in trace:
        live += event["size"] * {"alloc": 1, "free_requested": -1}.get(event["action"], 0)
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_counts_what_the_trace_says(
    ljperf: Ljperf, snapshot: dict[str, Any], protocol: int
) -> None:
    result = report(ljperf, snapshot, protocol=protocol)
    trace = snapshot["device_traces"][0]
    assert result["recorded"]["peak_live_bytes"] == live_peak(trace)
    assert result["recorded"]["reserved_at_end_bytes"] == sum(
        s["total_size"] for s in snapshot["segments"]
    )
    assert (
        sum(owner["bytes"] for owner in result["owners_at_peak"])
        == result["recorded"]["peak_live_bytes"]
    )
    assert result["schema_version"] == 1
    assert result["simulation"] == "unverified against a GPU trace"


def test_simulates_what_was_recorded(ljperf: Ljperf) -> None:
    """The example's allocator was written apart from the simulator: both must reserve the same."""
    for device_memory in (1400, 1700, 1900, 3072):
        for seed in (1, 2, 3):
            made = example.make_snapshot(device_memory * MIB, 5, seed)
            result = report(ljperf, made, "--limit", f"{device_memory}MiB")
            recorded, simulated = result["recorded"], result["simulated"]
            assert simulated["peak_reserved_bytes"] == recorded["peak_reserved_bytes"]
            assert simulated["device_allocations"] == recorded["device_allocations"]
            assert simulated["device_frees"] == recorded["device_frees"]
            assert result["simulated_reserved_error"] == 0
            assert simulated["out_of_memory_served"] == 0


def test_a_ring_buffer_that_lost_its_start(ljperf: Ljperf, snapshot: dict[str, Any]) -> None:
    """With max_entries only the end is kept; the state before it follows from the blocks."""
    whole = report(ljperf, snapshot)
    cut = copy.deepcopy(snapshot)
    cut["device_traces"][0] = cut["device_traces"][0][500:]
    result = report(ljperf, cut)
    assert result["allocations_before"] > 0
    assert result["events_left_out"] == 0
    assert result["recorded"]["live_at_end_bytes"] == whole["recorded"]["live_at_end_bytes"]
    assert result["recorded"]["reserved_at_end_bytes"] == whole["recorded"]["reserved_at_end_bytes"]


def test_pytorch_reads_the_same_snapshot(ljperf: Ljperf, snapshot: dict[str, Any]) -> None:
    memory_viz = pytest.importorskip("torch.cuda._memory_viz")
    result = report(ljperf, snapshot)
    assert "segments: " + str(len(snapshot["segments"])) in memory_viz.segsum(snapshot)
    reserved = memory_viz.Bytes(result["recorded"]["reserved_at_end_bytes"])
    assert f"total_reserved: {reserved}" in memory_viz.segsum(snapshot)
    live = memory_viz.Bytes(result["recorded"]["live_at_end_bytes"])
    assert f"total_allocated: {live}" in memory_viz.segsum(snapshot)
    assert (
        memory_viz.trace(snapshot).count("cudaMalloc") == result["recorded"]["device_allocations"]
    )
    assert "memory_viz" in memory_viz.trace_plot(snapshot).lower() or memory_viz.trace_plot(
        snapshot
    )
    active = sum(
        int(line.rsplit(" ", 1)[1])
        for line in memory_viz.memory(snapshot, format_flamegraph=str).splitlines()
        if ";active_allocated;" in line and "<gaps>" not in line
    )
    assert active == result["recorded"]["live_at_end_bytes"]


def test_says_why_and_what_would_have_helped(
    ljperf: Ljperf, failing_snapshot: dict[str, Any]
) -> None:
    result = report(ljperf, failing_snapshot)
    (failure,) = result["recorded"]["out_of_memory"]
    assert failure["cause"].startswith("partly fragmentation")
    assert failure["owner"] == "llama/modeling_llama.py:480 forward"
    assert result["limit_from_trace"] and result["limit_bytes"] == 1800 * MIB
    served = {
        other["settings"]: other["out_of_memory_served"] for other in result["other_settings"]
    }
    assert served["expandable_segments:True"] == 1
    assert served["roundup_power2_divisions:8"] == 0


def test_a_limit_of_ones_own(ljperf: Ljperf, snapshot: dict[str, Any]) -> None:
    result = report(ljperf, snapshot, "--limit", "1500MiB", "--settings", "")
    failure = result["other_settings"][0]["out_of_memory"]
    assert failure["limit_bytes"] == 1500 * MIB
    assert failure["reserved_bytes"] + failure["needed_bytes"] > 1500 * MIB
    assert "1.46 GiB" in failure["reason"]


def test_table_fits_80_columns_and_is_honest(
    ljperf: Ljperf, failing_snapshot: dict[str, Any]
) -> None:
    file = ljperf.folder / "s.pickle"
    file.write_bytes(pickle.dumps(failing_snapshot))
    run = ljperf("memory", "s.pickle", "--settings", "expandable_segments:True", "--top", "3")
    assert run.returncode == 0, run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "unverified against a GPU trace" in run.stdout
    assert "4 others" in run.stdout


class Payload:
    """What a hostile pickle does: unpickling it creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_executes_nothing(ljperf: Ljperf, protocol: int) -> None:
    marker = ljperf.folder / "executed"
    message = refusal(ljperf, pickle.dumps({"segments": [Payload(marker)]}, protocol=protocol))
    assert "GLOBAL" in message and "open" in message and "refused" in message
    assert not marker.exists()


def test_refuses_what_is_no_snapshot(ljperf: Ljperf, snapshot: dict[str, Any]) -> None:
    whole = pickle.dumps(snapshot)
    assert "not written whole" in refusal(ljperf, whole[: len(whole) // 2])
    assert "_dump_snapshot" in refusal(ljperf, b"")
    assert "_dump_snapshot" in refusal(ljperf, json.dumps({"segments": []}).encode())
    assert "_dump_snapshot" in refusal(ljperf, pickle.dumps(snapshot["segments"]))
    assert "compressed" in refusal(ljperf, b"\x1f\x8b" + whole)
    assert "device_traces: is missing" in refusal(ljperf, pickle.dumps({"segments": []}))
    assert "no device 3" in refusal(ljperf, whole, "--device", "3")
    assert "near: expandable_segments" in refusal(
        ljperf, whole, "--settings", "expandable_segment:True"
    )
    assert "--limit" in refusal(ljperf, whole, "--limit", "0")
    assert "--by" in refusal(ljperf, whole, "--by", "colour")
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep, deep]  # shared, so the pickle stays small
    sys.setrecursionlimit(100_000)
    try:
        nested = pickle.dumps({"segments": deep, "device_traces": []})
    finally:
        sys.setrecursionlimit(1000)
    assert "nested" in refusal(ljperf, nested)
    missing = ljperf("memory", "no-such-file")
    assert missing.returncode == 2 and "no-such-file" in missing.stderr


SETTINGS = [
    "",
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb:-1",
    "max_split_size_mb:100,",
    "max_split_size_mb",
    "max_split_size_mb:abc",
    "max_split_size_mb:200,max_split_size_mb:300",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "large_segment_size_mb:64",
    "max_split_size_mb:15,large_segment_size_mb:12",
    "max_split_size_mb:30,large_segment_size_mb:64",
    "max_non_split_rounding_mb:10",
    "max_non_split_rounding_mb:30",
    "expandable_segments:true",
    "expandable_segments :True",
    "expandable_segments:True:False",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:nan",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[1:3]",
    "roundup_power2_divisions:[0:2]",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[1:2,]",
    "roundup_power2_divisions:[1:2",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[>:8]",
    "pinned_use_background_threads:True",
    "pinned_max_cached_size_mb:7",
    "max_split_size_mb:30;expandable_segments:True",
]
ACCEPTED_BY_PYTORCH = """
import sys, torch
for line in sys.stdin.read().split("\\n"):
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
    try:
        torch._C._accelerator_setAllocatorSettings(line)
        print(1)
    except Exception:
        print(0)
"""


def test_takes_and_refuses_settings_as_pytorch_does(ljperf: Ljperf) -> None:
    """PyTorch parses them in a library that needs no GPU."""
    pytest.importorskip("torch")
    peer = subprocess.run(
        [sys.executable, "-c", ACCEPTED_BY_PYTORCH],
        input="\n".join(SETTINGS),
        capture_output=True,
        text=True,
        check=True,
    )
    accepted = dict(zip(SETTINGS, (word == "1" for word in peer.stdout.split()), strict=True))
    file = ljperf.folder / "tiny.pickle"
    file.write_bytes(pickle.dumps(example.make_snapshot(64 * MIB, 1)))
    for settings in SETTINGS:
        run = ljperf("memory", file, "--settings", settings)
        assert (run.returncode == 0) == accepted[settings], (settings, run.stderr)
    assert 10 < sum(accepted.values()) < len(SETTINGS) - 10


def test_rounds_as_pytorch_does(ljperf: Ljperf) -> None:
    torch = pytest.importorskip("torch")
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    name = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"
    if not hasattr(library, name):
        pytest.skip("this PyTorch does not export roundup_power2_divisions")
    divisions_of = getattr(library, name)
    divisions_of.argtypes, divisions_of.restype = [ctypes.c_size_t], ctypes.c_size_t
    sizes = [
        700,
        5000,
        MIB + 1,
        3 * MIB + 100,
        77 * MIB + 5,
        700 * MIB + 1,
        5000 * MIB + 1,
        70_000 * MIB + 9,
    ]
    for settings in (
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:2,64:8,1024:1,>:16]",
    ):
        torch._C._accelerator_setAllocatorSettings(settings)
        try:
            expected = [round_up(size, divisions_of(size)) for size in sizes]
        finally:
            torch._C._accelerator_setAllocatorSettings("")
        trace = [
            {"action": "alloc", "addr": (index + 1) << 40, "size": size, "stream": 0, "frames": []}
            for index, size in enumerate(sizes)
        ]
        result = report(
            ljperf,
            {"segments": [], "device_traces": [trace]},
            "--settings",
            f"{settings},expandable_segments:True",  # which split to the byte
        )
        assert result["other_settings"][0]["peak_allocated_bytes"] == sum(expected)


def round_up(size: int, divisions: int) -> int:
    step = 512
    if divisions > 1 and size > 512 * divisions:
        step = (1 << (size.bit_length() - 1)) // divisions
    return -(-size // step) * step

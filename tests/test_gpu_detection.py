"""What ljperf makes of GPUs, by a stand-in for NVIDIA's library. Nothing here runs on a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import Ljperf

H100 = "NVIDIA H100 80GB HBM3:80"
MODEL = ("benchmark", "--model", "deepspeed/llama3-8b")


@pytest.fixture
def nvml(tmp_path: Path) -> str:
    source = Path(__file__).parent / "fake_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(tmp_path)


def hardware(ljperf: Ljperf, library: str, gpus: str, **environment: str) -> dict:
    variables = {"LD_LIBRARY_PATH": library, "FAKE_GPUS": gpus, **environment}
    result = subprocess.run(
        [ljperf.program, "benchmark", "--env-dump"],
        env=ljperf.environment(**variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)["hardware"]


def test_gpus_are_listed_with_their_memory(ljperf: Ljperf, nvml: str) -> None:
    found = hardware(ljperf, nvml, f"{H100},{H100}")
    assert found["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30}] * 2
    assert found["gpu_note"] == "NVIDIA driver 580.65.06"


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("1", 1), ("1,0", 2), ("0,7,1", 1), ("-1", 0), ("GPU-abc", 2)]
)
def test_cuda_visible_devices_is_respected(
    ljperf: Ljperf, nvml: str, visible: str, count: int
) -> None:
    found = hardware(ljperf, nvml, f"{H100},{H100}", CUDA_VISIBLE_DEVICES=visible)
    assert len(found["gpus"]) == count


def test_an_nvml_that_does_not_start_means_no_gpus(ljperf: Ljperf, nvml: str) -> None:
    found = hardware(ljperf, nvml, H100, FAKE_NVML_ERROR="9")
    assert found["gpus"] == []
    assert "error 9" in found["gpu_note"]


def test_a_cpu_build_of_pytorch_beside_gpus_is_refused(ljperf: Ljperf, nvml: str) -> None:
    result = ljperf(*MODEL, "--dry-run", LD_LIBRARY_PATH=nvml, FAKE_GPUS=H100)
    dump = json.loads(ljperf("benchmark", "--env-dump").stdout)
    if dump["python"]["torch_build"] != "cpu":
        pytest.skip("PyTorch here is built for GPUs")
    assert result.returncode == 2
    assert "CPU build" in result.stderr and "CUDA_VISIBLE_DEVICES=" in result.stderr


def test_more_ranks_than_gpus_are_refused(ljperf: Ljperf, nvml: str) -> None:
    result = ljperf(*MODEL, "--ranks", "2", LD_LIBRARY_PATH=nvml, FAKE_GPUS=H100)
    assert result.returncode == 2
    assert "1 GPU" in result.stderr

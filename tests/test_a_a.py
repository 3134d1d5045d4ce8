"""Honesty of the intervals on real runs: two identical benchmarks must not differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_identical_runs_show_no_difference() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks/ljperf"))
    import a_a

    result = a_a.run(pairs=20, repeat=5, steps=20, engine="ddp", interleaved=True)
    assert result["holding_1"] >= 18, result
    if result["half_width"]["median"] > 0.02:
        load = Path("/proc/loadavg").read_text().split()[0]
        pytest.fail(f"half-width {result['half_width']} is above 2 %; load average {load}: noise?")


@pytest.mark.slow
def test_measuring_costs_less_than_2_percent(tmp_path: Path) -> None:
    import json
    import os
    import sysconfig

    output = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "ljperf", "benchmark", "--model",
         "deepspeed/llama3-8b", "--steps", "80", "--measure-overhead", "--json"],
        env={**os.environ, "LJTRAIN_RECORDS": str(tmp_path)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    overhead = json.loads(output)["instrumentation_overhead"]
    assert overhead["ci95"][1] < 1.02, overhead

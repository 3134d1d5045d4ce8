"""A against A: does the interval of a ratio hold 1 when both sides are the same?

    .venv/bin/python benchmarks/ljperf/a_a.py --pairs 20 --output benchmarks/ljperf/results

Runs pairs of identical small benchmarks and compares each pair as any two records are compared
(`cnp/statistics.h`, ratio_interval95: Welch's interval of the runs' medians on a log scale). Of 20
intervals at 95 %, 19 are expected to hold 1; fewer than 18 would be seen in 7.5 % of honest
trials, so one repetition settles it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Small enough that starting a process takes longer than training in it, large enough that a step
# (tens of milliseconds) is more than the noise of a timer.
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 896,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}


def benchmark(config: Path, records: Path, engine: str, repeat: int, steps: int) -> Path:
    """One `ljperf benchmark`; returns the file of its record."""
    program = Path(sysconfig.get_path("scripts")) / "ljperf"
    result = subprocess.run(
        [program, "benchmark", "--model", engine, "--config", config, "--seq", "256", "--json",
         "--steps", str(steps), "--repeat", str(repeat)],
        env={**os.environ, "LJTRAIN_RECORDS": str(records)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"ljperf failed:\n{result.stderr}")
    return records / f"{json.loads(result.stdout)['record_id']}.json"


def ratio(first: Path, second: Path) -> dict[str, Any]:
    """The ratio of two records and its interval, by the C++ estimator."""
    tool = ROOT / "build/release/cnp/cnp_record_tool"
    output = subprocess.run(
        [tool, "ratio", first, second], capture_output=True, text=True, check=True
    ).stdout
    return json.loads(output)


def run(pairs: int, repeat: int, steps: int, engine: str) -> dict[str, Any]:
    """All pairs, and what they say together."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "a-a.json"
        config.write_text(json.dumps(MODEL))
        for pair in range(pairs):
            first, second = (
                benchmark(config, Path(folder) / "records", engine, repeat, steps) for _ in range(2)
            )
            row = ratio(first, second)
            row["holds_1"] = row["low"] <= 1 <= row["high"]
            row["half_width"] = (row["high"] - row["low"]) / 2
            row["medians"] = [
                [run["median_s"] for run in json.loads(file.read_text())["runs"]]
                for file in (first, second)
            ]
            rows.append(row)
            print(
                f"pair {pair + 1:2}: ratio {row['ratio']:.4f}  95 % {row['low']:.4f} .. "
                f"{row['high']:.4f}{'' if row['holds_1'] else '   without 1'}",
                flush=True,
            )
    widths = sorted(row["half_width"] for row in rows)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
        },
        "engine": engine,
        "pairs": pairs,
        "repeat": repeat,
        "steps": steps,
        "holding_1": sum(row["holds_1"] for row in rows),
        "half_width": {"median": widths[len(widths) // 2], "largest": widths[-1]},
        "rows": rows,
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--engine", default="ddp", choices=("deepspeed", "fsdp", "ddp"))
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments = parser.parse_args()
    result = run(arguments.pairs, arguments.repeat, arguments.steps, arguments.engine)
    print(
        f"{result['holding_1']} of {result['pairs']} intervals hold 1; half-width "
        f"{100 * result['half_width']['median']:.2f} % in the median, "
        f"{100 * result['half_width']['largest']:.2f} % at most"
    )
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        file = arguments.output / f"{result['date']}-a-a.json"
        file.write_text(json.dumps(result, indent=1) + "\n")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A against A: does the interval of a ratio hold 1 when both sides are the same?

    .venv/bin/python benchmarks/ljperf/a_a.py --pairs 20 --output benchmarks/ljperf/results

Each pair is twice the same small benchmark, `--repeat` runs a side, compared as any two records are
(`cnp/statistics.h`). Two ways to run them:

- interleaved (default): the runs of both sides alternate, and are compared in pairs
  (paired_ratio_interval95), so a machine that is slow for half a minute is slow for both;
- `--apart`: one side after the other (`ljperf benchmark --repeat N` twice), Welch's interval.
  Honest only where the machine does not drift within a minute.

Of 20 intervals at 95 %, 19 are expected to hold 1; fewer than 18 are seen in 7.5 % of honest
trials.
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
from collections.abc import Callable
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


def medians(config: Path, records: Path, engine: str, repeat: int, steps: int) -> list[float]:
    """One `ljperf benchmark`: the median step of each of its runs, in seconds."""
    program = Path(sysconfig.get_path("scripts")) / "ljperf"
    result = subprocess.run(
        [program, "benchmark", "--model", engine, "--config", config, "--seq", "256", "--json",
         "--steps", str(steps), "--repeat", str(repeat)],
        env={**os.environ, "LJTRAIN_RECORDS": str(records)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"ljperf failed:\n{result.stderr}")
    return [run["median_s"] for run in json.loads(result.stdout)["runs"]]


def ratio(sides: tuple[list[float], list[float]], paired: bool) -> dict[str, Any]:
    """The ratio of two sides and its interval, by the C++ estimator."""
    tool = ROOT / "build/release/cnp/cnp_record_tool"
    request = json.dumps({"a": sides[0], "b": sides[1], "paired": paired})
    output = subprocess.run(
        [tool, "ratio"], input=request, capture_output=True, text=True, check=True
    ).stdout
    return json.loads(output)


def one_pair(
    measure: Callable[[int], list[float]], repeat: int, interleaved: bool
) -> tuple[list[float], list[float]]:
    if not interleaved:
        return measure(repeat), measure(repeat)
    sides: tuple[list[float], list[float]] = ([], [])
    for block in range(repeat):
        # A B, B A, A B, ...: a steady drift cancels, too.
        for side in (0, 1) if block % 2 == 0 else (1, 0):
            sides[side].extend(measure(1))
    return sides


def run(pairs: int, repeat: int, steps: int, engine: str, interleaved: bool) -> dict[str, Any]:
    """All pairs, and what they say together."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "a-a.json"
        config.write_text(json.dumps(MODEL))
        for pair in range(pairs):
            sides = one_pair(
                lambda runs: medians(config, Path(folder) / "records", engine, runs, steps),
                repeat,
                interleaved,
            )
            row = ratio(sides, paired=interleaved)
            row["holds_1"] = row["low"] <= 1 <= row["high"]
            row["half_width"] = (row["high"] - row["low"]) / 2
            row["medians_s"] = sides
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
        "interleaved": interleaved,
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
    parser.add_argument("--apart", action="store_true", help="one side after the other")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments = parser.parse_args()
    result = run(
        arguments.pairs, arguments.repeat, arguments.steps, arguments.engine, not arguments.apart
    )
    print(
        f"{result['holding_1']} of {result['pairs']} intervals hold 1; half-width "
        f"{100 * result['half_width']['median']:.2f} % in the median, "
        f"{100 * result['half_width']['largest']:.2f} % at most"
    )
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        kind = "a-a-apart" if arguments.apart else "a-a"
        file = arguments.output / f"{result['date']}-{kind}.json"
        file.write_text(json.dumps(result, indent=1) + "\n")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

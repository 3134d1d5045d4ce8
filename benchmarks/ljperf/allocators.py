"""Which malloc, with or without huge pages, trains fastest, and what does it hold of memory?

    .venv/bin/python benchmarks/ljperf/allocators.py --rounds 20 --output benchmarks/ljperf/results

Every round runs `ljperf benchmark --model deepspeed/llama3-8b --with accl` once a pair of
`--allocator` and `--huge-pages`, in an order that turns from round to round; ratios to glibc
without huge pages are of the runs of a round, paired (cnp/statistics.h). Beside them the peak
resident size and the page faults of a step (those of the whole process, start-up included, divided
by its steps). `--with stack` is to be the fastest; a pair whose interval lies below 1 is not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "glibc"
PAIRS: dict[str, list[str]] = {
    name + (" + huge pages" if pages else ""): [
        "--allocator",
        name,
        "--huge-pages" if pages else "--no-huge-pages",
    ]
    for name in ("glibc", "jemalloc", "tcmalloc")
    for pages in (False, True)
}


def run_once(options: list[str], model: str, steps: int, folder: Path) -> dict[str, Any]:
    """One `ljperf benchmark --json`, with the page faults of all its processes."""
    program = Path(sysconfig.get_path("scripts")) / "ljperf"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [program, "benchmark", "--model", model, "--steps", str(steps), "--warmup", "3", "--json",
         *options],
        env={**os.environ, "LJTRAIN_RECORDS": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(options)}: ljperf failed:\n{result.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = dict(json.loads(result.stdout))
    record["faults"] = (after.ru_minflt - before.ru_minflt) / (steps + 3)
    return record


def ratio(slower: list[float], faster: list[float]) -> dict[str, Any]:
    """slower / faster with its interval, by the C++ estimator."""
    tool = ROOT / "build/release/cnp/cnp_record_tool"
    request = json.dumps({"a": slower, "b": faster, "paired": True})
    output = subprocess.run(
        [tool, "ratio"], input=request, capture_output=True, text=True, check=True
    ).stdout
    return dict(json.loads(output))


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    seconds = {name: [run["step_time_s"]["median"] for run in done] for name, done in runs.items()}
    for name, done in runs.items():
        rows[name] = {
            "step_s": seconds[name],
            "resident_peak_bytes": max(run["resident_peak_bytes"]["max"] for run in done),
            "huge_page_bytes": max(run["huge_page_bytes"]["max"] or 0 for run in done),
            "faults_a_step": statistics.median(run["faults"] for run in done),
            "loss_equal": all(run["loss"] == runs[BASE][0]["loss"] for run in done),
        }
        if name != BASE and len(done) > 1:
            rows[name]["faster_by"] = ratio(seconds[BASE], seconds[name])
    return rows


def table(rows: dict[str, Any]) -> str:
    lines = ["| malloc | step | glibc's step / its | resident | in huge pages | faults a step |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in rows.items():
        faster = row.get("faster_by")
        against = (
            f"{faster['ratio']:.3f}x ({faster['low']:.3f} .. {faster['high']:.3f})"
            if faster
            else ""
        )
        lines.append(
            f"| {name} | {statistics.median(row['step_s']):.3f} s | {against} | "
            f"{row['resident_peak_bytes'] / 2**20:.0f} MiB | "
            f"{row['huge_page_bytes'] / 2**20:.0f} MiB | {row['faults_a_step']:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="deepspeed/llama3-8b")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments, more = parser.parse_known_args()
    more = more or ["--with", "accl"]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in PAIRS}
    order = list(PAIRS)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for name in order:
                done = run_once(PAIRS[name] + more, arguments.model, arguments.steps, Path(folder))
                runs[name].append(done)
                print(
                    f"round {number + 1}: {name} {done['step_time_s']['median']:.3f} s",
                    file=sys.stderr,
                    flush=True,
                )
            order = order[1:] + order[:1]
    rows = summarize(runs)
    print(table(rows))
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        document = {
            "date": today,
            "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "model": arguments.model,
            "options": more,
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "rows": rows,
        }
        (arguments.output / f"{today}-allocators.json").write_text(json.dumps(document, indent=1))
    return 0 if all(row["loss_equal"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

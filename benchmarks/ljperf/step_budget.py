"""A time budget of one step: what each part takes, and what the hardware allows for it.

    .venv/bin/python benchmarks/ljperf/step_budget.py --output benchmarks/ljperf/results

Runs `ljperf benchmark` in turn, a few rounds: the configuration itself (--with, default all parts),
the same with nothing recomputed, and the limit (nothing recomputed, no communication). Then
measures the machine: every core at once copies memory and adds up two arrays, as all ranks do in a
step. Of each part the table sets what was measured beside a bound:

    matrix products  model FLOPs at the GEMM peak that ljperf measures on all ranks at once; forward
                     is a third of them, backward two thirds
    recompute        the FLOPs of HFU beyond MFU, at the same peak
    activations      what layers save (peak without checkpointing less peak with it, of whole
                     stack), written once and read once, at the bandwidth of triad
    communication    the bytes that the collectives move, at memcpy's speed
    optimizer        fp32 weight, two moments read and written, gradient read, bf16 weight written:
                     30 bytes a parameter of the rank's share, at the bandwidth of triad

A bound is a floor, not a forecast: what is above it is what could be gained at most.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

BUFFER_BYTES = 256 << 20  # beyond any cache
COPIES = 8
OPTIMIZER_BYTES = 30
NO_CHECKPOINTING = ["--set", "gradient_checkpointing=false"]


def sides(parts: str) -> dict[str, list[str]]:
    """What is run: the stack as asked, without recomputing, and without communication too."""
    kept = [part for part in parts.split(",") if part]
    free = ",".join(part for part in kept if part != "recompute")
    with_free = ["--with", free] if free else []
    return {
        "step": ["--with", parts] if kept else [],
        "checkpointed": with_free,
        "nothing recomputed": [*with_free, *NO_CHECKPOINTING],
        "limit": [*with_free, *NO_CHECKPOINTING, "--collectives", "none"],
    }


def run_once(options: list[str], model: str, steps: int, folder: Path) -> dict[str, Any]:
    """One `ljperf benchmark --json`."""
    program = Path(sysconfig.get_path("scripts")) / "ljperf"
    result = subprocess.run(
        [program, "benchmark", "--model", model, "--steps", str(steps), "--warmup", "3", "--json",
         *options],
        env={**os.environ, "LJTRAIN_RECORDS": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(options)}: ljperf failed:\n{result.stderr[-3000:]}")
    return dict(json.loads(result.stdout))


def _move_memory(core: int, start: Barrier, results: Any) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    size = BUFFER_BYTES // 4
    a, b, c = torch.ones(size), torch.ones(size), torch.ones(size)
    best = [0.0, 0.0]
    for _ in range(COPIES):
        start.wait()
        began = time.perf_counter()
        a.copy_(b)
        best[0] = max(best[0], BUFFER_BYTES / (time.perf_counter() - began))
        start.wait()
        began = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)
        best[1] = max(best[1], 3 * BUFFER_BYTES / (time.perf_counter() - began))
    results.put(best)


def memory_speeds() -> dict[str, float]:
    """Bytes a second of one core while all are busy: copied (memcpy), and moved (triad, STREAM's
    way of counting: two reads and a write).
    """
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(len(cores)), context.Queue()
    workers = [context.Process(target=_move_memory, args=(core, start, results)) for core in cores]
    for worker in workers:
        worker.start()
    best = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return {
        "memcpy": statistics.mean(each[0] for each in best),
        "triad": statistics.mean(each[1] for each in best),
    }


def budget(runs: dict[str, list[dict[str, Any]]], speeds: dict[str, float]) -> list[dict[str, Any]]:
    """The lines, in seconds: `measured` (None: is part of another line) and `bound`."""
    record = runs["step"][-1]
    parts = {
        name: statistics.median(run["breakdown_s"][name] for run in runs["step"])
        for name in record["breakdown_s"]
        if isinstance(record["breakdown_s"][name], float)
    }
    step = statistics.median(run["step_time_s"]["median"] for run in runs["step"])
    peak = record["peak_flops"]["value"]
    tokens = record["global_tokens_per_step"] / record["ranks"]
    gemm = record["flops_per_token"] * tokens / peak
    again = (record["hfu"] - record["mfu"]) * record["step_time_s"]["median"]
    steps = len(record["runs"][0]["steps"])
    moved = sum(each["bytes"] for each in record["collectives"]) / steps
    saved = (
        runs["nothing recomputed"][-1]["peak_memory_bytes"]["max"]
        - runs["checkpointed"][-1]["peak_memory_bytes"]["max"]
    )
    share = record["parameters"] / record["ranks"]
    activations = 2 * max(0, saved) / speeds["triad"]
    return [
        {"part": "forward", "measured": parts["forward"], "bound": gemm / 3,
         "how": "a third of the model's FLOPs at the GEMM peak"},
        {"part": "backward", "measured": parts["backward"], "bound": 2 * gemm / 3 + again,
         "how": f"the rest, and {again:.3f} s of recomputed FLOPs"},
        {"part": "  of both: activations", "measured": None, "bound": activations,
         "how": f"{saved / 2**20:.0f} MiB written and read at {speeds['triad'] / 1e9:.1f} GB/s"},
        {"part": "communication", "measured": parts["communication_exposed"],
         "bound": moved / speeds["memcpy"],
         "how": f"{moved / 2**20:.0f} MiB at memcpy's {speeds['memcpy'] / 1e9:.1f} GB/s"},
        {"part": "optimizer", "measured": parts["optimizer"],
         "bound": OPTIMIZER_BYTES * share / speeds["triad"],
         "how": f"{OPTIMIZER_BYTES} bytes of {share / 1e6:.1f} M parameters at triad's speed"},
        {"part": "data and other", "measured": parts["data"] + parts["other"], "bound": 0.0,
         "how": "Python between the parts"},
        {"part": "step", "measured": step,
         "bound": gemm + again + activations + moved / speeds["memcpy"]
         + OPTIMIZER_BYTES * share / speeds["triad"],
         "how": "sum of the bounds"},
    ]  # fmt: skip


def table(lines: list[dict[str, Any]], medians: dict[str, float]) -> str:
    text = ["| part | measured | the hardware allows | how it is counted |", "|---|---|---|---|"]
    for line in lines:
        measured = "" if line["measured"] is None else f"{line['measured']:.3f} s"
        text.append(f"| {line['part']} | {measured} | {line['bound']:.3f} s | {line['how']} |")
    text.append("")
    text.append("| configuration | step | step / limit |")
    text.append("|---|---|---|")
    for name, seconds in medians.items():
        text.append(f"| {name} | {seconds:.3f} s | {seconds / medians['limit']:.2f} |")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="deepspeed/llama3-8b")
    parser.add_argument("--with", dest="parts", default="accl,stack,compile,recompute")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments, more = parser.parse_known_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides(arguments.parts)}
    order = list(runs)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for name in order:
                options = sides(arguments.parts)[name] + more
                done = run_once(options, arguments.model, arguments.steps, Path(folder))
                runs[name].append(done)
                print(
                    f"round {number + 1}: {name} {done['step_time_s']['median']:.3f} s",
                    file=sys.stderr,
                    flush=True,
                )
            order = order[1:] + order[:1]
    speeds = memory_speeds()
    lines = budget(runs, speeds)
    medians = {
        name: statistics.median(run["step_time_s"]["median"] for run in done)
        for name, done in runs.items()
    }
    print(table(lines, medians))
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        document = {
            "date": today,
            "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "model": arguments.model,
            "parts": arguments.parts,
            "options": more,
            "bytes_per_s": speeds,
            "lines": lines,
            "step_s": {name: [run["step_time_s"]["median"] for run in done]
                       for name, done in runs.items()},
        }  # fmt: skip
        (arguments.output / f"{today}-step-budget.json").write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

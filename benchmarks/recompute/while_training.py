"""Does a training that recomputes what its limit forces beat full checkpointing, at equal loss?

    .venv/bin/python benchmarks/recompute/while_training.py --output benchmarks/recompute/results

Sides, each a run of `ljperf benchmark` (the llama3-8b proxy, ZeRO-3) in every round, in an order
that turns from round to round:

    full    everything recomputed (the base stack)
    half    --with recompute, the limit halfway between the measured peaks of full and none
    room    --with recompute, no limit but the machine's
    none    nothing recomputed
    budget  torch.compile with PyTorch's activation_memory_budget, the largest whose measured peak
            is not above that of `half` (only with --budget)

Ratios are of the medians of a round's runs, paired, with the interval of cnp's estimator.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NO_CHECKPOINTING = ["--set", "gradient_checkpointing=false"]
BUDGETS = (0.8, 0.6, 0.4, 0.2, 0.0)
LOSS_TOLERANCE = 1e-6  # eager kernels in another order of steps, but the same kernels
AIM = 1.10  # halfway, over full checkpointing
# Runs the worker with PyTorch's partitioner told what it may keep.
WITH_BUDGET = """#!/bin/bash
if [ "$1" = -m ] && [ "$2" = ljtrain.worker ]; then
  shift 2
  exec {python} -c 'import runpy, torch._functorch.config as c
c.activation_memory_budget = {budget}
runpy.run_module("ljtrain.worker", run_name="__main__")' "$@"
fi
exec {python} "$@"
"""


class Bench:
    def __init__(self, folder: Path, model: str, steps: int, warmup: int, more: list[str]) -> None:
        self.folder, self.model, self.more = folder, model, more
        self.steps, self.warmup = steps, warmup

    def run(self, *options: str, steps: int | None = None) -> dict[str, Any]:
        program = Path(sysconfig.get_path("scripts")) / "ljperf"
        environment = {**os.environ, "LJTRAIN_RECORDS": str(self.folder / "records")}
        environment.pop("CHECKPOINT_OPTIMIZATION", None)
        # As many steps on every side: data and learning rate depend on their number.
        warmup = self.warmup if steps is None else 3
        command = [
            str(program), "benchmark", "--model", self.model, "--json",
            "--steps", str(steps or self.steps), "--warmup", str(warmup), *options, *self.more,
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        return dict(json.loads(done.stdout))

    def with_budget(self, budget: float, **settings: Any) -> dict[str, Any]:
        wrapper = self.folder / f"python-{budget}"
        wrapper.write_text(WITH_BUDGET.format(python=sys.executable, budget=budget))
        wrapper.chmod(0o755)
        return self.run(
            *NO_CHECKPOINTING, "--stock-compile", "full", "--python", str(wrapper), **settings
        )


def peak(run: dict[str, Any]) -> int:
    return int(run["peak_memory_bytes"]["max"])


def ratio(slower: list[float], faster: list[float]) -> dict[str, Any]:
    """slower / faster with its interval, by the C++ estimator."""
    if len(slower) < 2:
        return {"ratio": statistics.median(slower) / statistics.median(faster)}
    found = sorted((ROOT / "build").glob("*/cnp/cnp_record_tool"))
    request = json.dumps({"a": slower, "b": faster, "paired": True})
    output = subprocess.run(
        [found[0], "ratio"], input=request, capture_output=True, text=True, check=True
    ).stdout
    return dict(json.loads(output))


def summarize(runs: dict[str, list[dict[str, Any]]], limit: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    steps = {side: [run["step_time_s"]["median"] for run in done] for side, done in runs.items()}
    for side, done in runs.items():
        losses = zip(done[0]["loss"], runs["full"][0]["loss"], strict=True)
        rows[side] = {
            "step_s": {"median": statistics.median(steps[side]), "all": steps[side]},
            "full_over_this": ratio(steps["full"], steps[side]),
            "none_over_this": ratio(steps["none"], steps[side]),
            "peak_bytes": max(peak(run) for run in done),
            "recompute": done[-1]["recompute"],
            "loss_difference": max(abs(a - b) / abs(b) for a, b in losses),
        }
        if side == "half":
            rows[side]["limit_bytes"] = limit
            rows[side]["within_limit"] = rows[side]["peak_bytes"] <= limit
        if side == "budget":
            rows[side]["this_over_half"] = ratio(steps[side], steps["half"])
    return rows


def table(rows: dict[str, Any]) -> str:
    lines = [
        "| side | step | full / this | none / this | peak, MiB | recomputed | loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for side, row in rows.items():
        cells = []
        for found in (row["full_over_this"], row["none_over_this"]):
            text = f"{found['ratio']:.3f}"
            if "low" in found:
                text += f" ({found['low']:.3f} .. {found['high']:.3f})"
            cells.append(text)
        recompute = row["recompute"]
        lines.append(
            f"| {side} | {row['step_s']['median']:.3f} s | {cells[0]} | {cells[1]} | "
            f"{row['peak_bytes'] / 2**20:.1f} | {recompute['layers']} of {recompute['of']} | "
            f"{'equal' if row['loss_difference'] <= LOSS_TOLERANCE else 'DIFFERS'} "
            f"({row['loss_difference']:.1e}) |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=22, help="until the plan has settled")
    parser.add_argument(
        "--limit", type=int, help="bytes, as measured before (peaks need no quiet machine)"
    )
    parser.add_argument("--model", default="deepspeed/llama3-8b")
    parser.add_argument("--scale", default="1/8")
    parser.add_argument("--budget", action="store_true")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder),
            arguments.model,
            arguments.steps,
            arguments.warmup,
            ["--scale", arguments.scale, *more],
        )
        limit = arguments.limit
        if limit is None:
            full, none = peak(bench.run(steps=3)), peak(bench.run(*NO_CHECKPOINTING, steps=3))
            limit = (full + none) // 2
        print(f"limit: {limit} bytes", file=sys.stderr, flush=True)
        sides: dict[str, Any] = {
            "full": bench.run,
            "half": lambda: bench.run("--with", "recompute", "--memory-limit", str(limit)),
            "room": lambda: bench.run("--with", "recompute"),
            "none": lambda: bench.run(*NO_CHECKPOINTING),
        }
        if arguments.budget:
            fitting = (b for b in BUDGETS if peak(bench.with_budget(b, steps=3)) <= limit)
            budget = next(fitting, None)
            print(f"activation_memory_budget: {budget}", file=sys.stderr)
            if budget is not None:
                sides["budget"] = lambda: bench.with_budget(budget)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        order = list(sides)
        for number in range(arguments.rounds):
            for side in order:
                runs[side].append(sides[side]())
                seconds = runs[side][-1]["step_time_s"]["median"]
                print(f"round {number + 1}: {side} {seconds:.3f} s", file=sys.stderr, flush=True)
            order = order[1:] + order[:1]
    rows = summarize(runs, limit)
    print(table(rows))
    if arguments.output is not None:
        today = datetime.date.today().isoformat()
        arguments.output.mkdir(parents=True, exist_ok=True)
        document = {
            "date": today,
            "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "model": f"{arguments.model} at {arguments.scale}",
            "options": more,
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "aim_half_over_full": AIM,
            "rows": rows,
        }
        file = arguments.output / f"{today}-while-training.json"
        file.write_text(json.dumps(document, indent=1) + "\n")
        file.with_suffix(".md").write_text(
            f"# Recomputing while training, {today}\n\n{document['model']}; "
            f"{arguments.rounds} rounds of {arguments.steps} steps.\n\n{table(rows)}\n"
        )
    equal = all(row["loss_difference"] <= LOSS_TOLERANCE for row in rows.values())
    return 0 if rows["half"]["within_limit"] and equal else 1


if __name__ == "__main__":
    sys.exit(main())

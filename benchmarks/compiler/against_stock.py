"""Is a training with compiled layers ahead of eager, of stock torch.compile and of accelerate's
regional compilation, at the same loss?

    .venv/bin/python benchmarks/compiler/against_stock.py --output benchmarks/compiler/results

Every round runs `ljperf benchmark --model deepspeed/llama3-8b` (its proxy, ZeRO-3, everything
checkpointed) once a side, in an order that turns from round to round; ratios are of the medians of
a round's runs, paired (cnp/statistics.h). Each side has a compiler cache of its own, so its first
round compiles from nothing and the others start again.
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
SIDES: dict[str, list[str]] = {
    "eager": [],
    "stock": ["--stock-compile", "full"],
    "regional": ["--stock-compile", "regional"],
    "ljtrain": ["--with", "compile"],
}
# Relative: what eager bf16 is off by against itself in float32 on this proxy.
LOSS_TOLERANCE = 5e-3
AIMS = {"eager": 1.12, "stock": 1.1, "regional": 1.1}


def run_once(side: str, folder: Path, model: str, steps: int, more: list[str]) -> dict[str, Any]:
    """One `ljperf benchmark --json` of one run."""
    program = Path(sysconfig.get_path("scripts")) / "ljperf"
    environment = {
        **os.environ,
        "LJTRAIN_RECORDS": str(folder / "records"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{side}"),
    }
    result = subprocess.run(
        [program, "benchmark", "--model", model, "--steps", str(steps), "--warmup", "3", "--json",
         *SIDES[side], *more],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"{side}: ljperf failed:\n{result.stderr[-3000:]}")
    return dict(json.loads(result.stdout))


def ratio(slower: list[float], faster: list[float]) -> dict[str, Any]:
    """slower / faster with its interval, by the C++ estimator."""
    tool = ROOT / "build/release/cnp/cnp_record_tool"
    request = json.dumps({"a": slower, "b": faster, "paired": True})
    output = subprocess.run(
        [tool, "ratio"], input=request, capture_output=True, text=True, check=True
    ).stdout
    return dict(json.loads(output))


def largest_difference(losses: list[float], reference: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A row a side: steps, compilation cold and warm, and how far the losses are from eager's."""
    rows: dict[str, Any] = {}
    medians = {side: [run["step_time_s"]["median"] for run in done] for side, done in runs.items()}
    for side, done in runs.items():
        compiled = [run.get("compile") or {} for run in done]
        difference = largest_difference(done[0]["loss"], runs["eager"][0]["loss"])
        rows[side] = {
            "step_s": {"median": statistics.median(medians[side]), "all": medians[side]},
            "tokens_per_s": statistics.median(run["tokens_per_s"] for run in done),
            "compile_cold": compiled[0] or None,
            "compile_warm": compiled[-1] if len(compiled) > 1 else None,
            "loss_difference": difference,
            "loss_equal": difference <= LOSS_TOLERANCE,
            "peak_memory_bytes": max(run["peak_memory_bytes"]["max"] or 0 for run in done),
        }
        if side != "ljtrain" and len(medians[side]) > 1:
            rows[side]["ljtrain_is_faster_by"] = ratio(medians[side], medians["ljtrain"])
    return rows


def table(rows: dict[str, Any]) -> str:
    lines = [
        "| side | step | compile cold / warm | graphs | breaks | recompilations | loss | ljtrain |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for side, row in rows.items():
        cold, warm = row["compile_cold"] or {}, row["compile_warm"] or {}
        faster = row.get("ljtrain_is_faster_by")
        against = (
            ""
            if faster is None
            else (
                f"{faster['ratio']:.3f} x ({faster['low']:.3f} .. {faster['high']:.3f}), "
                f"aim {AIMS[side]}"
            )
        )
        lines.append(
            f"| {side} | {row['step_s']['median']:.3f} s | {cold.get('seconds', 0):.1f} / "
            f"{warm.get('seconds', 0):.1f} s | {cold.get('graphs', 0)} | "
            f"{cold.get('graph_breaks', 0)} | {cold.get('recompilations', 0)} | "
            f"{'equal' if row['loss_equal'] else 'DIFFERS'} ({row['loss_difference']:.1e}) | "
            f"{against} |"
        )
    return "\n".join(lines)


def write(
    arguments: argparse.Namespace, more: list[str], rows: dict[str, Any], rounds: int
) -> None:
    """The dated result, after every round: one that is interrupted keeps those before."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    document = {
        "date": today,
        "machine": {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
        "model": arguments.model,
        "options": more,
        "rounds": rounds,
        "steps": arguments.steps,
        "rows": rows,
    }
    (arguments.output / f"{today}-against-stock.json").write_text(json.dumps(document, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="deepspeed/llama3-8b")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments, more = parser.parse_known_args()
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    order = list(SIDES)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for side in order:
                done = run_once(side, Path(folder), arguments.model, arguments.steps, more)
                runs[side].append(done)
                print(
                    f"round {number + 1}: {side} {done['step_time_s']['median']:.3f} s",
                    file=sys.stderr,
                    flush=True,
                )
            order = order[1:] + order[:1]
            rows = summarize(runs)
            if arguments.output is not None:
                write(arguments, more, rows, number + 1)
    print(table(rows))
    return 0 if all(row["loss_equal"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

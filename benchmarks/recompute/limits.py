"""Does ljtrain choose the fewest layers to recompute that fit? Held against every number of them.

    python benchmarks/recompute/limits.py --output benchmarks/recompute/results/DATE-limits

Small models of several families under every ZeRO stage are trained with each number of recomputed
layers (peak and time of each), then under limits drawn uniformly between the peak with all layers
recomputed and that with none, where PyTorch's CPU allocator, as ljtrain replaces it, refuses what
would pass the limit. The choice of single operators is off. Peaks do not depend on how busy the
machine is; times do: for those run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import memory_grid

SEED = 20261202
FAMILIES = ("llama", "mixtral", "qwen3", "gpt2", "gemma", "mistral", "phi3", "qwen2")
STAGES = (0, 1, 2, 3, 3)
LIMITS_OF_ONE = 4
FEWEST_LAYERS = 4
EXACT_SHARE = 0.95
TIME_WITHIN = 0.02


def draw_jobs(configurations: int, rounds: int, seed: int = SEED) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    jobs = []
    for number in range(configurations):
        family, stage = FAMILIES[number % len(FAMILIES)], STAGES[number % len(STAGES)]
        model = memory_grid._model(draw, family)
        while (model.get("num_hidden_layers") or model["n_layer"]) < FEWEST_LAYERS:
            model = memory_grid._model(draw, family)
        zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 200_000}
        zero["allgather_bucket_size"] = 200_000
        if stage == 3:
            zero |= {
                "stage3_prefetch_bucket_size": 50_000,
                "stage3_param_persistence_threshold": 1_000,
            }
        ranks = draw.choice((1, 2))
        jobs.append(
            {
                "id": f"{number}-{family}-zero{stage}-r{ranks}",
                "model": model,
                "engine": "deepspeed",
                "ranks": ranks,
                "seq": draw.choice((128, 192, 256)),
                "micro_batch": draw.choice((4, 8)),
                "deepspeed": {
                    "train_micro_batch_size_per_gpu": "auto",
                    "gradient_accumulation_steps": "auto",
                    "gradient_clipping": "auto",
                    "bf16": {"enabled": "auto"},
                    "zero_optimization": zero,
                },
                "rounds": rounds,
                "limits": [round(draw.random(), 4) for _ in range(LIMITS_OF_ONE)],
            }
        )
    return jobs


def run(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(job) + "\n" for job in jobs))
        file.flush()
        command = [sys.executable, "-m", "ljtrain.sweep", file.name]
        environment = os.environ | {"LJTRAIN_ACCL": "1", "OMP_NUM_THREADS": "1"}
        answers = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answers.append(json.loads(line))
                last = answers[-1]
                said = last.get("error") or [
                    f"{case['chosen']} of {case['smallest']}" for case in last["cases"]
                ]
                print(last["id"], said, flush=True)
    return answers


def judge(jobs: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a limit. What was not trained to its end is a row that failed."""
    rows = []
    for job, answer in zip(jobs, answers, strict=True):
        times = {point["k"]: statistics.median(point["seconds"]) for point in answer["points"]}
        cases = {case["share"]: case for case in answer["cases"]}
        for share in job["limits"]:
            case = cases.get(share)
            row: dict[str, Any] = {
                "family": job["model"]["model_type"],
                "zero": job["deepspeed"]["zero_optimization"]["stage"],
                "ranks": job["ranks"],
                "tokens": f"{job['micro_batch']} x {job['seq']}",
                "layers": answer.get("layers"),
                "share": share,
            }
            if case is None:
                row |= {"error": answer.get("error", "not reached")}
            else:
                smallest, chosen = case["smallest"], case["chosen"]
                row |= {
                    "limit_bytes": case["limit_bytes"],
                    "smallest": smallest,
                    "chosen": chosen,
                    "more": chosen - smallest,
                    "peak_bytes": case["peak_bytes"],
                    "refused": case["refused"],
                    "over": case["peak_bytes"] > case["limit_bytes"],
                    "seconds": statistics.median(case["seconds"]),
                    "best_seconds": times[smallest],
                }
            rows.append(row)
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    done = [row for row in rows if "error" not in row]
    ratios = [row["seconds"] / row["best_seconds"] for row in done if row["more"] == 0]
    return {
        "limits": len(rows),
        "failed": len(rows) - len(done),
        "smallest_that_fits": sum(row["more"] == 0 for row in done),
        "one_more": sum(row["more"] == 1 for row in done),
        "more_than_one_more": sum(row["more"] > 1 for row in done),
        "fewer": sum(row["more"] < 0 for row in done),
        "over_the_limit": sum(row["over"] for row in done),
        "refused_allocations": sum(row["refused"] for row in done),
        "median_time_against_the_same_number": statistics.median(ratios) if ratios else None,
    }


def table(rows: list[dict[str, Any]], summary: dict[str, Any], about: dict[str, Any]) -> str:
    ratio = summary["median_time_against_the_same_number"]
    lines = [
        f"# Limits against every number of recomputed layers, {about['date']}",
        "",
        f"{summary['limits']} limits drawn with seed {about['seed']}; {about['versions']}.",
        "",
        f"The smallest number of recomputed layers that fits was chosen in "
        f"{summary['smallest_that_fits']} of {summary['limits']}, one more in "
        f"{summary['one_more']}, more than one more in {summary['more_than_one_more']}, fewer in "
        f"{summary['fewer']}; {summary['failed']} trainings failed, "
        f"{summary['over_the_limit']} went over their limit, {summary['refused_allocations']} "
        "allocations were refused."
        + (
            f" Steps took {ratio:.3f} of those with the same number fixed (median)."
            if ratio
            else ""
        ),
        "",
        "| model | ZeRO | ranks | tokens | limit, MiB | peak, MiB | fewest that fit | chosen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        start = f"| {row['family']} | {row['zero']} | {row['ranks']} | {row['tokens']} | "
        if "error" in row:
            lines.append(f"{start}failed: {row['error'][:80]} | | | |")
            continue
        lines.append(
            f"{start}{row['limit_bytes'] / 2**20:.2f} | {row['peak_bytes'] / 2**20:.2f} | "
            f"{row['smallest']} of {row['layers']} | {row['chosen']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="without suffix: .json and .md")
    parser.add_argument("--configurations", type=int, default=11, help="of 4 limits each")
    parser.add_argument("--rounds", type=int, default=1, help="of every number, for times")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    jobs = draw_jobs(options.configurations, options.rounds, options.seed)
    import memory_ranks

    about = {
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "versions": memory_ranks.versions(),
    }
    answers = run(jobs)
    if len(answers) < len(jobs):
        print(f"the sweep ended after {len(answers)} of {len(jobs)} configurations")
        return 1
    rows = judge(jobs, answers)
    summary = summarise(rows)
    document = about | {"summary": summary, "rows": rows}
    options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(table(rows, summary, about))
    print(json.dumps(summary))
    exact = summary["smallest_that_fits"] >= EXACT_SHARE * summary["limits"]
    bad = ("failed", "more_than_one_more", "fewer", "over_the_limit")
    return 0 if exact and not any(summary[name] for name in bad) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Holds the memory model's predictions against measured training steps on this host.

    .venv/bin/python benchmarks/recompute/memory_accuracy.py --tool TOOL --output DATE-memory

TOOL is `memory_predict_tool` of a C++ build with tests. The configurations are drawn by a committed
seed from a committed grid (memory_grid.py); none was used to fit anything: the model has no fitted
number. What is compared is the allocated peak of a step minus what is there between steps (after an
optimizer step, gradients freed). Allocations do not depend on how busy the machine is.

Collectives go through ACCL: Gloo copies what it is given and frees the copies when its threads get
to it, so that two equal runs differ by up to such a copy (--backend gloo measures that).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ACTIVATIONS = ("activations", "layer_inputs", "working_set", "logits")
MEDIAN_TARGET, WORST_TARGET, ACTIVATION_SHARE = 0.03, 0.08, 0.5


def predict(tool: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(entry) + "\n" for entry in questions)
    answer = subprocess.run([tool], input=lines, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{tool}: {answer.stderr.strip()}")
    return [json.loads(line) for line in answer.stdout.splitlines()]


def compare(run: Any, predicted: dict[str, Any], measured: Any) -> dict[str, Any]:
    static, peak = max(measured.static_bytes), max(measured.peak_bytes)
    rise, foreseen = peak - static, predicted["peak_bytes"] - predicted["static_bytes"]
    components = predicted["peak_components"]
    model = run.model
    return {
        "family": model["model_type"],
        "engine": run.engine + (str(run.zero) if run.engine == "deepspeed" else ""),
        "ranks": run.ranks,
        "hidden": model.get("hidden_size") or model["n_embd"],
        "layers": model.get("num_hidden_layers") or model["n_layer"],
        "vocab": model["vocab_size"],
        "window": model.get("sliding_window") or 0,
        "seq": run.seq,
        "micro_batch": run.micro_batch,
        "accumulation": run.accumulation,
        "recomputed": run.recomputed,
        "lora_rank": run.lora_rank,
        "compiled": run.compiled,
        "zero_options": run.zero_options,
        "static_bytes": static,
        "predicted_static_bytes": predicted["static_bytes"],
        "rise_bytes": rise,
        "predicted_rise_bytes": foreseen,
        "error": foreseen / rise - 1,
        "activation_share": sum(components[name] for name in ACTIVATIONS) / predicted["peak_bytes"],
        "peak_at": f"{predicted['peak_phase']} {predicted['peak_layer']}",
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = sorted(abs(row["error"]) for row in rows)
    shares = [row["activation_share"] for row in rows]
    return {
        "configurations": len(rows),
        "median_error": statistics.median(errors),
        "worst_error": errors[-1],
        "mostly_activations": sum(share >= ACTIVATION_SHARE for share in shares),
        "worst_static_error": max(
            abs(row["predicted_static_bytes"] / row["static_bytes"] - 1) for row in rows
        ),
        "targets": {"median_error": MEDIAN_TARGET, "worst_error": WORST_TARGET},
    }


def _table(rows: list[dict[str, Any]], summary: dict[str, Any], about: dict[str, Any]) -> str:
    lines = [
        f"# Memory model against measured steps, {about['date']}",
        "",
        f"{summary['configurations']} configurations drawn with seed {about['seed']} from the grid "
        f"in `memory_grid.py`; {about['versions']}; collectives: {about['backend']}.",
        "",
        "Error of (allocated peak minus the state between steps): "
        f"median {100 * summary['median_error']:.2f} %, worst {100 * summary['worst_error']:.2f} % "
        f"(targets {100 * MEDIAN_TARGET:.0f} % and {100 * WORST_TARGET:.0f} %); state between "
        f"steps: worst {100 * summary['worst_static_error']:.2f} %. Activations (with logits and "
        f"working set) are at least half of the predicted peak in "
        f"{summary['mostly_activations']} of them.",
        "",
        "| model | engine | ranks | hidden x layers | vocab | tokens | recomputed | state, MiB | "
        "rise, MiB | predicted | error | peak at | activations |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        steps = f" x {row['accumulation']}" if row["accumulation"] > 1 else ""
        variant = (f", LoRA {row['lora_rank']}" if row["lora_rank"] else "") + (
            ", compiled" if row["compiled"] else ""
        )
        window = f", window {row['window']}" if row["window"] else ""
        lines.append(
            f"| {row['family']}{window}{variant} | {row['engine']} | {row['ranks']} | "
            f"{row['hidden']} x {row['layers']} | {row['vocab']} | "
            f"{row['micro_batch']} x {row['seq']}{steps} | "
            f"{row['recomputed']} | {row['static_bytes'] / 2**20:.1f} | "
            f"{row['rise_bytes'] / 2**20:.1f} | {row['predicted_rise_bytes'] / 2**20:.1f} | "
            f"{100 * row['error']:+.2f} % | {row['peak_at']} | {row['activation_share']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def _write(
    output: Path, rows: list[dict[str, Any]], failed: list[str], about: dict[str, Any]
) -> None:
    summary = _summary(rows)
    document = about | {"summary": summary, "failed": failed, "rows": rows}
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    output.with_suffix(".md").write_text(_table(rows, summary, about))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tool", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="without suffix: .json and .md")
    parser.add_argument("--count", type=int, default=63, help="63: every family with every engine")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--backend", choices=("accl", "gloo"), default="accl")
    parser.add_argument(
        "--variants",
        action="store_true",
        help="adapters (peft, requirements/benchmarks.txt) and compiled layers over the same draw",
    )
    parser.add_argument(
        "--measured", type=Path, help="an earlier result: its measured bytes, predicted anew"
    )
    options = parser.parse_args()
    if options.backend == "accl":
        os.environ["LJTRAIN_ACCL"] = "1"  # before torch is imported
    import memory_grid
    import memory_ranks

    earlier = json.loads(options.measured.read_text()) if options.measured else None
    seed = memory_grid.SEED if options.seed is None else options.seed
    count = options.count
    if earlier is not None:
        seed, count = earlier["seed"], len(earlier["rows"])
    else:
        memory_ranks.import_stack()
    draw = memory_grid.draw_variants if options.variants else memory_grid.draw_runs
    runs = draw(count, seed)
    questions = [memory_grid.question(run, options.backend) for run in runs]
    predictions = predict(options.tool, questions)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "seed": seed,
        "backend": options.backend,
        "versions": memory_ranks.versions(),
    }
    for number, (run, predicted) in enumerate(zip(runs, predictions, strict=True)):
        try:
            if earlier is None:
                measured = memory_ranks.measure(run)
            else:
                row = earlier["rows"][number]
                static = row["static_bytes"]
                measured = memory_ranks.Measured([static], [static + row["rise_bytes"]], [])
            rows.append(compare(run, predicted, measured))
        except RuntimeError as error:
            failed.append(str(error)[-600:])
            print(f"{number}: failed: {str(error)[-600:]}", flush=True)
            continue
        row = rows[-1]
        print(f"{number}: {row['family']} {row['engine']} {row['error']:+.2%}", flush=True)
        _write(options.output, rows, failed, about)  # what is there if the sweep is interrupted
    if not rows:
        return 1
    summary = _summary(rows)
    print(json.dumps(summary))
    met = summary["median_error"] <= MEDIAN_TARGET and summary["worst_error"] <= WORST_TARGET
    return 0 if met and not failed else 1


if __name__ == "__main__":
    sys.exit(main())

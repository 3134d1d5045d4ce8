"""How much of ZeRO-3's gathering is hidden behind compute, and is gathering more layers at a time
worth its memory?

    .venv/bin/python benchmarks/compiler/overlap.py --output benchmarks/compiler/results

Every round runs `ljperf benchmark --model deepspeed/llama3-8b` (its proxy, everything checkpointed,
ACCL, compiled layers) with nothing gathered ahead, one layer (what `auto` becomes), two and four.
Hidden is what of the exposed communication without gathering ahead is gone with it; it cannot be
more than the gathering's share, as gradients are reduced in every run alike.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

LAYERS_AHEAD = (0, 1, 2, 4)
# Hidden 512, feed-forward 1792, 4 heads of 128 with one key and value head, two norms.
LAYER = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1792 + 2 * 512
ENGINE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
}


def run_once(folder: Path, model: str, steps: int, prefetch: int) -> dict[str, Any]:
    """One `ljperf benchmark --json` with this many elements gathered ahead."""
    zero = {"stage": 3, "stage3_prefetch_bucket_size": prefetch}
    config = folder / f"deepspeed-{prefetch}.json"
    config.write_text(json.dumps({**ENGINE, "zero_optimization": zero}))
    environment = {
        **os.environ,
        "LJTRAIN_RECORDS": str(folder / "records"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    result = subprocess.run(
        [
            Path(sysconfig.get_path("scripts")) / "ljperf", "benchmark", "--model", model,
            "--steps", str(steps), "--warmup", "3", "--json", "--with", "accl,compile",
            "--deepspeed-config", config,
        ],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise SystemExit(f"ljperf failed:\n{result.stderr[-3000:]}")
    return dict(json.loads(result.stdout))


def summarize(runs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    exposed = {
        ahead: statistics.median(run["breakdown_s"]["communication_exposed"] for run in done)
        for ahead, done in runs.items()
    }
    return [
        {
            "layers_ahead": ahead,
            "step_s": statistics.median(run["step_time_s"]["median"] for run in done),
            "communication_exposed_s": exposed[ahead],
            "hidden": 1 - exposed[ahead] / exposed[0] if exposed[0] else None,
            "peak_memory_bytes": max(run["peak_memory_bytes"]["max"] or 0 for run in done),
        }
        for ahead, done in sorted(runs.items())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--layer", type=int, default=LAYER, help="elements of a layer (default: of that proxy)"
    )
    parser.add_argument("--model", default="deepspeed/llama3-8b")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments = parser.parse_args()
    runs: dict[int, list[dict[str, Any]]] = {ahead: [] for ahead in LAYERS_AHEAD}
    order = list(LAYERS_AHEAD)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for ahead in order:
                prefetch = ahead * arguments.layer
                done = run_once(Path(folder), arguments.model, arguments.steps, prefetch)
                runs[ahead].append(done)
                seconds = done["step_time_s"]["median"]
                print(f"round {number + 1}: {ahead} layers ahead, {seconds:.3f} s", flush=True)
            order = order[1:] + order[:1]
    rows = summarize(runs)
    print("| layers ahead | step | exposed communication | hidden | peak memory |")
    print("|---|---|---|---|---|")
    for row in rows:
        hidden = "-" if row["hidden"] is None else f"{row['hidden']:.0%}"
        print(
            f"| {row['layers_ahead']} | {row['step_s']:.3f} s | "
            f"{row['communication_exposed_s']:.3f} s | {hidden} | "
            f"{row['peak_memory_bytes'] / 2**20:.0f} MiB |"
        )
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        document = {"date": today, "model": arguments.model, "steps": arguments.steps, "rows": rows}
        path = arguments.output / f"{today}-overlap.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

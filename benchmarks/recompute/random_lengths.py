"""A thousand steps of random lengths under a tight limit: does any fail, and what does the plan
cost against the best choice for each length?

    .venv/bin/python benchmarks/recompute/random_lengths.py --output benchmarks/recompute/results

One process, a small Llama, `ljtrain.recompute.apply`. The limit is what recomputing everything
takes at the longest length and a share of what keeping everything takes on top. Every few steps a
step of the same length is made with a fixed number of recomputed layers, in turn; of those that
fit, the one with the least median is that length's best.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

LAYERS, VOCABULARY, MICRO_BATCH = 8, 2000, 4
LENGTHS = tuple(range(64, 513, 64))
LONGEST = max(LENGTHS)
WITHIN = 0.05  # of the best's throughput
CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}


class Training:
    """One model and optimizer; steps of any length."""

    def __init__(self) -> None:
        from ljtrain import extension
        from transformers import AutoConfig, AutoModelForCausalLM

        loaded = extension.load()
        assert loaded is not None, extension.why_not()
        self.allocator: Any = loaded
        self.allocator.allocator_install()
        torch.manual_seed(1)
        self.model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("llama", **CONFIG), dtype=torch.float32
        )
        self.model.activation_checkpointing_enable()
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, length: int) -> tuple[float, int]:
        """(seconds, peak bytes)."""
        self.allocator.allocator_reset_peak()
        began = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, length))
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        seconds = time.perf_counter() - began
        return seconds, int(self.allocator.allocator_statistics()["peak_bytes"])


def find_limit(training: Training, share: float) -> int:
    from ljtrain import recompute_layers

    layers = recompute_layers.find(training.model)
    assert layers is not None
    peaks = []
    for choice in ("full", "none"):
        recompute_layers.set_policy(layers, [choice] * LAYERS)
        training.step(LONGEST)
        peaks.append(training.step(LONGEST)[1])
    layers.take_back()
    return int(peaks[0] + share * (peaks[1] - peaks[0]))


def run(training: Training, limit: int, steps: int, every: int) -> dict[str, Any]:
    from ljtrain import recompute, recompute_layers

    os.environ["LJTRAIN_MEMORY_LIMIT"] = str(limit)
    applied = recompute.apply(training.model)
    controller = applied.controller
    assert controller is not None
    draw = random.Random(5)
    planned: dict[int, list[float]] = defaultdict(list)
    fixed: dict[tuple[int, int], list[float]] = defaultdict(list)
    chosen: dict[int, int] = {}
    highest = 0
    turns: dict[int, int] = defaultdict(int)
    for number in range(steps):
        length = draw.choice(LENGTHS)
        with applied.step(torch.empty(MICRO_BATCH, length)):
            seconds, peak = training.step(length)
        highest = max(highest, peak)
        planned[length].append(seconds)
        chosen[length] = controller.policy.recomputed
        if number % every == every - 1:
            count = (chosen[length] + (-1, 0, 1)[turns[length] % 3]) % (LAYERS + 1)
            turns[length] += 1
            in_force = controller.policy
            policy = recompute_layers.Policy.first(LAYERS, count)
            recompute_layers.set_policy(controller.layers, policy)
            training.allocator.allocator_set_limit(None)
            seconds, peak = training.step(length)
            training.allocator.allocator_set_limit(limit)
            recompute_layers.set_policy(controller.layers, in_force)
            if peak <= limit:
                fixed[length, count].append(seconds)
    applied.remove()
    rows = {}
    for length in LENGTHS:
        medians = {
            count: statistics.median(times)
            for (of, count), times in fixed.items()
            if of == length and len(times) > 2
        }
        best = min(medians, key=lambda count: medians[count], default=None)
        rows[length] = {
            "steps": len(planned[length]),
            "recomputed": chosen.get(length),
            "median_s": statistics.median(planned[length]),
            "best_recomputed": best,
            "best_s": medians[best] if best is not None else None,
        }
    return {"highest_peak_bytes": highest, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--every", type=int, default=3, help="steps between those of a fixed choice"
    )
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Training()
    limit = find_limit(training, options.share)
    found = run(training, limit, options.steps, options.every)
    compared = [row for row in found["rows"].values() if row["best_s"] is not None]
    share = sum(row["steps"] * row["best_s"] for row in compared) / max(
        sum(row["steps"] * row["median_s"] for row in compared), 1e-12
    )
    print("| tokens | steps | recomputed | median | best fixed | its median |")
    print("|---|---|---|---|---|---|")
    for length, row in found["rows"].items():
        best = f"{row['best_s'] * 1e3:.1f} ms" if row["best_s"] is not None else ""
        print(
            f"| {length} | {row['steps']} | {row['recomputed']} of {LAYERS} | "
            f"{row['median_s'] * 1e3:.1f} ms | {row['best_recomputed']} | {best} |"
        )
    peak = found["highest_peak_bytes"] / 2**20
    print(
        f"{options.steps} steps, no failure; highest peak {peak:.1f} of {limit / 2**20:.1f} MiB; "
        f"throughput {100 * share:.1f} % of the best's."
    )
    if options.output is not None:
        today = datetime.date.today().isoformat()
        options.output.mkdir(parents=True, exist_ok=True)
        document = {"date": today, "limit_bytes": limit, "share_of_best": share, **found}
        (options.output / f"{today}-random-lengths.json").write_text(
            json.dumps(document, indent=1) + "\n"
        )
    fits = found["highest_peak_bytes"] <= limit
    return 0 if fits and share >= 1 - WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())

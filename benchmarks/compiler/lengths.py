"""What do batches whose padded length changes every step cost, against batches of the mean length?

    .venv/bin/python benchmarks/compiler/lengths.py --output benchmarks/compiler/results

Two ranks train the llama3-8b proxy (8 layers, hidden size 512) under ZeRO-3, checkpointed and
compiled: one training with lengths drawn from 64 .. 1024, one with their mean throughout, in turns.
Compared is the time a token after the first two steps, which compile. Aim: at most 1.1 times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

AIM = 1.1
SHORTEST, LONGEST, COMPILING_STEPS = 64, 1024, 2
MODEL = {
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 16032,
    "use_cache": False,
}


def rank_main(lengths: list[int], result: str) -> None:
    """One rank of one training; rank 0 writes the seconds of each step and what was compiled."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    class OnLengths(Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            batches = []
            for length in lengths:
                ids = torch.randint(1, MODEL["vocab_size"], (1, length))
                batches.append({"input_ids": ids, "labels": ids})
            return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    zero = {"stage": 3, "stage3_prefetch_bucket_size": "auto", "reduce_bucket_size": 50_000_000}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, bf16=True, gradient_checkpointing=True, torch_compile=True,
            use_cpu=True, ddp_backend="gloo", max_steps=len(lengths), report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
            per_device_train_batch_size=1,
            deepspeed={
                "train_micro_batch_size_per_gpu": 1,
                "bf16": {"enabled": True},
                "zero_optimization": zero,
            },
        )  # fmt: skip
        set_seed(int(os.environ["RANK"]))
        model = LlamaForCausalLM(LlamaConfig(**MODEL))  # type: ignore[arg-type]
        trainer = OnLengths(model=model, args=arguments, callbacks=[Clock()])
        trainer.train()
    if os.environ["RANK"] == "0":
        from ljtrain import compile as layers

        report = layers.report()[-1]
        compilations = {
            f"{kind['name']} ({variant['name']})": variant["compilations"]
            for kind in [*report["kinds"], report["loss"]]
            for variant in kind["variants"]
        }
        compiling = layers.totals(report)
        compiling["compile_seconds"] = compiling.pop("seconds")
        found = {"seconds": seconds, "compilations": compilations, **compiling}
        Path(result).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def train(lengths: list[int]) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ranks = []
        for rank in range(2):
            environment = {
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            command = [sys.executable, __file__, "--rank", json.dumps(lengths), str(result)]
            ranks.append(subprocess.Popen(command, env=environment))
        if any([rank.wait() != 0 for rank in ranks]):
            raise SystemExit("a training failed")
        return dict(json.loads(result.read_text()))


def per_token(training: dict[str, Any], lengths: list[int]) -> float:
    """Seconds a token, from the third step on."""
    return sum(training["seconds"][COMPILING_STEPS:]) / sum(lengths[COMPILING_STEPS:])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments = parser.parse_args()
    drawn = random.Random(1)
    rows = []
    for number in range(arguments.rounds):
        lengths = [drawn.randint(SHORTEST, LONGEST) for _ in range(arguments.steps)]
        mean = round(statistics.mean(lengths[COMPILING_STEPS:]))
        varying, fixed = train(lengths), train([mean] * arguments.steps)
        rows.append(
            {
                "ratio": per_token(varying, lengths) / per_token(fixed, [mean] * arguments.steps),
                "mean_length": mean,
                "compilations": varying["compilations"],
                "varying": varying,
                "fixed": fixed,
            }
        )
        print(
            f"round {number + 1}: {rows[-1]['ratio']:.3f} x the time a token of length {mean}, "
            f"compilations: {rows[-1]['compilations']}",
            flush=True,
        )
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"median {ratio:.3f}, aim {AIM}")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        document = {"date": today, "median": ratio, "aim": AIM, "rows": rows}
        (arguments.output / f"{today}-lengths.json").write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(json.loads(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())

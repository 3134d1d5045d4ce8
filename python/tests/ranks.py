"""Launches the real worker as ljperf does: one process a rank, events on a pipe of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ljtrain

# The first run on a machine also compiles DeepSpeed's operator, which takes a minute or two.
DEADLINE_S = 400
TESTS = Path(__file__).parent
PACKAGE_ROOT = Path(ljtrain.__file__).parents[1]  # the one under test: installed, or PYTHONPATH's

VOCABULARY = 512
TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
ZERO3 = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 500_000,
        "stage3_prefetch_bucket_size": 500_000,
        "stage3_param_persistence_threshold": "auto",
    },
}


@dataclass
class Run:
    """What the ranks of one run reported."""

    events: list[list[dict[str, Any]]]  # [rank][event]
    status: list[int]
    logs: list[str] = field(default_factory=list)

    def of(self, rank: int, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events[rank] if event["event"] == kind]

    def one(self, rank: int, kind: str) -> dict[str, Any]:
        (event,) = self.of(rank, kind)
        return event


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """A small valid WORKER.json; `changes` replace its keys."""
    config: dict[str, Any] = {
        "schema_version": 1,
        "engine": "ddp",
        "task": "causal-lm",
        "model_config": TINY_LLAMA,
        "seq": 64,
        "micro_batch": 2,
        "steps": 4,
        "seed": 7,
        "data": {"kind": "mock"},
        "training_arguments": {
            "output_dir": str(folder / "output"),
            "bf16": True,
            "gradient_checkpointing": True,
        },
        "deepspeed": None,
        "instrumentation": "on",
        "block_steps": 2,
    }
    config["training_arguments"] |= changes.pop("training_arguments", {})
    return config | changes


def install_entry_point(folder: Path) -> Path:
    """Makes it a folder for PYTHONPATH that looks like ljtrain installed: package and entry
    point.
    """
    (folder / "ljtrain").symlink_to(PACKAGE_ROOT / "ljtrain")
    metadata = folder / "ljtrain-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ljtrain\nVersion: 0.0.0\n")
    (metadata / "entry_points.txt").write_text(
        "[torch.backends]\nljtrain = ljtrain.autoload:load\n"
    )
    return folder


def launch(
    config: dict[str, Any],
    ranks: int,
    folder: Path,
    first_on_path: Path | None = None,
    **environment: str,
) -> Run:
    """Runs the worker on `ranks` ranks until all have ended; `environment` is added to every
    rank's.
    """
    path = folder / "WORKER.json"
    path.write_text(json.dumps(config))
    port = str(_free_port())
    events: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    processes, readers = [], []
    python_path = [str(first_on_path or ""), str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    for rank in range(ranks):
        read_end, write_end = os.pipe()
        rank_environment = {
            **os.environ,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "LJTRAIN_EVENT_FD": str(write_end),
            "PYTHONPATH": os.pathsep.join(part for part in python_path if part),
        }
        with (folder / f"rank{rank}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ljtrain.worker", str(path)],
                    env=rank_environment,
                    pass_fds=[write_end],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        os.close(write_end)
        reader = threading.Thread(target=_read, args=(read_end, events[rank]))
        reader.start()
        readers.append(reader)
    try:
        status = [process.wait(DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for reader in readers:
            reader.join()
    logs = [(folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(ranks)]
    return Run(events, status, logs)


def _read(descriptor: int, into: list[dict[str, Any]]) -> None:
    with os.fdopen(descriptor, encoding="utf-8") as pipe:
        into.extend(json.loads(line) for line in pipe)

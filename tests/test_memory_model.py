"""The memory model against steps measured here, one configuration a kind of engine; the sweep is
benchmarks/recompute/memory_accuracy.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
BENCHMARK = REPOSITORY / "benchmarks/recompute"
TOLERANCE = 0.03

# Runs in a process of its own: it imports the stack once and forks the ranks.
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import memory_accuracy, memory_grid, memory_ranks
from pathlib import Path
llama = dict(model_type="llama", hidden_size=128, intermediate_size=384, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, vocab_size=512,
             tie_word_embeddings=False)
zero = dict(reduce_bucket_size=100_000, stage3_prefetch_bucket_size=50_000,
            stage3_param_persistence_threshold=1_000)
runs = [
    memory_ranks.Run(llama, "ddp", 0, 1, 128, 2, 0),
    memory_ranks.Run(llama, "fsdp", 0, 2, 128, 2, 1),
    memory_ranks.Run(llama, "deepspeed", 3, 2, 128, 2, 2, zero_options=zero),
]
questions = [memory_grid.question(run, "accl") for run in runs]
memory_ranks.import_stack()
predictions = memory_accuracy.predict(Path(sys.argv[2]), questions)
rows = [memory_accuracy.compare(run, predicted, memory_ranks.measure(run))
        for run, predicted in zip(runs, predictions)]
print(json.dumps(rows))
"""


def predict_tool() -> Path:
    """The C++ tests' program; LJTRAIN_MEMORY_TOOL names another."""
    named = os.environ.get("LJTRAIN_MEMORY_TOOL")
    pattern = "build/*/recompute/memory_model/memory_predict_tool"
    built = [Path(named)] if named else sorted(REPOSITORY.glob(pattern))
    assert built, "memory_predict_tool is missing: build the release preset with CMake first"
    return built[0]


def test_predictions_meet_measured_steps() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(BENCHMARK), str(predict_tool())],
        env={**os.environ, "LJTRAIN_ACCL": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    rows = json.loads(run.stdout.splitlines()[-1])
    assert [row["engine"] for row in rows] == ["ddp", "fsdp", "deepspeed3"]
    for row in rows:
        assert row["error"] == pytest.approx(0, abs=TOLERANCE), row
        assert row["predicted_static_bytes"] == pytest.approx(row["static_bytes"], rel=TOLERANCE)

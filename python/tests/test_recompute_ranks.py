"""Recomputing by plan on two ranks, under every engine: the same policy and losses on each rank, a
limit that holds, and what becomes of a rank that runs out of memory all the same.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ranks import TINY_LLAMA, ZERO3, Run, launch, worker_config

pytestmark = pytest.mark.slow
RANKS, LAYERS, STEPS = 2, 6, 8
# Rank 1 gets less than it has planned with.
LESS_ON_RANK_1 = """
import os
if os.environ.get("RANK") == "1" and "LJTRAIN_EVENT_FD" in os.environ:
    from ljtrain import recompute_memory
    recompute_memory.Memory.enforce = lambda self, limit: self._extension.allocator_set_limit(
        int(os.environ["TEST_LIMIT"]))
"""


def deepspeed(stage: int) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(ZERO3)
    config["zero_optimization"]["stage"] = stage
    return config


ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp": {"engine": "fsdp"},
    "zero1": {"engine": "deepspeed", "deepspeed": deepspeed(1)},
    "zero3": {"engine": "deepspeed", "deepspeed": deepspeed(3)},
}


def train(
    folder: Path, engine: str, *, planned: bool, first: Path | None = None, **environment: str
) -> Run:
    config = worker_config(
        folder,
        **ENGINES[engine],
        model_config={**TINY_LLAMA, "num_hidden_layers": LAYERS},
        seq=128,
        micro_batch=4,
        steps=STEPS,
        recompute=planned,
    )
    if planned:
        environment |= {"CHECKPOINT_OPTIMIZATION": "true", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    return launch(config, RANKS, folder, first_on_path=first, **environment)


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in run.of(0, "step")]


def plan_of(run: Run, rank: int) -> dict[str, Any]:
    return dict(run.one(rank, "done")["recompute"])


@dataclass
class Extremes:
    engine: str
    full: Run
    none: Run

    def limit(self, share: float) -> int:
        low = max(self.full.one(rank, "done")["peak_bytes"] for rank in range(RANKS))
        high = max(self.none.one(rank, "done")["peak_bytes"] for rank in range(RANKS))
        return int(low + share * (high - low))


@pytest.fixture(scope="module", params=ENGINES)
def extremes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Extremes:
    engine = str(request.param)
    full = train(tmp_path_factory.mktemp(engine), engine, planned=False)
    none = train(tmp_path_factory.mktemp(engine), engine, planned=True)
    assert full.status == none.status == [0, 0], full.logs[0][-2000:] + none.logs[0][-2000:]
    return Extremes(engine, full, none)


def test_with_room_nothing_is_recomputed(extremes: Extremes) -> None:
    assert [plan_of(extremes.none, rank)["layers"] for rank in range(RANKS)] == [0, 0]
    assert losses(extremes.none) == losses(extremes.full)


def test_a_limit_halfway(extremes: Extremes, tmp_path: Path) -> None:
    limit = extremes.limit(0.5)
    run = train(tmp_path, extremes.engine, planned=True, LJTRAIN_MEMORY_LIMIT=str(limit))
    assert run.status == [0, 0], run.logs[0][-2000:]
    plans = [plan_of(run, rank) for rank in range(RANKS)]
    assert plans[0]["policy"] == plans[1]["policy"] and plans[0]["moves"] == plans[1]["moves"]
    assert 0 < plans[0]["layers"] < LAYERS or plans[0]["kept_operators"]
    assert max(plan["measured_peak_bytes"] for plan in plans) <= limit
    assert losses(run) == losses(extremes.full)
    said = [line for line in run.logs[0].splitlines() if line.startswith("ljtrain: recompute:")]
    assert "LJTRAIN_MEMORY_LIMIT" in said[0] and "measured" in said[-1]
    assert "ljtrain: recompute:" not in run.logs[1]


def test_one_rank_runs_out_of_memory(extremes: Extremes, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LESS_ON_RANK_1)
    less = {"LJTRAIN_MEMORY_LIMIT": "1GiB", "TEST_LIMIT": str(extremes.limit(0.5))}
    run = train(tmp_path, extremes.engine, planned=True, first=tmp_path, **less)
    if extremes.engine == "ddp" and run.status == [0, 0]:
        assert plan_of(run, 1)["retries"] >= 1
        assert losses(run) == losses(extremes.full)
        return
    assert run.status[1] == 1, run.logs[1][-2000:]
    (error,) = run.of(1, "error")
    assert error["kind"] == "out_of_memory" and "rank 1 ran out of memory" in error["message"]
    assert "start again: it will recompute at least" in error["message"]
    assert (tmp_path / "output" / "ljtrain-recompute.json").exists()

"""PyTorch's own tests of torch.distributed on ACCL: see accl_distributed/run.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PACKAGE_ROOT

FOLDER = Path(__file__).parent / "accl_distributed"
GLOO_PASSES = [
    line
    for line in (FOLDER / "gloo_passes.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
# One of each operation, and what is special: futures, profiler, debug levels, naming, DDP.
SUBSET = (
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_simple",
    "test_all_gather_complex",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast",
    "test_ddp_logging_data_cpu",
    "test_destroy_group",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_gather_checks",
    "test_get_future",
    "test_isend_autograd_profiler",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
)


def run(*arguments: str, seconds: float) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env=os.environ
        | {
            "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
    )
    lines = done.stdout.strip().splitlines()
    assert lines, done.stderr
    outcome: dict[str, list[str]] = json.loads(lines[-1])
    assert not outcome["failed"], done.stderr
    assert done.returncode == 0, done.stderr
    return outcome


def test_a_part_of_pytorchs_own_tests_passes() -> None:
    assert set(SUBSET) <= set(GLOO_PASSES)
    assert run(*SUBSET, seconds=300)["passed"] == sorted(SUBSET)


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--spawn",)], ids=["forked", "spawned"])
def test_all_that_passes_on_gloo_passes(how: tuple[str, ...]) -> None:
    outcome = run(*how, seconds=3600)
    assert set(GLOO_PASSES) <= set(outcome["passed"])
    assert len(outcome["passed"]) + len(outcome["skipped"]) > len(GLOO_PASSES)

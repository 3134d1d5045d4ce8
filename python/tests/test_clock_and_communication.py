"""The phase clock, and the timing of collectives, in this process: a group of one rank on Gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from ljtrain import _C
from torch import distributed
from torch.distributed import ProcessGroup

DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER = range(6)
PAUSE_S = 0.1


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "file"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    _C.communication_install()
    yield
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh() -> None:
    _C.communication_reset()
    _C.clock_start()


def test_phases_are_exclusive_and_sum_to_the_lap() -> None:
    began = time.perf_counter()
    _C.clock_start()
    time.sleep(PAUSE_S)
    _C.clock_enter(BACKWARD)
    time.sleep(PAUSE_S)
    _C.clock_enter(COMMUNICATION)
    time.sleep(2 * PAUSE_S)
    _C.clock_leave()
    _C.clock_leave()
    lap = _C.clock_lap()
    wall = time.perf_counter() - began
    assert lap[OTHER] == pytest.approx(PAUSE_S, rel=0.1)
    assert lap[BACKWARD] == pytest.approx(PAUSE_S, rel=0.1)
    assert lap[COMMUNICATION] == pytest.approx(2 * PAUSE_S, rel=0.1)
    assert lap[DATA] == lap[FORWARD] == lap[OPTIMIZER] == 0
    assert sum(lap) == pytest.approx(wall, abs=1e-3)


def test_a_lap_goes_on_in_the_phase_it_was_in() -> None:
    _C.clock_enter(FORWARD)
    _C.clock_lap()
    time.sleep(PAUSE_S)
    _C.clock_leave()
    assert _C.clock_lap()[FORWARD] == pytest.approx(PAUSE_S, rel=0.1)


def test_unbalanced_calls_are_harmless() -> None:
    _C.clock_leave()
    _C.clock_leave()
    _C.clock_enter(DATA)
    _C.clock_leave()
    assert sum(_C.clock_lap()) >= 0
    with pytest.raises(ValueError, match="no such phase"):
        _C.clock_enter(6)


def test_other_threads_do_not_move_the_clock() -> None:
    thread = threading.Thread(target=_C.clock_enter, args=(DATA,))
    thread.start()
    thread.join()
    time.sleep(PAUSE_S)
    assert _C.clock_lap()[DATA] == 0


def test_disabled_clock_books_all_to_one_phase() -> None:
    _C.clock_set_enabled(False)
    try:
        _C.clock_enter(FORWARD)
        _C.clock_leave()
        lap = _C.clock_lap()
    finally:
        _C.clock_set_enabled(True)
    assert lap[FORWARD] == 0
    assert lap[OTHER] > 0


def test_every_way_to_communicate_is_counted() -> None:
    from torch.distributed import _functional_collectives as functional

    tensor = torch.arange(256, dtype=torch.float32)
    distributed.all_reduce(tensor)
    work = distributed.all_reduce(tensor, async_op=True)
    assert work.wait()
    world = distributed.group.WORLD
    assert world is not None
    functional.wait_tensor(functional.all_reduce(tensor, "sum", world))
    distributed.all_gather_into_tensor(torch.empty(256), tensor)
    distributed.reduce_scatter_tensor(torch.empty(256), tensor)
    distributed.broadcast(tensor, src=0)
    distributed.barrier()
    counted = _C.communication_statistics()
    assert counted["allreduce_"]["calls"] == 3
    assert counted["allreduce_"]["bytes"] == 3 * tensor.nbytes
    for name in ("_allgather_base_", "_reduce_scatter_base_", "broadcast_"):
        assert counted[name]["calls"] == 1, name
        assert counted[name]["bytes"] == tensor.nbytes, name
    assert counted["barrier"]["calls"] == 1
    assert all(entry["seconds"] > 0 for entry in counted.values())
    assert torch.equal(tensor, torch.arange(256, dtype=torch.float32))


def test_the_work_is_the_backends_in_all_it_says() -> None:
    tensor = torch.ones(8)
    work = distributed.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert torch.equal(work.result()[0], tensor)
    assert torch.equal(work.get_future().wait()[0], tensor)


def test_errors_pass_through() -> None:
    with pytest.raises((RuntimeError, ValueError), match="SparseCPU"):
        distributed.broadcast(torch.ones(8).to_sparse(), src=0)
    assert _C.clock_lap()[COMMUNICATION] > 0
    time.sleep(PAUSE_S)  # the phase was left in spite of the error
    assert _C.clock_lap()[COMMUNICATION] == 0


def test_nothing_is_counted_while_disabled() -> None:
    _C.communication_set_enabled(False)
    try:
        distributed.all_reduce(torch.ones(8))
    finally:
        _C.communication_set_enabled(True)
    assert _C.communication_statistics() == {}


@pytest.fixture
def slow_kernel() -> Iterator[dict[str, float]]:
    """Replaces the CPU kernel of one operator, below the level that is timed, by one that
    launches or works slowly.
    """
    pauses = {"launch": 0.0, "work": 0.0}

    def allgather_base(output, input, group, async_op=True, timeout=-1):  # type: ignore[no-untyped-def]
        time.sleep(pauses["launch"])
        work = (
            ProcessGroup.unbox(group)
            ._get_backend(torch.device("cpu"))
            ._allgather_base(output, input)
        )
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def complete() -> None:
            work.wait()
            time.sleep(pauses["work"])
            future.set_result(work.result())

        threading.Thread(target=complete).start()
        return output, torch._C._distributed_c10d._create_work_from_future(future).boxed()

    library = torch.library.Library("c10d", "IMPL")
    library.impl("_allgather_base_", allgather_base, "CPU", allow_override=True)
    yield pauses
    library._destroy()


@pytest.mark.parametrize("where", ["launch", "work"])
def test_a_slow_collective_is_exposed(slow_kernel: dict[str, float], where: str) -> None:
    slow_kernel[where] = PAUSE_S
    output, part = torch.empty(8), torch.ones(8)
    _C.clock_enter(BACKWARD)
    distributed.all_gather_into_tensor(output, part)
    _C.clock_leave()
    assert _C.clock_lap()[COMMUNICATION] == pytest.approx(PAUSE_S, rel=0.1)
    assert torch.equal(output, part)


def test_what_overlaps_is_not_exposed(slow_kernel: dict[str, float]) -> None:
    slow_kernel["work"] = PAUSE_S
    work = distributed.all_gather_into_tensor(torch.empty(8), torch.ones(8), async_op=True)
    time.sleep(2 * PAUSE_S)  # computing meanwhile
    work.wait()
    lap = _C.clock_lap()
    assert lap[COMMUNICATION] < 0.1 * PAUSE_S
    assert lap[OTHER] == pytest.approx(2 * PAUSE_S, rel=0.1)

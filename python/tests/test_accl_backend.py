"""How the backend accl behaves: asynchrony, futures, time limits, failures, and the groups made
from a group. Ranks are threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import ljtrain.accl
import pytest
import torch
from accl_ranks import TIMEOUT, Ranks, run_threads
from ljtrain import _C, patches
from torch import distributed
from torch.distributed import DistBackendError

PAUSE_S = 0.3


@pytest.fixture
def pair() -> Iterator[Ranks]:
    made = Ranks(2)
    yield made
    made.close()


def with_limit(options: Any, seconds: float) -> Any:
    options.timeout = timedelta(seconds=seconds)
    return options


def blocking(options: Any) -> Any:
    options.asyncOp = False
    return options


# ---- asynchrony ----


def test_an_asynchronous_operation_runs_while_the_caller_computes(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        tensor = torch.ones(100_000)
        work = backend.allreduce([tensor])
        deadline = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert work.is_success()
        assert tensor[0] == 2  # nobody has waited
        work.wait()

    pair.run(body)


def test_operations_run_in_the_order_they_were_called(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        tensor = torch.ones(1000)
        works = [backend.allreduce([tensor]) for _ in range(20)]
        blocking_work = backend.allreduce([tensor], blocking(distributed.AllreduceOptions()))
        blocking_work.wait()
        assert all(work.is_completed() for work in works)
        assert tensor[0] == 2.0**21

    pair.run(body)


def test_the_last_work_may_be_waited_for_first(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        tensors = [torch.full((10,), float(i)) for i in range(10)]
        works = [backend.allreduce([tensor]) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        assert [tensor[0].item() for tensor in tensors] == [2.0 * i for i in range(10)]

    pair.run(body)


def test_works_of_many_threads(pair: Ranks) -> None:
    """Each thread of a rank has its own group: they must not hold each other up."""
    groups = [Ranks(2) for _ in range(4)]

    def body(rank: int, backend: Any) -> None:
        def one(group: Ranks) -> None:
            for _ in range(50):
                tensor = torch.ones(10)
                group.accl[rank].allreduce([tensor]).wait()
                assert tensor[0] == 2

        run_threads(4, lambda index: one(groups[index]))

    pair.run(body)
    for group in groups:
        group.close()


def test_messages_and_collectives_do_not_wait_for_each_other(pair: Ranks) -> None:
    """Rank 0 sends a long message and calls a collective; rank 1 first calls the collective."""
    long = 3_000_000

    def body(rank: int, backend: Any) -> None:
        tensor, message = torch.ones(8), torch.full((long,), float(rank))
        if rank == 0:
            sent = backend.send([message], 1, 0)
            backend.allreduce([tensor]).wait()
            sent.wait()
        else:
            reduced = backend.allreduce([tensor])
            backend.recv([message], 0, 0).wait()
            reduced.wait()
            assert message[-1] == 0
        assert tensor[0] == 2

    pair.run(body)


def test_a_message_nobody_waits_for_arrives(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        tensor = torch.full((1_000_000,), float(rank))
        work = backend.send([tensor], 1, 0) if rank == 0 else backend.recv([tensor], 0, 0)
        deadline = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert tensor[-1] == 0

    pair.run(body)


# ---- futures ----


def test_futures_hold_the_tensors_and_run_callbacks(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        tensor = torch.ones(4)
        future = backend.allreduce([tensor]).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert doubled.wait().tolist() == [4.0] * 4
        assert future.value()[0] is tensor or torch.equal(future.value()[0], tensor)
        late = backend.allreduce([tensor])
        late.wait()
        assert late.get_future().done()
        assert torch.equal(late.result()[0], tensor)
        outputs = [torch.empty(4), torch.empty(4)]
        gathered = backend.allgather([outputs], [tensor]).get_future().wait()
        assert all(map(torch.equal, gathered, outputs))

    pair.run(body)


def test_a_callback_may_call_the_next_collective(pair: Ranks) -> None:
    """As hooks of DDP that reduce in two steps do."""

    def body(rank: int, backend: Any) -> None:
        def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            tensor = done.value()[0]
            backend.allreduce([tensor]).wait()
            return tensor

        result = backend.allreduce([torch.ones(4)]).get_future().then(again).wait()
        assert result.tolist() == [4.0] * 4

    pair.run(body)


def test_a_callback_that_fails_fails_its_future_only(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        def fail(_: Any) -> None:
            raise KeyError("mine")

        future = backend.allreduce([torch.ones(4)]).get_future().then(fail)
        with pytest.raises(Exception, match="mine"):
            future.wait()
        backend.barrier().wait()

    pair.run(body)


def test_the_group_may_be_dropped_by_a_callback() -> None:
    ranks = Ranks(2)

    def body(rank: int) -> None:
        backend = ranks.accl[rank]
        future = backend.allreduce([torch.ones(4)]).get_future()
        del backend
        future.then(lambda _: ranks.accl.__setitem__(rank, None)).wait()

    run_threads(2, body)
    assert ranks.accl == [None, None]


# ---- time limits ----


def test_waiting_with_a_limit_raises_and_the_operation_goes_on(pair: Ranks) -> None:
    tensors = [torch.ones(4), torch.ones(4)]

    def body(rank: int, backend: Any) -> None:
        if rank == 1:
            time.sleep(2 * PAUSE_S)
        work = backend.allreduce([tensors[rank]])
        if rank == 0:
            with pytest.raises(RuntimeError, match="timed out"):
                work.wait(timedelta(seconds=PAUSE_S / 3))
        work.wait()
        assert tensors[rank][0] == 2

    pair.run(body)


def test_an_operation_that_times_out_names_who_is_missing() -> None:
    ranks = Ranks(3)
    limit = with_limit(distributed.AllreduceOptions(), PAUSE_S)

    def body(rank: int, backend: Any) -> None:
        if rank == 1:
            time.sleep(4 * PAUSE_S)
        with pytest.raises(DistBackendError, match="rank 1") as failure:
            backend.allreduce([torch.ones(4)], limit).wait()
        assert "Timed out waiting" in str(failure.value)
        with pytest.raises(DistBackendError):
            backend.barrier().wait()

    ranks.run(body)
    assert ranks.accl[0].get_error() == torch._C._distributed_c10d.ErrorType.TIMEOUT


def test_a_receive_that_times_out_leaves_the_group_whole(pair: Ranks) -> None:
    pair.accl[0]._set_default_timeout(timedelta(seconds=PAUSE_S))

    def body(rank: int, backend: Any) -> None:
        if rank == 0:
            with pytest.raises(DistBackendError, match="rank 1"):
                backend.recv([torch.ones(4)], 1, 0).wait()
        backend.barrier().wait()

    pair.run(body)


def test_ranks_that_disagree_get_the_same_error(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> str:
        with pytest.raises(DistBackendError) as failure:
            if rank == 0:
                backend.allreduce([torch.ones(4)]).wait()
            else:
                backend.broadcast([torch.ones(4)], distributed.BroadcastOptions()).wait()
        return str(failure.value)

    first, second = pair.run(body)
    assert first == second
    assert "rank 0 calls all_reduce" in first
    assert "rank 1 calls broadcast" in first


def test_a_failure_reaches_futures() -> None:
    ranks = Ranks(2)

    def body(rank: int, backend: Any) -> None:
        if rank == 0:
            work = backend.allreduce([torch.ones(4)])
            future = work.get_future()
            time.sleep(PAUSE_S)
            backend.abort()
            with pytest.raises(RuntimeError, match="abort"):
                future.wait()
            with pytest.raises(RuntimeError, match="abort"):
                work.wait()
            assert work.exception() is not None

    ranks.run(body)


def test_abort_ends_a_blocked_operation_within_a_second(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> float:
        if rank == 0:
            threading.Timer(PAUSE_S, backend.abort).start()
            with pytest.raises(DistBackendError, match="aborted"):
                backend.allreduce([torch.ones(4)], blocking(distributed.AllreduceOptions())).wait()
        else:
            time.sleep(2 * PAUSE_S)
            with pytest.raises(RuntimeError, match="rank 0"):
                backend.barrier().wait()
        return time.monotonic()

    began = time.monotonic()
    ended = pair.run(body)
    assert ended[0] - began < PAUSE_S + 1.0


# ---- the monitored barrier ----


def monitored(seconds: float, wait_all_ranks: bool, backend: Any) -> str:
    try:
        backend.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_the_monitored_barrier_names_every_missing_rank(wait_all_ranks: bool) -> None:
    ranks = Ranks(4)

    def body(rank: int, backend: Any) -> str:
        assert monitored(10, wait_all_ranks, backend) == ""
        return monitored(PAUSE_S, wait_all_ranks, backend) if rank in (0, 2) else ""

    told = ranks.run(body)
    if wait_all_ranks:
        assert "Ranks 1, 3 failed to pass monitoredBarrier in 300 ms" in told[0]
    else:
        assert "Rank 1 failed to pass monitoredBarrier in 300 ms (missing: 1, 3)" in told[0]
    assert "Rank 2 successfully reached monitoredBarrier, but received errors" in told[2]
    assert "misses ranks 1, 3" in told[2]
    ranks.run(lambda rank, backend: backend.barrier().wait())  # and the group is whole
    ranks.close()


# ---- coalescing, sequence numbers, options ----


def test_coalescing(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        sent, received = torch.full((4,), float(rank)), torch.empty(4)
        first, second = torch.ones(4), torch.ones(4)
        assert backend.supports_coalescing
        backend._start_coalescing()
        backend.send([sent], 1 - rank, 0)
        backend.recv([received], 1 - rank, 0)
        backend.allreduce([first])
        backend.allreduce([second])
        work = backend._end_coalescing()
        work.wait()
        assert work.is_completed()
        assert received[0] == 1 - rank
        assert first[0] == second[0] == 2

    pair.run(body)


def test_sequence_numbers_count_collectives(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> int:
        backend._set_sequence_number_for_group()
        backend.allreduce([torch.ones(1)]).wait()
        if rank == 0:
            backend.send([torch.ones(1)], 1, 0).wait()
        else:
            backend.recv([torch.ones(1)], 0, 0).wait()
        work = backend.barrier()
        work.wait()
        return int(backend._get_sequence_number_for_group())

    assert pair.run(body) == [2, 2]


def test_tensors_of_shared_memory(pair: Ranks) -> None:
    def body(rank: int, backend: Any) -> None:
        device = torch.device("cpu")
        assert backend.supports_tensor_alloc(device)
        tensor = backend.allocate_tensor(100_000, dtype=torch.float32, device=device)
        assert tensor.shape == (100_000,)
        assert torch.equal(tensor, torch.zeros(100_000))
        backend.allreduce([tensor.fill_(rank + 1)]).wait()
        assert tensor[-1] == 3

    pair.run(body)


# ---- groups made from groups ----


def world(size: int) -> list[Any]:
    """ProcessGroups, as init_process_group makes them, one per thread."""
    store = distributed.HashStore()

    def make(rank: int) -> Any:
        group: Any = distributed.ProcessGroup(distributed.PrefixStore("w/", store), rank, size)
        backend = _C.accl_create(
            distributed.PrefixStore("b/", store), rank, size, TIMEOUT, stands_for_gloo=True
        )
        kind = distributed.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        group._register_backend(torch.device("cpu"), kind, backend)
        group._set_group_name("whole")
        return group

    return run_threads(size, make)


def test_split_merge_and_shrink() -> None:
    groups = world(4)
    merge_store = distributed.HashStore()

    def body(rank: int) -> None:
        group = groups[rank]
        halves = [[0, 2], [1, 3]]
        half = group.split_group(halves[rank % 2], group_name=f"half{rank % 2}")
        tensor = torch.full((3,), float(rank))
        half.allreduce([tensor]).wait()
        assert tensor[0] == sum(halves[rank % 2])
        assert half.rank() == rank // 2
        assert group._get_backend(torch.device("cpu")).options.group_name != "half0"
        nothing = group.split_group([0], group_name="alone")
        assert (nothing is None) == (rank != 0)
        merged = half.merge_remote_group(merge_store, 4, TIMEOUT, group_name="merged")
        tensor = torch.full((3,), float(rank))
        merged.allreduce([tensor]).wait()
        assert merged.size() == 4
        assert tensor[0] == 6
        backend = group._get_backend(torch.device("cpu"))
        assert backend.supports_shrinking
        if rank != 1:
            smaller = backend.shrink([1])
            tensor = torch.full((3,), float(rank))
            smaller.allreduce([tensor]).wait()
            assert tensor[0] == 0 + 2 + 3
            assert smaller.options.global_ranks_in_group == [0, 2, 3]

    run_threads(4, body)


def test_a_store_may_serve_a_second_group_of_the_same_name() -> None:
    store = distributed.HashStore()

    def body(rank: int) -> None:
        for _ in range(3):
            backend = _C.accl_create(store, rank, 2, TIMEOUT)
            backend.barrier().wait()
            backend.shutdown()

    run_threads(2, body)


def test_after_shutdown_calls_are_refused(pair: Ranks) -> None:
    pair.run(lambda rank, backend: backend.barrier().wait())
    for backend in pair.accl:
        backend.shutdown()
        backend.shutdown()
        with pytest.raises(DistBackendError, match="has been shut down"):
            backend.barrier().wait()


def test_a_group_of_one() -> None:
    (alone,) = Ranks(1).accl
    tensor = torch.ones(3)
    alone.allreduce([tensor]).wait()
    alone.monitored_barrier()
    output = torch.empty(3)
    alone._allgather_base(output, tensor).wait()
    assert torch.equal(output, tensor)
    message = torch.empty(3)
    received = alone.recv([message], 0, 0)
    alone.send([tensor], 0, 0).wait()
    received.wait()
    assert torch.equal(message, tensor)
    alone.shutdown()


# ---- ranks that cannot share memory ----


def test_ranks_on_different_hosts_get_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 says that it is elsewhere; what the accl backend says of it, and what stands for Gloo
    does.
    """
    monkeypatch.setattr(patches, "STAND_IN", dict(patches.STAND_IN))
    monkeypatch.setattr(ljtrain.accl, "_left_to_gloo", [])
    stand_in: Any = ljtrain.accl._stand_in()
    patches.STAND_IN["gloo"] = stand_in
    store = distributed.HashStore()

    def body(rank: int) -> float:
        prefixed = distributed.PrefixStore("g/", store)
        if rank == 1:
            prefixed.add("accl/arrivals/1", 1)
            prefixed.set("accl/1/rank/1", "1 another-host 4:1 4:2")
            backend: Any = ljtrain.accl.Gloo(prefixed, 1, 2, TIMEOUT)
        else:
            backend = stand_in(prefixed, 0, 2, timeout=TIMEOUT)
        assert type(backend) is ljtrain.accl.Gloo
        assert isinstance(backend, stand_in)
        tensor = torch.ones(2)
        backend.allreduce([tensor]).wait()
        return tensor[0].item()

    assert run_threads(2, body) == [2.0, 2.0]
    (left,) = ljtrain.accl.report()["left_to_gloo"]
    assert left["ranks"] == 2
    assert "rank 1 of 2 cannot share memory with rank 0" in left["why"]

    store.add("accl/arrivals/1", 1)
    store.set("accl/1/rank/1", "1 another-host 4:1 4:2")
    with pytest.raises(_C.ElsewhereError, match="another host"):
        _C.accl_create(store, 0, 2, TIMEOUT)

"""The backend accl in processes of their own: how they end, what is said of ranks that do not
come, stop or die, and what LJTRAIN_ACCL=1 serves.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from accl_ranks import end, run_processes, start_processes, stop_server

KNOWN_S = 1.0  # a dead peer
SLACK_S = 1.5  # a loaded machine
GRACE_S = 5.0  # that a group waits for what is pending when it ends


@pytest.fixture(scope="module", autouse=True)
def _no_server_is_left() -> Iterator[None]:
    yield
    stop_server()


@pytest.mark.parametrize(
    ("what", "last_words"),
    [
        ("destroyed", "dist.destroy_process_group()"),
        ("left as it is", ""),
        ("with a thread that served", "dist.all_reduce(t, async_op=True).wait()"),
        (
            "after a subgroup",
            "g = dist.new_group([0, 1]); dist.all_reduce(t, group=g, async_op=True).wait()",
        ),
        ("by an exit handler", "import atexit; atexit.register(dist.destroy_process_group)"),
        ("by sys.exit", "sys.exit(0)"),
        ("with work nobody waited for", "work = dist.all_reduce(t, async_op=True)"),
        (
            "with a callback nobody waited for",
            "dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0].sum())",
        ),
    ],
)
def test_a_process_ends_quietly(what: str, last_words: str) -> None:
    code = f"init(); t = torch.ones(8); dist.all_reduce(t); assert t[0] == size\n{last_words}"
    for process in run_processes(2, code):
        assert "Traceback" not in process.err
        assert "terminate" not in process.err
        assert process.err.count("\n") <= 1, process.err  # what serves the groups


def test_exit_while_an_operation_waits_for_a_peer_that_never_comes() -> None:
    code = """
    init(seconds=600)
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(8), async_op=True)
    else:
        time.sleep(8)
    """
    began = time.monotonic()
    first, second = end(start_processes(2, code))
    assert first.code == second.code == 0, first.err + second.err
    assert "Traceback" not in first.err + second.err
    assert time.monotonic() - began < 30


def test_a_fork_neither_hangs_nor_talks() -> None:
    """Workers of a DataLoader, and a child that uses the group by mistake."""
    code = """
    init()
    t = torch.ones(8)
    dist.all_reduce(t, async_op=True).wait()
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, i): return torch.full((2,), float(i))
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2,
                                         multiprocessing_context="fork")
    for batch in loader:
        dist.all_reduce(batch)
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(t)
        except RuntimeError as error:
            print(error)
        sys.exit(0)
    os.waitpid(child, 0)
    dist.all_reduce(t, async_op=True).wait()
    assert t[0] == size * size, t
    dist.destroy_process_group()
    """
    for process in run_processes(2, code):
        assert "does not survive fork" in process.out
        assert "Traceback" not in process.err


def test_a_killed_rank_is_known_within_a_second() -> None:
    code = """
    init()
    dist.barrier()
    if rank == 1:
        print("ready", flush=True)
        time.sleep(60)
    try:
        dist.all_reduce(torch.ones(8))
    except RuntimeError as error:
        print(time.time(), type(error).__name__, error)
    """
    processes = start_processes(3, code)
    processes[1].wait_for("ready")
    time.sleep(0.3)
    killed = time.time()
    os.kill(processes[1].pid, signal.SIGKILL)
    ended = end(processes)
    for rank in (0, 2):
        assert ended[rank].code == 0, ended[rank].err
        known, kind, sentence = ended[rank].out.split(maxsplit=2)
        assert float(known) - killed < KNOWN_S + SLACK_S
        assert kind == "DistNetworkError"
        assert "rank 1" in sentence


def test_a_timeout_names_the_rank_that_is_stopped() -> None:
    code = """
    init(seconds=2)
    dist.barrier()
    if rank == 1:
        print("ready", flush=True)
        time.sleep(60)
    time.sleep(0.5)
    try:
        dist.all_reduce(torch.ones(8))
    except dist.DistBackendError as error:
        print(error)
    """
    processes = start_processes(3, code)
    processes[1].wait_for("ready")
    os.kill(processes[1].pid, signal.SIGSTOP)
    try:
        ended = end([processes[0], processes[2]])
    finally:
        os.kill(processes[1].pid, signal.SIGKILL)
        end([processes[1]])
    for process in ended:
        assert process.code == 0, process.err
        assert "Timed out waiting 2000ms" in process.out
        assert "rank 1" in process.out
        assert "stopped" in process.out


def test_a_rank_that_does_not_come_is_named_at_creation() -> None:
    code = """
    if rank == 2:
        sys.exit(0)
    try:
        init(seconds=1)
    except dist.DistBackendError as error:
        print(error)
    """
    for process in run_processes(3, code)[:2]:
        assert "Timed out waiting 1000ms" in process.out
        assert "rank 2 did not come" in process.out
        assert "LJTRAIN_ACCL" in process.out


# ---- what LJTRAIN_ACCL=1 serves ----


def test_groups_of_every_kind_are_served() -> None:
    code = """
    init()
    assert dist.get_backend() == "gloo"
    assert ljtrain.accl.is_served()
    t = torch.ones(4)
    dist.all_reduce(t)
    named = dist.new_group([0, 1], backend="gloo", group_desc="pair")
    local = dist.new_group([rank], use_local_synchronization=True)
    both = dist.new_group(backend="cpu:gloo,cuda:gloo")
    asked = dist.new_group(backend="accl")
    for group in (named, local, both, asked):
        dist.all_reduce(t, group=group)
        assert ljtrain.accl.is_served(group)
    assert t.tolist() == [size * size * size * size] * 4, t
    split = dist.group.WORLD.split_group([0, 1], group_name="half")
    dist.all_reduce(t, group=split)
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, dist.ProcessGroupGloo)
    assert not isinstance(object(), dist.ProcessGroupGloo)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7))
    assert backend.options._timeout == timedelta(seconds=7)
    assert dist.get_backend(asked) == "accl"
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": r} for r in range(size)]
    dist.destroy_process_group()
    """
    for rank, process in enumerate(run_processes(2, code, report=True)):
        report = json.loads(process.out)
        assert report["left_to_gloo"] == []
        assert len(report["groups"]) == 6
        assert all(group["operations"]["all_reduce"] >= 1 for group in report["groups"])
        assert {group["stands_for"] for group in report["groups"]} == {"gloo", None}
        assert "half" in {group["name"] for group in report["groups"]}
        assert all(group["bytes"] > 0 for group in report["groups"])
        assert ("accl serves the CPU groups" in process.err) == (rank == 0)


def test_detail_debug_mode() -> None:
    code = """
    init()
    t = torch.ones(4)
    dist.all_reduce(t)
    assert t[0] == size
    try:
        dist.all_reduce(torch.ones(4 + rank))
    except RuntimeError as error:
        print("Detected mismatch" in str(error))
    dist.destroy_process_group()
    """
    for process in run_processes(2, code, report=True, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        found, report = process.out.splitlines()
        assert found == "True"
        assert len(json.loads(report)["groups"]) == 2  # the world, and the wrapper's helper


def test_rpc_runs_on_it() -> None:
    code = """
    from torch.distributed import rpc
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["PORT"]
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0:
        assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
    rpc.shutdown()
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for process in run_processes(2, code, report=True, PORT=str(port)):
        groups = json.loads(process.out.splitlines()[-1])["groups"]
        assert groups[0]["operations"]["all_gather"] >= 1


def test_backends_of_others_are_left_alone() -> None:
    code = """
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    dist.all_reduce(torch.ones(2))
    assert not ljtrain.accl.is_served()
    dist.destroy_process_group()
    """
    run_processes(1, code)


def test_the_name_alone_is_enough() -> None:
    """Without LJTRAIN_ACCL: `import ljtrain.accl` makes "accl" known and changes nothing else."""
    code = """
    t = torch.ones(4)
    init("accl")
    dist.all_reduce(t)
    assert dist.get_backend() == "accl" and ljtrain.accl.is_served()
    group = dist.new_group(backend="cpu:accl")
    dist.all_reduce(t, group=group)
    gloo = dist.new_group(backend="gloo")
    assert not ljtrain.accl.is_served(gloo)
    dist.all_reduce(t, group=gloo)
    assert t[0] == size ** 3
    """
    run_processes(2, code, LJTRAIN_ACCL="0")


def test_no_descriptor_or_thread_is_left() -> None:
    code = """
    init()
    def counted():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    t = torch.ones(4)
    def once():
        group = dist.new_group()
        dist.all_reduce(t, group=group, async_op=True).wait()
        peer = 1 - rank
        ops = [dist.P2POp(dist.isend, torch.ones(4), peer, group),
               dist.P2POp(dist.irecv, torch.ones(4), peer, group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        dist.barrier()
        dist.destroy_process_group(group)
    for _ in range(3): once()
    before = counted()
    for _ in range(10): once()
    assert counted() == before, (before, counted())
    """
    run_processes(2, code)


def test_os_environ_is_not_touched() -> None:
    before = dict(os.environ)
    import ljtrain.accl

    assert ljtrain.accl.NAME == "accl"
    assert dict(os.environ) == before

"""The measuring allocator against a reference: the sizes of the storages that are alive."""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from ljtrain import _C

OPERATIONS = 3000
LARGEST = 100_000


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    _C.allocator_install()


@pytest.fixture
def unlimited_after() -> Iterator[None]:
    yield
    _C.allocator_set_limit(None)


def current() -> int:
    return int(_C.allocator_statistics()["current_bytes"])


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Views share a storage; it counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(size for pointer, size in storages.items() if pointer)


@pytest.mark.parametrize("seed", range(5))
def test_current_and_peak_are_exact(seed: int) -> None:
    chance = random.Random(seed)
    before = current()
    _C.allocator_reset_peak()
    alive: list[torch.Tensor] = []
    peak = 0
    for _ in range(OPERATIONS):
        action = chance.random()
        if action < 0.45 or not alive:
            dtype = chance.choice([torch.float32, torch.bfloat16, torch.int8])
            alive.append(
                torch.empty(chance.choice([0, 1, 64, chance.randrange(LARGEST)]), dtype=dtype)
            )
        elif action < 0.55:
            alive.append(chance.choice(alive)[: chance.randrange(10)])  # a view: nothing new
        elif action < 0.6:
            alive.append(chance.choice(alive).clone())
        else:
            alive.pop(chance.randrange(len(alive)))
        assert current() - before == storage_bytes(alive)
        peak = max(peak, storage_bytes(alive))
    assert _C.allocator_statistics()["peak_bytes"] - before == peak
    alive.clear()
    assert current() == before
    _C.allocator_reset_peak()
    assert _C.allocator_statistics()["peak_bytes"] == before


def test_blocks_are_aligned() -> None:
    for size in (1, 63, 64, 65, 4097):
        assert torch.empty(size, dtype=torch.uint8).data_ptr() % 64 == 0


def test_threads_and_frees_on_another_thread() -> None:
    """Four threads allocate and hand half of their tensors to a fifth, which frees them."""
    before = current()
    handed_over: queue.Queue[torch.Tensor | None] = queue.Queue()
    kept: list[list[torch.Tensor]] = [[] for _ in range(4)]

    def allocate(number: int) -> None:
        chance = random.Random(number)
        for index in range(OPERATIONS):
            tensor = torch.empty(chance.randrange(1, LARGEST), dtype=torch.uint8)
            if index % 2:
                handed_over.put(tensor)
            elif index % 3:
                kept[number].append(tensor)

    def free() -> None:
        while handed_over.get() is not None:
            pass

    freeing = threading.Thread(target=free)
    freeing.start()
    allocating = [threading.Thread(target=allocate, args=(number,)) for number in range(4)]
    for thread in allocating:
        thread.start()
    for thread in allocating:
        thread.join()
    handed_over.put(None)
    freeing.join()
    assert current() - before == sum(storage_bytes(tensors) for tensors in kept)
    kept.clear()
    assert current() == before


def test_autograd_and_operators_leave_nothing_behind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    model(torch.randn(8, 64)).sum().backward()
    before = current()
    for _ in range(5):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.randn(8, 64)).sum().backward()
    assert current() == before


def test_a_disabled_allocator_counts_only_what_it_knew() -> None:
    before = current()
    known = torch.empty(1000, dtype=torch.uint8)
    _C.allocator_set_enabled(False)
    try:
        unknown = torch.empty(5000, dtype=torch.uint8)
        assert current() - before == 1000
        del known
        assert current() == before
    finally:
        _C.allocator_set_enabled(True)
    del unknown
    assert current() == before


def test_no_memory_is_an_error_that_is_not_counted() -> None:
    before = current()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(1 << 60, dtype=torch.uint8)
    assert current() == before


@pytest.mark.usefixtures("unlimited_after")
def test_a_limit_is_kept_to_the_byte() -> None:
    before = current()
    _C.allocator_set_limit(before + 1000)
    kept = torch.empty(1000, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError, match="not enough memory") as raised:
        torch.empty(1, dtype=torch.uint8)
    text = str(raised.value)
    assert "tried to allocate 1 bytes" in text
    assert f"{before + 1000} bytes of tensors are alive" in text
    assert f"the limit is {before + 1000} bytes" in text
    torch.empty(0)  # nothing is alive for it
    assert current() == before + 1000
    del kept
    torch.empty(1000, dtype=torch.uint8)


@pytest.mark.usefixtures("unlimited_after")
def test_a_limit_below_what_is_alive_refuses_all_and_ends_with_none() -> None:
    kept = torch.empty(5000, dtype=torch.uint8)
    before, refused = current(), _C.allocator_statistics()["refused"]
    _C.allocator_set_limit(0)
    assert _C.allocator_statistics()["limit_bytes"] == 0
    for size in (1, 1 << 60):
        with pytest.raises(RuntimeError, match="not enough memory"):
            torch.empty(size, dtype=torch.uint8)
    assert current() == before
    assert _C.allocator_statistics()["refused"] == refused + 2
    _C.allocator_set_limit(None)
    assert _C.allocator_statistics()["limit_bytes"] is None
    torch.empty(1, dtype=torch.uint8)
    assert kept.numel() == 5000


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        _C.allocator_set_limit(-1)


@pytest.mark.usefixtures("unlimited_after")
def test_threads_never_pass_the_limit_together() -> None:
    """Eight threads want ten times what there is; the peak reaches the limit, never more."""
    block, blocks = 10_000, 40
    before = current()
    limit = before + block * blocks
    _C.allocator_set_limit(limit)
    _C.allocator_reset_peak()
    refused_before = _C.allocator_statistics()["refused"]
    failures = [0] * 8

    def work(number: int) -> None:
        alive: list[torch.Tensor] = []
        for index in range(OPERATIONS):
            try:
                alive.append(torch.empty(block, dtype=torch.uint8))
            except torch.OutOfMemoryError:
                failures[number] += 1
                alive.clear()
            if index % 64 == number:
                alive.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = _C.allocator_statistics()
    assert statistics["peak_bytes"] == limit
    assert statistics["refused"] - refused_before == sum(failures) > 0
    assert statistics["current_bytes"] == before


@pytest.mark.usefixtures("unlimited_after")
def test_a_step_can_be_repeated_after_a_refusal() -> None:
    """What a failed backward held is freed, and the worker names the error for what it is."""
    from ljtrain.worker import _classify, _out_of_memory

    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(torch.ones(512, 256)).relu().sum()
        loss.backward()
        return loss.detach()

    expected = step()
    model.zero_grad(set_to_none=True)
    before = current()
    _C.allocator_set_limit(before + 3_000_000)
    kind, message = "", ""
    try:
        step()
    except RuntimeError as error:
        kind, message = _classify(error)[0], _out_of_memory(str(error))
    assert kind == "out_of_memory"
    assert "asked for 512 KiB" in message
    _C.allocator_set_limit(None)
    model.zero_grad(set_to_none=True)
    assert current() == before
    assert torch.equal(step(), expected)


def test_the_profiler_still_sees_memory() -> None:
    with torch.profiler.profile(profile_memory=True) as profile:
        tensor = torch.empty(1 << 20, dtype=torch.uint8)
    assert max(event.self_cpu_memory_usage for event in profile.key_averages()) == tensor.nbytes


FROM_BEFORE = """
import torch
from ljtrain import _C
a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
torch.mm(a, b)  # oneDNN keeps blocks that it takes and returns by the raw interface
_C.allocator_install()
torch.mm(a, b)
del a, b
c = torch.empty(777, dtype=torch.uint8)
print(_C.allocator_statistics()["current_bytes"])
"""


def test_blocks_from_before_it_was_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROM_BEFORE], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 777


def test_the_kernels_limits_are_read() -> None:
    limits = _C.memory_limits()
    assert 0 < limits["resident_bytes"] <= limits["resident_peak_bytes"]
    assert limits["resident_bytes"] < limits["host_bytes"]
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert _C.memory_limits()["resident_bytes"] >= limits["resident_bytes"] + held.nbytes // 2

"""The measuring allocator against a reference: the sizes of the storages that are alive."""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import threading

import pytest
import torch
from ljtrain import _C

OPERATIONS = 3000
LARGEST = 100_000


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    _C.allocator_install()


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

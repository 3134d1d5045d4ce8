"""A control group's limit: as the kernel says it, and in a real group where one can be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ljtrain import recompute_memory
from ljtrain.recompute_memory import RESIDENT, Limit, Memory

VARIABLE = recompute_memory.VARIABLE
GIB = 2**30
LIMIT = 3 * GIB
MOUNT = Path("/sys/fs/cgroup")
# Joins the group, then asks for the limit as a rank does, and how much tensors may take.
QUESTION = """
import json, os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from ljtrain.recompute_memory import Memory, find_limit
limit, memory = find_limit(), Memory()
print(json.dumps([limit.bytes, limit.of, limit.source, memory.room(limit, 0.0)]))
"""


def kernel_says(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(recompute_memory, "_host", lambda: values)


def test_the_group_counts_where_it_is_tighter_than_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel_says(monkeypatch, host_bytes=8 * GIB, cgroup_limit_bytes=LIMIT)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    limit = recompute_memory.find_limit()
    assert limit.bytes == pytest.approx(0.9 * LIMIT / 2)
    assert limit.of == RESIDENT
    assert "control group" in limit.source


def test_the_host_counts_where_no_group_is_tighter(monkeypatch: pytest.MonkeyPatch) -> None:
    for group in (None, 16 * GIB):
        kernel_says(monkeypatch, host_bytes=8 * GIB, cgroup_limit_bytes=group)
        limit = recompute_memory.find_limit()
        assert limit.bytes == pytest.approx(0.9 * 8 * GIB)
        assert "host" in limit.source


def test_what_others_use_of_the_group_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit(0.9 * LIMIT, RESIDENT, "")
    kernel_says(monkeypatch, cgroup_left_bytes=GIB, available_bytes=6 * GIB)
    memory = Memory()
    assert memory.room(limit, 0.0) == pytest.approx(memory.current() + 0.95 * GIB)
    kernel_says(monkeypatch, cgroup_left_bytes=100 * GIB, available_bytes=100 * GIB)
    assert memory.room(limit, GIB) == pytest.approx(0.9 * LIMIT - GIB)


@pytest.fixture
def group() -> Iterator[Path]:
    unified = not (MOUNT / "memory").is_dir()
    path = (MOUNT if unified else MOUNT / "memory") / f"ljtrain-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group with a limit can be made here: {error}")
    yield path
    path.rmdir()


def test_a_real_group(group: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environment["PYTHONPATH"] = str(Path(recompute_memory.__file__).parents[1])
    environment.pop("LOCAL_WORLD_SIZE", None)
    done = subprocess.run(
        [sys.executable, "-c", QUESTION, str(group)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    limit, of, source, room = json.loads(done.stdout.splitlines()[-1])
    assert limit == pytest.approx(0.9 * LIMIT)
    assert of == RESIDENT
    assert "control group" in source
    assert 0 < room <= limit

"""Ranks of a group for tests of the backend accl: threads of this process, or processes that run a
piece of code.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from ljtrain import _C, accl
from ranks import PACKAGE_ROOT
from torch import distributed

DEADLINE_S = 60
TIMEOUT = timedelta(seconds=20)
POLL_S = 0.01
REPORT = """
import json, ljtrain
print(json.dumps(ljtrain.status()["accl"]))
"""


def run_threads(size: int, body: Callable[[int], Any]) -> list[Any]:
    """`body(rank)` on a thread each; returns their results, or raises the first failure."""
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


class Ranks:
    """The same ranks on ACCL and on Gloo, as threads."""

    def __init__(self, size: int, gloo: bool = False) -> None:
        self.size = size
        store = distributed.HashStore()
        self.accl: list[Any] = run_threads(
            size, lambda rank: _C.accl_create(store, rank, size, TIMEOUT)
        )
        self.gloo: list[Any] = []
        if gloo:
            other = distributed.HashStore()
            self.gloo = run_threads(size, lambda rank: accl.Gloo(other, rank, size, TIMEOUT))

    def run(self, body: Callable[[int, Any], Any]) -> list[Any]:
        """`body(rank, backend)` on ACCL's."""
        return run_threads(self.size, lambda rank: body(rank, self.accl[rank]))

    def compare(self, body: Callable[[int, Any], Any]) -> None:
        """`body` returns tensors, which must be the same on both."""
        expected = run_threads(self.size, lambda rank: body(rank, self.gloo[rank]))
        found = self.run(body)
        for rank in range(self.size):
            torch.testing.assert_close(found[rank], expected[rank], equal_nan=True)

    def close(self) -> None:
        for backend in self.accl:
            backend.shutdown()


@dataclass
class Process:
    """One rank: running, or ended (`code` is its exit status, negative for a signal)."""

    pid: int
    folder: Path
    rank: int
    code: int | None = None

    @property
    def out(self) -> str:
        return (self.folder / f"out.{self.rank}").read_text()

    @property
    def err(self) -> str:
        return (self.folder / f"err.{self.rank}").read_text()

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while line not in self.out.splitlines():
            assert time.monotonic() < deadline, self.err
            time.sleep(POLL_S)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends when this process does: its input ends."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("accl_fork_server.py"))],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def stop_server() -> None:
    """At the end of a module's tests: later tests look for processes that were left behind."""
    if _server.cache_info().currsize > 0:
        server = _server()
        server.communicate(timeout=DEADLINE_S)
        _server.cache_clear()


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


def start_processes(
    size: int, code: str, report: bool = False, **environment: str
) -> list[Process]:
    """Processes that run `code` with rank, size, dist, torch, init() at hand, and LJTRAIN_ACCL=1
    unless told otherwise; `report`: their last line is what status() says of ACCL.
    """
    folder = Path(tempfile.mkdtemp())
    variables = {
        "LJTRAIN_ACCL": "1",
        "WORLD_SIZE": str(size),
        "STORE": str(folder / "store"),
        **environment,
    }
    code = textwrap.dedent(code) + (REPORT if report else "")
    for rank in range(size):
        (folder / f"out.{rank}").touch()
    answer = _ask({"size": size, "code": code, "environment": variables, "folder": str(folder)})
    return [Process(pid, folder, rank) for rank, pid in enumerate(answer["pids"])]


def end(processes: list[Process], seconds: float = DEADLINE_S) -> list[Process]:
    """Waits for all; a rank that does not end in time fails the test."""
    answer = _ask({"wait": [process.pid for process in processes], "seconds": seconds})
    for process, code in zip(processes, answer["codes"], strict=True):
        process.code = code
        assert code is not None, f"rank {process.rank} hangs: {process.err}"
    return processes


def run_processes(size: int, code: str, report: bool = False, **environment: str) -> list[Process]:
    ended = end(start_processes(size, code, report, **environment))
    for process in ended:
        assert process.code == 0, process.err
    return ended

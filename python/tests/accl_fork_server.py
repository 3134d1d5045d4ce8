"""Imports torch once, then forks ranks that each run a piece of code and end as any Python program
does. `accl_ranks.start_processes` talks to it: one JSON document a line, in and out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import ljtrain.accl
import torch
from ljtrain import patches
from torch import distributed as dist

POLL_S = 0.005


def init(backend: str | None = "gloo", seconds: float = 20.0, **more: Any) -> None:
    """For the ranks' code."""
    dist.init_process_group(
        backend,
        init_method="file://" + os.environ["STORE"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=seconds),
        **more,
    )


def _become_rank(rank: int, request: dict[str, Any]) -> None:
    os.environ.update(request["environment"], RANK=str(rank))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{request['folder']}/{name}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    if os.environ.get("LJTRAIN_ACCL") == "1" and "gloo" not in patches.STAND_IN:
        ljtrain.accl.activate()


def _wait(pids: list[int], seconds: float) -> list[int | None]:
    """Exit codes (negative: the signal), None for those that do not end; they are killed."""
    deadline = time.monotonic() + seconds
    codes: dict[int, int] = {}
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    for pid in pids:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [codes.get(pid) for pid in pids]


def serve() -> str | None:
    """Returns the code in a rank, None in the server when there is nothing more to do."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: dict[str, Any] = {"codes": _wait(request["wait"], request["seconds"])}
        else:
            pids = []
            for rank in range(request["size"]):
                pid = os.fork()
                if pid == 0:
                    _become_rank(rank, request)
                    return str(request["code"])
                pids.append(pid)
            answer = {"pids": pids}
        print(json.dumps(answer), flush=True)
    return None


if __name__ == "__main__":
    _code = serve()
    if _code is not None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        exec(compile(_code, "<rank>", "exec"))

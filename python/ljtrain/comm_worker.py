"""A rank of `ljperf comm` behind PyTorch's c10d: the collectives of a backend as users call them,
from Python, one after the other, synchronously.

    python -m ljtrain.comm_worker BACKEND   started by ljperf (protocol: comm/drivers/rank_driver.h)
    python -m ljtrain.comm_worker --where   prints where PyTorch and DeepSpeed are, as JSON
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROOT_RANK = 0
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
SENDS_ALL = ("reduce_scatter", "all_to_all", "scatter")
RECEIVES_ALL = ("all_gather", "all_to_all", "gather")


class Unusable(Exception):
    """The backend cannot be used here, which is no failure."""


def where() -> dict[str, str | None]:
    """What drivers are compiled against and workers need: folder and version, nothing imported."""
    found: dict[str, str | None] = {"prefix": sys.prefix}
    for name in ("torch", "deepspeed"):
        spec = importlib.util.find_spec(name)
        places = spec.submodule_search_locations if spec is not None else None
        found[name] = next(iter(places)) if places else None
        found[f"{name}_version"] = importlib.metadata.version(name) if places else None
    return found


class Orchestrator:
    """The line to ljperf."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect("\0" + address)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def say(self, line: str) -> None:
        self._socket.sendall((" ".join(line.split()) + "\n").encode())

    def hear(self) -> str | None:
        """The next command; None when ljperf wants no more or is gone."""
        line = self._lines.readline().strip()
        return line if line and line != "quit" else None


class Buffers:
    """Memory that only grows, so that nothing is allocated while time is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[str, torch.Tensor] = {}

    def tensor(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        import torch

        size = count * dtype.itemsize
        if name not in self._memory or self._memory[name].numel() < size:
            self._memory.pop(name, None)
            self._memory[name] = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return self._memory[name][:size].view(dtype)


class Call:
    """One operation with its tensors."""

    def __init__(self, words: list[str], rank: int, size: int, buffers: Buffers) -> None:
        import torch

        self.op, dtype_name, count = words[0], words[1], int(words[2])
        self.rank, self.size, self.count = rank, size, count
        self.dtype: torch.dtype = getattr(torch, dtype_name)
        self.in_place = words[3] == "1"
        send_count = count * (size if self.op in SENDS_ALL else 1)
        recv_count = count * (size if self.op in RECEIVES_ALL else 1)
        self.recv = buffers.tensor("recv", recv_count, self.dtype)
        self.send = self.recv if self.in_place else buffers.tensor("send", send_count, self.dtype)

    def function(self) -> Callable[[], Any]:
        """What the timed loop calls."""
        import torch.distributed as dist

        send, recv = self.send, self.recv
        at_root = self.rank == ROOT_RANK
        received = list(recv.chunk(self.size)) if self.op == "gather" and at_root else None
        sent = list(send.chunk(self.size)) if self.op == "scatter" and at_root else None
        functions: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(recv),
            "broadcast": lambda: dist.broadcast(recv, ROOT_RANK),
            "reduce": lambda: dist.reduce(recv, ROOT_RANK),
            "all_gather": lambda: dist.all_gather_into_tensor(recv, send),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(recv, send),
            "all_to_all": lambda: dist.all_to_all_single(recv, send),
            "gather": lambda: dist.gather(send, received, ROOT_RANK),
            "scatter": lambda: dist.scatter(recv, sent, ROOT_RANK),
        }
        return functions[self.op]

    def values(self, rank: int, first: int, count: int) -> torch.Tensor:
        """Elements [first, first + count) of what `rank` sends: small whole numbers that depend on
        rank and position, so that every sum is exact in every type.
        """
        import torch

        numbers = max(2, min(16, 127 // self.size)) if self.op in REDUCING else 120
        position = torch.arange(first + 1, first + count + 1, dtype=torch.int64)
        mixed = (position * 2654435761 + (rank + 1) * 40503 * 65537) & 0x7FFFFFFF
        return ((mixed >> 8) % numbers).to(self.dtype)

    def expected(self) -> torch.Tensor | None:
        """What the result must be, by the definition of the operation; None: this rank has none."""
        import torch

        own = self.rank * self.count
        ranks = range(self.size)
        if self.op in ("reduce", "gather") and self.rank != ROOT_RANK:
            return None
        if self.op in REDUCING:
            first = own if self.op == "reduce_scatter" else 0
            total = torch.zeros(self.count, dtype=torch.int64)
            for rank in ranks:
                total += self.values(rank, first, self.count).to(torch.int64)
            return total.to(self.dtype)
        if self.op == "broadcast":
            return self.values(ROOT_RANK, 0, self.count)
        if self.op == "scatter":
            return self.values(ROOT_RANK, own, self.count)
        first = own if self.op == "all_to_all" else 0
        return torch.cat([self.values(rank, first, self.count) for rank in ranks])


class Rank:
    """Answers the orchestrator's commands."""

    def __init__(self, backend: str, rank: int, size: int) -> None:
        import torch

        self.backend, self.rank, self.size = backend, rank, size
        self.device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        self.buffers = Buffers(self.device)

    def answer(self, line: str) -> str:
        verb, *words = line.split()
        call = Call(words, self.rank, self.size, self.buffers)
        if verb == "time":
            return f"ok {self.time(call, int(words[5]), int(words[6])):.9e}"
        return f"ok {self.check(call)}"

    def synchronise(self) -> None:
        if self.backend == "nccl":
            import torch

            torch.cuda.synchronize()

    def time(self, call: Call, warmup: int, iterations: int) -> float:
        import torch.distributed as dist

        function = call.function()
        for _ in range(warmup):
            function()
        dist.barrier()
        self.synchronise()
        start = time.perf_counter()
        for _ in range(iterations):
            function()
        self.synchronise()
        return time.perf_counter() - start

    def check(self, call: Call) -> int:
        import torch

        call.recv.view(torch.uint8).fill_(0xA5)  # so that an untouched element shows
        call.send.copy_(call.values(self.rank, 0, call.send.numel()))
        call.function()()
        self.synchronise()
        # For the tests of --check itself.
        if os.environ.get("LJPERF_COMM_CORRUPT") == f"{self.backend}/c10d:{self.rank}":
            call.recv.view(torch.uint8)[call.recv.numel() // 2 * call.dtype.itemsize] ^= 0x40
        expected = call.expected()
        wrong = 0 if expected is None else int((call.recv.cpu() != expected).sum())
        # Zeros again: repeated sums in place must stay what they are.
        call.recv.zero_()
        call.send.zero_()
        return wrong


def start(backend: str, rank: int, size: int) -> Rank:
    """Joins the process group."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise Unusable(f"no PyTorch in {sys.executable}: {error}") from error
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if backend == "accl":
        register_accl()
    if backend == "nccl":
        if not dist.is_nccl_available() or torch.cuda.device_count() < size:
            raise Unusable(f"NCCL wants a GPU a rank; PyTorch sees {torch.cuda.device_count()}")
        torch.cuda.set_device(rank)
    folder = Path(os.environ["LJPERF_COMM_FOLDER"])
    store = folder / f"group-{os.environ['LJPERF_COMM_GROUP']}.store"
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=30),
    )
    if backend == "gloo":
        # What is called gloo must be Gloo, whatever plugins are installed.
        served_by = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__  # type: ignore[union-attr]
        if served_by != "ProcessGroupGloo":
            raise Unusable(f"the backend gloo is served by {served_by}")
    return Rank(backend, rank, size)


def register_accl() -> None:
    """Makes the backend known to PyTorch."""
    if importlib.util.find_spec("ljtrain.accl") is None:
        raise Unusable("this ljtrain has no c10d backend `accl`")
    importlib.import_module("ljtrain.accl").register()


def main() -> int:
    if sys.argv[1:] == ["--where"]:
        print(json.dumps(where()))
        return 0
    address = os.environ.get("LJPERF_COMM_SOCKET")
    if len(sys.argv) != 2 or address is None:
        print("this program is started by `ljperf comm` only", file=sys.stderr)
        return 2
    rank, size = int(os.environ["LJPERF_COMM_RANK"]), int(os.environ["LJPERF_COMM_SIZE"])
    orchestrator = Orchestrator(address)
    orchestrator.say(f"hello {os.environ['LJPERF_COMM_GROUP']} {rank} {os.getpid()}")
    code = 0
    try:
        serving = start(sys.argv[1], rank, size)
        orchestrator.say("ready")
        while (line := orchestrator.hear()) is not None:
            orchestrator.say(serving.answer(line))
    except Unusable as reason:
        orchestrator.say(f"skip {reason}")
    except Exception as error:  # whatever it is, ljperf must hear of it
        orchestrator.say(f"error {type(error).__name__}: {error}")
        code = 1
    # No clean-up of the process group: peers may be gone, and its destructor would wait for them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())

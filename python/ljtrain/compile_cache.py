"""What one process found out about a compiled layer, for the other ranks and the next start.

Beside Inductor's own cache on disk lies one small file a decision. The first process that asks
holds a kernel lock (freed with the process, however it ends) while it compiles and measures; the
others trace meanwhile, wait for the file or the lock, outside of any collective, and then compile
from Inductor's cache. A folder that cannot be written to costs the sharing, nothing else.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

WHOLE, PARTS, EAGER = "whole", "parts", "eager"
POLL_S = 0.05
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Decision:
    """How a layer runs: one graph, several, or eagerly, and the seconds that decided it."""

    mode: str
    eager_s: float | None
    compiled_s: float | None
    why: str

    @property
    def speedup(self) -> float | None:
        if self.eager_s is None or not self.compiled_s:
            return None
        return self.eager_s / self.compiled_s


place: Path | None = None  # of the decisions, instead of beside Inductor's cache


def folder() -> Path:
    if place is not None:
        return place
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "ljtrain"


def key_of(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@functools.cache
def environment() -> tuple[str, ...]:
    """What a measured decision depends on, beside the layer."""
    import torch

    import ljtrain

    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"{torch.backends.cpu.get_cpu_capability()} {_processor()}"
    return (ljtrain.__version__, torch.__version__, device, str(torch.get_num_threads()))


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", maxsplit=1)[1].strip()
    return ""


def _read(path: Path) -> Decision | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema_version") != SCHEMA_VERSION:
            return None
        return Decision(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, decision: Decision) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    document = {"schema_version": SCHEMA_VERSION, **asdict(decision)}
    with suppress(OSError):
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(path)


class Turn:
    """What is known already (`decision`), and where to put what is found out (`decide`).

    `wait` returns when the decision is known, or when it is this process's turn to find out: until
    then a process does by itself what has to be done in any case.
    """

    def __init__(self, path: Path | None = None, lock: TextIO | None = None) -> None:
        self._path, self._lock = path, lock
        self.decision: Decision | None = None
        self._settled = path is None or self._settle()

    def wait(self) -> None:
        while not self._settled:
            time.sleep(POLL_S)
            self._settled = self._settle()

    def _settle(self) -> bool:
        assert self._path is not None and self._lock is not None
        self.decision = _read(self._path)
        if self.decision is not None:
            return True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        self.decision = _read(self._path)  # written between the look and the lock
        return True

    def decide(self, decision: Decision) -> None:
        self.decision = decision
        if self._path is not None:
            _write(self._path, decision)


@contextmanager
def turn(key: str) -> Iterator[Turn]:
    """Holds the lock, if it got it, to the end of the block."""
    try:
        here = folder()
        here.mkdir(parents=True, exist_ok=True)
        lock = (here / f"{key}.lock").open("w")
    except OSError:
        yield Turn()
        return
    with lock:
        yield Turn(here / f"{key}.json", lock)

"""How ranks switch a layer at the same step boundary, without a collective.

The rank that has a failure posts it to the process group's key-value store at the end of step k.
Every rank looks at the end of each step, and acts on what was posted before the step it has just
finished: that step's gradient reduction has come between the post and the look, on every rank.
"""

from __future__ import annotations

import json
from typing import Any

import torch

PREFIX = "ljtrain/compile"


def _store() -> Any:
    from torch.distributed import distributed_c10d

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    if torch.distributed.get_world_size() == 1:
        return None
    return distributed_c10d._get_default_store()


class Agreement:
    """One training run's posts. `run` tells runs of one process apart."""

    def __init__(self, run: int) -> None:
        self._store = _store()
        self._prefix = f"{PREFIX}/{run}"
        self._seen = 0
        self._waiting: list[dict[str, Any]] = []

    def post(self, step: int, post: dict[str, Any]) -> None:
        entry = {**post, "due": step + 1}
        if self._store is None:
            self._waiting.append({**entry, "due": step})
            return
        number = self._store.add(f"{self._prefix}/posts", 1)
        self._store.set(f"{self._prefix}/{number}", json.dumps(entry))

    def due(self, step: int) -> list[dict[str, Any]]:
        """What every rank does now, at the end of step `step`."""
        if self._store is not None:
            count = self._store.add(f"{self._prefix}/posts", 0)
            while self._seen < count:
                self._seen += 1
                self._waiting.append(json.loads(self._store.get(f"{self._prefix}/{self._seen}")))
        now = [entry for entry in self._waiting if entry["due"] <= step]
        self._waiting = [entry for entry in self._waiting if entry["due"] > step]
        return now

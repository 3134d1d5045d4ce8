"""One line to the user, from one rank: what a part decided and why."""

from __future__ import annotations

import os
import sys

LEVELS = ("debug", "info", "warning", "error")
LEVEL_VARIABLE = "LJTRAIN_LOG"
_said: set[str] = set()


def say(line: str, level: str = "info") -> None:
    """Writes the line to standard error on rank 0, once a process, where LJTRAIN_LOG lets its
    level through.
    """
    wanted = os.environ.get(LEVEL_VARIABLE, "info").lower()
    lowest = LEVELS.index(wanted) if wanted in LEVELS else LEVELS.index("info")
    if LEVELS.index(level) < lowest or os.environ.get("RANK", "0") != "0" or line in _said:
        return
    _said.add(line)
    sys.stderr.write(f"ljtrain: {line}\n")

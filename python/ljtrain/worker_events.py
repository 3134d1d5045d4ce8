"""Events to the launcher: one JSON object a line, on a pipe of this rank's own."""

from __future__ import annotations

import json
import os
import time
from typing import Any

EVENT_FD_VARIABLE = "LJTRAIN_EVENT_FD"
STANDARD_OUTPUT = 1


class EventWriter:
    """Writes events unbuffered, so that the launcher has all that happened before a crash."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.told: set[str] = set()  # the kinds of events so far

    @classmethod
    def from_environment(cls) -> EventWriter:
        """The launcher's pipe; standard output when somebody runs the worker by hand."""
        return cls(int(os.environ.get(EVENT_FD_VARIABLE, STANDARD_OUTPUT)))

    def emit(self, event: str, **fields: Any) -> None:
        self.told.add(event)
        record = {"event": event, "time": time.time(), **fields}
        data = (json.dumps(record) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def phase(self, name: str) -> None:
        """Says what this rank is about to do: the launcher's progress line until steps arrive."""
        self.emit("phase", name=name)

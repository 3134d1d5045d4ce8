"""The worker's configuration: WORKER.json as ljperf writes it, read and checked before torch is
imported.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
ENGINES = ("deepspeed", "fsdp", "ddp")
TASKS = ("causal-lm", "masked-lm")
DATA_KINDS = ("mock", "text", "jsonl")
STOCK_COMPILE = ("none", "full", "regional")
COLLECTIVES = ("real", "none")
INSTRUMENTATION = ("on", "off", "alternate")


class BadInput(Exception):
    """Something the user gave cannot be used; the message says what, where and how to mend it."""


class NonFiniteLoss(Exception):
    """The loss became NaN or infinite: the run has failed, however fast it was."""


@dataclass(frozen=True)
class WorkerConfig:
    """One run, as every rank sees it. Sizes are a rank's own: `micro_batch` sequences of `seq`
    tokens.
    """

    engine: str
    task: str
    model_config: dict[str, Any]
    seq: int
    micro_batch: int
    steps: int
    seed: int
    data: dict[str, Any]
    training_arguments: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] | None = None
    stock_compile: str = "none"
    compile: bool = False  # torch_compile=True as ljtrain does it
    recompute: bool = False  # gradient_checkpointing=True as ljtrain plans it
    allocator_library: str = ""  # what must serve malloc; empty: glibc, or whatever is there
    huge_pages: bool = False  # the kernel must give huge pages
    collectives: str = "real"  # none: they do nothing (worker_limit.py)
    instrumentation: str = "on"
    block_steps: int = 5
    gemm_peak: bool = False
    step_timeout_s: float = 300.0

    @property
    def gradient_accumulation_steps(self) -> int:
        return int(self.training_arguments.get("gradient_accumulation_steps", 1))


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")


def _whole_number(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def check(config: WorkerConfig) -> None:
    """Raises BadInput for the first impossible value."""
    _one_of("engine", config.engine, ENGINES)
    _one_of("task", config.task, TASKS)
    _one_of("stock_compile", config.stock_compile, STOCK_COMPILE)
    if config.compile and config.stock_compile != "none":
        raise BadInput("compile is true and stock_compile is set: give one of them.")
    _one_of("instrumentation", config.instrumentation, INSTRUMENTATION)
    _one_of("collectives", config.collectives, COLLECTIVES)
    _one_of("data.kind", config.data.get("kind"), DATA_KINDS)
    for name in ("seq", "micro_batch", "steps", "block_steps"):
        _whole_number(name, getattr(config, name), 1)
    accumulation = config.training_arguments.get("gradient_accumulation_steps", 1)
    _whole_number("gradient_accumulation_steps", accumulation, 1)
    _whole_number("seed", config.seed, 0)
    if config.seq < 2:
        raise BadInput("seq is 1; a sequence needs at least 2 tokens to have something to predict.")
    if not math.isfinite(config.step_timeout_s) or config.step_timeout_s <= 0:
        raise BadInput(f"step_timeout_s is {config.step_timeout_s!r}; it must be above 0.")
    if config.data["kind"] != "mock" and not config.data.get("file"):
        raise BadInput(f"data.kind is {config.data['kind']!r} but data.file is missing.")
    if config.engine == "deepspeed" and config.deepspeed is None:
        raise BadInput("engine is 'deepspeed' but the DeepSpeed configuration is null.")
    if config.engine != "deepspeed" and config.deepspeed is not None:
        raise BadInput(f"engine is {config.engine!r}, which takes no DeepSpeed configuration.")


def load(path: str) -> WorkerConfig:
    """Reads and checks WORKER.json; keys this version does not know are ignored (they may be
    newer).
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}.") from error
    version = document.pop("schema_version", None) if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{path}: schema_version is {version!r}; this worker reads {SCHEMA_VERSION}."
        )
    known = {key: document[key] for key in WorkerConfig.__dataclass_fields__ if key in document}
    try:
        config = WorkerConfig(**known)
    except TypeError as error:
        raise BadInput(f"{path}: {error}.") from error
    check(config)
    return config

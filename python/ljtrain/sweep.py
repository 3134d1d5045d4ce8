"""Measures what training steps take under every number of recomputed layers: `python -m
ljtrain.sweep JOBS.jsonl`, one job a line, one line of answer a job.

The process imports the stack once and forks the ranks of each job. A rank trains as
`ljtrain.worker` does and recomputes all layers first, then fewer, down to none, changing at step
boundaries. Where a job names limits, the same process then trains under each of them with ljtrain's
own choice, the allocator refusing what would pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before the first point: engine and optimizer have all that they will have.
WARM_UP = 2
# Steps of a point. ZeRO-3 records what it gathers in two steps and prefetches from the third on.
STEPS, STEPS_ZERO3 = 2, 4
STEPS_OF_A_LIMIT, STEPS_OF_A_LIMIT_ZERO3 = 6, 16
LOG_TAIL = 600
PR_SET_PDEATHSIG = 1  # linux/prctl.h
DEFAULT_DEADLINE_S = 600


@dataclass(frozen=True)
class Job:
    """One configuration. `limits`: shares of the way from the peak with all layers recomputed to
    that with none, each to be trained under.
    """

    id: str
    model: dict[str, Any]
    engine: str  # deepspeed, fsdp, ddp
    ranks: int
    seq: int
    micro_batch: int
    task: str = "causal-lm"
    deepspeed: dict[str, Any] | None = None
    compile: bool = False
    lora_rank: int = 0
    rounds: int = 1
    limits: list[float] = field(default_factory=list)
    deadline_s: float = DEFAULT_DEADLINE_S

    @property
    def zero3(self) -> bool:
        return bool(self.deepspeed) and self.deepspeed["zero_optimization"]["stage"] == 3  # type: ignore[index]

    @property
    def steps(self) -> int:
        return STEPS_ZERO3 if self.zero3 else STEPS

    @property
    def steps_of_a_limit(self) -> int:
        return STEPS_OF_A_LIMIT_ZERO3 if self.zero3 else STEPS_OF_A_LIMIT


def _memory_limits() -> dict[str, Any]:
    from ljtrain import _C

    limits: dict[str, Any] = _C.memory_limits()
    return limits


def _forget_resident_peak() -> None:
    """Lets VmHWM start again from what is resident (proc(5))."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class Rank:
    """What one rank measures; a callback of its Trainer drives it."""

    def __init__(self, job: Job, layers: int, report: Path | None) -> None:
        from ljtrain.recompute_memory import Memory

        self.job = job
        self.memory = Memory()
        self.result: dict[str, Any] = {"id": job.id, "layers": layers, "points": [], "cases": []}
        self._report = report
        self._count = layers
        self._plan = self._schedule()
        self._position = 0
        self._step: list[dict[str, float]] = []  # of the point under way
        self._controller: Any = None
        self._limit = 0.0
        self._refused = 0
        self._began = 0.0

    def _schedule(self) -> list[tuple[str, float]]:
        """(what, value) a step: "warm", "layers" k, "limit" share."""
        plan: list[tuple[str, float]] = [("warm", float(self._count))] * WARM_UP
        for _ in range(self.job.rounds):
            for recomputed in range(self._count, -1, -1):
                plan += [("layers", float(recomputed))] * self.job.steps
        for share in self.job.limits:
            plan += [("limit", share)] * self.job.steps_of_a_limit
        return plan

    @property
    def total_steps(self) -> int:
        return len(self._plan)

    # ---- by the Trainer's callback ----

    def begin(self, trainer: Any) -> None:
        from ljtrain import recompute, recompute_layers
        from ljtrain.recompute_agree import Ranks

        self._trainer = trainer
        self._layers = recompute_layers.find(trainer.model)
        if self._layers is None or len(self._layers) != self._count:
            raise RuntimeError("the model has no layers that can be told one by one")
        self._ranks = Ranks()
        self._training = recompute._training(trainer.args)
        self.result["parameters"] = sum(
            int(getattr(parameter, "ds_numel", parameter.numel()))
            for parameter in trainer.model.parameters()
        )
        self.result["prediction"] = self._predict()

    def _predict(self) -> dict[str, Any]:
        """What the memory model says of this very training."""
        from ljtrain import _recompute, recompute_describe

        self._training.knobs.setdefault(
            "leaf_layers", recompute_describe.leaf_layers(self._layers.modules)
        )
        try:
            description = recompute_describe.describe(
                self._trainer.model,
                self._count,
                self._training,
                self.job.micro_batch,
                self.job.seq,
            )
            model = _recompute.Model(json.dumps(description))
            return {
                "description": description,
                "peaks": model.peaks(),
                "static_bytes": model.predict(["none"] * self._count)["static_bytes"],
            }
        except (recompute_describe.NotDescribed, ValueError) as error:
            return {"error": str(error)}

    def begin_step(self) -> None:
        from ljtrain import recompute_layers
        from ljtrain.recompute_layers import Policy

        what, value = self._plan[self._position]
        first = self._position == 0 or self._plan[self._position - 1] != (what, value)
        if what == "limit":
            if first:
                self._begin_limit(value)
            self._controller.begin_step([(self.job.micro_batch, self.job.seq)])
        elif first:
            recompute_layers.set_policy(self._layers, Policy.first(self._count, int(value)))
        _forget_resident_peak()
        self.memory.reset_peak()
        self._static = self.memory.current()
        self._began = time.perf_counter()

    def end_step(self) -> None:
        seconds = time.perf_counter() - self._began
        what, value = self._plan[self._position]
        limits = _memory_limits()
        self._step.append(
            {
                "seconds": seconds,
                "peak_bytes": self.memory.peak(),
                "static_bytes": self._static,
                "resident_peak_bytes": float(limits["resident_peak_bytes"] or 0),
                "recomputed": value,
            }
        )
        if what == "limit":
            self._controller.end_step()
            self._step[-1]["recomputed"] = float(self._controller.policy.recomputed)
        self._position += 1
        over = self._position == len(self._plan) or self._plan[self._position] != (what, value)
        if over:
            self._end_of(what, value)
            self._step = []

    def _end_of(self, what: str, value: float) -> None:
        if what == "layers":
            self._point(int(value))
        elif what == "limit":
            self._case(value)
        if self._report is not None:
            self._report.write_text(json.dumps(self.result))

    # ---- points and cases ----

    def _agreed(self, *numbers: float) -> list[float]:
        """The largest over the ranks."""
        return self._ranks.largest(list(numbers))

    def _point(self, recomputed: int) -> None:
        last = self._step[-1]
        peak, static, resident = self._agreed(
            last["peak_bytes"], last["static_bytes"], last["resident_peak_bytes"]
        )
        seconds = [step["seconds"] for step in self._step[1:]]
        for point in self.result["points"]:
            if point["k"] == recomputed:
                point["seconds"] += seconds
                point["resident_peak_bytes"] = max(point["resident_peak_bytes"], int(resident))
                return
        self.result["points"].append(
            {
                "k": recomputed,
                "static_bytes": int(static),
                "peak_bytes": int(peak),
                "resident_peak_bytes": int(resident),
                "seconds": seconds,
            }
        )

    def _begin_limit(self, share: float) -> None:
        from ljtrain import recompute_memory
        from ljtrain.recompute_control import Controller

        peaks = {point["k"]: point["peak_bytes"] for point in self.result["points"]}
        low, high = peaks[self._count], peaks[0]
        self._limit = float(int(low + share * (high - low)))
        if self._controller is not None:
            self._controller.memory.release()
        os.environ[recompute_memory.VARIABLE] = str(int(self._limit))
        self._controller = Controller(
            self._trainer.model, self._layers, self._training, selected=False, memory=self.memory
        )
        self._controller.begin()
        self._refused = self._refusals()

    @staticmethod
    def _refusals() -> int:
        from ljtrain import _C

        return int(_C.allocator_statistics()["refused"])

    def _case(self, share: float) -> None:
        peaks = {point["k"]: point["peak_bytes"] for point in self.result["points"]}
        fitting = [k for k, peak in peaks.items() if peak <= self._limit]
        peak, refused = self._agreed(
            max(step["peak_bytes"] for step in self._step), self._refusals() - self._refused
        )
        chosen = [int(step["recomputed"]) for step in self._step]
        self.result["cases"].append(
            {
                "share": share,
                "limit_bytes": int(self._limit),
                "smallest": min(fitting, default=None),
                "chosen": chosen[-1],
                "by_step": chosen,
                "peak_bytes": int(peak),
                "refused": int(refused),
                "seconds": [
                    step["seconds"] for step in self._step if step["recomputed"] == chosen[-1]
                ],
            }
        )
        self._controller.memory.release()


# ---- one rank's training ----


def _worker_config(job: Job, steps: int, folder: str) -> Any:
    from ljtrain.worker_config import WorkerConfig

    return WorkerConfig(
        engine=job.engine,
        task=job.task,
        model_config=job.model,
        seq=job.seq,
        micro_batch=job.micro_batch,
        steps=steps,
        seed=7,
        data={"kind": "mock"},
        training_arguments={"output_dir": folder, "bf16": True, "gradient_checkpointing": True},
        deepspeed=job.deepspeed,
        compile=job.compile,
    )


def _train(job: Job, rank: Rank, folder: str) -> None:
    import torch
    from transformers import Trainer, TrainerCallback

    from ljtrain import extension, patches, worker_data, worker_model

    torch.set_num_threads(1)
    loaded = extension.load()
    if loaded is None:
        raise RuntimeError(f"nothing can be measured: {extension.why_not()}")
    loaded.allocator_install()
    config = _worker_config(job, rank.total_steps, folder)
    if job.engine == "fsdp":
        patches.FSDP2_ON_HOSTS.apply()
    model_config = worker_model.build_model_config(config)
    arguments = worker_model.build_training_arguments(config)
    vocabulary = worker_model.vocabulary_size(model_config)
    dataset = worker_data.build_dataset(config, vocabulary, arguments.world_size)
    model: Any = worker_model.build_model(config, model_config)
    if job.lora_rank:
        import peft

        adapters = peft.LoraConfig(r=job.lora_rank, target_modules="all-linear", lora_dropout=0.0)
        model = peft.get_peft_model(model, adapters)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)

    class Steps(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            rank.begin(trainer)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            rank.begin_step()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            rank.end_step()

    trainer.add_callback(Steps())
    del model
    gc.collect()
    trainer.train()


def _child(job: Job, number: int, port: int, folder: str) -> int:
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(job.ranks),
        LOCAL_WORLD_SIZE=str(job.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    # Not to outlive the process that waits for it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(f"{folder}/log.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        layers = job.model.get("num_hidden_layers") or job.model["n_layer"]
        report = Path(f"{folder}/result") if number == 0 else None
        _train(job, Rank(job, int(layers), report), folder)
        Path(f"{folder}/modules.{number}").write_text(json.dumps(sorted(sys.modules)))
        return 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1


# ---- the process that forks ----


def import_stack() -> None:
    """What the forked ranks will need; no tensor is computed, so that no thread pool starts."""
    import deepspeed  # noqa: F401
    import torch  # noqa: F401
    import transformers.integrations.deepspeed  # noqa: F401
    from transformers import Trainer  # noqa: F401

    from ljtrain import recompute, worker_data, worker_extensions, worker_model  # noqa: F401

    worker_extensions.build_shared_memory_operator()


def _import_too(folder: str) -> None:
    """What a rank had to import beside, so that the ranks of later jobs need not."""
    with contextlib.suppress(OSError, ValueError):
        for name in json.loads(Path(f"{folder}/modules.0").read_text()):
            # Compilers start threads when they are imported, which a fork would lose.
            if name not in sys.modules and not name.startswith(("ljtrain", "__", "torch._")):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(children: list[int], deadline_s: float) -> list[int]:
    """Exit statuses. When one fails or the deadline passes, the others are ended: they would wait
    for it inside a collective.
    """
    status: dict[int, int] = {}
    until = time.monotonic() + deadline_s
    while len(status) < len(children):
        for child in children:
            if child not in status:
                ended, code = os.waitpid(child, os.WNOHANG)
                if ended:
                    status[child] = os.waitstatus_to_exitcode(code)
        if any(status.values()) or time.monotonic() > until:
            for child in children:
                if child not in status:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    status[child] = -signal.SIGKILL
            break
        time.sleep(0.05)
    return [status[child] for child in children]


def measure(job: Job) -> dict[str, Any]:
    """The job's answer; with `error` where a rank failed, beside what was measured before."""
    port = _free_port()
    # What is imported is no garbage: collections in the ranks need not look at it (and copy it).
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number in range(job.ranks):
            child = os.fork()
            if child == 0:
                os._exit(_child(job, number, port, folder))
            children.append(child)
        status = _wait(children, job.deadline_s)
        result: dict[str, Any] = {"id": job.id, "points": [], "cases": []}
        with contextlib.suppress(OSError, ValueError):
            result = json.loads(Path(f"{folder}/result").read_text())
        if any(status):
            failed = next(
                (n for n, code in enumerate(status) if code not in (0, -signal.SIGKILL)),
                next(n for n, code in enumerate(status) if code),
            )
            log = Path(f"{folder}/log.{failed}").read_text(errors="replace").strip()
            last = log.splitlines()[-1] if log else f"ended with {status[failed]}"
            result["error"] = f"rank {failed}: {last}"
            sys.stderr.write(log[-20 * LOG_TAIL :] + "\n")
        else:
            _import_too(folder)
    return result


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m ljtrain.sweep JOBS.jsonl\n")
        return 2
    jobs = [Job(**json.loads(line)) for line in Path(arguments[0]).read_text().splitlines() if line]
    # Before torch is imported: threads that wait for each other on busy cores cost a hundredfold.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import_stack()
    for job in jobs:
        began = time.monotonic()
        answer = measure(job) | {"seconds": round(time.monotonic() - began, 1)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)

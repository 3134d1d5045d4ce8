"""Slows down training from below what the worker measures, to see that the time appears in the
right row.

Python imports this by itself in the ranks of one test. Optimizer steps are counted; each kind of
delay is on in its own range of steps, so that one run has slow steps of each kind and plain ones to
compare with. Collectives are slowed down in the CPU kernel of the c10d operator, below the
dispatcher key at which they are timed. For DDP, whose reducer waits for a future in C++, the work
completes late, in a thread of its own, as a slow network would make it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup, distributed_c10d
from torch.utils.data import dataloader

SECONDS = float(os.environ["TEST_DELAY_SECONDS"])
STEPS = {  # kind -> the slow steps, given as "data:4-8,collective:8-20-2,..." (first-end-stride)
    kind: range(*(int(bound) for bound in bounds.split("-")))
    for kind, bounds in (item.split(":") for item in os.environ["TEST_DELAY_STEPS"].split(","))
}
MANY_BYTES = 1024  # of gradients and parameters; scalars are not slowed down
step = 0
COLLECTIVES = int(os.environ["TEST_DELAY_COLLECTIVES"])  # so many in each slow step
slowed: Counter[tuple[str, int]] = Counter()


def slow(kind: str) -> bool:
    return step in STEPS[kind]


def slow_first(kind: str, times: int = 1) -> bool:
    """Whether to slow down now: the first times in each slow step."""
    if not slow(kind) or slowed[kind, step] == times:
        return False
    slowed[kind, step] += 1
    return True


fetch = dataloader._SingleProcessDataLoaderIter._next_data
optimizer_step = torch.optim.AdamW.step
scheduler_step = torch.optim.lr_scheduler.LambdaLR.step


def slow_fetch(self: Any) -> Any:
    # accelerate fetches one batch ahead, within the step before; still once a batch.
    if slow("data"):
        time.sleep(SECONDS)
    return fetch(self)


def slow_optimizer_step(self: Any, *arguments: Any, **named: Any) -> Any:
    if slow_first("optimizer"):  # DeepSpeed steps once for each group of parameters
        time.sleep(SECONDS)
    return optimizer_step(self, *arguments, **named)


def counting_scheduler_step(self: Any, *arguments: Any, **named: Any) -> Any:
    global step
    result = scheduler_step(self, *arguments, **named)
    step = self.last_epoch  # 0 after its constructor's own call
    return result


def late(work: Any) -> Any:
    """A work that completes SECONDS after `work` has."""
    future: torch.futures.Future[Any] = torch.futures.Future()

    def complete() -> None:
        work.wait()
        time.sleep(SECONDS)
        future.set_result(work.result())

    threading.Thread(target=complete).start()
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def backend_of(group: Any) -> Any:
    return ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))


def allreduce(tensors: list[torch.Tensor], group: Any, *_: Any) -> tuple[Any, Any]:
    # The operator's ReduceOp cannot be read from Python; DDP's gradients, the only use here, are
    # sums.
    work = backend_of(group).allreduce(tensors, distributed.AllreduceOptions())
    large = sum(tensor.nbytes for tensor in tensors) >= MANY_BYTES
    return tensors, (
        late(work) if large and slow_first("collective", COLLECTIVES) else work
    ).boxed()


def allgather_base(
    output: torch.Tensor, input: torch.Tensor, group: Any, *_: Any
) -> tuple[Any, Any]:
    if output.nbytes >= MANY_BYTES and slow_first("collective", COLLECTIVES):
        time.sleep(SECONDS)
    return output, backend_of(group)._allgather_base(output, input).boxed()


destroy = distributed.destroy_process_group


def telling_destroy(group: ProcessGroup | None = None) -> None:
    """Before the groups go: how long each waits for a rank, into the rank's log."""
    for one in distributed_c10d._world.pg_map:
        options = one._get_backend(torch.device("cpu")).options
        print(f"group timeout: {options._timeout.total_seconds():.0f} s")
    destroy(group)


KERNELS = {"allreduce_": allreduce, "_allgather_base_": allgather_base}

dataloader._SingleProcessDataLoaderIter._next_data = slow_fetch  # type: ignore[method-assign]
torch.optim.AdamW.step = slow_optimizer_step  # type: ignore[method-assign]
torch.optim.lr_scheduler.LambdaLR.step = counting_scheduler_step  # type: ignore[method-assign]
distributed.destroy_process_group = telling_destroy
library = torch.library.Library("c10d", "IMPL")
operator = os.environ["TEST_DELAY_OPERATOR"]
library.impl(operator, KERNELS[operator], "CPU", allow_override=True)

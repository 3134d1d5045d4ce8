"""Slows down training from below what the worker measures, to see that the time appears in the right row.

Python imports this by itself in the ranks of one test. Optimizer steps are counted; each kind of delay is on in its
own range of steps, so that one run has slow steps of each kind and plain ones to compare with. Collectives are slowed
down in the CPU kernel of the c10d operator, below the dispatcher key at which they are timed: the work completes late,
in a thread of its own, as a slow network would make it.
"""

import os
import threading
import time

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.utils.data import dataloader

SECONDS = float(os.environ["TEST_DELAY_SECONDS"])
STEPS = {  # kind -> [first, end) of the slow steps, given as "data:4-8,collective:8-12,..."
    kind: range(*(int(bound) for bound in bounds.split("-")))
    for kind, bounds in (item.split(":") for item in os.environ["TEST_DELAY_STEPS"].split(","))
}
MANY_BYTES = 1024  # of gradients and parameters; scalars are not slowed down
step = 0
slowed_in_step = -1


def slow(kind: str) -> bool:
    return step in STEPS[kind]


fetch = dataloader._SingleProcessDataLoaderIter._next_data
optimizer_step = torch.optim.AdamW.step


def slow_fetch(self):
    # accelerate fetches one batch ahead, within the step before; still once a batch.
    if slow("data"):
        time.sleep(SECONDS)
    return fetch(self)


def slow_optimizer_step(self, *arguments, **named):
    global step
    if slow("optimizer"):
        time.sleep(SECONDS)
    result = optimizer_step(self, *arguments, **named)
    step += 1
    return result


def slow_work(work, kind_bytes):
    """The work, or one that completes later if this is the step's first large one in a slow step."""
    global slowed_in_step
    if not slow("collective") or slowed_in_step == step or kind_bytes < MANY_BYTES:
        return work
    slowed_in_step = step
    future = torch.futures.Future()

    def complete():
        work.wait()
        time.sleep(SECONDS)
        future.set_result(work.result())

    began = threading.Thread(target=complete)
    began.start()
    return torch._C._distributed_c10d._create_work_from_future(future)


def backend_of(group):
    return ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))


def allreduce(tensors, group, reduce_op, sparse_indices, async_op=True, timeout=-1):
    # The operator's ReduceOp cannot be read from Python; DDP's gradients, the only use here, are sums.
    work = backend_of(group).allreduce(tensors, distributed.AllreduceOptions())
    return tensors, slow_work(work, sum(tensor.nbytes for tensor in tensors)).boxed()


def allgather_base(output, input, group, async_op=True, timeout=-1):
    work = backend_of(group)._allgather_base(output, input)
    return output, slow_work(work, output.nbytes).boxed()


KERNELS = {"allreduce_": allreduce, "_allgather_base_": allgather_base}

dataloader._SingleProcessDataLoaderIter._next_data = slow_fetch
torch.optim.AdamW.step = slow_optimizer_step
library = torch.library.Library("c10d", "IMPL")
operator = os.environ["TEST_DELAY_OPERATOR"]
library.impl(operator, KERNELS[operator], "CPU", allow_override=True)

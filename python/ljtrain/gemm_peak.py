"""What this machine's matrix multiplication reaches: the denominator of MFU on hosts, where no data
sheet has it.

All ranks measure at once, after a barrier, as training uses them: cores that share caches, memory
and a clock limit reach less together than one alone.
"""

from __future__ import annotations

import time
from typing import Any

import torch

BUDGET_S = 1.2  # the best of as many repetitions as fit; the call ends within 2 s
HOST_SIZES = (512, 1024, 2048, 4096)
DEVICE_SIZE = 8192
SLOWEST_REPETITION_S = 0.25


def _seconds(
    size: int, device: torch.device, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> float:
    began = time.perf_counter()
    torch.mm(a, b, out=out)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The `gemm_peak` event's fields: flops_per_s of the best square `torch.mm` in the type that
    the run computes in, counting 2 n^3 for size n.
    """
    sizes = HOST_SIZES if device.type == "cpu" else (DEVICE_SIZE,)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    best = 0.0
    best_size = sizes[0]
    deadline = time.perf_counter() + BUDGET_S
    for index, size in enumerate(sizes):
        a = torch.randn((size, size), dtype=torch.float32).to(device, dtype)
        b, out = a.t().contiguous(), torch.empty_like(a)
        slowest = _seconds(
            size, device, a, b, out
        )  # the first call also packs weights and wakes threads
        share = (deadline - time.perf_counter()) / (len(sizes) - index)
        until = time.perf_counter() + share
        while time.perf_counter() < until:
            rate = 2.0 * size**3 / _seconds(size, device, a, b, out)
            if rate > best:
                best, best_size = rate, size
        if slowest * 8 > SLOWEST_REPETITION_S:
            break
    return {
        "flops_per_s": best,
        "dtype": str(dtype).removeprefix("torch."),
        "size": best_size,
        "threads": torch.get_num_threads(),
    }

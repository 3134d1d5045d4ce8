"""How much memory this rank's tensors take, how much they may, and what else the rank takes."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import Any

import torch

from ljtrain import extension
from ljtrain.recompute_describe import local_ranks
from ljtrain.worker_config import BadInput

VARIABLE = "LJTRAIN_MEMORY_LIMIT"
# Kept free of a host's memory or cgroup, and of a device's: for what no tensor holds, and for what
# is there only for a moment.
HOST_RESERVE, DEVICE_RESERVE = 0.10, 0.05
LEFT_RESERVE = 0.05  # of what is left at the moment
TENSORS, RESIDENT, DEVICE = "tensors", "resident", "device"


@dataclass(frozen=True)
class Limit:
    """Bytes that this rank may use, of what (`TENSORS`: as PyTorch's allocator counts them;
    `RESIDENT`: the process's pages; `DEVICE`: the device's memory), and who said so.
    """

    bytes: float
    of: str
    source: str


def shown(size: float) -> str:
    from ljtrain import _recompute

    return str(_recompute.format_bytes(float(size)))


def given_limit() -> float | None:
    """LJTRAIN_MEMORY_LIMIT in bytes; raises BadInput where it is no size."""
    from ljtrain import _recompute

    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        size = float(_recompute.parse_bytes(text))
    except ValueError as error:
        raise BadInput(f"{VARIABLE}={text}: {error}") from error
    if size <= 0:
        raise BadInput(f"{VARIABLE}={text}: a rank needs memory; write a size such as 20GiB")
    return size


def find_limit() -> Limit:
    given = given_limit()
    if torch.cuda.is_available():
        total = float(torch.cuda.mem_get_info()[1])
        if given is not None and given < total:
            return Limit(given, DEVICE, VARIABLE)
        return Limit((1 - DEVICE_RESERVE) * total, DEVICE, "the device less 5 %")
    if given is not None:
        return Limit(given, TENSORS, VARIABLE)
    total, source = _host_memory()
    ranks = local_ranks()
    shared = f" for each of {ranks} ranks" if ranks > 1 else ""
    return Limit((1 - HOST_RESERVE) * total / ranks, RESIDENT, f"{source} less 10 %{shared}")


def _host() -> dict[str, Any]:
    """What the kernel says of the host, the control group and this process."""
    loaded = extension.load()
    return loaded.memory_limits() if loaded is not None else {}


def _host_memory() -> tuple[float, str]:
    """(bytes, where from): the tightest control group's, or the host's."""
    found = _host()
    group, total = found.get("cgroup_limit_bytes"), found.get("host_bytes")
    if group is not None and (total is None or group < total):
        return float(group), "the control group's limit"
    if total is None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(total), "the host's memory"


def _tensor_bytes() -> float:
    """Of the storages that are alive and were not counted from the start."""
    sizes: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu":
            try:
                storage = item.untyped_storage()
            except (RuntimeError, NotImplementedError):  # fake and sparse tensors
                continue
            sizes[storage.data_ptr()] = storage.nbytes()
    return float(sum(sizes.values()))


class Memory:
    """This rank's tensors: on hosts by the allocator of `ljtrain._C`, on devices by PyTorch's."""

    def __init__(self) -> None:
        self.on_device = torch.cuda.is_available()
        self._extension: Any = None if self.on_device else extension.load()
        self._uncounted = 0.0

    @property
    def measures(self) -> bool:
        return self.on_device or self._extension is not None

    def install(self) -> None:
        """Counts from now on, and what is there already."""
        if self._extension is None or self._extension.allocator_statistics()["allocations"]:
            return
        self._uncounted = _tensor_bytes()
        self._extension.allocator_install()

    def reset_peak(self) -> None:
        if self.on_device:
            torch.cuda.reset_peak_memory_stats()
        elif self._extension is not None:
            self._extension.allocator_reset_peak()

    def peak(self) -> float:
        if self.on_device:
            return float(torch.cuda.max_memory_allocated())
        if self._extension is None:
            return 0.0
        return float(self._extension.allocator_statistics()["peak_bytes"]) + self._uncounted

    def current(self) -> float:
        if self.on_device:
            return float(torch.cuda.memory_allocated())
        if self._extension is None:
            return 0.0
        return float(self._extension.allocator_statistics()["current_bytes"]) + self._uncounted

    def overhead(self, limit: Limit) -> float:
        """What counts against the limit beside tensors, now: pages of code, libraries and
        allocators; on devices contexts, and what the caching allocator holds unused.
        """
        if limit.of == RESIDENT:
            return max(0.0, float(_host().get("resident_bytes") or 0) - self.current())
        if limit.of == DEVICE:
            free, total = torch.cuda.mem_get_info()
            others = total - free - torch.cuda.memory_reserved()
            unused = torch.cuda.max_memory_reserved() - torch.cuda.max_memory_allocated()
            return float(max(0, others) + max(0, unused))
        return 0.0

    def room(self, limit: Limit, overhead: float) -> float:
        """What tensors may take: the limit without `overhead`, and no more than what is left of the
        host or control group, which others use as well.
        """
        room = limit.bytes - overhead
        if limit.of != RESIDENT:
            return room
        found = _host()
        left = [found.get("cgroup_left_bytes"), found.get("available_bytes")]
        known = [float(size) for size in left if size is not None]
        if not known:
            return room
        return min(room, self.current() + (1 - LEFT_RESERVE) * min(known) / local_ranks())

    def enforce(self, limit: Limit) -> None:
        """Has the allocator refuse what would pass a limit on tensors."""
        setter = getattr(self._extension, "allocator_set_limit", None)
        if limit.of == TENSORS and setter is not None:
            setter(int(limit.bytes - self._uncounted))

    def release(self) -> None:
        setter = getattr(self._extension, "allocator_set_limit", None)
        if setter is not None:
            setter(None)

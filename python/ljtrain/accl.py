"""The c10d backend `accl`, and what `LJTRAIN_ACCL=1` does with it.

`import ljtrain.accl` registers the backend, so that `init_process_group("accl")` and "cpu:accl"
work. `LJTRAIN_ACCL=1` also puts it behind the name gloo: every CPU group that asks for Gloo, or for
nothing, is then served by ACCL, and keeps the name that programs compare with. Ranks that do not
share a host get the real Gloo.
"""

from __future__ import annotations

import atexit
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch.distributed import distributed_c10d

from ljtrain import announce, extension, patches
from ljtrain.import_hook import ImportHook

NAME = "accl"
Gloo: Any = getattr(distributed_c10d, "ProcessGroupGloo", None)  # PyTorch's own, if it has one
_exit_is_watched = False
_left_to_gloo: list[dict[str, Any]] = []


def _extension() -> ModuleType:
    """The compiled part, which also ends its threads before the interpreter ends."""
    global _exit_is_watched
    module = extension.load()
    if module is None:
        raise RuntimeError(f"the backend accl cannot be used: {extension.why_not()}")
    if not _exit_is_watched:
        atexit.register(module.accl_at_exit)
        _exit_is_watched = True
    return module


def create(options: Any, backend_options: Any = None) -> Any:
    """What PyTorch calls for the backend `accl` (the extended form of register_backend)."""
    timeout = getattr(options, "timeout", None)
    backend = _extension().accl_create(
        options.store,
        options.group_rank,
        options.group_size,
        backend_options._timeout if backend_options is not None else timeout,
        name=options.group_id,
    )
    backend.options.global_ranks_in_group = options.global_ranks_in_group
    return backend


def register() -> None:
    """Makes the name known to PyTorch; safe to call twice."""
    patches.UNCOUNTED_PLUGIN.apply()
    if NAME.upper() not in distributed_c10d.Backend._plugins:
        distributed_c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


# ---- behind the name gloo ----


class _GlooOrAccl(type(Gloo) if Gloo is not None else type):  # type: ignore[misc]
    """The type of the class that stands where PyTorch looks for ProcessGroupGloo: making one makes
    the backend that can serve the group, and both pass for it.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        if cls is not patches.STAND_IN.get("gloo"):
            return False
        return isinstance(instance, Gloo) or getattr(instance, "stands_for_gloo", False) is True

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not patches.STAND_IN.get("gloo"):
            return super().__call__(*args, **kwargs)
        return _serve(*args, **kwargs)


def _serve(
    store: Any,
    rank: int,
    size: int,
    timeout: Any = distributed_c10d.default_pg_timeout,
    *,
    options: Any = None,
) -> Any:
    """ProcessGroupGloo's arguments: a timeout, or options that hold one."""
    if not isinstance(timeout, timedelta):
        options = timeout
    group_timeout = options._timeout if options is not None else timeout
    module = _extension()
    try:
        backend = module.accl_create(store, rank, size, group_timeout, stands_for_gloo=True)
    except module.ElsewhereError as reason:
        _left_to_gloo.append({"backend": "gloo", "rank": rank, "ranks": size, "why": str(reason)})
        if rank == 0:
            announce.say(f"accl leaves a group of {size} ranks to Gloo: {reason}.")
        return Gloo(store, rank, size, options if options is not None else timeout)
    if options is not None:
        backend.options.global_ranks_in_group = options.global_ranks_in_group
        backend.options.group_name = options.group_name
    if rank == 0:
        announce.say("accl serves the CPU groups of this run instead of Gloo, by shared memory.")
    return backend


def _stand_in() -> type:
    return _GlooOrAccl(
        Gloo.__name__, (Gloo,), {"__doc__": Gloo.__doc__, "__module__": Gloo.__module__}
    )


def activate() -> None:
    """LJTRAIN_ACCL=1."""
    from ljtrain import autoload

    register()
    if Gloo is not None:
        stand_in = _stand_in()
        patches.GLOO_IN_C10D.apply(stand_in)
        patches.GLOO_IN_DISTRIBUTED.apply(stand_in)
    hook = ImportHook(autoload._remember)
    hook.after_import("deepspeed.comm.torch", lambda _: patches.DEEPSPEED_SHARED_MEMORY.apply())


# ---- what it has done ----


def report() -> dict[str, Any]:
    """Every group of this process that ACCL has served, and those that Gloo serves although ACCL
    was asked.
    """
    module = extension.load()
    return {
        "groups": module.accl_reports() if module is not None else [],
        "left_to_gloo": list(_left_to_gloo),
    }


def is_served(group: torch.distributed.ProcessGroup | None = None) -> bool:
    """Whether ACCL serves the CPU tensors of a group (default: the world)."""
    module = extension.load()
    if module is None:
        return False
    group = group or distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)
    return isinstance(backend, module.ProcessGroupAccl)


register()

"""DeepSpeed's just-in-time operator, built once and never waited for in vain.

DeepSpeed compiles `deepspeed_shm_comm` (its shared-memory all-reduce) when a host process first
sets up communication, whatever DS_BUILD_OPS says: about a minute, once a machine. PyTorch guards
such a build with a plain lock file, which a killed process leaves behind, and then every later
process waits for it for ever. Here ranks take a kernel lock (freed with its process, however that
ends) before they let DeepSpeed build, in a folder that only ljtrain uses, so a lock file found
there is a dead one and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path

EXTENSIONS_VARIABLE = "TORCH_EXTENSIONS_DIR"
LOCK_NAME = "lock"  # torch.utils.cpp_extension's


def _folder() -> Path:
    """One for each PyTorch and Python, as an operator built for one does not load in another."""
    import torch

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        cache
        / "ljtrain"
        / "torch_extensions"
        / f"{torch.__version__}-{sys.implementation.cache_tag}"
    )


def build_shared_memory_operator() -> None:
    """Builds or loads the operator that DeepSpeed would build anyway; on any doubt leaves it to
    DeepSpeed.
    """
    from ljtrain import autoload

    if "accl" in autoload.active:
        return  # DeepSpeed will not ask for it: see patches.DEEPSPEED_SHARED_MEMORY
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import __compatible_ops__

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not __compatible_ops__.get(builder.NAME, False):
        return
    if EXTENSIONS_VARIABLE not in os.environ:
        os.environ[EXTENSIONS_VARIABLE] = str(_folder())
        stale_lock_possible = True
    else:
        stale_lock_possible = False  # the user's folder may be in use by other programs
    if shutil.which("ninja") is None:
        _put_ninja_on_path()
    folder = Path(os.environ[EXTENSIONS_VARIABLE])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ljtrain.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stale_lock_possible:
            with contextlib.suppress(FileNotFoundError):
                (folder / builder.NAME / LOCK_NAME).unlink()
        builder.load(verbose=False)


def _put_ninja_on_path() -> None:
    """The PyPI package `ninja` keeps its program beside the interpreter, where PATH need not
    point.
    """
    beside = Path(sys.executable).parent
    if (beside / "ninja").exists():
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"

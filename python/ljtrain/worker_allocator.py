"""What serves malloc in this process, and whether the kernel backs it with huge pages: proof that
the switches of `ljperf benchmark --allocator` and `--huge-pages` took effect.
"""

from __future__ import annotations

import ctypes
import os

from ljtrain.worker_config import BadInput

# As large as a weight of a real model: no allocator serves it from what it holds already.
PROBE_BYTES = 64 << 20


def malloc_library() -> str | None:
    """The file whose code a call of malloc runs; None where there is no /proc."""
    address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                low, high = (int(end, 16) for end in fields[0].split("-"))
                if low <= address < high:
                    return fields[5].strip() if len(fields) > 5 else None
    except OSError:
        pass
    return None


def huge_page_bytes() -> int | None:
    """What of this process lies in transparent huge pages now; None where the kernel does not
    say.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
            for line in rollup:
                if line.startswith("AnonHugePages:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def require(library: str, *, huge_pages: bool) -> None:
    """Raises BadInput where `library` (a path, or empty) does not serve malloc, or where huge pages
    are asked for and the kernel gives none.
    """
    if library:
        found = malloc_library()
        if found is None or os.path.realpath(found) != os.path.realpath(library):
            raise BadInput(
                f"--allocator: malloc is served by {found or 'an unknown library'}, not by "
                f"{library}; does this Python drop LD_PRELOAD, or is the library for another "
                "architecture?"
            )
    if huge_pages:
        _require_huge_pages()


def _require_huge_pages() -> None:
    import torch

    before = huge_page_bytes()
    if before is None:
        return  # nothing to judge by; the record says null
    probe = torch.ones(PROBE_BYTES // 4, dtype=torch.float32)
    gained = (huge_page_bytes() or 0) - before
    del probe
    if gained <= 0:
        raise BadInput(
            "--huge-pages: the kernel gave none for 64 MiB; is its memory fragmented, or does this "
            "allocator not ask for them? Leave the switch out, or choose another --allocator"
        )

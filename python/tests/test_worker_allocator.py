"""The proof that a preloaded malloc and huge pages took effect, in processes of their own."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PACKAGE_ROOT

CHECK = """
import sys
from ljtrain import worker_allocator
from ljtrain.worker_config import BadInput
try:
    worker_allocator.require(sys.argv[1], huge_pages=sys.argv[2] == "huge")
except BadInput as error:
    print(error)
else:
    print("served by", worker_allocator.malloc_library())
"""


def check(library: str, pages: str = "", **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", CHECK, library, pages],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def installed(name: str) -> str:
    folders = [Path(f"/usr/lib/{os.uname().machine}-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        if (folder / name).exists():
            return str(folder / name)
    pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_a_preloaded_library_serves_malloc(name: str) -> None:
    library = installed(name)
    assert f"served by {os.path.realpath(library)}" in check(library, LD_PRELOAD=library)


def test_a_library_that_was_not_preloaded_is_noticed() -> None:
    library = installed("libjemalloc.so.2")
    answer = check(library, LD_PRELOAD="")
    assert answer.startswith("--allocator: malloc is served by ")
    assert "libc.so.6, not by " + library in answer


def test_what_is_loaded_but_serves_no_malloc_is_noticed() -> None:
    # A library that is mapped, as one with an unexpected prefix in its names would be.
    name = ctypes.util.find_library("z")
    if name is None:
        pytest.skip("no libz")
    library = installed(name)
    assert "malloc is served by" in check(library, LD_PRELOAD=library)
    assert "not by " + library in check(library, LD_PRELOAD=library)


def test_huge_pages_that_nobody_asks_the_kernel_for_are_noticed() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("the kernel gives huge pages to all or to none")
    assert check("", "huge").startswith("--huge-pages: the kernel gave none")


def test_huge_pages_by_glibcs_own_switch() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this kernel gives none")
    answer = check("", "huge", GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    assert answer.startswith("served by")

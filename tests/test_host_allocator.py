"""`ljperf benchmark --allocator`, `--huge-pages`, `--with stack`: what reaches the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Ljperf


def variables(ljperf: Ljperf, config: Path, *options: str) -> dict[str, str | None]:
    words = ("benchmark", "--model", "ddp", "--config", str(config), "--dry-run", "--json")
    done = ljperf(*words, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["environment"]


def test_the_base_stack_has_glibcs_malloc(ljperf: Ljperf, tiny_config: Path) -> None:
    found = variables(ljperf, tiny_config)
    assert not {"LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES"} & set(found)


@pytest.mark.parametrize("options", [(), ("--no-huge-pages",), ("--allocator", "glibc")])
def test_with_stack(ljperf: Ljperf, tiny_config: Path, options: tuple[str, ...]) -> None:
    found = variables(ljperf, tiny_config, "--with", "stack", *options)
    assert ("libjemalloc" in (found.get("LD_PRELOAD") or "")) == ("glibc" not in options)
    if "glibc" in options:
        assert "hugetlb=1" in str(found["GLIBC_TUNABLES"])
    else:
        assert ("thp:always" in str(found["MALLOC_CONF"])) == ("--no-huge-pages" not in options)

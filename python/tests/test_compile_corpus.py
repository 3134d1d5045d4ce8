"""Constructs that break graphs, each in a checkpointed layer under ZeRO-3: the loss of eager, the
lines that run eagerly as listed, everything else compiled.
"""

from __future__ import annotations

from typing import Any

import compile_corpus
import pytest
from test_compile_training import run_cases, trained

LENGTHS = [16, 16]


def cases(names: tuple[str, ...], backend: str) -> list[dict[str, Any]]:
    return [{"construct": name, "backend": backend, "lengths": LENGTHS} for name in names]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("corpus"), cases(compile_corpus.FAST, "aot_eager"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = tuple(compile_corpus.CONSTRUCTS)
    return run_cases(tmp_path_factory.mktemp("corpus"), cases(names, "inductor"))


def check(results: dict[str, Any], name: str) -> None:
    training = trained(results, name)
    assert training["not_compiled"] == []
    assert training["compiled_too"] == []


@pytest.mark.parametrize("name", compile_corpus.FAST)
def test_a_construct_costs_no_more_than_its_lines(quick: dict[str, Any], name: str) -> None:
    check(quick, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", compile_corpus.CONSTRUCTS)
def test_every_construct_with_inductor(complete: dict[str, Any], name: str) -> None:
    check(complete, name)


def test_the_corpus_is_large_enough() -> None:
    assert len(compile_corpus.CONSTRUCTS) >= 50
    assert len(compile_corpus.FAST) == 10

"""The check that ljperf runs before it starts anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ljtrain import argument_types, preflight
from ranks import PACKAGE_ROOT

LIMIT_S = 0.5


def ask(request: dict[str, Any] | str, *path: Path) -> tuple[dict[str, Any], int, float]:
    python_path = os.pathsep.join(map(str, [*path, PACKAGE_ROOT]))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ljtrain.preflight"],
        input=request if isinstance(request, str) else json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": python_path},
    )
    return json.loads(done.stdout), done.returncode, time.perf_counter() - began


def test_a_good_request_is_answered_quickly() -> None:
    request = {
        "engine": "deepspeed",
        "training_arguments": {
            "learning_rate": 1,
            "bf16": True,
            "optim": "adamw_torch_fused",
            "deepspeed": None,
        },
        "tokenizer": None,
    }
    answers = [ask(request) for _ in range(3)]
    answer, status, _ = answers[0]
    assert answer["problems"] == []
    assert answer["ok"] is True
    assert status == 0
    assert answer["torch_build"] in ("cpu", "cuda", "rocm", "xpu")
    assert set(answer["versions"]) == {"torch", "transformers", "deepspeed", "accelerate", "numpy"}
    assert min(seconds for _, _, seconds in answers) < LIMIT_S


def test_the_names_are_those_of_the_class() -> None:
    """The reading of the source agrees with the class itself."""
    import dataclasses

    from transformers import TrainingArguments

    real = {item.name for item in dataclasses.fields(TrainingArguments)}
    assert set(argument_types.training_argument_types()) == real


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"learning_rat": 1e-3}, "no 'learning_rat'; did you mean learning_rate"),
        ({"bf16": "yes"}, 'bf16 takes bool; "yes" is not one'),
        ({"max_steps": 1.5}, "max_steps takes int; 1.5 is not one"),
        ({"max_steps": True}, "max_steps takes int; true is not one"),
        ({"learning_rate": "fast"}, 'learning_rate takes float; "fast" is not one'),
        ({"optim": ["adamw"]}, "optim takes"),
        ({"run_name": {"a": 1}}, 'run_name takes str | None; {"a": 1} is not one'),
        ({"fsdp_config": 3}, "fsdp_config takes dict[str, Any] | str | None; 3 is not one"),
    ],
)
def test_bad_arguments_are_one_sentence_each(arguments: dict[str, Any], expected: str) -> None:
    problems = preflight.check({"engine": "ddp", "training_arguments": arguments})["problems"]
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"warmup_steps": 0},
        {"warmup_steps": 0.1},
        {"lr_scheduler_type": "cosine"},
        {"fsdp_config": {"version": 2}},
        {"report_to": ["none"]},
        {"ddp_bucket_cap_mb": None},
        {"torch_compile": True},
        {"run_name": 2024},
        {"run_name": 1.5},
        {"project": True},
        {"trackio_static_space_id": False},
    ],
)
def test_good_arguments_are_no_problem(arguments: dict[str, Any]) -> None:
    assert preflight.check({"engine": "ddp", "training_arguments": arguments})["problems"] == []


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (2024, "str | None", "2024"),
        (1.5, "str", "1.5"),
        (True, "str", "true"),
        (True, "str | bool", True),
        (None, "str | None", None),
        (False, "str | None | Literal[False]", False),
        (3, "int", 3),
        (3, "SchedulerType | str", 3),
        (3, "Any", 3),
    ],
)
def test_a_scalar_becomes_text_where_text_is_taken(
    value: Any, annotation: str, expected: Any
) -> None:
    assert argument_types.as_text_where_text(value, annotation) == expected


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys; from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'deepspeed': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    answer, _, _ = ask({"engine": "deepspeed"}, tmp_path)
    assert answer["ok"] is False
    (problem,) = answer["problems"]
    assert problem.startswith("deepspeed is not installed in ")
    assert "--no-build-isolation deepspeed==" in problem
    answer, _, _ = ask({"engine": "fsdp"}, tmp_path)
    assert answer["problems"] == []


def test_a_tokenizer_must_be_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert (
        "is not a directory"
        in preflight.check({"engine": "ddp", "tokenizer": missing})["problems"][0]
    )
    assert (
        "holds no tokenizer"
        in preflight.check({"engine": "ddp", "tokenizer": str(tmp_path)})["problems"][0]
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    assert preflight.check({"engine": "ddp", "tokenizer": str(tmp_path)})["problems"] == []


def test_unknown_engine_and_malformed_request() -> None:
    assert "engine is 'megatron'" in preflight.check({"engine": "megatron"})["problems"][0]
    answer, status, _ = ask("{")
    assert answer["ok"] is False
    assert status == 2

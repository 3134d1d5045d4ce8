"""The schema of records, and the validator built into ljtrain, against PyPI's jsonschema.

Both must give the same verdict on sample records and on many documents made from them by one to
three random changes. The sample records come from cnp_record_tool, a program of the C++ tests;
those of a real run are checked wherever tests run ljperf.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

REPOSITORY = Path(__file__).resolve().parent.parent
SCHEMA = json.loads((REPOSITORY / "cnp/schema/record.schema.json").read_text())
MUTANTS = 1500
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 4, 1.0, 1.5, -0.5, 1e300, 2**53, 2**63, 2**70, -(2**63)),
    *("", "text", "run", "auto", "completed", "failed", "mock"),
    *([], [1], [1, 2], [1, 2, 3], ["a"], {}, {"a": 1}),
]


@pytest.fixture(scope="session")
def tool() -> Path:
    named = os.environ.get("CNP_RECORD_TOOL")
    built = [Path(named)] if named else list(REPOSITORY.glob("build/*/cnp/cnp_record_tool"))
    assert built, "cnp_record_tool is missing: build the release preset with CMake first"
    return max(built, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="session")
def samples(tool: Path) -> list[dict[str, Any]]:
    lines = subprocess.run([tool, "samples"], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def verdicts(tool: Path, documents: list[Any]) -> list[str]:
    """What the C++ validator says of each document: "ok", or what is wrong."""
    text = "".join(json.dumps(document) + "\n" for document in documents)
    done = subprocess.run(
        [tool, "validate"], input=text, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in items]
    for _, member in items:
        if isinstance(member, (dict, list)):
            found += places(member)
    return found


def mutant(document: Any, chance: random.Random) -> Any:
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        where = places(document)
        if not where:
            break
        container, key = chance.choice(where)
        action = chance.randrange(4)
        if action == 0:
            del container[key]
        elif action == 1 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif action == 1:
            container["unknown key"] = copy.deepcopy(chance.choice(ODD_VALUES))
        else:
            container[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return document


def test_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_samples_are_valid(tool: Path, samples: list[dict[str, Any]]) -> None:
    statuses = [sample["status"] for sample in samples]
    assert statuses == ["completed", "completed", "interrupted", "failed"]
    for sample in samples:
        Draft202012Validator(SCHEMA).validate(sample)
    assert verdicts(tool, samples) == ["ok"] * len(samples)


def test_validators_agree(tool: Path, samples: list[dict[str, Any]]) -> None:
    chance = random.Random(20261130)
    mutants = [mutant(chance.choice(samples), chance) for _ in range(MUTANTS)]
    mutants += copy.deepcopy(ODD_VALUES)
    reference = Draft202012Validator(SCHEMA)
    expected = [reference.is_valid(document) for document in mutants]
    found = verdicts(tool, mutants)
    assert len(found) == len(mutants)
    # The changes must be of both kinds, or agreement would mean little.
    assert 0.1 < sum(expected) / len(expected) < 0.9
    for document, valid, verdict in zip(mutants, expected, found, strict=True):
        if valid != (verdict == "ok"):
            errors = [(e.json_path, e.message[:100]) for e in reference.iter_errors(document)]
            pytest.fail(f"C++: {verdict}; jsonschema: {errors}")


def test_every_key_of_the_design_is_required() -> None:
    keys = """record_id model engine proxy ranks step_time_s tokens_per_s tokens_per_s_per_rank
        model_tflops_per_rank flops_convention mfu hfu peak_memory_bytes breakdown_s loss components
        recompute compile environment"""
    assert set(keys.split()) <= set(SCHEMA["required"])
    parts = {
        "proxy": "is_proxy rule layers hidden_size",
        "step_time": "median p05 p95 ci95 all",
        "peak_memory": "max per_rank",
        "breakdown": "data forward backward communication_exposed optimizer other",
        "components": "accl compile recompute",
        "recompute": "layers of predicted_peak_bytes measured_peak_bytes",
        "compile": "graphs graph_breaks recompilations seconds",
    }
    for part, names in parts.items():
        assert set(names.split()) <= set(SCHEMA["$defs"][part]["required"]), part


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_0-9.]+)`", (REPOSITORY / "docs/records.md").read_text()))
    documented |= {part for name in documented for part in name.split(".")}
    keys = set(SCHEMA["properties"])
    for part in SCHEMA["$defs"].values():
        keys |= set(part.get("properties", {}))
    assert keys - documented == set()


def test_writers_at_once_and_killed(tool: Path, tmp_path: Path) -> None:
    """Eight processes write; half of them are killed on the way: every .json file is whole."""
    each = 200
    writers = [subprocess.Popen([tool, "write", str(tmp_path), str(each)]) for _ in range(8)]
    while not any(tmp_path.glob("*.json")):
        time.sleep(0.005)
    for writer in writers[:4]:
        writer.send_signal(signal.SIGKILL)
    codes = [writer.wait(timeout=60) for writer in writers]
    assert codes == [-signal.SIGKILL] * 4 + [0] * 4
    files = list(tmp_path.glob("*.json"))
    assert len(files) >= 4 * each
    for file in files:
        record = json.loads(file.read_text())
        assert record["record_id"] == file.stem
    Draft202012Validator(SCHEMA).validate(json.loads(files[0].read_text()))

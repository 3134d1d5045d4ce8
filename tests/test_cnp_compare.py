"""cnp compare and cnp gate, end to end, on records made from a sample."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
NOISE = [1.002, 0.998, 1.004, 0.996, 1.001, 0.999, 1.003, 0.997]


@pytest.fixture(scope="session")
def sample() -> dict[str, Any]:
    """A full record: a proxy, two ranks, two runs."""
    named = os.environ.get("CNP_RECORD_TOOL")
    built = [Path(named)] if named else list(REPOSITORY.glob("build/*/cnp/cnp_record_tool"))
    assert built, "cnp_record_tool is missing: build the release preset with CMake first"
    tool = max(built, key=lambda path: path.stat().st_mtime)
    lines = subprocess.run([tool, "samples"], capture_output=True, text=True, check=True).stdout
    record: dict[str, Any] = json.loads(lines.splitlines()[0])
    return record


class Cnp:
    """Runs cnp on a folder of records of its own."""

    def __init__(self, folder: Path, sample: dict[str, Any]) -> None:
        self.folder = folder
        self.sample = sample
        self.made = 0

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sysconfig.get_path("scripts")) / "cnp", *arguments],
            env={**os.environ, "LJTRAIN_RECORDS": str(self.folder), "TERM": "dumb"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def json(self, *arguments: str) -> dict[str, Any]:
        result = self(*arguments, "--json")
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def make(self, medians: list[float], hour: int, minute: int = 0, **changes: Any) -> str:
        """A record with one run a median; returns its file."""
        record = copy.deepcopy(self.sample)
        self.made += 1
        record["record_id"] = f"20261201T{hour:02}{minute:02}00Z-llama3-8b-{self.made:08x}"
        record["created"] = f"2026-12-01T{hour:02}:{minute:02}:00Z"
        run = record["runs"][0]
        record["runs"] = [{**copy.deepcopy(run), "median_s": median} for median in medians]
        record.update(changes)
        file = self.folder / f"{record['record_id']}.json"
        file.write_text(json.dumps(record))
        return str(file)

    def in_turns(self, factor: float, count: int = 6) -> tuple[str, str]:
        """Two sides whose records took turns while the machine became 5 % slower."""
        sides: tuple[list[str], list[str]] = ([], [])
        for i in range(2 * count):
            second = i % 4 in (1, 2)
            seconds = NOISE[i % len(NOISE)] * (1 + 0.05 * i / count) * (factor if second else 1)
            sides[second].append(self.make([seconds], 10, i))
        return ",".join(sides[0]), ",".join(sides[1])


@pytest.fixture
def cnp(tmp_path: Path, sample: dict[str, Any]) -> Cnp:
    return Cnp(tmp_path, sample)


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_compare_finds_the_faster_side_in_spite_of_a_drift(cnp: Cnp) -> None:
    base, faster = cnp.in_turns(1 / 1.1)
    result = cnp("compare", base, faster)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("PROXY: ") and lines[-1] == lines[0]
    assert re.search(r"^B is faster by (9|10)\.\d %$", result.stdout, re.MULTILINE)
    assert "t over 6 pairs that ran side by side" in result.stdout
    document = cnp.json("compare", base, faster)
    speed = document["speedup"]
    assert speed["method"] == "pairs" and speed["verdict"] == "faster" and speed["pairs"] == 6
    assert speed["interval"][0] < 1.1 < speed["interval"][1]
    assert speed["interval"][1] - speed["interval"][0] < 0.03
    assert speed["p_value"] < 1e-6
    assert document["loss"]["verdict"] == "same"
    assert document["proxy"] is True and document["forced"] is False
    assert document["memory"]["ratio"] == 1


def test_equal_sides_show_no_difference(cnp: Cnp) -> None:
    a = cnp.make(NOISE[:5], 10)
    b = cnp.make(NOISE[3:], 15)
    assert "no difference shown: the 95 % interval holds 1" in cnp("compare", a, b).stdout
    assert cnp.json("compare", a, b)["speedup"]["method"] == "sessions"


def test_differences_come_first(cnp: Cnp, sample: dict[str, Any]) -> None:
    a = cnp.make(NOISE[:3], 10)
    b = cnp.make(NOISE[:3], 15, components={**sample["components"], "accl": False})
    out = cnp("compare", a, b).stdout
    assert out.index("components.accl") < out.index("tokens/s")
    assert cnp.json("compare", a, b)["differences"] == [
        {"key": "components.accl", "a": "true", "b": "false", "unlike": False}
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "qwen3-8b"),
        ("sequence_length", 4096),
        ("micro_batch", 4),
        ("precision", "fp32"),
        ("device", "cuda"),
        ("ranks", 8),
        ("global_tokens_per_step", 4096),
    ],
)
def test_unlike_runs_are_refused(cnp: Cnp, key: str, value: Any) -> None:
    a = cnp.make(NOISE[:3], 10)
    b = cnp.make(NOISE[:3], 15, **{key: value})
    refusal = sentence(cnp("compare", a, b))
    assert "are not the same task" in refusal and f"`{key}` differs" in refusal
    assert "--force" in refusal
    forced = cnp("compare", a, b, "--force")
    assert forced.returncode == 0
    assert f"FORCED: not the same task: `{key}` differs" in forced.stdout
    assert cnp.json("compare", a, b, "--force")["forced"] is True
    gate = cnp("gate", "--baseline", a, b)
    assert gate.returncode == 2 and "cannot tell  configuration" in gate.stdout


def test_proxy_and_its_rule_are_told_apart(cnp: Cnp, sample: dict[str, Any]) -> None:
    a = cnp.make(NOISE[:3], 10)
    b = cnp.make(NOISE[:3], 15, proxy={**sample["proxy"], "rule": "another rule"})
    assert "`proxy.rule` differs" in sentence(cnp("compare", a, b))
    full = {**sample["proxy"], "is_proxy": False, "rule": "", "scale": "full", "layers": 32}
    c = cnp.make(NOISE[:3], 15, proxy=full)
    d = cnp.make(NOISE[:3], 20, proxy=full)
    assert "is_proxy" in sentence(cnp("compare", a, c))
    assert "PROXY" not in cnp("compare", c, d).stdout


def test_another_loss_is_no_speed(cnp: Cnp) -> None:
    base, faster = cnp.in_turns(1 / 1.1)
    for file in faster.split(","):
        record = json.loads(Path(file).read_text())
        for run in record["runs"]:
            run["steps"][2]["loss"] += 0.05
        Path(file).write_text(json.dumps(record))
    out = cnp("compare", base, faster).stdout
    assert "OUTSIDE the tolerance of 0.0977 % (bf16)" in out
    assert "B is faster by" in out and "but computes another loss" in out
    gate = cnp("gate", "--baseline", base, faster)
    assert gate.returncode == 1 and "fail         loss" in gate.stdout


def test_hostile_records_get_one_clear_line(cnp: Cnp, sample: dict[str, Any]) -> None:
    good = cnp.make(NOISE[:3], 10)
    zero = cnp.make([1.0, 0.0], 11)
    assert "took 0 s" in sentence(cnp("compare", good, zero))
    negative = cnp.folder / "away" / "negative.json"
    negative.parent.mkdir()
    Path(cnp.make([-1.0], 11)).rename(negative)
    assert "median_s" in sentence(cnp("compare", good, str(negative)))
    failure = {"sentence": "rank 1\n\x1b[31mwas killed", "rank": 1, "last_lines": []}
    failed = cnp.make([1.0], 12, status="failed", failure=failure)
    assert "failed: rank 1\\x0a\\x1b[31mwas killed" in sentence(cnp("compare", good, failed))
    interrupted = cnp.make([], 12, status="interrupted", failure=failure)
    assert "was interrupted" in sentence(cnp("compare", good, interrupted))
    assert "holds no run" in sentence(cnp("compare", good, interrupted, "--force"))
    assert "stands on both sides" in sentence(cnp("compare", good, good))
    assert "nothing" in sentence(cnp("compare", good, "nothing"))
    bad = cnp.folder / "bad.json"
    bad.write_text('{"schema_version": 1')
    assert "bad.json" in cnp("compare", good, str(bad)).stderr
    bad.unlink()
    mixed = cnp.make(NOISE[:3], 13, components={**sample["components"], "accl": False})
    assert "no repeats of one another" in sentence(cnp("compare", f"{good},{mixed}", zero))


def test_one_run_a_side_has_no_interval(cnp: Cnp) -> None:
    a, b = cnp.make([1.0], 10), cnp.make([1.5], 11)
    result = cnp("compare", a, b)
    assert result.returncode == 0 and "no interval with one run a side" in result.stdout
    assert cnp.json("compare", a, b)["speedup"]["interval"] is None
    gate = cnp("gate", "--baseline", a, b)
    assert gate.returncode == 2 and "CANNOT TELL" in gate.stdout


def test_gate_passes_equal_and_fails_slower(cnp: Cnp) -> None:
    base, same = cnp.in_turns(1)
    passed = cnp("gate", "--baseline", base, *same.split(","), "--max-slowdown", "3%")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    lines = passed.stdout.splitlines()
    assert lines[-2] == "PASSED"
    assert [line.split()[1] for line in lines[1:-2]] == [
        "runs", "configuration", "speed", "memory", "loss",
    ]  # fmt: skip
    base, slower = cnp.in_turns(1.1)
    failed = cnp("gate", "--baseline", base, slower, "--max-slowdown", "3%")
    assert failed.returncode == 1 and "fail         speed" in failed.stdout
    assert cnp("gate", "--baseline", base, slower, "--max-slowdown", "15%").returncode == 0
    document = cnp.json("gate", "--baseline", base, slower)
    assert document["passed"] is False and document["exit_code"] == 1
    speed = next(check for check in document["checks"] if check["id"] == "speed")
    assert speed["result"] == "fail" and speed["interval"][0] > speed["limit"] == 0.03


def test_gate_watches_memory_and_failures(cnp: Cnp) -> None:
    base = cnp.make(NOISE[:5], 10)
    more = cnp.make(NOISE[:5], 15)
    record = json.loads(Path(more).read_text())
    for run in record["runs"]:
        for step in run["steps"]:
            step["peak_bytes_per_rank"] = [1_100_000, 1_100_000]
    Path(more).write_text(json.dumps(record))
    assert cnp("gate", "--baseline", base, more).returncode == 1
    assert cnp("gate", "--baseline", base, more, "--max-memory", "+12%").returncode == 0
    failure = {"sentence": "rank 1 was killed", "rank": 1, "last_lines": []}
    failed = cnp.make([1.0], 16, status="failed", failure=failure)
    result = cnp("gate", "--baseline", base, failed)
    assert result.returncode == 1 and "rank 1 was killed" in result.stdout


@pytest.mark.parametrize("limit", ["3", "0.03", "-3%", "x%", "", "nan%"])
def test_gate_refuses_other_limits(cnp: Cnp, limit: str) -> None:
    base, other = cnp.make(NOISE[:5], 10), cnp.make(NOISE[:5], 15)
    result = cnp("gate", "--baseline", base, other, f"--max-slowdown={limit}")
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1


def test_junit_is_read_by_an_xml_parser(cnp: Cnp) -> None:
    base = cnp.make(NOISE[:5], 10)
    failure = {"sentence": "<b> & \"x\" ']]>' \x1b[31m \u202e \n", "rank": 1, "last_lines": []}
    failed = cnp.make([1.3], 15, status="failed", failure=failure)
    slower = cnp.make([1.3 * value for value in NOISE], 15, 1)
    report = cnp.folder / "gate.xml"
    arguments = ("gate", "--baseline", base, failed, slower, "--junit", str(report))
    assert cnp(*arguments).returncode == 1
    root = ElementTree.parse(report).getroot()
    suite = root[0]
    assert root.tag == "testsuites" and suite.attrib["failures"] == "2"
    assert suite.attrib["tests"] == "5" and suite.attrib["errors"] == "0"
    cases = {case.attrib["name"]: case for case in suite}
    message = cases["runs"].find("failure").attrib["message"]  # type: ignore[union-attr]
    assert "<b> & \"x\" ']]>'" in message
    assert cases["speed"].find("failure") is not None
    assert cases["loss"].find("failure") is None
    missing = cnp("gate", "--baseline", base, slower, "--junit", str(cnp.folder / "no/x.xml"))
    assert missing.returncode == 2 and "x.xml" in missing.stderr


def test_what_cannot_be_written_is_said(cnp: Cnp) -> None:
    base, other = cnp.make(NOISE[:5], 10), cnp.make(NOISE[:5], 15)
    pipe = cnp.folder / "pipe"
    os.mkfifo(pipe)
    refusal = cnp("gate", "--baseline", base, other, "--junit", str(pipe))
    assert refusal.returncode == 2 and "no regular file" in refusal.stderr
    assert pipe.is_fifo()
    for command in (("compare", base, other), ("gate", "--baseline", base, other)):
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                [Path(sysconfig.get_path("scripts")) / "cnp", *command],
                env={**os.environ, "LJTRAIN_RECORDS": str(cnp.folder)},
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            )  # fmt: skip
        assert result.returncode == 1
        assert "standard output cannot be written: No space left" in result.stderr

"""`cnp ablate` against a ljperf that trains nothing (fake_ljperf.py): order, budget, failures,
interrupts, resuming, parity; and once against the real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
MEBI = 1 << 20
LADDER = [
    "Base",
    "Base + ACCL",
    "stack + ACCL",
    "stack + ACCL + CompilerOpt",
    "stack + ACCL + CompilerOpt + CkptOpt",
]
# Steps of the five rows: 10, 8, 8, 5 and 4 ms.
RULES: list[dict[str, Any]] = [
    {"step": 0.010, "peak": 100 * MEBI},
    {"when": ["--stock-compile"], "step": 0.011},
    {"when": ["accl"], "step": 0.008},
    {"when": ["compile"], "step": 0.005},
    {"when": ["recompute"], "step": 0.004},
    {"when": ["gradient_checkpointing=false"], "peak": 200 * MEBI},
]


def program(name: str) -> Path:
    named = os.environ.get(name.upper())
    found = Path(named) if named else Path(sysconfig.get_path("scripts")) / name
    assert found.exists(), f"{found} is missing: run `make build` first"
    return found


@pytest.fixture(scope="session")
def template() -> dict[str, Any]:
    """A valid record, two ranks of llama3-8b's proxy."""
    named = os.environ.get("CNP_RECORD_TOOL")
    built = [Path(named)] if named else list(REPOSITORY.glob("build/*/cnp/cnp_record_tool"))
    assert built, "cnp_record_tool is missing: build the release preset with CMake first"
    tool = max(built, key=lambda path: path.stat().st_mtime)
    lines = subprocess.run([tool, "samples"], check=True, capture_output=True, text=True).stdout
    return json.loads(lines.splitlines()[0])


class Fake:
    """cnp ablate with a fake ljperf and a records folder of its own."""

    def __init__(self, folder: Path, template: dict[str, Any]) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.log = folder / "calls"
        self.template = template
        self.ljperf = folder / "ljperf"
        script = Path(__file__).with_name("fake_ljperf.py")
        self.ljperf.write_text(f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
        self.ljperf.chmod(0o755)
        self.rules(RULES)

    def rules(self, rules: list[dict[str, Any]]) -> None:
        document = {"template": self.template, "log": str(self.log), "rules": rules}
        (self.folder / "fake.json").write_text(json.dumps(document))

    def command(self, *arguments: str) -> dict[str, Any]:
        named = () if "--resume" in arguments else ("--model", "deepspeed/llama3-8b")
        return {
            "args": [program("cnp"), "ablate", "--ljperf", self.ljperf, *named, *arguments],
            "env": {
                **os.environ,
                "FAKE_LJPERF": str(self.folder / "fake.json"),
                "LJTRAIN_RECORDS": str(self.records),
            },
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(**self.command(*arguments), timeout=120, check=False)

    def result(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self("--json", *arguments)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def blocks(self) -> list[list[str]]:
        """What the newest ablation ran, block by block: ids of rows."""
        (newest,) = sorted((self.records / "ablations").iterdir())[-1:]
        state = json.loads((newest / "state.json").read_text())
        return [[run["row"] for run in block] for block in state["blocks"]]


@pytest.fixture
def fake(tmp_path: Path, template: dict[str, Any]) -> Fake:
    return Fake(tmp_path, template)


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in document["rows"] if each["configuration"] == name]
    return found


def test_the_ladder(fake: Fake) -> None:
    document = fake.result("--steps", "5")
    assert [each["configuration"] for each in document["rows"]] == LADDER
    speedups = [each["speedup_vs_base"] for each in document["rows"]]
    assert speedups == pytest.approx([1, 1.25, 1.25, 2, 2.5])
    contributions = [each["contribution"] for each in document["rows"]]
    assert contributions == [None, *map(pytest.approx, (1.25, 1, 1.6, 1.25))]
    assert document["stopped"] == "narrow"  # without noise three blocks are enough
    assert document["blocks"] == 3
    assert not document["base_stock_compile"]
    assert document["base_stock_compile_ratio"] == pytest.approx(10 / 11)
    last = row(document, LADDER[-1])
    assert last["ci95"] == pytest.approx([2.5, 2.5])
    assert last["tokens_per_s"] == pytest.approx(1024 / 0.004)
    assert last["loss_parity"]["verdict"] == "same"
    for each in last["record_ids"]:
        assert (fake.records / f"{each}.json").exists()
    assert len(last["record_ids"]) == 3


def test_the_memory_limit_lies_between_the_measured_peaks(fake: Fake) -> None:
    document = fake.result("--steps", "5")
    assert document["memory_limit_bytes"] == {
        "full_checkpointing": 100 * MEBI,
        "no_checkpointing": 200 * MEBI,
        "limit": 160 * MEBI,
    }
    for call in fake.calls():
        arguments = call["arguments"]
        limited = "recompute" in ",".join(arguments)
        assert ("--memory-limit" in arguments) == limited
        assert str(160 * MEBI) in arguments or not limited


def test_base_runs_compiled_where_that_is_faster(fake: Fake) -> None:
    fake.rules([*RULES[:1], {"when": ["--stock-compile"], "step": 0.009}, *RULES[2:]])
    document = fake.result("--steps", "5")
    assert document["base_stock_compile"]
    assert row(document, "Base")["tokens_per_s"] == pytest.approx(1024 / 0.009)
    for call in fake.calls()[11:]:  # after the warm-up
        words = ",".join(call["arguments"]).split(",")
        assert ("--stock-compile" in words) != ("compile" in words)


def test_each_block_has_every_row_once_in_an_order_of_the_seed(fake: Fake) -> None:
    options = ("--steps", "5", "--blocks", "5", "--until", "0.0001%")
    fake.rules([{**rule, "noise": 0.1} for rule in RULES])
    fake.result(*options)
    first = fake.blocks()
    assert [sorted(block) for block in first] == [sorted(first[0])] * 5
    assert len(first[0]) == 5
    assert len({tuple(block) for block in first}) > 1
    fake.result(*options)
    assert fake.blocks() == first
    fake.result(*options, "--seed", "2")
    assert fake.blocks() != first


def test_a_row_that_is_refused_is_a_row(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["recompute"], "refuse": "no such part"}])
    document = fake.result("--steps", "5", code=1)
    last = row(document, LADDER[-1])
    assert (last["status"], last["failure"]) == ("failed", "no such part")
    assert last["speedup_vs_base"] is None
    assert row(document, LADDER[-2])["speedup_vs_base"] == pytest.approx(2)
    assert sum("recompute" in str(call["arguments"]) for call in fake.calls()) == 1
    text = fake("--steps", "5").stdout
    assert f"{LADDER[-1]} FAILED: no such part" in text


def test_runs_that_fail_later_are_counted_and_the_row_given_up(fake: Fake) -> None:
    # "fail_from": warm-up and blocks differ in --steps, so this is the second run of a block.
    fake.rules([*RULES, {"when": ["accl"], "unless": ["stack"], "fail": "died", "fail_from": 1}])
    document = fake.result("--steps", "5", "--blocks", "4")
    accl = row(document, LADDER[1])
    assert (accl["runs_completed"], accl["runs_failed"], accl["failure"]) == (1, 2, "died")
    assert accl["speedup_vs_base"] == pytest.approx(1.25)
    assert accl["ci95"] is None
    assert row(document, LADDER[2])["runs_completed"] == 3  # narrow: it does not wait for that row
    fake.log.unlink()
    assert "2 of 3 runs failed, the last: died" in fake("--steps", "5", "--blocks", "4").stdout


def test_an_answer_that_is_no_record(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["stack"], "unless": ["compile"], "garbage": '{"half": '}])
    document = fake.result("--steps", "5", code=1)
    assert row(document, "stack + ACCL")["status"] == "failed"
    assert "ljperf's answer" in row(document, "stack + ACCL")["failure"]


def test_a_run_that_hangs_is_ended(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["recompute"], "sleep": 60}])
    document = fake.result("--steps", "5", "--run-timeout", "3s", code=1)
    assert row(document, LADDER[-1])["failure"] == "not done after 3 s (--run-timeout)"


def test_the_budget_is_kept(fake: Fake) -> None:
    fake.rules([{**rule, "sleep": 0.3, "noise": 0.1} for rule in RULES])
    began = time.monotonic()
    document = fake.result("--steps", "5", "--budget", "6s", "--until", "0.0001%")
    assert document["stopped"] == "budget"
    assert 1 <= document["blocks"] <= 4
    # One block is let through when it is expected to fit; what it takes more is the machine's.
    assert document["spent_s"] < 12
    assert time.monotonic() - began > document["spent_s"]


def test_steps_follow_from_the_budget(fake: Fake) -> None:
    long = fake.result("--blocks", "1", "--budget", "1h")
    short = fake.result("--blocks", "1", "--budget", "1s")
    assert (long["steps"], short["steps"]) == (30, 5)


def test_an_interrupt_keeps_what_was_measured_and_can_be_resumed(fake: Fake) -> None:
    fake.rules([{**rule, "sleep": 0.2, "noise": 0.1} for rule in RULES])
    options = ("--steps", "5", "--blocks", "2", "--until", "0.0001%")
    running = subprocess.Popen(**fake.command(*options))
    while not fake.log.exists() or len(fake.calls()) < 14:  # 11 of the warm-up, then a block
        time.sleep(0.05)
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "interrupted; go on with: cnp ablate --resume " in errors
    folder = errors.split("--resume ")[1].strip()
    kept = fake.blocks()
    assert 0 < len(kept[0]) < 5
    assert "configuration" in output
    document = fake.result("--resume", folder)
    assert [len(block) for block in fake.blocks()] == [5, 5]
    assert fake.blocks()[0][: len(kept[0])] == kept[0]
    assert document["blocks"] == 2
    # Nothing ran twice but what was interrupted.
    assert len(fake.calls()) in (21, 22)


def test_speed_with_another_loss_is_marked(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["compile"], "unless": ["recompute"], "loss": 0.5}])
    document = fake.result("--steps", "5", code=1)
    assert row(document, LADDER[3])["loss_parity"]["verdict"] == "outside"
    assert row(document, LADDER[4])["loss_parity"]["verdict"] == "same"
    lines = fake("--steps", "5").stdout.splitlines()
    assert [line.rstrip().endswith("LOSS") for line in lines if line.startswith("  stack")] == [
        *(False, True, False)
    ]


def test_leave_one_out_and_limit(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["none"], "step": 0.002, "loss": 3}])
    document = fake.result("--steps", "5", "--leave-one-out", "--limit-row")
    names = [each["configuration"] for each in document["rows"][5:]]
    assert names[:3] == ["all but ACCL", "all but stack", "all but CompilerOpt"]
    without = row(document, "all but CompilerOpt")
    assert without["contribution_of"] == "CompilerOpt"
    assert without["contribution"] == pytest.approx(1)  # the fake's recompute alone makes 4 ms
    limit = document["rows"][-1]
    assert limit["contribution"] == pytest.approx(2)
    assert limit["loss_parity"]["verdict"] == "not comparable"


def test_axes_span_a_grid(fake: Fake) -> None:
    fake.rules([{"step": 0.01}, {"when": ["--zero", "2"], "step": 0.005}])
    document = fake.result(
        *("--steps", "5", "--axis", "zero=1,2", "--axis", "NCCL_ALGO=Ring,Tree"),
        *("--axis", "weight_decay=0.1", "--", "--seq", "64"),
    )
    assert [each["configuration"] for each in document["rows"]] == [
        f"zero={zero}, NCCL_ALGO={algorithm}, weight_decay=0.1"
        for zero in (1, 2)
        for algorithm in ("Ring", "Tree")
    ]
    assert document["rows"][3]["speedup_vs_base"] == pytest.approx(2)
    call = fake.calls()[3]
    assert call["ring"] == "Tree"
    assert call["arguments"][-6:] == ["--seq", "64", "--zero", "2", "--set", "weight_decay=0.1"]


def test_release_against_release(fake: Fake) -> None:
    environment = fake.folder / "venv/bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(sys.executable)
    script = Path(__file__).with_name("fake_ljperf.py")
    (environment / "ljperf").write_text(
        f'#!/bin/sh\nexec {sys.executable} -S {script} "$@" --with previous\n'
    )
    (environment / "ljperf").chmod(0o755)
    fake.rules([*RULES, {"when": ["previous"], "step": 0.008}])
    document = fake.result("--steps", "5", "--env", f"previous={fake.folder / 'venv'}")
    last = document["rows"][-1]
    assert last["configuration"] == "all, in previous"
    assert last["contribution"] == pytest.approx(2)  # what this release gains over it


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budget", "3x"], "cnp: --budget 3x: write a time such as 15m, 900s or 1h"),
        (["--budget", "nan"], "cnp: --budget nan: must be between 1s and 720h"),
        (["--budget", "0m"], "cnp: --budget 0m: must be between 1s and 720h; write a time such"),
        (["--run-timeout", "-1h"], "cnp: --run-timeout -1h: must be between 1s and 720h"),
        (["--until", "0%"], "cnp: --until 0%: must be between"),
        (["--until", "2 percent"], "cnp: --until 2 percent: write a share such as 2%"),
        (["--axis", "zero"], "cnp: --axis zero: write KEY=VALUE,VALUE"),
        (["--axis", "zero=1,1"], "cnp: --axis zero=1,1: an empty value, or one twice"),
        (["--axis", "zero=1", "--limit-row"], "cnp: --axis replaces the ladder"),
        (["--env", "base"], "cnp: --env base: write NAME=VENV or NAME=IMAGE"),
        (["--env", "base=/"], "cnp: --env base=/: no virtual environment, it has no bin/python"),
        (["--env", "base=--privileged"], "cnp: --env base=--privileged: is neither a virtual"),
        (["--env", "base=a b"], "cnp: --env base=a b: is neither a virtual"),
        (["--resume", "/nowhere"], "cnp: /nowhere/state.json: "),
        (["--steps", "0"], "cnp: --steps 0: must be between 1 and"),
    ],
)
def test_bad_input(fake: Fake, arguments: list[str], complaint: str) -> None:
    done = fake(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(complaint)
    assert done.stderr.count("\n") == 1
    assert not fake.log.exists()


def test_an_image_needs_an_engine(fake: Fake) -> None:
    command = fake.command("--env", "base=registry.example/stock:1")
    command["env"]["PATH"] = str(fake.folder)
    done = subprocess.run(**command, timeout=60, check=False)
    assert done.returncode == 2
    assert "no podman or docker is installed to run it as an image" in done.stderr


def test_an_image_runs_through_its_engine(fake: Fake) -> None:
    engine = fake.folder / "podman"
    engine.write_text(f'#!/bin/sh\nshift 9\nexec {fake.ljperf} "$@" --with image\n')
    engine.chmod(0o755)
    fake.rules([*RULES, {"when": ["image"], "step": 0.02}])
    command = fake.command("--json", "--steps", "5", "--env", "base=registry.example/stock:1")
    command["env"]["PATH"] = f"{fake.folder}:{os.environ['PATH']}"
    done = subprocess.run(**command, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert row(json.loads(done.stdout), "Base + ACCL")["speedup_vs_base"] == pytest.approx(2.5)


def test_base_that_is_refused_is_bad_input(fake: Fake) -> None:
    for rule in ({"refuse": "no such model: x"}, {"refuse": "no such model: x", "when_started": 1}):
        fake.rules([rule])
        done = fake("--steps", "5")
        assert done.returncode == 2
        assert "cnp: Base is refused: no such model: x" in done.stderr
        # Before the first run, where a dry run tells.
        assert fake.log.exists() == ("when_started" in rule)


def test_an_image_without_the_engine_is_refused_before_anything_runs(fake: Fake) -> None:
    engine = fake.folder / "podman"
    engine.write_text(f'#!/bin/sh\nshift 9\nexec {fake.ljperf} "$@" --with image\n')
    engine.chmod(0o755)
    fake.rules([*RULES, {"when": ["image"], "refuse": "DeepSpeed is not installed"}])
    for name, row_name in (("base", "Base"), ("previous", "all, in previous")):
        command = fake.command("--env", f"{name}=registry.example/stock:1")
        command["env"]["PATH"] = f"{fake.folder}:{os.environ['PATH']}"
        done = subprocess.run(**command, timeout=60, check=False)
        assert done.returncode == 2
        assert done.stderr == f"cnp: {row_name} is refused: DeepSpeed is not installed\n"
    assert not fake.log.exists() and not fake.records.exists()


def test_a_key_that_no_point_can_have_is_refused_before_anything_runs(fake: Fake) -> None:
    fake.rules([*RULES, {"when": ["--foo"], "refuse": "there is no option --foo"}])
    done = fake("--axis", "foo=1,2", "--axis", "zero=1,2")
    assert done.returncode == 2
    assert done.stderr == (
        "cnp: every point of the grid is refused; foo=1, zero=1: there is no option --foo\n"
    )
    assert not fake.log.exists() and not fake.records.exists()
    # What only some points are refused for is theirs.
    fake.rules([*RULES, {"when": ["--zero", "9"], "refuse": "ZeRO has no stage 9"}])
    document = fake.result("--steps", "5", "--blocks", "1", "--axis", "zero=9,1", code=1)
    assert row(document, "zero=9")["failure"] == "ZeRO has no stage 9"
    assert row(document, "zero=1")["status"] == "completed"


@pytest.mark.slow
def test_a_real_ablation(tmp_path: Path) -> None:
    done = subprocess.run(
        [program("cnp"), "ablate", "--model", "deepspeed/llama3-8b", "--json", "--blocks", "3",
         "--steps", "5", "--budget", "1h", "--", "--scale", "1/8", "--seq", "64"],
        env={**os.environ, "LJTRAIN_RECORDS": str(tmp_path)},
        capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["configuration"] for each in document["rows"]] == LADDER
    assert row(document, "Base + ACCL")["ci95"][0] > 0.9
    assert all(each["runs_completed"] == 3 for each in document["rows"])

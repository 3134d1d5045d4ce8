"""cnp import: other programs' results as records, from lines as those programs print them.

What a file does not say must be null; a damaged file gives one clear line, never a crash and never
a record that does not check.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from test_cnp_store import REPOSITORY, Cnp, cnp, refused

__all__ = ["cnp"]

RECORD_SCHEMA = json.loads((REPOSITORY / "cnp/schema/record.schema.json").read_text())
COLLECTIVES_SCHEMA = json.loads((REPOSITORY / "cnp/schema/collectives.schema.json").read_text())

TITAN_PREFIX = "[rank0]:[titan] 2025-10-30 20:35:06,466 - root - INFO - "
TITAN_SET_UP = [
    "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1",
    "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
    "Model llama3 8B size: 8,030,261,248 total parameters",
    "Peak FLOPS used for computing MFU: 9.890e+14",
    "Trainer is initialized with local batch size 2, global batch size 8, "
    "gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)",
    "Training starts at step 1",
]


def titan_step(step: int, loss: str, tps: str) -> str:
    return (
        f"step: {step:2}  loss: {loss}  grad_norm:  2.9549  memory: 52.53GiB(66.33%)  "
        f"tps: {tps}  tflops: 209.52  mfu: 21.19%"
    )


def titan_log(color: bool = False) -> str:
    steps = [(1, "12.2554", "900")] + [(10 * i, f" 8.{i:04}", "8,192") for i in range(1, 12)]
    lines = TITAN_SET_UP + [titan_step(*step) for step in steps]
    lines.insert(9, titan_step(10, " 8.0001", "8,190"))  # another rank's
    lines.insert(9, "validate step: 10  loss:  7.0000  memory: 60.00GiB(70.0%)  tps: 99")
    if color:
        lines = [line.replace("loss", "\x1b[32mloss") + "\x1b[39m" for line in lines]
    return "".join(TITAN_PREFIX + line + "\n" for line in lines)


def megatron_log() -> str:
    arguments = {
        "bf16": "True",
        "data_parallel_size": 4,
        "hidden_size": 2048,
        "micro_batch_size": 2,
        "num_layers": 24,
        "seed": 1234,
        "seq_length": 4096,
        "world_size": 8,
    }
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (47 - len(name))} {value}" for name, value in arguments.items()]
    lines.append(
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1464.33 | "
        "max allocated: 2048.5 | reserved: 1576.0 | max reserved: 1576.0"
    )
    for i in range(1, 11):
        lines.append(
            f" [2025-03-31 05:54:{i:02}] iteration {50 * i:8}/  242204 | consumed samples: "
            f"{50400 * i:12} | elapsed time per iteration (ms): {1500 if i > 1 else 9000}.5 | "
            "throughput per GPU (TFLOP/s/GPU): 134.0 | learning rate: 8.000000E-06 | "
            f"global batch size:    16 | lm loss: {7 - i / 10:.6E} | loss scale: 1.0 | "
            "grad norm: 1.520 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    return "\n".join(lines) + "\n"


def trainer_state(timed: bool) -> str:
    history: list[dict[str, Any]] = []
    for i in range(1, 11):
        entry = {"epoch": i / 10, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 9 - i / 10}
        if timed:
            entry |= {"num_input_tokens_seen": 1024 * 5 * i, "train_runtime": 2.5 * i}
        history.append({**entry, "step": 5 * i})
    history.append({"epoch": 1.0, "eval_loss": 3.5, "eval_runtime": 1.0, "step": 50})
    history.append(
        {
            "epoch": 1.0,
            "step": 50,
            "total_flos": 1e15,
            "train_loss": 8.4,
            "train_runtime": 25.0,
            "train_steps_per_second": 2.0,
        }
    )
    return json.dumps(
        {"best_metric": None, "global_step": 50, "log_history": history, "train_batch_size": 2},
        indent=2,
    )


def nccl_tests() -> str:
    side = {"time": 27.5, "alg_bw": 38.1, "bus_bw": 66.7, "nwrong": 0.0}
    device = {
        "rank": 0,
        "group": 0,
        "pid": 6899,
        "hostname": "node",
        "device": 0,
        "device_hex": "0000:04:00",
        "device_info": "NVIDIA H100 80GB HBM3",
    }
    return json.dumps(
        {
            "version": 2,
            "start_time": "2025-12-22 15:18:33",
            "args": ["\\/opt\\/build\\/all_reduce_perf".replace("\\/", "/"), "-J", "out.json"],
            "env": ["HOME=/root"],
            "nccl_version": 22703,
            "config": {"nthreads": 1, "ngpus": 1, "devices": [device] * 8},
            "results": [
                {
                    "size": 1048576,
                    "count": 262144,
                    "type": "float",
                    "redop": "sum",
                    "root": "    -1",
                    "out_of_place": side,
                    "in_place": {**side, "time": "nan", "nwrong": None},
                    "actual_iterations": 20,
                    "experiment_name": "",
                },
                {
                    "size": 2097152,
                    "count": 524288,
                    "type": "half",
                    "redop": "sum",
                    "root": "    -1",
                    "out_of_place": None,
                    "in_place": side,
                },
            ],
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 66.7, "okay": "unchecked"},
            "errors": [],
        }
    )


def imported(cnp: Cnp, name: str, text: str, *options: str) -> dict[str, Any]:
    file = cnp.folder / name
    file.write_text(text)
    took = cnp.json("import", file, *options)["files"][0]
    assert len(took["imported"]) == 1
    record: dict[str, Any] = json.loads((cnp.records / f"{took['imported'][0]}.json").read_text())
    benchmark = record.get("kind", "benchmark") == "benchmark"
    Draft202012Validator(RECORD_SCHEMA if benchmark else COLLECTIVES_SCHEMA).validate(record)
    assert record["source"]["file"] == name
    assert cnp("show", took["imported"][0]).returncode == 0
    return record


@pytest.mark.parametrize("color", [False, True])
def test_torchtitan(cnp: Cnp, color: bool) -> None:
    record = imported(cnp, "train.log", titan_log(color))
    assert record["source"]["format"] == "torchtitan"
    assert (record["model"], record["engine"], record["device"]) == (
        "llama3 8B",
        "torchtitan",
        "cuda",
    )
    assert (record["ranks"], record["micro_batch"], record["sequence_length"]) == (8, 2, 8192)
    assert record["global_tokens_per_step"] == 65536
    assert record["parameters"] == 8030261248
    # 65536 tokens / 8 ranks / 8192 tokens/s.
    assert record["step_time_s"]["median"] == pytest.approx(1.0)
    assert record["warmup"]["steps"] == 1
    assert (record["tokens_per_s_per_rank"], record["tokens_per_s"]) == (8192, 65536)
    assert record["mfu"] == pytest.approx(0.2119)
    assert record["peak_memory_bytes"]["max"] == int(52.53 * 2**30)
    assert [step["step"] for step in record["runs"][0]["steps"]][:3] == [0, 9, 19]
    assert record["loss"][0] == 12.2554
    assert len(record["loss"]) == 12
    for unknown in ("precision", "threads_per_rank", "zero_stage", "stock_compile"):
        assert record[unknown] is None
    assert record["environment"]["os"] is None and record["components"]["accl"] is None
    assert any("1 lines" in note for note in record["source"]["notes"])


def test_torchtitan_without_its_set_up_lines(cnp: Cnp) -> None:
    steps = "\n".join(titan_step(i, "7.5", "42,332") for i in range(1, 9))
    record = imported(cnp, "tail.log", steps)
    assert record["step_time_s"]["median"] is None and record["ranks"] is None
    assert record["tokens_per_s"] is None and record["tokens_per_s_per_rank"] == 42332
    record = imported(cnp, "tail8.log", steps + "\n", "--ranks", "8", "--model", "llama3-8b")
    assert (record["ranks"], record["tokens_per_s"]) == (8, 8 * 42332)
    assert record["model"] == "llama3-8b"


def test_megatron(cnp: Cnp) -> None:
    record = imported(cnp, "megatron.log", megatron_log())
    assert record["source"]["format"] == "megatron"
    assert (record["ranks"], record["precision"], record["seed"]) == (8, "bf16", 1234)
    assert (record["micro_batch"], record["gradient_accumulation"]) == (2, 2)
    assert record["proxy"]["layers"] == 24 and record["proxy"]["is_proxy"] is None
    assert record["step_time_s"]["median"] == pytest.approx(1.5005)
    assert record["tokens_per_s"] == pytest.approx(16 * 4096 / 1.5005)
    assert record["peak_memory_bytes"]["max"] == int(2048.5 * 2**20)
    assert record["loss"][-1] == 6.0
    assert record["model"] is None and record["device"] is None
    refused(cnp("import", "megatron.log", "--again", "--ranks", "16"), "megatron.log", "8", "16")


def test_trainer_state(cnp: Cnp) -> None:
    record = imported(cnp, "trainer_state.json", trainer_state(timed=False))
    assert record["step_time_s"]["median"] is None and record["tokens_per_s"] is None
    assert record["loss"] == [pytest.approx(9 - i / 10) for i in range(1, 11)]
    assert [step["step"] for step in record["runs"][0]["steps"]][:2] == [4, 9]
    assert record["source"]["train_runtime_s"] == 25.0
    record = imported(cnp, "timed.json", trainer_state(timed=True), "--ranks", "2")
    assert record["step_time_s"]["median"] == pytest.approx(0.5)
    assert record["global_tokens_per_step"] == 1024
    assert record["tokens_per_s"] == pytest.approx(2048)
    diverged = trainer_state(timed=False).replace('"loss": 8.5', '"loss": NaN')
    record = imported(cnp, "diverged.json", diverged)
    assert record["status"] == "failed" and "step 24" in record["failure"]["sentence"]


def test_nccl_tests(cnp: Cnp) -> None:
    record = imported(cnp, "out.json", nccl_tests())
    assert (record["kind"], record["ranks"], record["library_version"]) == (
        "collectives",
        8,
        "2.27.3",
    )
    assert [
        (row["op"], row["dtype"], row["bytes"], row["in_place"], row["time_us"], row["wrong"])
        for row in record["rows"]
    ] == [
        ("all_reduce", "float32", 1048576, False, 27.5, 0),
        ("all_reduce", "float32", 1048576, True, None, None),
        ("all_reduce", "float16", 2097152, True, 27.5, 0),
    ]
    assert cnp.ids("--kind", "collectives") == [record["record_id"]]
    refused(cnp("show", "latest"), "latest")  # that is a benchmark's


def test_the_same_file_once(cnp: Cnp) -> None:
    record = imported(cnp, "train.log", titan_log(), "--tag", "peer")
    took = cnp.json("import", cnp.folder / "train.log")["files"][0]
    assert took["imported"] == [] and took["known"] == [record["record_id"]]
    assert len(cnp.json("import", "train.log", "--again")["files"][0]["imported"]) == 1
    assert cnp.ids("--tag", "peer") == [record["record_id"]]


def test_what_is_no_result_is_refused(cnp: Cnp) -> None:
    for name, text in (
        ("empty", ""),
        ("prose", "Nothing to see here\n" * 100),
        ("object", "{}"),
        ("list", "[1, 2]"),
        ("history", '{"log_history": 3}'),
        ("results", '{"results": []}'),
        ("zero", "\0" * 5000),
        ("half", "step: 1  loss: 2  tps: "),
    ):
        (cnp.folder / name).write_text(text)
        refused(cnp("import", name), name)
    refused(cnp("import", "missing.log"), "missing.log")
    refused(cnp("import", "."), ".")
    refused(cnp("import", "prose", "--format", "slurm"), "slurm", "megatron")
    refused(cnp("import", "prose", "--ranks", "0"), "--ranks")
    assert not cnp.records.exists() or not list(cnp.records.glob("*.json"))


HUGE = ["1e400", "-1e400", "nan", "inf", "9" * 400, "-5", "0", "1e18", "9007199254740993", "x", ""]


def test_damaged_files_never_give_a_wrong_record(cnp: Cnp) -> None:
    """Cuts, noise and absurd numbers: a refusal of one line, or a record that checks."""
    chance = random.Random(5)
    sources = {
        "torchtitan": titan_log(),
        "megatron": megatron_log(),
        "trainer_state": trainer_state(timed=True),
        "nccl-tests": nccl_tests(),
    }
    took = 0
    for form, text in sources.items():
        for trial in range(25):
            damaged = bytearray(text.encode())
            kind = trial % 4
            if kind == 0:
                damaged = damaged[: chance.randrange(len(damaged))]
            elif kind == 1:
                for _ in range(30):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            else:
                words = text.split(" ")
                for _ in range(6):
                    at = chance.randrange(len(words))
                    if any(c.isdigit() for c in words[at]):
                        words[at] = chance.choice(HUGE) + ("," if kind == 3 else "")
                damaged = bytearray(" ".join(words).encode())
            file: Path = cnp.folder / f"{form}.{trial}"
            file.write_bytes(damaged)
            done = cnp("import", file, "--format", form, "--json")
            if done.returncode == 2:
                assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1
                assert file.name in done.stderr
            else:
                assert done.returncode == 0, done.stderr
                took += 1
    assert took > 20
    for file in cnp.records.glob("*.json"):
        record = json.loads(file.read_text())
        schema = COLLECTIVES_SCHEMA if "kind" in record else RECORD_SCHEMA
        Draft202012Validator(schema).validate(record)
        assert (record.get("mfu") or 0) <= 1
    assert cnp.json("list", "--limit", "0")["problems"] == []


HOSTILE = (
    "<script>alert(1)</script>",
    "'; DROP TABLE records; --",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left\u2066\u200b",
    "=cmd|' /C calc'!A0",
    "m" * 10_000_000,
)


def test_hostile_names_in_what_is_imported(cnp: Cnp) -> None:
    """In every place that a log has for a name: kept where it is data, harmless where printed."""
    for number, name in enumerate(HOSTILE):
        state = json.loads(trainer_state(timed=True))
        state["best_model_checkpoint"] = state["log_history"][3]["note"] = name
        tests = json.loads(nccl_tests())
        tests["config"]["devices"][0]["device_info"] = tests["env"][0] = name
        files = {
            f"titan-{number}.log": titan_log().replace("llama3 8B", name),
            f"gpu-{number}.log": titan_log().replace("NVIDIA H100 80GB HBM3", name),
            f"megatron-{number}.log": megatron_log().replace("bf16", name),
            f"state-{number}.json": json.dumps(state),
            f"tests-{number}.json": json.dumps(tests),
        }
        for file, text in files.items():
            imported(cnp, file, text)
    odd = cnp.folder / "\u202e<b>\x1b[31m\n.log"
    odd.write_text(titan_log())
    printed = [cnp("import", odd), cnp("list", "--limit", "0"), cnp("show", "latest")]
    printed.append(cnp("export", "--format", "csv"))
    for done in printed:
        assert done.returncode == 0, done.stderr
        for character in "\x1b\x07\u202e\u2066\u200b":
            assert character not in done.stdout + done.stderr
    rows = printed[-1].stdout.splitlines()
    assert len(rows) == len(cnp.ids()) + 1 == 5 * len(HOSTILE) + 2
    assert not [row for row in rows if ",=cmd" in row]


def test_what_cannot_be_imported_is_one_short_line(cnp: Cnp) -> None:
    for name, text in {
        "digits.json": '{"log_history": [{"step": ' + "9" * 10_000_000 + "}]}",
        "text.json": '{"log_history": ["' + "x" * 10_000_000 + '" oops',
        "deep.json": '{"log_history":' * 50_000,
        "id.json": json.dumps({"schema_version": 1, "record_id": "\u202e" * 1_000_000}),
        "line.log": "step: 1  loss: 2  tps: " + "9" * 10_000_000,
    }.items():
        (cnp.folder / name).write_text(text)
        done = cnp("import", name)
        refused(done)
        assert len(done.stderr) < 1000
        assert "\u202e" not in done.stderr
    assert cnp.ids() == []

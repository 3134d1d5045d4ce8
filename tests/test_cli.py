"""The command line: help, bad input, dry runs, completion. Nothing here starts a training."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf

MODEL = ("benchmark", "--model", "deepspeed/llama3-8b")


def refused(result: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Bad input is one line on standard error and exit code 2, with nothing on standard output."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for words in expected:
        assert words in result.stderr


def test_help_answers_within_20_ms(ljperf: Ljperf) -> None:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        result = ljperf("--help")
        times.append(time.perf_counter() - start)
        assert result.returncode == 0
        assert "ljperf benchmark --model deepspeed/llama3-8b" in result.stdout
    assert min(times) < 0.02, times


def test_every_subcommand_has_help_with_an_example(ljperf: Ljperf) -> None:
    for command in ("benchmark", "comm", "doctor", "image", "models", "completion"):
        result = ljperf(command, "--help")
        assert result.returncode == 0
        assert "Example" in result.stdout


def test_version(ljperf: Ljperf) -> None:
    assert ljperf("--version").stdout.startswith("ljperf 0.")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["command", "benchmark", "--help"]),
        (("bench",), ["bench", "benchmark"]),
        (("benchmark",), ["--model is missing"]),
        (("benchmark", "--model", "deepspeed/lama3-8b"), ["lama3-8b", "llama3-8b"]),
        (("benchmark", "--model", "depspeed/llama3-8b"), ["depspeed", "deepspeed"]),
        (("benchmark", "--model", "megatron/llama3-8b"), ["megatron"]),
        (("benchmark", "--model", "llama3-8b"), ["llama3-8b"]),
        ((*MODEL, "--zero", "4"), ["--zero 4", "0, 1, 2 and 3"]),
        ((*MODEL, "--zero", "three"), ["--zero"]),
        ((*MODEL, "--ranks", "0"), ["--ranks 0"]),
        ((*MODEL, "--ranks", "2000000000", "--oversubscribe"), ["--ranks 2000000000"]),
        ((*MODEL, "--step-timeout", "inf"), ["--step-timeout"]),
        ((*MODEL, "--seed", "-1"), ["--seed -1"]),
        ((*MODEL, "--ranks", "4000"), ["--ranks 4000", "--oversubscribe"]),
        ((*MODEL, "--steps", "0"), ["--steps 0"]),
        ((*MODEL, "--warmup", "some"), ["--warmup some"]),
        ((*MODEL, "--flops", "magic"), ["magic", "megatron"]),
        ((*MODEL, "--scale", "1/7"), ["1/7", "1/8"]),
        ((*MODEL, "--scale", "huge"), ["huge"]),
        ((*MODEL, "--scale", "full"), ["GiB"]),
        ((*MODEL, "--with", "recompute", "--set", "gradient_checkpointing=false"), ["recompute"]),
        ((*MODEL, "--memory-limit", "much"), ["--memory-limit", "much"]),
        ((*MODEL, "--with", "accl", "--without", "accl"), ["--with accl", "--without accl"]),
        ((*MODEL, "--set", "learning_rat=1"), ["learning_rat", "learning_rate"]),
        ((*MODEL, "--set", "learning_rate=fast"), ["learning_rate"]),
        ((*MODEL, "--set", "max_steps=3"), ["--steps"]),
        ((*MODEL, "--data", "/no/such/file"), ["/no/such/file"]),
        ((*MODEL, "--deepspeed-config", "/no/such/file"), ["/no/such/file"]),
        ((*MODEL, "--config", "/etc/hostname"), ["--model", "--config"]),
        ((*MODEL, "--python", "/no/such/python"), ["/no/such/python"]),
        ((*MODEL, "--python", "/bin/true"), ["/bin/true", "broken"]),
        ((*MODEL, "--output", "/proc/nowhere"), ["/proc/nowhere"]),
        ((*MODEL, "--step", "3"), ["--step ", "--steps"]),
        (("completion",), ["shell"]),
        (
            ("benchmark", "--model", "fsdp/llama3-8b", "--zero", "2"),
            ["ZeRO", "deepspeed/llama3-8b"],
        ),
        (("benchmark", "--model", "ddp/bert-large", "--seq", "4096"), ["4096", "--seq 512"]),
        (("models", "--scale", "1/0"), ["1/0"]),
        (("completion", "tcsh"), ["tcsh", "bash"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    ljperf: Ljperf, arguments: tuple[str, ...], expected: list[str]
) -> None:
    refused(ljperf(*arguments), *expected)
    assert not ljperf.records.exists() or not list(ljperf.records.iterdir())


def test_malformed_files_are_named_with_line_and_key(
    ljperf: Ljperf, tmp_path: Path, write_config: Callable[..., Path]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{\n "hidden_size": 64,\n "layers" 3\n}')
    refused(ljperf("benchmark", "--config", broken), f"{broken}:3:")
    odd_heads = write_config(num_attention_heads=5)
    refused(ljperf("benchmark", "--config", odd_heads), f"{odd_heads}:", "num_attention_heads")
    text = write_config(hidden_size="many")
    refused(ljperf("benchmark", "--config", text), "hidden_size", f"{text}:6")
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text('{\n "zero_optimization": {\n  "stage": 7\n }\n}')
    refused(
        ljperf(*MODEL, "--deepspeed-config", deepspeed), f"{deepspeed}:3", "zero_optimization.stage"
    )


def test_an_unwritable_records_folder_is_noticed_before_anything_starts(ljperf: Ljperf) -> None:
    start = time.monotonic()
    result = ljperf(*MODEL, LJTRAIN_RECORDS="/proc/records")
    refused(result, "/proc/records", "LJTRAIN_RECORDS")
    assert time.monotonic() - start < 5


def test_a_python_without_the_stack_is_named(ljperf: Ljperf, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    refused(ljperf(*MODEL, "--python", python), str(python), "make set-up")


def test_accl_is_switched_on_for_the_ranks_alone(ljperf: Ljperf) -> None:
    def variables(*options: str, **environment: Any) -> dict[str, str | None]:
        document = json.loads(ljperf(*MODEL, "--dry-run", "--json", *options, **environment).stdout)
        return {
            name: document["environment"].get(name, "unchanged")
            for name in ("LJTRAIN_ACCL", "TORCH_DEVICE_BACKEND_AUTOLOAD")
        }

    on = {"LJTRAIN_ACCL": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    assert variables("--with", "accl") == on
    assert variables(LJTRAIN_ACCL="1") == on
    assert variables()["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    removed = variables("--without", "accl", LJTRAIN_ACCL="1")
    assert removed == {"LJTRAIN_ACCL": None, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_dry_run_says_what_it_would_do_and_does_nothing(ljperf: Ljperf) -> None:
    text = ljperf(*MODEL, "--dry-run", "--set", "learning_rate=0.5")
    assert text.returncode == 0, text.stderr
    assert text.stdout.startswith("deepspeed/llama3-8b: PROXY 1/8 of llama3-8b")
    assert "ljtrain.worker" in text.stdout
    assert text.stdout.rstrip().endswith("nothing was started.")
    document = json.loads(ljperf(*MODEL, "--dry-run", "--json").stdout)
    assert document["dry_run"] is True
    assert document["worker"]["model_config"]["hidden_size"] == 512
    assert document["proxy"]["layers"] == 8
    assert not ljperf.records.exists()


def test_precedence_of_settings(ljperf: Ljperf, tmp_path: Path) -> None:
    """--set beats --deepspeed-config beats the defaults; --zero beats the file."""
    file = tmp_path / "ds.json"
    file.write_text('{"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}')

    def plan(*more: str) -> dict:
        result = ljperf(*MODEL, "--deepspeed-config", file, "--dry-run", "--json", *more)
        return json.loads(result.stdout)["worker"]

    assert plan()["deepspeed"]["zero_optimization"]["stage"] == 2
    assert plan()["training_arguments"]["gradient_accumulation_steps"] == 4
    assert plan("--zero", "1")["deepspeed"]["zero_optimization"]["stage"] == 1
    both = plan("--set", "gradient_accumulation_steps=2")
    assert both["training_arguments"]["gradient_accumulation_steps"] == 2
    assert both["deepspeed"]["gradient_accumulation_steps"] == "auto"


def test_env_dump_redacts_secrets(ljperf: Ljperf) -> None:
    result = ljperf(
        "benchmark",
        "--env-dump",
        HF_TOKEN="hf_verysecretverysecret",
        AWS_SECRET_ACCESS_KEY="s3cr3t",
    )
    document = json.loads(result.stdout)
    assert document["variables"]["HF_TOKEN"] == "<redacted>"
    assert "s3cr3t" not in result.stdout and "verysecret" not in result.stdout
    assert document["hardware"]["cores"] >= 1
    assert document["python"]["versions"]["torch"]


def test_models_lists_parameters_and_flops(ljperf: Ljperf) -> None:
    listing = json.loads(ljperf("models", "--json").stdout)
    models = {model["id"]: model for model in listing["models"]}
    assert {"llama3-8b", "llama3-70b", "llama3.1-405b", "qwen3-8b", "mistral-7b"} <= set(models)
    assert {"mixtral-8x7b", "bert-large"} <= set(models)
    assert models["llama3-8b"]["parameters"] == 8_030_261_248
    table = ljperf("models").stdout
    assert all(name in table for name in models)
    assert all(len(line) <= 100 for line in table.splitlines())


def test_bash_completion_completes(ljperf: Ljperf) -> None:
    script = ljperf("completion", "bash").stdout

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        program = (
            f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ljperf; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()

    assert complete("ljperf", "ben") == ["benchmark"]
    assert "--micro-batch" in complete("ljperf", "benchmark", "--mi")
    assert complete("ljperf", "benchmark", "--model", "fsdp/llama3-8") == ["fsdp/llama3-8b"]
    for shell in ("zsh", "fish"):
        assert "ljperf" in ljperf("completion", shell).stdout


def test_hidden_gpus_mean_a_host_run(ljperf: Ljperf) -> None:
    document = json.loads(ljperf(*MODEL, "--dry-run", "--json", CUDA_VISIBLE_DEVICES="").stdout)
    hardware = json.loads(ljperf("benchmark", "--env-dump").stdout)["hardware"]
    assert document["ranks"] <= hardware["cores"]


def test_the_memory_limit_is_respected_and_named(ljperf: Ljperf) -> None:
    dry_run = (*MODEL, "--dry-run", "--json")
    document = json.loads(ljperf(*dry_run, LJTRAIN_MEMORY_LIMIT="3GiB").stdout)
    assert document["memory_limit_bytes"] == 3 << 30
    assert document["memory_limit_source"] == "LJTRAIN_MEMORY_LIMIT"
    refused(ljperf(*dry_run, LJTRAIN_MEMORY_LIMIT="much"), "LJTRAIN_MEMORY_LIMIT", "much")
    refused(ljperf(*MODEL, "--scale", "1/8", LJTRAIN_MEMORY_LIMIT="1MiB"), "MiB")


def test_secrets_in_settings_are_not_shown(ljperf: Ljperf) -> None:
    text = ljperf(*MODEL, "--dry-run", "--set", "hub_token=verysecret").stdout
    assert "hub_token" in text and "verysecret" not in text


def test_what_accelerate_would_take_from_the_environment_is_not_passed_on(ljperf: Ljperf) -> None:
    text = ljperf(*MODEL, "--dry-run", ACCELERATE_DYNAMO_BACKEND="inductor").stdout
    assert "(no ACCELERATE_DYNAMO_BACKEND)" in text
    assert "note: ACCELERATE_DYNAMO_BACKEND is not passed on" in text


def test_packages_beside_the_command_are_not_imported(ljperf: Ljperf, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    assert ljperf(*MODEL, "--dry-run").returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_do_no_harm(ljperf: Ljperf, closed: str) -> None:
    command = f'"{ljperf.program}" benchmark --model deepspeed/llama3-8b --dry-run {closed}'
    environment = ljperf.environment()
    assert subprocess.run(["bash", "-c", command], env=environment, check=False).returncode == 0


def test_an_environment_that_prints_at_start_is_understood(ljperf: Ljperf, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('hello from the administrator')")
    assert ljperf(*MODEL, "--dry-run", PYTHONPATH=str(site)).returncode == 0

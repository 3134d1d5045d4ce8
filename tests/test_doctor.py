"""ljperf doctor as a user runs it: output, exit codes, a stand-in for NVIDIA's library.

What each check finds is tested in C++ (ljperf/doctor/tests): every fault with a healthy twin.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf

SOURCE = Path(__file__).parent.parent
KEYS = SOURCE / "ljperf" / "doctor" / "src" / "config_keys.cc"


def checks(ljperf: Ljperf, *options: str | Path, **environment: str) -> dict[str, dict[str, Any]]:
    result = ljperf("doctor", "--json", *options, **environment)  # type: ignore[arg-type]
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    failed = any(check["status"] == "fail" for check in document["checks"])
    assert result.returncode == (1 if failed else 0)
    return {check["id"]: check for check in document["checks"]}


def test_the_contract_of_the_document(ljperf: Ljperf) -> None:
    found = checks(ljperf)
    assert len(found) >= 50
    for check in found.values():
        assert {"id", "status", "found", "expected", "fix"} <= set(check)
        assert check["status"] in {"ok", "warn", "fail", "skip"}
        assert check["found"]
        if check["status"] in {"warn", "fail"}:
            assert check["expected"] and check["fix"]


def test_nothing_fails_in_the_environment_of_the_tests(ljperf: Ljperf) -> None:
    python = {k: v["found"] for k, v in checks(ljperf, "--only", "python").items()}
    assert not [k for k, v in checks(ljperf, "--only", "python").items() if v["status"] == "fail"]
    assert "torch" in python["python.files"], python


def test_answers_within_two_seconds_and_fits_a_terminal(ljperf: Ljperf) -> None:
    times = []
    for _ in range(3):
        start = time.monotonic()
        result = ljperf("doctor")
        times.append(time.monotonic() - start)
    assert min(times) < 2, times
    assert all(len(line) <= 100 for line in result.stdout.splitlines())


def test_secrets_and_control_characters_are_not_printed(ljperf: Ljperf, tmp_path: Path) -> None:
    arguments = tmp_path / "args.json"
    arguments.write_text('{"hub_token": "hf_verysecretverysecret", "hub_tokn": "hf_othersecret"}')
    result = ljperf(
        "doctor",
        "--training-arguments",
        arguments,
        NCCL_SOCKET_IFNAME="\x1b[31mred",
        HF_TOKEN="hf_verysecretverysecret",
    )
    assert result.returncode == 1
    assert "hub_tokn" in result.stdout and "hub_token" in result.stdout
    assert "verysecret" not in result.stdout and "othersecret" not in result.stdout
    assert "\x1b" not in result.stdout + result.stderr


def test_an_interface_that_does_not_exist_fails(ljperf: Ljperf) -> None:
    found = checks(ljperf, "--only", "network", NCCL_SOCKET_IFNAME="hpn77")
    assert found["network.interface"]["status"] == "fail"
    assert "hpn77" in found["network.interface"]["found"]


def test_a_release_is_held_against_what_is_installed(ljperf: Ljperf) -> None:
    found = checks(ljperf, "--release", "25.07")
    assert found["image.manifest"]["status"] == "ok"
    assert found["python.reinstalled"]["status"] == "fail"
    assert "2.7.1.8+nv25.3" in found["python.reinstalled"]["expected"]


def test_configuration_from_files(ljperf: Ljperf, tmp_path: Path) -> None:
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text('{\n "gradient_clipping": 0.5,\n "activation_checkpointing": {}\n}')
    arguments = tmp_path / "args.json"
    arguments.write_text(json.dumps({"max_grad_norm": 1.0, "deepspeed": str(deepspeed)}))
    options = ("--only", "config", "--training-arguments", arguments)
    found = checks(ljperf, *options)
    assert found["config.twins"]["status"] == "fail"
    assert f"{deepspeed}:2" in found["config.twins"]["found"]
    assert found["config.activation-checkpointing"]["status"] == "warn"
    deepspeed.write_text('{"gradient_clipping": "auto"}')
    assert {check["status"] for check in checks(ljperf, *options).values()} == {"ok"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--release", "25.99"), ["25.99", "25.07"]),
        (("--deepspeed", "/no/such.json"), ["/no/such.json"]),
        (("--hosts", "a;reboot"), ["a;reboot", "host name"]),
        (("--hosts", "-oProxyCommand=x"), ["--hosts"]),
        (("--task", "cooking"), ["--task"]),
        (("--watch", "0"), ["--watch"]),
        (("--python", "/no/such/python"), ["/no/such/python"]),
        (("--quik",), ["--quik", "--quick"]),
    ],
)
def test_bad_input_is_one_line(
    ljperf: Ljperf, options: tuple[str, ...], expected: list[str]
) -> None:
    result = ljperf("doctor", *options)
    assert result.returncode == 2
    assert result.stdout == "" and len(result.stderr.strip().splitlines()) == 1
    for words in expected:
        assert words in result.stderr


def test_an_unreachable_host_is_one_clear_finding(ljperf: Ljperf) -> None:
    start = time.monotonic()
    found = checks(ljperf, "--only", "network.hosts", "--hosts", "127.0.0.1,no-such-host.invalid")
    assert time.monotonic() - start < 5
    assert found["network.hosts"]["status"] == "fail"
    assert "no-such-host.invalid" in found["network.hosts"]["found"]
    assert checks(ljperf, "--only", "network.hosts", "--hosts", "127.0.0.1")["network.hosts"][
        "status"
    ] == ("ok")


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(folder)


@pytest.fixture
def gpu_root(tmp_path: Path) -> Path:
    """The devices and the driver of a machine with two GPUs."""
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (root / "dev" / name).touch()
    driver = root / "proc" / "driver" / "nvidia" / "version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\n")
    return root


def gpu_checks(
    ljperf: Ljperf, root: Path, library: str, **environment: str
) -> dict[str, dict[str, Any]]:
    gpus = "NVIDIA H100 80GB HBM3:80,NVIDIA H100 80GB HBM3:80"
    options = ("--root", root, "--only", "gpu")
    return checks(ljperf, *options, LD_LIBRARY_PATH=library, FAKE_GPUS=gpus, **environment)


def test_gpus_are_read_through_nvml(ljperf: Ljperf, nvml: str, gpu_root: Path) -> None:
    found = gpu_checks(ljperf, gpu_root, nvml)
    assert {check["status"] for check in found.values()} <= {"ok", "skip"}
    assert found["gpu.lost"]["found"].startswith("2 ")
    assert found["gpu.lost"]["found"].endswith("NVIDIA H100 80GB HBM3")
    for health, check in {
        "ecc_errors": "gpu.ecc",
        "remap_failed": "gpu.rows",
        "throttle": "gpu.throttling",
        "lost": "gpu.lost",
        "prohibited": "gpu.mode",
        "mig": "gpu.mig",
        "narrow": "gpu.pcie",
        "apart": "gpu.peers",
        "link_down": "gpu.nvlink",
        "not_persistent": "gpu.persistence",
    }.items():
        sick = gpu_checks(ljperf, gpu_root, nvml, FAKE_SICK=health)
        wrong = {name for name, each in sick.items() if each["status"] in {"warn", "fail"}}
        assert wrong == {check}, (health, sick)


def test_nvml_that_does_not_match_the_driver_is_error_803(
    ljperf: Ljperf, nvml: str, gpu_root: Path
) -> None:
    found = gpu_checks(ljperf, gpu_root, nvml, FAKE_NVML_ERROR="18")
    assert found["gpu.nvml"]["status"] == "fail"
    assert "803" in found["gpu.nvml"]["found"] and "reboot" in found["gpu.nvml"]["fix"]


def test_watch_tells_changes_and_ends_when_a_check_fails(ljperf: Ljperf, tmp_path: Path) -> None:
    root = tmp_path / "root"
    limits = root / "proc" / "self" / "limits"
    limits.parent.mkdir(parents=True)
    limits.write_text("Max open files            65536                65536   files\n")
    options = ("--only", "limits.files", "--root", root, "--watch", "0.05", "--json")
    process = ljperf.start("doctor", *options)
    time.sleep(0.3)
    assert process.poll() is None
    limits.write_text("Max open files            16                16   files\n")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    changes = [json.loads(line) for line in output.splitlines()]
    assert [(change["id"], change["status"]) for change in changes] == [("limits.files", "fail")]
    limits.write_text("Max open files            65536                65536   files\n")
    process = ljperf.start("doctor", *options)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 130


def embedded_keys(variable: str) -> set[str]:
    text = KEYS.read_text()
    found = re.search(rf"constexpr auto {variable} =.*?\}}\);", text, re.DOTALL)
    assert found is not None, variable
    return set(re.findall(r'"([a-z0-9_]+)"', found.group()))


def fields_of(module: str, file: str, name: str) -> set[str]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not installed")
    tree = ast.parse((Path(spec.origin).parent / file).read_text())
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    fields = [n for n in body if isinstance(n, ast.AnnAssign)]
    names = {n.target.id for n in fields if isinstance(n.target, ast.Name)}
    aliases = {
        ast.literal_eval(keyword.value)
        for n in fields
        if isinstance(n.value, ast.Call)
        for keyword in n.value.keywords
        if keyword.arg == "alias"
    }
    return names | aliases


@pytest.mark.parametrize(
    ("variable", "module", "file", "name"),
    [
        ("kArguments", "transformers", "training_args.py", "TrainingArguments"),
        ("kZeroOptimization", "deepspeed", "runtime/zero/config.py", "DeepSpeedZeroConfig"),
        ("kFp16", "deepspeed", "runtime/precision_config.py", "DeepSpeedFP16Config"),
        ("kCompile", "deepspeed", "compile/config.py", "CompileConfig"),
    ],
)
def test_keys_are_those_of_the_installed_packages(
    variable: str, module: str, file: str, name: str
) -> None:
    assert embedded_keys(variable) == fields_of(module, file, name)

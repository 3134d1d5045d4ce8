"""The image's recipe without building it: pins, Containerfile, manifest, SBOM, entrypoint."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Ljperf

SOURCE = Path(__file__).parent.parent
RECIPE = SOURCE / "image" / "recipe"
CONTAINERFILE = SOURCE / "image" / "Containerfile"
ENTRYPOINT = SOURCE / "image" / "entrypoint"
MANIFEST = SOURCE / "image" / "releases" / "0.1.0.json"


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line and not line.startswith("#")]


def pins(file: Path) -> dict[str, str]:
    found = {}
    for line in lines_of(file):
        name, equals, version = line.partition("==")
        assert equals and re.fullmatch(r"[0-9][0-9A-Za-z.]*", version), f"{file.name}: {line}"
        found[name] = version
    return found


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_lock_holds_what_the_requirements_ask_for() -> None:
    lock = pins(RECIPE / "python.txt")
    for file in ("torch.txt", "train.txt"):
        for line in lines_of(SOURCE / "requirements" / file):
            name, _, version = line.partition("==")
            assert name in lock
            assert version in ("", lock[name]), f"{name}: {version} is asked, {lock[name]} locked"
    assert not set(lock) & set(pins(RECIPE / "python-cuda.txt"))
    build = lines_of(SOURCE / "requirements" / "build.txt")
    assert {line for line in build if "==" in line} <= set(lines_of(RECIPE / "python-build.txt"))


def test_the_lock_is_closed() -> None:
    """What python.txt's packages depend on is in it: --no-deps leaves nothing out."""
    from importlib import metadata

    from packaging.requirements import Requirement

    lock = pins(RECIPE / "python.txt")
    for name, version in lock.items():
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # py-spy, which only the image has
        if distribution.version.split("+")[0] != version:
            continue
        for text in distribution.requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                normal = re.sub(r"[-_.]+", "-", needed.name).lower()
                assert normal in lock, f"{name} needs {needed.name}"
                assert needed.specifier.contains(lock[normal], prereleases=True), text


def test_this_releases_manifest_is_what_is_installed() -> None:
    manifest = json.loads(MANIFEST.read_text())
    version = re.search(
        r"project\(ljtrain VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()
    )
    assert version is not None
    lock = pins(RECIPE / "python.txt")
    components = dict(manifest["components"])
    assert components.pop("ljtrain") == version.group(1) == manifest["release"] == manifest["tag"]
    assert components.pop("python") == "3.11"
    assert {"torch", "transformers", "deepspeed", "accelerate"} == set(components)
    assert components == {name: lock[name] for name in components}
    settings = load(SOURCE / "tools" / "image_archive.py").final_settings(CONTAINERFILE.read_text())
    assert settings.labels["org.opencontainers.image.version"] == manifest["release"]


def test_the_build_lists_are_those_of_the_set_up() -> None:
    script = (SOURCE / "tools" / "set_up.sh").read_text()
    found = re.search(r"local wanted=\((.*?)\)", script, re.DOTALL)
    assert found is not None
    only_here = {"git", "libgtest-dev", "libjemalloc2", "libtcmalloc-minimal4"}  # tests, measuring
    compiled_with = set(lines_of(RECIPE / "debian-build.txt")) - {"python3-dev", "python3-venv"}
    assert compiled_with == set(found.group(1).split()) - only_here
    run = set(lines_of(RECIPE / "debian-run.txt")) | set(lines_of(RECIPE / "debian-tools.txt"))
    assert {"gdb", "linux-perf|linux-tools-generic"} <= run
    assert not [name for name in run if name.endswith("-dev") and name != "python3-dev"]


def test_the_containerfile() -> None:
    tool = load(SOURCE / "tools" / "image_archive.py")
    found: list[tuple[str, str]] = tool.instructions(CONTAINERFILE.read_text())
    assert [name for name, _ in found][:2] == ["ARG", "FROM"]
    base = found[0][1].removeprefix("BASE=")
    assert re.fullmatch(r"[a-z/.]+:[a-z0-9.-]*\d{8}[a-z-]*(@sha256:[0-9a-f]{64})?", base), base
    assert [words for name, words in found if name == "FROM"] == [
        "${BASE} AS build",
        "${BASE} AS final",
    ]
    final = found[[words for _, words in found].index("${BASE} AS final") :]
    assert not [words for name, words in final if name == "COPY" and words.startswith(". ")]
    assert {name for name, _ in found} <= {
        *("ARG", "FROM", "COPY", "RUN", "LABEL", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD")
    }
    for name, words in found:
        assert not re.search(r"https?://|apt-get|pip install|--privileged", words), (name, words)
    settings = tool.final_settings(CONTAINERFILE.read_text())
    assert settings.user == "1000:1000"
    assert settings.entrypoint == ["/usr/local/bin/entrypoint"]
    assert settings.environment["PATH"].startswith("/opt/ljtrain/bin:")
    ignored = [
        set(lines_of(SOURCE / file))
        for file in (".containerignore", "image/Containerfile.dockerignore")
    ]
    assert ignored[0] == ignored[1] >= {".git", ".venv", "build"}


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed: make lint")
    result = subprocess.run([program, CONTAINERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_scripts_are_valid_shell() -> None:
    for script in (RECIPE / "stage", ENTRYPOINT):
        assert os.access(script, os.X_OK)
        subprocess.run(["sh", "-n", script], check=True)


def test_stage_refuses_what_it_does_not_know() -> None:
    for words in ("", "build tpu a b", "final cpu", "other cpu a"):
        result = subprocess.run(
            [str(RECIPE / "stage"), *words.split()], capture_output=True, text=True, check=False
        )
        assert result.returncode != 0 and result.stderr and not result.stdout


def write_sbom(file: Path, epoch: str = "1700000000") -> dict[str, Any]:
    program = [sys.executable, str(RECIPE / "sbom.py")]
    options = ["--name", "ljtrain-cpu", "--output", str(file)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(program + options, check=True, env=environment)
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def test_the_sbom_is_valid_spdx_and_complete(tmp_path: Path) -> None:
    from importlib import metadata

    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    file = tmp_path / "sbom.spdx.json"
    document = write_sbom(file)
    messages = validate_full_spdx_document(parse_file(str(file)))
    assert [message.validation_message for message in messages] == []
    locators = {
        reference["referenceLocator"]
        for each in document["packages"]
        for reference in each.get("externalRefs", [])
    }
    assert f"pkg:pypi/deepspeed@{metadata.version('deepspeed')}" in locators
    dpkg = ["dpkg-query", "-W", "-f=${db:Status-Status} ${Package}@\\n"]
    listing = subprocess.run(dpkg, capture_output=True, text=True, check=True).stdout.split("\n")
    installed = {line.split()[1] for line in listing if line.startswith("installed ")}
    named = {each.split("/")[-1].split("@")[0] + "@" for each in locators if "pkg:deb" in each}
    assert named == installed and len(installed) > 50
    assert write_sbom(tmp_path / "again.json") == document


@pytest.fixture
def image_path(tmp_path: Path) -> Iterator[str]:
    """A PATH whose ljperf says eth7 for the network and else is the real one."""
    real = Path(os.environ.get("LJPERF") or Path(sysconfig.get_path("scripts")) / "ljperf")
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_in = folder / "ljperf"
    stand_in.write_text(
        f'#!/bin/sh\n[ "$1" = image ] && {{ echo eth7; exit; }}\nexec {real} "$@"\n'
    )
    stand_in.chmod(0o755)
    yield f"{folder}:/usr/bin:/bin"


def enter(path: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENTRYPOINT, *command],
        env={"PATH": path, "HOME": "/tmp", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_entrypoint_sets_the_rule_and_keeps_the_users(image_path: str) -> None:
    show = ("sh", "-c", "echo ${NCCL_SOCKET_IFNAME-unset}")
    assert enter(image_path, *show, LJTRAIN_DOCTOR="off").stdout == "eth7\n"
    assert enter(image_path, *show, NCCL_SOCKET_IFNAME="").stdout == "eth7\n"
    assert enter(image_path, *show, NCCL_SOCKET_IFNAME="lo").stdout == "lo\n"
    # Without the program, nothing is guessed, and the command still runs.
    alone = enter("/usr/bin:/bin", *show, LJTRAIN_DOCTOR="off")
    assert (alone.returncode, alone.stdout) == (0, "unset\n")


def test_the_entrypoint_checks_and_hands_over(image_path: str) -> None:
    bad = {"NCCL_SOCKET_IFNAME": "nothere0"}
    told = enter(image_path, "sh", "-c", "exit 7", **bad)
    assert told.returncode == 7 and told.stdout == ""
    assert "network.interface" in told.stderr and "nothere0" in told.stderr
    held = enter(image_path, "echo", "ran", LJTRAIN_DOCTOR="require", **bad)
    assert held.returncode == 1 and held.stdout == ""
    quiet = enter(image_path, "echo", "ran", LJTRAIN_DOCTOR="off", **bad)
    assert (quiet.stdout, quiet.stderr) == ("ran\n", "")
    wrong = enter(image_path, "echo", "ran", LJTRAIN_DOCTOR="loud")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1
    assert enter(image_path, "nosuchprogram", LJTRAIN_DOCTOR="off").returncode == 127


def test_the_entrypoint_becomes_the_command(image_path: str) -> None:
    process = subprocess.Popen(
        [ENTRYPOINT, "sh", "-c", "trap 'exit 9' TERM; echo $$; while :; do sleep 0.05; done"],
        env={"PATH": image_path, "LJTRAIN_DOCTOR": "off"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 9


def test_the_network_rule_of_this_machine(ljperf: Ljperf) -> None:
    names = {each.name for each in Path("/sys/class/net").iterdir()}
    answer = ljperf("image", "network", "--gpus", "16", NCCL_SOCKET_IFNAME="")
    assert answer.returncode == 0 and len(answer.stderr.strip().splitlines()) == 1
    assert answer.stdout.strip().lstrip("=") in names | {""}
    assert "hpn0" in answer.stderr
    kept = ljperf("image", "network", NCCL_SOCKET_IFNAME="^docker")
    assert kept.stdout == "^docker\n" and "kept" in kept.stderr
    refused = ljperf("image", "network", "--release", "24.01")
    assert refused.returncode == 2 and "24.01" in refused.stderr


def test_doctor_brief_says_only_what_is_wrong(ljperf: Ljperf) -> None:
    start = time.monotonic()
    result = ljperf("doctor", "--quick", "--brief", NCCL_SOCKET_IFNAME="nothere0")
    assert time.monotonic() - start < 2
    assert result.returncode == 1
    assert not [line for line in result.stdout.splitlines() if line.startswith(("ok", "skip"))]
    assert "network.interface" in result.stdout and "fix:" in result.stdout
    well = ljperf("doctor", "--quick", "--brief", "--only", "limits.stack")
    assert well.stdout.splitlines() == ["1 ok, 0 warnings, 0 failures, 0 skipped (--json says why)"]


@pytest.mark.slow
def test_every_pin_exists_on_pypi(tmp_path: Path) -> None:
    """The CUDA variant's pins, torch's CUDA build included; of wheels the metadata alone."""
    names = ("python.txt", "python-cuda.txt", "python-build.txt")
    wanted = {name: version for file in names for name, version in pins(RECIPE / file).items()}
    # PyPI itself: not the CPU builds that this machine's settings may name.
    environment = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = str(tmp_path / "venv" / "bin" / "pip")

    def ask(*arguments: str) -> str:
        result = subprocess.run(
            [pip, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout

    ask("install", "--quiet", "pip>=26")  # older ones download whole wheels to read their metadata
    # A source distribution, whose metadata would need torch.
    versions = ask("index", "versions", "deepspeed")
    assert wanted["deepspeed"] in re.split(r"[\s,()]+", versions)
    listed = [f"{name}=={version}" for name, version in wanted.items() if name != "deepspeed"]
    options = ("--dry-run", "--no-deps", "--quiet", "--ignore-installed", "--only-binary=:all:")
    report = json.loads(ask("install", *options, "--report", "-", *listed))
    found = {
        re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower(): each["metadata"]
        for each in report["install"]
    }
    assert {name: each["version"] for name, each in found.items()} == {
        name: version for name, version in wanted.items() if name != "deepspeed"
    }
    # The build of PyTorch on PyPI is the one that python-cuda.txt serves.
    needs = " ".join(found["torch"]["requires_dist"])
    assert f"nvidia-nccl-cu13=={wanted['nvidia-nccl-cu13']}" in needs
    assert f"triton=={wanted['triton']}" in needs

"""The image as `make image-rootfs` makes it, run without a container engine (slow: it builds).

LJTRAIN_IMAGE names an archive to test instead of building one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent.parent
RUN = SOURCE / "tools" / "run_image.sh"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and owners: needs root"),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("LJTRAIN_IMAGE")
    if named:
        return Path(named)
    output = tmp_path_factory.mktemp("image")
    program = str(SOURCE / "tools" / "image_rootfs.sh")
    result = subprocess.run(
        [program, "--output", str(output)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    kept = sorted(file.name for file in output.iterdir())
    name = "ljtrain-0.1.0-cpu"
    assert kept == [f"{name}.log", f"{name}.spdx.json", f"{name}.tar"]
    return output / f"{name}.tar"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the runs share, so that the image is unpacked once."""
    folder = tmp_path_factory.mktemp("unpacked") / "bundle"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def run(
    archive: Path, unpacked: Path, *command: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    before = mounts()
    result = subprocess.run(
        [RUN, archive, *command],
        env={**os.environ, "IMAGE_FOLDER": str(unpacked), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert mounts() == before
    assert not list(Path("/var/tmp").glob("run-image.*"))
    return result


def test_the_archive_is_an_oci_image(archive: Path) -> None:
    """https://github.com/opencontainers/image-spec: layout, digests, sizes, diff ids."""
    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(f"./{name}")
            assert member is not None
            return member.read()

        def blob(descriptor: dict[str, Any]) -> bytes:
            kind, digest = descriptor["digest"].split(":")
            content = read(f"blobs/{kind}/{digest}")
            assert hashlib.new(kind, content).hexdigest() == digest
            assert len(content) == descriptor["size"]
            return content

        assert json.loads(read("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        index = json.loads(read("index.json"))
        assert index["schemaVersion"] == 2 and len(index["manifests"]) == 1
        entry = index["manifests"][0]
        assert entry["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
        assert entry["annotations"]["org.opencontainers.image.ref.name"] == "0.1.0"
        manifest = json.loads(blob(entry))
        config = json.loads(blob(manifest["config"]))
        layers = manifest["layers"]
        assert [each["mediaType"] for each in layers] == [
            "application/vnd.oci.image.layer.v1.tar+gzip"
        ]
        whole = hashlib.sha256(gzip.decompress(blob(layers[0]))).hexdigest()
        assert config["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{whole}"]}
        blobs = {name for name in tar.getnames() if name.startswith("./blobs/sha256/")}
        assert len(blobs) == 3  # nothing that no descriptor names
    assert config["os"] == "linux" and config["architecture"] in {"amd64", "arm64"}
    assert config["config"]["User"] == "1000:1000"
    assert config["config"]["Entrypoint"] == ["/usr/local/bin/entrypoint"]
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == "0.1.0"


def test_what_is_in_it_and_what_is_not(archive: Path, unpacked: Path) -> None:
    script = """
    id -u; pwd; command -v gdb perf py-spy g++ ljperf; ljperf --version
    for absent in cmake ninja-build git; do command -v $absent; done
    touch /opt/ljtrain/x 2>/dev/null && echo writable; true
    find / -xdev -name 'pip.conf' -o -xdev -path /wheels; ls -A /run /tmp /var/lib/apt/lists
    """
    found = run(archive, unpacked, "sh", "-c", script, LJTRAIN_DOCTOR="off")
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line]
    assert lines[:2] == ["1000", "/home/trainer"]
    assert [line.split("/")[-1] for line in lines[2:7]] == [
        "gdb",
        "perf",
        "py-spy",
        "g++",
        "ljperf",
    ]
    assert lines[7].startswith("ljperf 0.1.0")
    assert lines[8:] == ["/run:", "/tmp:", "/var/lib/apt/lists:"]
    sbom = json.loads((unpacked / "rootfs/usr/share/ljtrain/sbom.spdx.json").read_text())
    names = {each["name"]: each.get("versionInfo") for each in sbom["packages"]}
    assert {"torch", "deepspeed", "py-spy", "gdb", "linux-perf"} <= set(names)
    assert "cmake" not in names and names["ljtrain"] == "0.1.0"
    settings = unpacked / "rootfs/etc/apt"
    assert not list((settings / "apt.conf.d").glob("*registry*"))


def test_the_entrypoint_finds_nothing_wrong(archive: Path, unpacked: Path) -> None:
    told = run(archive, unpacked, "sh", "-c", "exit 5", LJTRAIN_DOCTOR="require")
    assert told.returncode == 5, told.stderr
    assert told.stderr.count("\n") <= 8 and " 0 failures" in told.stderr
    document = json.loads(
        run(
            archive,
            unpacked,
            "ljperf",
            "doctor",
            "--json",
            "--release",
            "0.1.0",
            LJTRAIN_DOCTOR="off",
        ).stdout
    )
    checks = {each["id"]: each for each in document["checks"]}
    for name in ("python.torch", "python.reinstalled", "python.files", "python.components"):
        assert checks[name]["status"] == "ok", checks[name]


def test_it_trains(archive: Path, unpacked: Path) -> None:
    options = ("--model", "deepspeed/llama3-8b", "--seq", "64", "--steps", "4", "--json")
    result = run(archive, unpacked, "ljperf", "benchmark", *options, LJTRAIN_DOCTOR="off")
    assert result.returncode == 0, result.stderr[-3000:]
    record = json.loads(result.stdout)
    assert record["proxy"]["is_proxy"] and record["loss"][0] > 5
    assert record["step_time_s"]["median"] > 0


def test_a_signal_reaches_the_command(archive: Path, unpacked: Path) -> None:
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [RUN, archive, "sh", "-c", script],
        env={**os.environ, "IMAGE_FOLDER": str(unpacked), "LJTRAIN_DOCTOR": "off"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 9
    assert not list(Path("/var/tmp").glob("run-image.*"))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_ended_leaves_nothing(tmp_path: Path, signal_number: int) -> None:
    process = subprocess.Popen(
        [SOURCE / "tools" / "image_rootfs.sh", "--output", tmp_path],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None and "bare" in process.stderr.readline()
    time.sleep(3)
    process.send_signal(signal_number)
    assert process.wait(timeout=60) == 130
    assert [file.name for file in tmp_path.iterdir()] == ["ljtrain-0.1.0-cpu.log"]
    assert str(tmp_path) not in mounts()


def test_what_is_no_archive_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    for content in (None, b"", b"no archive"):
        if content is not None:
            file.write_bytes(content)
        result = subprocess.run(
            [RUN, file, "true"], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 2
        assert str(file) in result.stderr.splitlines()[-1]

"""ljperf image: releases, their differences, addresses, checks and notes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import Ljperf

MANIFESTS = Path(__file__).parent.parent / "image" / "releases"
NAMES = ["25.05", "25.07", "25.08", "25.10", "26.05", "0.1.0"]


def refused(result: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == "" and len(result.stderr.strip().splitlines()) == 1, result.stderr
    for words in expected:
        assert words in result.stderr


def test_list_and_show(ljperf: Ljperf) -> None:
    listing = json.loads(ljperf("image", "list", "--json").stdout)
    assert [release["release"] for release in listing["releases"]] == NAMES
    table = ljperf("image", "list").stdout
    assert all(name in table for name in NAMES)
    text = ljperf("image", "show", "25.07").stdout
    for part in ("25.07-serverless", "Lingjun single-tenant", "hpn0", "2.7.1.8+nv25.3"):
        assert part in text
    arm = json.loads(ljperf("image", "show", "25.10", "--arch", "aarch64", "--json").stdout)
    assert "pytorch-triton" in arm["components"] and "triton" not in arm["components"]


def test_diff(ljperf: Ljperf) -> None:
    document = json.loads(ljperf("image", "diff", "25.07", "26.05", "--json").stdout)
    changes = {each["key"]: (each["before"], each["after"]) for each in document["differences"]}
    assert changes["cuda"] == ("12.8.0", "13.0.2")
    assert changes["torch"] == ("2.7.1.8+nv25.3", "2.11.0")
    assert "no difference" in ljperf("image", "diff", "25.07", "25.07").stdout


def test_address_is_alone_on_standard_output(ljperf: Ljperf) -> None:
    result = ljperf("image", "address", "--release", "25.07", "--region", "cn-beijing", "--vpc")
    assert result.returncode == 0
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith("acs-registry-vpc.cn-beijing.")
    assert result.stdout.strip().endswith(":25.07-serverless")
    assert "Lingjun single-tenant" in result.stderr and "known issues" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("show", "25.09"), ["25.09", "25.07"]),
        (("show",), ["release"]),
        (("address", "--release", "25.07", "--vpc"), ["--region"]),
        (("address", "--release", "25.07", "--region", "cn-beijing"), ["--vpc"]),
        (("address", "--release", "25.07", "--vpc", "--region", "a;b"), ["a;b", "cn-beijing"]),
        (("notes", "25.07", "--ablation", "/no/such.json"), ["/no/such.json"]),
    ],
)
def test_bad_input_is_one_line(
    ljperf: Ljperf, arguments: tuple[str, ...], expected: list[str]
) -> None:
    refused(ljperf("image", *arguments), *expected)


def test_a_truncated_manifest_is_one_line(ljperf: Ljperf, tmp_path: Path) -> None:
    whole = (MANIFESTS / "25.07.json").read_text()
    file = tmp_path / "release.json"
    for length in (0, 1, 200, len(whole) // 2, len(whole) - 3):
        file.write_text(whole[:length])
        refused(ljperf("image", "show", file), str(file))
    file.write_bytes(b"\x00\xff\xfe" * 100)
    refused(ljperf("image", "show", file), str(file))
    file.write_text(whole)
    assert ljperf("image", "show", file).returncode == 0


def test_check_holds_this_machine_against_a_release(ljperf: Ljperf) -> None:
    result = ljperf("image", "check", "25.07", "--json")
    found = {check["id"]: check for check in json.loads(result.stdout)["checks"]}
    assert found["image.manifest"]["status"] == "ok"
    assert not any(name.startswith("limits") for name in found)
    assert result.returncode == 1 and found["python.reinstalled"]["status"] == "fail"


def test_notes_hold_manifest_and_ablation(ljperf: Ljperf, tmp_path: Path) -> None:
    ablation = tmp_path / "ablation.json"
    row = {"configuration": "accl", "record_ids": ["a"], "tokens_per_s": 1234.5}
    row |= {"speedup_vs_base": 1.2, "ci95": [1.15, 1.25], "contribution": 1.2}
    ablation.write_text(json.dumps({"schema_version": 1, "rows": [row]}))
    output = tmp_path / "notes.md"
    arguments = ("--ablation", ablation, "--since", "26.05", "--output", output)
    result = ljperf("image", "notes", "0.1.0", *arguments)
    assert result.returncode == 0 and result.stdout == ""
    notes = output.read_text()
    assert notes.startswith("# Release 0.1.0")
    assert "| accl | 1234.5 | 1.200 | 1.150 to 1.250 | +20.0 % |" in notes
    assert "## Changes since 26.05" in notes
    assert str(tmp_path) not in notes
    ablation.write_text('{"rows": 3}')
    refused(ljperf("image", "notes", "0.1.0", "--ablation", ablation), "cnp ablate")

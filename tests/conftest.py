"""End-to-end tests run the installed ljperf as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


class Ljperf:
    """Runs ljperf with a records folder of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.records = folder / "records"

    def environment(self, **changes: str) -> dict[str, str]:
        return {**os.environ, "LJTRAIN_RECORDS": str(self.records), "TERM": "dumb", **changes}

    def __call__(
        self, *arguments: str | Path, timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *map(str, arguments)],
            env=self.environment(**environment),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *map(str, arguments)],
            env=self.environment(**environment),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stored_records(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.records.glob("*.json"))]


def _program() -> Path:
    named = os.environ.get("LJPERF")
    return Path(named) if named else Path(sysconfig.get_path("scripts")) / "ljperf"


@pytest.fixture
def ljperf(tmp_path: Path) -> Ljperf:
    program = _program()
    assert program.exists(), f"{program} is missing: run `make build` first"
    return Ljperf(program, tmp_path)


@pytest.fixture
def tiny_config(tmp_path: Path) -> Path:
    """A Llama so small that a step takes milliseconds."""
    file = tmp_path / "tiny-llama.json"
    file.write_text(json.dumps(TINY_LLAMA))
    return file


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a variation of the tiny Llama's config.json."""

    def write(**changes: Any) -> Path:
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**TINY_LLAMA, **changes}, indent=1))
        return file

    return write


@pytest.fixture(scope="session")
def python_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real text: the standard library's sources, 400 KB of them."""
    file = tmp_path_factory.mktemp("text") / "sources.txt"
    library = Path(sysconfig.get_path("stdlib"))
    text = "".join(path.read_text("utf-8", "ignore") for path in sorted(library.glob("*.py"))[:40])
    file.write_text(text[:400_000])
    return file


def descendants_of(pid: int) -> set[int]:
    """Every process below `pid`, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent == pid or parent in found}
        grown = not more <= found
        found |= more
    return found

"""libaccl.so is NCCL 2.29.7 to who links or loads it: names, values, layouts, C programs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "accl/facts/nccl-2.29.7.json"
DERIVE = ROOT / "accl/facts/derive.py"
HEADERS = ROOT / "accl/include"
PROGRAMS = ROOT / "accl/tests/c"
EXTENSIONS = {
    "acclLastError",
    "acclSetTimeout",
    "acclStreamCreate",
    "acclStreamDestroy",
    "acclStreamEnqueue",
    "acclStreamQuery",
    "acclStreamSynchronize",
    "acclVersion",
}
LIBRARIES = ["libaccl.so", "nccl/libnccl.so.2"]
# What NVIDIA's header needs to compile; the first also holds the library.
WHEELS = ["nvidia-nccl-cu13==2.29.7", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"]


def library_folder() -> Path:
    """Where the libraries are: the installed package's lib/, or ACCL_LIBRARY_FOLDER."""
    named = os.environ.get("ACCL_LIBRARY_FOLDER")
    if named:
        return Path(named)
    package = importlib.util.find_spec("ljtrain")
    assert package, "ljtrain is not installed: run `make build` first"
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "lib"


@pytest.fixture(scope="session")
def facts() -> dict[str, Any]:
    return json.loads(FACTS.read_text())


def derive(*arguments: str | Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, DERIVE, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def run_program(program: Path, *arguments: str, library: str) -> str:
    folder = (library_folder() / library).parent
    result = subprocess.run(
        [program, *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def compile_program(source: Path, program: Path, library: str, *include: Path) -> Path:
    path = library_folder() / library
    subprocess.run(
        ["cc", "-std=gnu11", "-Wall", "-o", program, source, *(f"-I{folder}" for folder in include),
         f"-L{path.parent}", f"-l:{path.name}"],
        check=True,
    )  # fmt: skip
    return program


def exported(library: str) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library_folder() / library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[-1].split("@")[0] for line in listing.splitlines()}


@pytest.mark.parametrize("library", LIBRARIES)
def test_exports_are_nccls_and_nothing_from_inside(facts: dict[str, Any], library: str) -> None:
    assert exported(library) == set(facts["exports"]) | EXTENSIONS


@pytest.mark.parametrize("library", LIBRARIES)
def test_soname_is_the_file_name(library: str) -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", library_folder() / library], capture_output=True, text=True, check=True
    ).stdout
    assert f"Library soname: [{Path(library).name}]" in dynamic


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_inside_stay_inside(library: str) -> None:
    """Where NVIDIA's library is loaded as well, a call by name could end up there."""
    relocations = subprocess.run(
        ["readelf", "-rW", library_folder() / library], capture_output=True, text=True, check=True
    ).stdout
    assert not re.findall(r"\bp?nccl[A-Z]\w*", relocations)


def test_our_header_says_what_nvidias_says(facts: dict[str, Any]) -> None:
    headers = ["--header", "accl/nccl.h", "--header", "accl/nccl_device.h"]
    ours = derive("probe", "--facts", FACTS, "--include", HEADERS, *headers)
    for kind, values in ours.items():
        assert values == facts[kind], kind
    assert set(ours) == set(facts) - {"nccl", "exports"}


@pytest.mark.parametrize(
    "compiler",
    [
        "cc -std=c99 -pedantic-errors -x c",
        "cc -std=c17 -pedantic-errors -x c",
        "c++ -std=c++11 -x c++",
    ],
)
def test_our_headers_stand_alone(compiler: str) -> None:
    source = '#include "accl/nccl_device.h"\n#include "accl/accl.h"\nint main(void) { return 0; }\n'
    subprocess.run(
        [*compiler.split(), "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HEADERS}", "-"],
        input=source,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_c_program_runs(tmp_path: Path, library: str) -> None:
    # As <nccl.h>: the folder with our header comes as NVIDIA's would.
    program = compile_program(
        PROGRAMS / "ranks.c", tmp_path / "ranks", library, HEADERS / "accl", HEADERS
    )
    output = run_program(program, "3", library=library)
    assert sorted(output.splitlines()) == [f"rank {rank} of 3: ok" for rank in range(3)]


def test_a_profiler_can_stand_in_between(tmp_path: Path) -> None:
    program = compile_program(PROGRAMS / "profiler.c", tmp_path / "profiler", "libaccl.so", HEADERS)
    assert run_program(program, library="libaccl.so") == "1 call, result 3\n"


def test_libnccl_is_found_by_its_name() -> None:
    code = (
        "import ctypes; library = ctypes.CDLL('libnccl.so.2'); version = ctypes.c_int();"
        "assert library.ncclGetVersion(ctypes.byref(version)) == 0;"
        "library.acclVersion.restype = ctypes.c_char_p;"
        "print(version.value, library.acclVersion().decode())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(library_folder() / "nccl")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("22907 ACCL ")


@pytest.fixture(scope="session")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """NVIDIA's library and headers, from PyPI."""
    folder = tmp_path_factory.mktemp("nvidia")
    for wheel in WHEELS:
        result = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, wheel],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if result.returncode != 0:
            pytest.skip(f"{wheel} cannot be had from PyPI: {result.stderr.strip()[-200:]}")
    for file in folder.glob("*.whl"):
        zipfile.ZipFile(file).extractall(folder)
    cuda = folder / "nvidia/cu13/include"
    return {
        "library": folder / "nvidia/nccl/lib/libnccl.so.2",
        "include": [folder / "nvidia/nccl/include", cuda, cuda / "cccl"],
    }


@pytest.mark.slow
def test_facts_are_what_nvidias_files_say(nvidia: dict[str, Any], facts: dict[str, Any]) -> None:
    includes = [word for path in nvidia["include"] for word in ("--include", path)]
    assert derive("collect", "--library", nvidia["library"], *includes) == facts


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_c_program_for_nvidias_header_runs(
    tmp_path: Path, nvidia: dict[str, Any], library: str
) -> None:
    program = compile_program(PROGRAMS / "ranks.c", tmp_path / "ranks", library, *nvidia["include"])
    output = run_program(program, "3", library=library)
    assert sorted(output.splitlines()) == [f"rank {rank} of 3: ok" for rank in range(3)]


@pytest.mark.slow
def test_our_header_lives_with_cudas(nvidia: dict[str, Any]) -> None:
    cuda, ours = (
        "#include <cuda_runtime.h>\n",
        '#include "accl/accl.h"\n#include "accl/nccl_device.h"\n',
    )
    includes = [f"-I{path}" for path in [HEADERS, *nvidia["include"][1:]]]
    for source in (cuda + ours, ours + cuda):
        for language in (["cc", "-x", "c"], ["c++", "-std=c++17", "-x", "c++"]):
            subprocess.run(
                [*language, "-fsyntax-only", *includes, "-"], input=source, text=True, check=True
            )

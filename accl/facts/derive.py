#!/usr/bin/env python3
"""Facts about NCCL's binary interface, read from NVIDIA's header and library, or from any other.

    derive.py collect --library libnccl.so.2 --include NCCL_INCLUDE --include CUDA_INCLUDE ...
    derive.py probe --facts nccl-2.29.7.json --include accl/include --header accl/nccl.h ...

`collect` finds the names in NVIDIA's header by reading it, and their values by compiling a program
that prints them; `probe` prints the same for the names in a file of facts and the headers that are
given. Headers and library come from PyPI: nvidia-nccl-cu13, nvidia-cuda-runtime, nvidia-cuda-crt,
nvidia-cuda-cccl.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NCCL_HEADERS = ["nccl.h", "nccl_device.h"]
# Host-callable parts of the device interface; the rest of those headers is for GPU code.
DEVICE_FILES = ["core.h", "lsa_barrier.h", "gin_barrier.h", "ll_a2a.h"]
DEVICE_STRUCTS = {
    "ncclTeam": "core.h",
    "ncclDevCommRequirements": "core.h",
    "ncclDevResourceRequirements": "core.h",
    "ncclTeamRequirements": "core.h",
    "ncclCommProperties": "core.h",
    "ncclMultimemHandle": "impl/core__types.h",
    "ncclLsaBarrierHandle": "impl/lsa_barrier__types.h",
    "ncclGinBarrierHandle": "impl/gin_barrier__types.h",
    "ncclLLA2AHandle": "impl/ll_a2a__types.h",
}
INITIALIZERS = {
    "NCCL_CONFIG_INITIALIZER": "ncclConfig_t",
    "NCCL_SIM_INFO_INITIALIZER": "ncclSimInfo_t",
}

PROGRAM_HEAD = """
#include <cxxabi.h>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <typeinfo>

template <typename T>
std::string name_of() {
  int status = 0;
  char* text = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
  std::string name(text);
  std::free(text);
  return name;
}
// Some names are overloaded for GPU code; the C function takes a communicator.
template <typename R, typename... A>
std::string of_communicator(R (*)(ncclComm_t, A...)) { return name_of<R (*)(ncclComm_t, A...)>(); }
template <typename F>
std::string of_function(F*) { return name_of<F*>(); }

void print_bytes(const char* what, const void* data, std::size_t size) {
  std::printf("%s\\t", what);
  for (std::size_t i = 0; i < size; ++i) {
    std::printf("%02x", static_cast<const unsigned char*>(data)[i]);
  }
  std::printf("\\n");
}

int main() {
"""


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def field_names(body: str) -> list[str]:
    names = []
    for statement in without_comments(body).split(";"):
        for declarator in statement.split(","):
            words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^]]*\]", "", declarator))
            if words:
                names.append(words[-1])
    return names


def struct_body(text: str, name: str) -> str:
    found = re.search(r"struct\s+" + name + r"\s*\{(.*?)\};", without_comments(text), re.DOTALL)
    assert found, f"struct {name} is not in the header"
    return found.group(1)


def find_names(include: Path) -> dict[str, Any]:
    """The names that NVIDIA's headers declare, without their values."""
    main = (include / "nccl.h").read_text()
    plain = without_comments(main)
    device = {
        file: (include / "nccl_device" / file).read_text()
        for file in {*DEVICE_FILES, *DEVICE_STRUCTS.values()}
    }
    enums = {}
    core = without_comments(device["core.h"])
    for body, name in re.findall(
        r"typedef\s+enum\s*\{(.*?)\}\s*(\w+)\s*;", plain + core, re.DOTALL
    ):
        enums[name] = re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", body.strip())
    structs = {}
    for body, name in re.findall(
        r"typedef\s+struct\s*\w*\s*\{(.*?)\}\s*(\w+)\s*;", plain, re.DOTALL
    ):
        structs[name] = field_names(body)
    for name, file in DEVICE_STRUCTS.items():
        structs[name] = field_names(struct_body(device[file], name))
    macros = re.findall(r"^#define[ \t]+(NCCL_\w+)[ \t]+[^\s\\{].*$", plain, re.MULTILINE)
    functions = re.findall(r"\b(p?nccl[A-Z]\w*)\s*\([^;{}]*\)\s*;", re.sub(r"#.*", "", plain))
    overloaded = []
    for file in DEVICE_FILES:
        text = without_comments(device[file])
        for name in re.findall(r"NCCL_EXTERN_C\s+__host__\s+\w+\s+(\w+)\s*\(", text):
            functions.append(name)
            if len(re.findall(r"\b" + name + r"\s*\(", text)) > 1:
                overloaded.append(name)
    return {
        "enums": {key: sorted(set(names)) for key, names in sorted(enums.items())},
        "structs": dict(sorted(structs.items())),
        "macros": sorted(set(macros) - {"NCCL_SUFFIX"}),
        "functions": sorted(set(functions)),
        "overloaded": sorted(overloaded),
    }


def program(names: dict[str, Any], headers: list[str]) -> str:
    lines = [f"#include <{header}>" for header in headers]
    lines.append(PROGRAM_HEAD)
    for enum, values in names["enums"].items():
        lines.append(f'  std::printf("enum\\t{enum}\\t\\t%zu\\n", sizeof({enum}));')
        for value in values:
            lines.append(
                f'  std::printf("enum\\t{enum}\\t{value}\\t%lld\\n", '
                f"static_cast<long long>({value}));"
            )
    for struct, fields in names["structs"].items():
        lines.append(f'  std::printf("struct\\t{struct}\\t\\t%zu\\t0\\n", sizeof({struct}));')
        for field in fields:
            lines.append(
                f'  std::printf("struct\\t{struct}\\t{field}\\t%zu\\t%zu\\n", '
                f"offsetof({struct}, {field}), sizeof({struct}::{field}));"
            )
    for macro in names["macros"]:
        lines.append(f'  std::printf("macro\\t{macro}\\t%.17g\\n", static_cast<double>({macro}));')
    for function in names["functions"]:
        how = "of_communicator" if function in names["overloaded"] else "of_function"
        lines.append(f'  std::printf("function\\t{function}\\t%s\\n", {how}({function}).c_str());')
    for macro, struct in INITIALIZERS.items():
        lines.append(f"  {{ static const {struct} value = {macro};")
        lines.append(f'    print_bytes("initializer\\t{macro}", &value, sizeof(value)); }}')
    return "\n".join([*lines, "  return 0;\n}\n"])


# What stands behind a macro that is no number.
NOT_NUMBERS = {"NCCL_COMM_NULL", "NCCL_CONFIG_UNDEF_PTR"}


def values_of(names: dict[str, Any], headers: list[str], include: list[str]) -> dict[str, Any]:
    names = {**names, "macros": [name for name in names["macros"] if name not in NOT_NUMBERS]}
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "probe.cc"), Path(folder, "probe")
        source.write_text(program(names, headers))
        includes = [f"-I{path}" for path in include]
        # Only types and constants are looked at, so nothing needs a library.
        quiet = ["-w", "-Wno-deprecated-declarations"]
        subprocess.run(
            ["g++", "-std=c++17", "-O1", *quiet, *includes, "-o", binary, source,
             "-Wl,--unresolved-symbols=ignore-all"],
            check=True,
        )  # fmt: skip
        output = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    facts: dict[str, Any] = {"enums": {}, "structs": {}, "macros": {}, "functions": {}}
    facts["initializers"] = {}
    for line in output.splitlines():
        kind, name, *rest = line.split("\t")
        if kind == "enum":
            member, value = rest
            enum = facts["enums"].setdefault(name, {"size": 0, "values": {}})
            if member:
                enum["values"][member] = int(value)
            else:
                enum["size"] = int(value)
        elif kind == "struct":
            field, offset, size = rest
            struct = facts["structs"].setdefault(name, {"size": 0, "fields": {}})
            if field:
                struct["fields"][field] = {"offset": int(offset), "size": int(size)}
            else:
                struct["size"] = int(offset)
        elif kind == "macro":
            facts["macros"][name] = float(rest[0])
        else:
            facts[f"{kind}s"][name] = rest[0]
    return facts


def names_in(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "enums": {name: list(enum["values"]) for name, enum in facts["enums"].items()},
        "structs": {name: list(struct["fields"]) for name, struct in facts["structs"].items()},
        "macros": list(facts["macros"]),
        "functions": list(facts["functions"]),
        "overloaded": [],
    }


def exports_of(library: str) -> list[str]:
    """Every name that the library defines and shows."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return sorted({line.split()[-1].split("@")[0] for line in listing.splitlines()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collect = commands.add_parser("collect")
    collect.add_argument("--library", required=True)
    collect.add_argument("--include", action="append", required=True)
    probe = commands.add_parser("probe")
    probe.add_argument("--facts", required=True, type=Path)
    probe.add_argument("--include", action="append", required=True)
    probe.add_argument("--header", action="append", required=True)
    arguments = parser.parse_args()
    if arguments.command == "collect":
        nccl = next(Path(path) for path in arguments.include if Path(path, "nccl.h").exists())
        facts = values_of(find_names(nccl), NCCL_HEADERS, arguments.include)
        exports = [name for name in exports_of(arguments.library) if re.match("p?nccl", name)]
        facts = {"nccl": "2.29.7", "exports": exports, **facts}
    else:
        facts = values_of(
            names_in(json.loads(arguments.facts.read_text())), arguments.header, arguments.include
        )
    json.dump(facts, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

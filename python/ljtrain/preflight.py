"""What ljperf asks of this Python before it starts anything: `python -m ljtrain.preflight`, JSON
in, JSON out.

It answers within half a second, so it imports neither torch nor transformers: versions come from
package metadata, the names and types of TrainingArguments from the source of transformers.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from ljtrain import argument_types, versions

SCHEMA_VERSION = 1
PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "numpy")
NEEDED = {
    "deepspeed": ("torch", "transformers", "accelerate", "numpy", "deepspeed"),
    "fsdp": ("torch", "transformers", "accelerate", "numpy"),
    "ddp": ("torch", "transformers", "accelerate", "numpy"),
}
# DeepSpeed's own build imports torch, which pip hides from it unless told not to.
INSTALL = {
    "torch": "pip install torch=={}.0",
    "transformers": "pip install 'transformers=={}.*'",
    "accelerate": "pip install 'accelerate=={}.*'",
    "deepspeed": "DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed=={}",
}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)


def _missing(engine: str) -> list[str]:
    problems = []
    for package in NEEDED[engine]:
        if versions.installed(package) is None or importlib.util.find_spec(package) is None:
            command = INSTALL.get(package, f"pip install {package}").format(
                versions.TESTED.get(package, "")
            )
            problems.append(f"{package} is not installed in {sys.executable}: {command}")
    return problems


def _torch_build() -> str | None:
    """cpu, cuda, rocm or xpu, as torch/version.py says; None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    for name, build in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
        if re.search(rf"^{name}\b[^=\n]*=\s*['\"]", text, re.MULTILINE):
            return build
    return "cpu"


def _argument_problems(arguments: dict[str, Any]) -> list[str]:
    known = argument_types.training_argument_types()
    problems = []
    for name, value in arguments.items():
        if not known:
            break
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else "."
            problems.append(f"TrainingArguments has no {name!r}{hint}")
        elif not argument_types.fits(value, known[name]):
            problems.append(
                f"TrainingArguments {name} takes {known[name]}; {json.dumps(value)} is not one."
            )
    return problems


def _tokenizer_problems(directory: str | None) -> list[str]:
    if directory is None:
        return []
    if not os.path.isdir(directory):
        return [f"the tokenizer {directory} is not a directory."]
    if not any(os.path.exists(os.path.join(directory, name)) for name in TOKENIZER_FILES):
        return [f"{directory} holds no tokenizer (none of {', '.join(TOKENIZER_FILES)})."]
    return []


def _build_tool_problems(engine: str, build: str | None) -> list[str]:
    """DeepSpeed on hosts compiles an operator when it first runs."""
    if engine != "deepspeed" or build != "cpu":
        return []
    problems = []
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        problems.append(
            "DeepSpeed compiles an operator on first use and finds no C++ compiler: apt install g++"
        )
    if shutil.which("ninja") is None and not (Path(sys.executable).parent / "ninja").exists():
        problems.append(
            "DeepSpeed compiles an operator on first use and finds no ninja: pip install ninja"
        )
    return problems


def check(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request {"engine", "training_arguments", "tokenizer"}."""
    engine = request.get("engine", "deepspeed")
    if engine not in NEEDED:
        problems = [f"engine is {engine!r}; it must be one of {', '.join(NEEDED)}."]
    else:
        build = _torch_build()
        problems = _missing(engine) + _build_tool_problems(engine, build)
    problems += _argument_problems(request.get("training_arguments") or {})
    problems += _tokenizer_problems(request.get("tokenizer"))
    found: dict[str, str | None] = {package: versions.installed(package) for package in PACKAGES}
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": not problems,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "versions": found,
        "torch_build": _torch_build(),
        "measuring_extension": importlib.util.find_spec("ljtrain._C") is not None,
        "untested": [
            sentence for package in versions.TESTED if (sentence := versions.untested(package))
        ],
        "problems": problems,
    }


def main() -> int:
    try:
        request = json.load(sys.stdin)
    except ValueError as error:
        print(
            json.dumps(
                {"schema_version": SCHEMA_VERSION, "ok": False, "problems": [f"not JSON: {error}"]}
            )
        )
        return 2
    json.dump(check(request), sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

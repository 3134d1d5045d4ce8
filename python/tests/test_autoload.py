"""What `import torch` does with ljtrain installed: little, quickly, and never harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import PACKAGE_ROOT, install_entry_point

LIMIT_MS = 5.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_entry_point(tmp_path_factory.mktemp("site"))


def run(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    cleared = {
        key: value
        for key, value in os.environ.items()
        if key != "RANK" and not key.startswith("LJTRAIN")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=cleared | {"PYTHONPATH": os.pathsep.join(map(str, path))} | environment,
    )


def status(
    *path: Path, code: str = "import ljtrain.autoload as a; a.load()", **environment: str
) -> tuple[dict[str, Any], str]:
    done = run(
        f"{code}\nimport json, ljtrain; print(json.dumps(ljtrain.status()))", *path, **environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_loading_is_quick_and_imports_nothing_heavy() -> None:
    """Measured where it happens: PyTorch loads its entry points at the end of its own import.

    Processor time, as what else the machine does is not the autoload's.
    """
    code = (
        "import sys, time, torch; before = set(sys.modules); began = time.process_time()\n"
        "import ljtrain.autoload; ljtrain.autoload.load()\n"
        "print((time.process_time() - began) * 1e3)\n"
        "print(sorted(name for name in set(sys.modules) - before if 'ljtrain' not in name))"
    )
    fastest, others = 1e9, ""
    for _ in range(2):
        milliseconds, others = run(
            code, PACKAGE_ROOT, TORCH_DEVICE_BACKEND_AUTOLOAD="0"
        ).stdout.splitlines()
        fastest = min(fastest, float(milliseconds))
    assert fastest < LIMIT_MS
    assert others == "[]"


def test_import_torch_loads_it_and_changes_nothing(installed: Path) -> None:
    """But for the hook that waits for transformers' Trainer, as compilation is on by default."""
    code = (
        "import sys; before = list(sys.meta_path); import torch\n"
        "print([type(finder).__name__ for finder in sys.meta_path if finder not in before],"
        " file=sys.stderr)"
    )
    report, said = status(installed, code=code)
    assert report["autoload"] == {"active": True, "why_not": None, "faults": []}
    assert said.strip() == "['ImportHook']"
    assert report["parts"]["compile"] == {
        "asked_for": True,
        "active": False,
        "why_not": "not yet imported: transformers.trainer",
    }
    report, said = status(installed, code=code, LJTRAIN_COMPILE="0")
    assert said.strip() == "[]"
    assert report["parts"]["compile"]["why_not"] == "LJTRAIN_COMPILE switches it off"


def test_autoload_can_be_switched_off(installed: Path) -> None:
    report, _ = status(installed, code="import torch", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert report["autoload"]["active"] is False
    assert report["autoload"]["why_not"] == "TORCH_DEVICE_BACKEND_AUTOLOAD=0"


def test_a_fault_does_not_break_import_torch(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['ljtrain.integrations'] = None\n"
    )
    done = run("import torch; print(torch.ones(2).sum().item())", tmp_path, installed)
    assert done.returncode == 0
    assert done.stdout.strip() == "2.0"
    assert done.stderr.count("ljtrain:") == 1
    assert "training goes on without it" in done.stderr


def test_recompute_waits_for_the_trainer(installed: Path) -> None:
    report, said = status(installed, CHECKPOINT_OPTIMIZATION="true", RANK="0")
    assert "ljtrain:" not in said
    assert report["parts"]["recompute"] == {
        "asked_for": True,
        "active": False,
        "why_not": "not yet imported: transformers.trainer",
    }


def test_accl_is_active_as_soon_as_torch_is_imported(installed: Path) -> None:
    code = (
        "import torch, sys; from torch import distributed as dist\n"
        "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(1))"
    )
    report, said = status(installed, code=code, LJTRAIN_ACCL="1")
    assert report["parts"]["accl"] == {"asked_for": True, "active": True, "why_not": None}
    (group,) = report["accl"]["groups"]
    assert group["operations"] == {"all_reduce": 1}
    assert report["accl"]["left_to_gloo"] == []
    assert said.count("ljtrain:") == 1
    report, said = status(installed, code=code)
    assert report["parts"]["accl"]["why_not"] == "LJTRAIN_ACCL is not set"
    assert report["accl"] == {"groups": [], "left_to_gloo": []}


def test_accl_that_cannot_be_loaded_says_so_where_a_group_is_made(installed: Path) -> None:
    """A PyTorch of another version: training must not go on with something else silently."""
    code = (
        "import torch; torch.__version__ = '2.99.0'\n"
        "from torch import distributed as dist\n"
        "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = run(code, installed, LJTRAIN_ACCL="1")
    assert done.returncode != 0
    assert "was built for PyTorch 2.13" in done.stderr.splitlines()[-1]


def test_an_untested_version_is_named_when_a_part_is_asked_for(
    installed: Path, tmp_path: Path
) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("")
    metadata = tmp_path / "accelerate-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: accelerate\nVersion: 9.9\n")
    code = "import ljtrain.autoload as a; a.load(); import accelerate"
    report, said = status(tmp_path, installed, code=code, LJTRAIN_ACCL="1")
    assert "accelerate 9.9 is not a tested version (tested: 1.15)" in said
    assert report["versions"]["accelerate"] == {"found": "9.9", "tested": "1.15", "ok": False}
    _, said = status(tmp_path, installed, code=code)
    assert "accelerate" not in said


IMPORT_HOOK = """
import sys
from ljtrain.import_hook import ImportHook
seen, faults = [], []
hook = ImportHook(lambda name, fault: faults.append((name, str(fault))))
def fail(module): raise ValueError("no")
hook.after_import("json", lambda module: seen.append((module.__name__, hasattr(module, "loads"))))
hook.after_import("xml.dom", lambda module: seen.append(module.__name__))
hook.after_import("xml.dom", fail)
assert sys.meta_path[0] is hook and seen == []
import json
import xml.dom
assert seen == [("json", True), "xml.dom"], seen
assert faults == [("xml.dom", "no")], faults
assert hook not in sys.meta_path
assert type(json.__loader__).__name__ == type(json.__spec__.loader).__name__ == "SourceFileLoader"
hook.after_import("json", lambda module: seen.append("at once"))
assert seen[-1] == "at once" and hook not in sys.meta_path
import importlib
importlib.reload(json)
hook.after_import("nowhere_to_be_found", seen.append)
try: import nowhere_to_be_found
except ModuleNotFoundError: print("fine")
"""


def test_the_import_hook_waits_tells_and_leaves() -> None:
    done = run(IMPORT_HOOK, PACKAGE_ROOT)
    assert done.stdout.strip() == "fine", done.stderr


def test_a_module_that_is_half_imported_is_waited_for(tmp_path: Path) -> None:
    """As when transformers imports torch, whose import asks to be told about transformers."""
    (tmp_path / "half_imported.py").write_text(
        "import sys\nfrom ljtrain.import_hook import ImportHook\nseen = []\n"
        "hook = ImportHook(print)\n"
        "hook.after_import('half_imported', lambda it: seen.append(hasattr(it, 'last_line')))\n"
        "import colorsys\nassert seen == []\nlast_line = True\n"
    )
    done = run(
        "import half_imported, wave; assert half_imported.seen == [True]", PACKAGE_ROOT, tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_status_as_a_command_and_as_a_function() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ljtrain.status"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
    )
    report = json.loads(done.stdout)
    assert report["schema_version"] == 1
    assert set(report["parts"]) == {"accl", "compile", "recompute"}
    assert set(report["versions"]) == {"torch", "transformers", "deepspeed", "accelerate"}
    # The module may be imported by its name first: calling it still works.
    done = run(
        "import ljtrain.status, ljtrain; assert ljtrain.status()['ljtrain'] == ljtrain.__version__",
        PACKAGE_ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_the_extension_refuses_another_torch(tmp_path: Path) -> None:
    """A PyTorch of another minor version: one line, and the caller goes on without the
    extension.
    """
    code = (
        "import torch; torch.__version__ = '2.99.0'\n"
        "from ljtrain import extension\n"
        "assert extension.load() is None and extension.load() is None\n"
        "print(extension.why_not())"
    )
    done = run(code, PACKAGE_ROOT)
    assert "was built for PyTorch 2.13" in done.stdout
    assert "2.99.0" in done.stdout
    assert done.stderr.count("ljtrain._C does not load") == 1

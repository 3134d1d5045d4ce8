"""`ljtrain.status()`: what is active and, if it is not, why not. `python -m ljtrain.status`
prints it as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import ljtrain
from ljtrain import autoload, versions
from ljtrain.integrations import INTEGRATIONS, Integration

AUTOLOAD_VARIABLE = (
    "TORCH_DEVICE_BACKEND_AUTOLOAD"  # PyTorch's: 0 switches all such entry points off
)


def _autoload_why_not() -> str | None:
    if autoload.loaded:
        return None
    if os.environ.get(AUTOLOAD_VARIABLE, "1") == "0":
        return f"{AUTOLOAD_VARIABLE}=0"
    points = metadata.entry_points(group="torch.backends")
    if not any(point.value.startswith("ljtrain.") for point in points):
        return "ljtrain is importable but not installed (no entry point): pip install it"
    return None if "torch" in sys.modules else "torch has not been imported yet"


def _part(integration: Integration) -> dict[str, Any]:
    asked = integration.asked_for()
    active = integration.part in autoload.active
    why_not: str | None = None
    if integration.module is None:
        why_not = "not part of this release"
    elif not asked and integration.by_default:
        why_not = f"{integration.variable} switches it off"
    elif not asked:
        why_not = f"{integration.variable} is not set"
    elif not active:
        why_not = _autoload_why_not() or f"not yet imported: {', '.join(integration.after)}"
    return {"asked_for": asked, "active": active, "why_not": None if active else why_not}


def _extension() -> dict[str, Any]:
    if "ljtrain._C" in sys.modules:
        return {"active": True, "why_not": None}
    from ljtrain import extension

    if importlib.util.find_spec("ljtrain._C") is None:
        return {
            "active": False,
            "why_not": "not built for this Python: pip install --no-build-isolation ljtrain",
        }
    return {"active": False, "why_not": extension.why_not() or "nothing has asked for it"}


def _version(package: str) -> dict[str, Any]:
    found = versions.installed(package)
    tested = found is not None and versions.is_tested(package, found)
    return {"found": found, "tested": versions.TESTED[package], "ok": tested}


def _accl() -> dict[str, Any]:
    """The groups that ACCL has served, and those that it was asked for and left to Gloo."""
    if "ljtrain.accl" not in sys.modules:
        return {"groups": [], "left_to_gloo": []}
    from ljtrain import accl

    report: dict[str, Any] = accl.report()
    return report


def _compile() -> list[dict[str, Any]]:
    """What became of the layers of each training run with torch_compile=True."""
    if "ljtrain.compile" not in sys.modules:
        return []
    from ljtrain import compile as layers

    return layers.report()


def status() -> dict[str, Any]:
    """A JSON-able report; imports neither torch nor anything that depends on it."""
    autoload_why_not = _autoload_why_not()
    return {
        "schema_version": 1,
        "ljtrain": ljtrain.__version__,
        "autoload": {
            "active": autoload.loaded,
            "why_not": autoload_why_not,
            "faults": list(autoload.faults),
        },
        "parts": {integration.part: _part(integration) for integration in INTEGRATIONS},
        "accl": _accl(),
        "compile": _compile(),
        "measuring_extension": _extension(),
        "versions": {package: _version(package) for package in versions.TESTED},
    }


class _CallableModule(ModuleType):
    """`ljtrain.status` names both this module and the function: calling the module calls the
    function.
    """

    def __call__(self) -> dict[str, Any]:
        return status()


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    print(json.dumps(status(), indent=2))

"""The upstream versions that ljtrain is tested with."""

from __future__ import annotations

from importlib import metadata

# A prefix of the version: what it leaves open was tested, or changes nothing that is relied upon.
TESTED = {"torch": "2.13", "transformers": "5.24", "deepspeed": "0.19.8", "accelerate": "1.15"}


def installed(package: str) -> str | None:
    """The installed version by its metadata, without importing the package; None if it is not
    installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_tested(package: str, version: str) -> bool:
    public = version.split("+", maxsplit=1)[0]
    return public == TESTED[package] or public.startswith(TESTED[package] + ".")


def untested(package: str) -> str | None:
    """One sentence if the installed version is not one that was tested."""
    found = installed(package)
    if found is None or is_tested(package, found):
        return None
    return f"{package} {found} is not a tested version (tested: {TESTED[package]})."

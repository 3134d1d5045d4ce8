"""Packs a root file system as an OCI archive with the settings of image/Containerfile's last stage.

umoci writes the image (layer, configuration, manifest); the same input and SOURCE_DATE_EPOCH give
the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

CONTAINERFILE = Path(__file__).parent.parent / "image" / "Containerfile"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Settings:
    """What a container of the image starts with."""

    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = ""


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of each instruction, continuation lines joined, comments left out."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", kept)
    found = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, arguments = line.partition(" ")
        found.append((name.upper(), arguments.strip()))
    return found


def final_settings(text: str) -> Settings:
    settings = Settings()
    for name, arguments in instructions(text):
        if name == "FROM":
            settings = Settings()
        elif name == "ENTRYPOINT":
            settings.entrypoint = json.loads(arguments)
        elif name == "CMD":
            settings.command = json.loads(arguments)
        elif name in {"ENV", "LABEL"}:
            target = settings.environment if name == "ENV" else settings.labels
            target.update(pair.split("=", 1) for pair in shlex.split(arguments))
        elif name == "USER":
            settings.user = arguments
        elif name == "WORKDIR":
            settings.folder = arguments
    return settings


def umoci(*arguments: str) -> None:
    subprocess.run(["umoci", *arguments], check=True, stdout=subprocess.DEVNULL)


def write_image(layout: Path, rootfs: Path, tag: str, settings: Settings, created: str) -> None:
    image = f"{layout}:{tag}"
    history = ["--history.created", created, "--history.created_by"]
    umoci("init", "--layout", str(layout))
    umoci("new", "--image", image)
    recipe = "image/recipe/stage"
    umoci("raw", "add-layer", "--image", image, *history, recipe, str(rootfs))
    options = ["--created", created, "--os", "linux", "--config.user", settings.user]
    options += ["--architecture", ARCHITECTURES[platform.machine()]]
    options += ["--config.workingdir", settings.folder]
    for flag, values in {
        "--config.entrypoint": settings.entrypoint,
        "--config.cmd": settings.command,
        "--config.env": [f"{key}={value}" for key, value in settings.environment.items()],
        "--config.label": [f"{key}={value}" for key, value in settings.labels.items()],
    }.items():
        options += [word for value in values for word in (flag, value)]
    umoci("config", "--image", image, *options, *history, "image/Containerfile")
    umoci("gc", "--layout", str(layout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rootfs", required=True, type=Path, help="tar archive")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--work", required=True, type=Path, help="folder for the layout")
    parser.add_argument("--output", required=True, type=Path, help="archive to write")
    options = parser.parse_args()
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds)))
    layout = options.work / "layout"
    shutil.rmtree(layout, ignore_errors=True)
    settings = final_settings(CONTAINERFILE.read_text())
    write_image(layout, options.rootfs, options.tag, settings, created)
    same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime=@{seconds}"]
    part = options.output.with_suffix(".part")
    subprocess.run(["tar", *same, "--mode=a+r,u+w", "-C", layout, "-cf", part, "."], check=True)
    part.replace(options.output)


if __name__ == "__main__":
    main()

"""`python -m ljtrain.trace`: traces a model family and writes its memory profile.

    python -m ljtrain.trace --family llama
    python -m ljtrain.trace --config my-model/config.json --output profile.json
    python -m ljtrain.trace --all --output recompute/profiles

A profile holds the allocations and frees of each part of a training step, as expressions in the
model's sizes (docs/recompute.md). Exit codes: 0 done, 1 the model does not fit what profiles
describe, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ljtrain.trace_families import Family
    from ljtrain.trace_model import Variant

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
SCHEMA_VERSION = 1
# The keys of a segment whose rows hold texts.
ROWS = ("tensors", "work", "parameters")


class BadInput(ValueError):
    """One sentence: what, where, how to mend."""


def trace_family(family: Family) -> dict[str, Any]:
    """The profile of `family` as JSON."""
    import torch
    import transformers

    from ljtrain.trace_model import variants_of

    return {
        "schema_version": SCHEMA_VERSION,
        "family": family.model_type,
        "traced_with": {
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        },
        "variants": [trace_variant(family, variant) for variant in variants_of(family)],
    }


def trace_variant(family: Family, variant: Variant) -> dict[str, Any]:
    """One variant: the same step at several sizes, every expression exact in all of them."""
    from ljtrain.trace_expressions import Solver
    from ljtrain.trace_families import TRACES, sizes_of
    from ljtrain.trace_model import record
    from ljtrain.trace_profile import describe, split

    segments: dict[str, Any] = {}
    for kind in family.kinds:
        records = [record(family, kind, variant, sizes_of(family, kind, i)) for i in range(TRACES)]
        solver = Solver([record.sizes for record in records])
        parts = [split(record) for record in records]
        for part in ("prologue", "layer", "epilogue"):
            key = f"layer:{kind}" if part == "layer" else part
            if part == "prologue" and "_window" in kind:
                key = "prologue:window"
            if key in segments:
                continue
            segments[key] = describe(part, records, [p[part] for p in parts], solver)
            if family.assumption:
                segments[key]["assumption"] = family.assumption
    return {
        "mode": variant.mode,
        "precision": variant.precision,
        "lora": variant.lora,
        "segments": segments,
    }


def pack(profile: dict[str, Any]) -> dict[str, Any]:
    """As profiles are stored, a fifth of the size: each distinct segment once, in `parts`, and its
    texts by their number in `texts`.
    """
    texts: dict[str, int] = {}
    parts: dict[str, int] = {}

    def numbered(value: Any) -> Any:
        if isinstance(value, str):
            return texts.setdefault(value, len(texts))
        if isinstance(value, list):
            return [numbered(item) for item in value]
        return value

    def part(segment: dict[str, Any]) -> int:
        packed = {key: numbered(value) if key in ROWS else value for key, value in segment.items()}
        return parts.setdefault(json.dumps(packed, separators=(",", ":")), len(parts))

    variants = [
        {**variant, "segments": {name: part(seg) for name, seg in variant["segments"].items()}}
        for variant in profile["variants"]
    ]
    return {
        **profile,
        "variants": variants,
        "texts": list(texts),
        "parts": [json.loads(packed) for packed in parts],
    }


def unpack(stored: dict[str, Any]) -> dict[str, Any]:
    """What was packed."""
    texts, parts = stored["texts"], stored["parts"]

    def rows(key: str, value: Any) -> Any:
        if key not in ROWS:
            return value
        # Booleans (whether a parameter is trained) are integers to Python, not to JSON.
        return [[texts[item] if type(item) is int else item for item in row] for row in value]

    def whole(number: int) -> dict[str, Any]:
        return {key: rows(key, value) for key, value in parts[number].items()}

    variants = [
        {**variant, "segments": {name: whole(n) for name, n in variant["segments"].items()}}
        for variant in stored["variants"]
    ]
    kept = {key: value for key, value in stored.items() if key not in ("texts", "parts")}
    return {**kept, "variants": variants}


def write(profile: dict[str, Any], path: Path) -> None:
    try:
        path.write_text(json.dumps(pack(profile), separators=(",", ":")) + "\n")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; choose another --output") from error
    print(path)


def shipped(name: str) -> Family:
    from ljtrain.trace_families import FAMILIES

    if name not in FAMILIES:
        raise BadInput(
            f"there is no family {name!r} (there are {', '.join(FAMILIES)}); "
            "trace another by its config.json: --config FILE"
        )
    return FAMILIES[name]


def described_by(path: Path) -> Family:
    """The family of a config.json; one that is not shipped is traced by its usual keys."""
    from ljtrain.trace_families import FAMILIES, unknown_family

    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        raise BadInput(f"{path} has no model_type; take the config.json beside the model's weights")
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise BadInput(
            f"{path}: transformers has no model_type {model_type!r}; a newer one may, "
            "and models with code of their own cannot be traced"
        )
    return unknown_family(config)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ljperf trace", description=__doc__.split("\n")[0])
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--family", help="a shipped family: llama, mixtral, bert, ...")
    subject.add_argument("--config", type=Path, help="a config.json, of any family")
    subject.add_argument("--all", action="store_true", help="every shipped family")
    parser.add_argument("--output", type=Path, help="file to write; with --all, a folder")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    try:
        if options.all:
            from ljtrain.trace_families import FAMILIES

            for family in FAMILIES.values():
                write(
                    trace_family(family), (options.output or Path()) / f"{family.model_type}.json"
                )
            return 0
        family = shipped(options.family) if options.family else described_by(options.config)
        target = options.output or Path(f"{family.model_type}.json")
        write(trace_of_any(family), target)
    except BadInput as error:
        print(f"ljperf trace: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except RuntimeError as error:
        print(f"ljperf trace: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def trace_of_any(family: Family) -> dict[str, Any]:
    """With what goes wrong in another's model as one sentence."""
    try:
        return trace_family(family)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RuntimeError(
            f"the family {family.model_type} cannot be traced ({type(error).__name__}: {first}); "
            "a row in python/ljtrain/trace_families.py teaches its sizes"
        ) from error


if __name__ == "__main__":
    sys.exit(main())

"""`python -m ljtrain.trace`: traces a model family and writes its memory profile.

    python -m ljtrain.trace --family llama --output recompute/profiles/llama.json
    python -m ljtrain.trace --all

A profile holds the allocations and frees of each part of a training step, as expressions in the
model's sizes (docs/recompute.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

EXIT_BAD_INPUT = 2
SCHEMA_VERSION = 1


def trace_family(name: str) -> dict[str, Any]:
    """The profile of family `name` as JSON."""
    import torch
    import transformers

    from ljtrain.trace_families import FAMILIES
    from ljtrain.trace_model import MODES, PRECISIONS, Variant

    family = FAMILIES[name]
    variants = [
        trace_variant(name, Variant(mode, precision)) for precision in PRECISIONS for mode in MODES
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "family": family.model_type,
        "traced_with": {
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        },
        "variants": variants,
    }


def trace_variant(name: str, variant: Any) -> dict[str, Any]:
    from ljtrain.trace_expressions import Solver
    from ljtrain.trace_families import FAMILIES, TRACES, sizes_of
    from ljtrain.trace_model import record
    from ljtrain.trace_profile import describe, split

    family = FAMILIES[name]
    segments: dict[str, Any] = {}
    for kind in family.kinds:
        records = [record(family, kind, variant, sizes_of(family, kind, i)) for i in range(TRACES)]
        # Every dimension is explained in all traces at once, the held-out one included.
        solver = Solver([r.sizes for r in records])
        parts = [split(r) for r in records]
        for part in ("prologue", "layer", "epilogue"):
            key = f"layer:{kind}" if part == "layer" else part
            described = describe(part, records, [p[part] for p in parts], solver)
            if family.assumption:
                described["assumption"] = family.assumption
            if part == "prologue" and "_window" in kind:
                key = "prologue:window"
            segments.setdefault(key, described)
    return {
        "mode": variant.mode,
        "precision": variant.precision,
        "lora": variant.lora,
        "segments": segments,
    }


def write(profile: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(profile, indent=None, separators=(",", ":")) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ljtrain.trace")
    parser.add_argument("--family")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    write(trace_family(options.family), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What becomes of constructs that break graphs, with stock torch.compile and here?

    .venv/bin/python benchmarks/compiler/corpus.py --output benchmarks/compiler/results

Every construct of python/tests/compile_corpus.py stands in a checkpointed layer under ZeRO-3 (one
rank, bf16, Inductor). A training of two steps is run eagerly, with stock torch_compile=True, and
with compiled layers, and the losses are held against eager's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))
# Relative: what eager bf16 is off by against itself in float32 on this model.
LOSS_TOLERANCE = 5e-3


def results_of(names: list[str], **variables: str) -> dict[str, Any]:
    from test_compile_training import run_cases

    cases = [{"construct": name, "lengths": [16, 16]} for name in names]
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(Path(folder), cases, 1, **variables)


def row(result: dict[str, Any]) -> dict[str, Any]:
    """What one side made of a construct."""
    if "error" in result:
        return {"failed": result["error"].strip().splitlines()[-1]}
    eager, compiled = result["eager"], result["compiled"]
    pairs = zip(compiled["losses"], eager["losses"], strict=True)
    counters = compiled["counters"]
    found: dict[str, Any] = {
        "loss_difference": max(abs(one - other) / abs(other) for one, other in pairs),
        "graphs": counters.get("stats", {}).get("unique_graphs", 0),
        "breaks": sum(counters.get("graph_break", {}).values()),
        "seconds": compiled["seconds"],
    }
    found["loss_equal"] = found["loss_difference"] <= LOSS_TOLERANCE
    if compiled["report"] is not None:
        variants = [each for kind in compiled["report"]["kinds"] for each in kind["variants"]]
        found |= {
            "graphs": sum(each["graphs"] for each in variants),
            "breaks": sum(len(each["breaks"]) for each in variants),
            "runs": sorted({each["mode"] for each in variants}),
            "not_compiled_but_should": compiled["not_compiled"],
        }
    return found


def text(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"FAILED: {found['failed'][:60]} | |"
    loss = "equal" if found["loss_equal"] else f"DIFFERS by {found['loss_difference']:.1e}"
    runs = f", {'/'.join(found['runs'])}" if "runs" in found else ""
    return f"{loss} | {found['graphs']} graphs, {found['breaks']} breaks{runs} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("constructs", nargs="*", help="some only")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    arguments = parser.parse_args()
    import compile_corpus

    names = arguments.constructs or list(compile_corpus.CONSTRUCTS)
    unknown = sorted(set(names) - set(compile_corpus.CONSTRUCTS))
    if unknown:
        parser.error(f"no construct is called {', '.join(unknown)}")
    stock = results_of(names, LJTRAIN_COMPILE="0")
    here = results_of(names)
    rows = {name: {"stock": row(stock[name]), "here": row(here[name])} for name in names}
    lines = ["| construct | stock: loss | stock: graphs | here: loss | here: graphs |"]
    lines.append("|---|---|---|---|---|")
    lines += [
        f"| {name} | {text(sides['stock'])} {text(sides['here'])}" for name, sides in rows.items()
    ]
    print("\n".join(lines))
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        document = {"date": today, "tolerance": LOSS_TOLERANCE, "rows": rows}
        path = arguments.output / f"{today}-corpus.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(sides["here"].get("loss_equal") for sides in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

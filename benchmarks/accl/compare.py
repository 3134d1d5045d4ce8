"""ACCL against its peers: every comparison that docs/comm.md's targets ask for, in one command.

    .venv/bin/python benchmarks/accl/compare.py --output benchmarks/accl/results   (15 minutes)
    .venv/bin/python benchmarks/accl/compare.py --quick                            (3 minutes)

Runs `ljperf comm` four times (through c10d beside Gloo; 8 bytes through c10d; in C beside Open MPI,
oneCCL and DeepSpeed; 64 MiB beside memcpy). Within each the blocks of all libraries alternate in
random order, so a machine that drifts does so for all of them. Ratios are paired by block, with the
95 % intervals of cnp/statistics.h. A target counts as met when the whole interval lies on the good
side of it, as missed when the whole interval lies on the other, else as undecided.

Peers that are not installed are left out, and the result says so. Keep the machine quiet.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMED_OPS = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all"
C_PEERS = ("mpi", "oneccl", "deepspeed_shm")
C10D_MEAN, C10D_LOWEST = 5.0, 2.0
C_MEAN = 1.3
SMALL_MICROSECONDS = 30.0
GATHER_PLAIN, GATHER_REGISTERED = 0.6, 0.9

Row = dict[str, Any]


@dataclass
class Stage:
    """One run of `ljperf comm`."""

    name: str
    arguments: list[str]
    quick: list[str] = field(default_factory=list)  # instead of `arguments`


STAGES = [
    Stage(
        "c10d",
        ["--interface", "c10d", "--peers", "gloo", "--op", TIMED_OPS,
         "--sizes", "64KiB:64MiB:x4", "--dtype", "float32,bfloat16", "--ranks", "2,4"],
        ["--interface", "c10d", "--peers", "gloo", "--op", TIMED_OPS,
         "--sizes", "64KiB,2MiB,64MiB", "--ranks", "2", "--min-time", "3"],
    ),
    Stage(
        "small",
        ["--interface", "c10d", "--peers", "gloo", "--op", "all_reduce", "--sizes", "8",
         "--ranks", "2"],
    ),
    Stage(
        "c",
        ["--interface", "c", "--peers", ",".join(C_PEERS), "--op", TIMED_OPS,
         "--sizes", "8:64MiB:x8,64MiB"],
        ["--interface", "c", "--peers", ",".join(C_PEERS), "--op", TIMED_OPS,
         "--sizes", "8,32KiB,2MiB,64MiB", "--min-time", "3"],
    ),
    Stage(
        "limit",
        ["--interface", "c", "--op", "all_gather", "--sizes", "64MiB", "--ranks", "2",
         "--registered", "--in-place", "--blocks", "40"],
    ),
]  # fmt: skip


def measure(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one stage; its JSON document."""
    arguments = stage.quick if options.quick and stage.quick else stage.arguments
    # Verifying 64 MiB in Python takes longer than measuring it; the tests do it for small sizes.
    extra = ["--check"] if not options.quick and stage.name != "c10d" else []
    if stage.name == "c":
        extra += ["--ranks", options.c_ranks]
    if options.oneccl_root:
        extra += ["--oneccl-root", str(options.oneccl_root)]
    if options.python:
        extra += ["--python", str(options.python)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [str(options.ljperf.resolve()), "comm", *arguments, *extra, "--output", str(file)]
        print(f"\n$ {' '.join(command)}", flush=True)
        status = subprocess.run(command, check=False).returncode
        if not file.exists():
            raise SystemExit(f"{stage.name}: ljperf comm failed with exit code {status}")
        document: dict[str, Any] = json.loads(file.read_text())
    if document["status"] != "completed":
        raise SystemExit(f"{stage.name}: {document['failure']['sentence']}")
    return document


class Ratios:
    """The estimator of cnp/statistics.h, by its tool."""

    def __init__(self, tool: Path) -> None:
        self.tool = tool

    def of(self, slower: list[float], faster: list[float]) -> dict[str, float]:
        request = json.dumps({"a": slower, "b": faster, "paired": True})
        answer = subprocess.run(
            [self.tool, "ratio"], input=request, capture_output=True, text=True, check=True
        ).stdout
        result: dict[str, float] = json.loads(answer)
        return result

    def geometric_mean(self, pairs: list[tuple[Row, Row]]) -> dict[str, float]:
        """Of ACCL's speed relative to the peer, over (peer, ACCL) rows: block by block the mean of
        the logarithms, then the paired interval over blocks.
        """

        def means(rows: list[Row]) -> list[float]:
            blocks = zip(*(row["blocks_us"] for row in rows), strict=True)
            return [math.exp(sum(map(math.log, block)) / len(block)) for block in blocks]

        return self.of(means([peer for peer, _ in pairs]), means([accl for _, accl in pairs]))


def pairs_of(rows: list[Row], library: str) -> list[tuple[Row, Row]]:
    """(peer, ACCL) of the same operation, size and form of call."""
    keys = ("interface", "op", "dtype", "ranks", "bytes", "in_place")

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    accl = {key(row): row for row in rows if row["library"] == "accl" and not row["registered"]}
    return [(row, accl[key(row)]) for row in rows if row["library"] == library and key(row) in accl]


def judge(estimate: dict[str, float], least: float) -> str:
    if estimate["low"] >= least:
        return "met"
    return "missed" if estimate["high"] < least else "undecided"


def describe(row: Row) -> str:
    return f"{row['op']} {size_words(row['bytes'])} {row['dtype']}, {row['ranks']} ranks"


def size_words(count: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def interval_words(estimate: dict[str, float], unit: str = "x") -> str:
    return f"{estimate['ratio']:.3g}{unit} ({estimate['low']:.3g} .. {estimate['high']:.3g})"


def absent(name: str, target: str) -> dict[str, Any]:
    return {
        "comparison": name,
        "target": target,
        "result": "not measured",
        "verdict": "not measured",
    }


def own(row: Row) -> dict[str, float]:
    """A row's own ratio as an estimate."""
    low, high = row["ratio"]["ci95"]
    return {"ratio": row["ratio"]["geometric_mean"], "low": low, "high": high}


def against(
    rows: list[Row], library: str, name: str, ratios: Ratios, *, mean: float, lowest: float | None
) -> list[dict[str, Any]]:
    """The verdicts on one peer: the mean over everything, and the worst case."""
    pairs = pairs_of(rows, library)
    if not pairs:
        return [absent(name, f"geometric mean ≥ {mean:g}x")]
    overall = ratios.geometric_mean(pairs)
    worst = min((peer for peer, _ in pairs), key=lambda row: own(row)["ratio"])
    verdicts: list[dict[str, Any]] = [
        {
            "comparison": f"{name}, {len(pairs)} cases",
            "target": f"geometric mean ≥ {mean:g}x",
            "result": interval_words(overall),
            "verdict": judge(overall, mean),
        }
    ]
    if lowest is not None:
        below = [row for row, _ in pairs if own(row)["high"] < lowest]
        verdicts.append(
            {
                "comparison": f"{name}, worst case: {describe(worst)}",
                "target": f"never below {lowest:g}x",
                "result": f"{interval_words(own(worst))}; {len(below)} of {len(pairs)} below",
                "verdict": "missed" if below else judge(own(worst), lowest),
            }
        )
    else:
        judged = [row["ratio"]["verdict"] for row, _ in pairs]
        counts = ", ".join(f"{judged.count(word)} {word}" for word in ("ahead", "even", "behind"))
        behind = [row for row, _ in pairs if row["ratio"]["verdict"] == "behind"]
        where = "; ".join(f"{describe(row)} {own(row)['ratio']:.2f}x" for row in behind)
        verdicts.append(
            {
                "comparison": f"{name}, worst case: {describe(worst)}",
                "target": "behind at no size",
                "result": f"{interval_words(own(worst))}; {counts}"
                + (f"; behind at: {where}" if behind else ""),
                "verdict": "missed" if behind else "met",
            }
        )
    return verdicts


def verdicts_of(stages: dict[str, dict[str, Any]], ratios: Ratios) -> list[dict[str, Any]]:
    """Every target with what was measured."""
    verdicts = against(
        stages["c10d"]["rows"], "gloo", "c10d: Gloo", ratios, mean=C10D_MEAN, lowest=C10D_LOWEST
    )
    verdicts += small_verdict(stages["small"]["rows"])
    for peer in C_PEERS:
        verdicts += against(
            stages["c"]["rows"], peer, f"C: {peer}", ratios, mean=C_MEAN, lowest=None
        )
    verdicts += limit_verdicts(stages["limit"]["rows"])
    return verdicts


def small_verdict(rows: list[Row]) -> list[dict[str, Any]]:
    times = {row["library"]: row["time_us"] for row in rows}
    target = f"≤ {SMALL_MICROSECONDS:g} µs"
    if "accl" not in times:
        return [absent("c10d: all_reduce of 8 B", target)]
    gloo = f" (Gloo {times['gloo']:.3g} µs)" if "gloo" in times else ""
    return [
        {
            "comparison": "c10d: all_reduce of 8 B",
            "target": target,
            "result": f"{times['accl']:.3g} µs{gloo}",
            "verdict": "met" if times["accl"] <= SMALL_MICROSECONDS else "missed",
        }
    ]


def limit_verdicts(rows: list[Row]) -> list[dict[str, Any]]:
    """64 MiB all_gather as a share of memcpy's bandwidth."""
    verdicts = []
    for name, least in (
        ("plain", GATHER_PLAIN),
        ("registered", GATHER_REGISTERED),
        ("in place", None),
    ):
        found = [
            row
            for row in rows
            if row["library"] == "accl"
            and row["registered"] == (name == "registered")
            and row["in_place"] == (name == "in place")
        ]
        comparison = f"C: all_gather of 64 MiB, {name}, against memcpy on both cores"
        target = f"algorithm bandwidth ≥ {least:g}x memcpy" if least else "reported"
        if not found:
            verdicts.append(absent(comparison, target))
            continue
        estimate = own(found[0])
        verdicts.append(
            {
                "comparison": comparison,
                "target": target,
                "result": interval_words(estimate),
                "verdict": judge(estimate, least) if least else "",
            }
        )
    return verdicts


def table_of_rows(rows: list[Row], library: str, ratios: Ratios) -> list[str]:
    """Markdown: the ratio to one peer, operations down, sizes across."""
    pairs = pairs_of(rows, library)
    groups: dict[tuple[str, str, int], list[tuple[Row, Row]]] = {}
    for pair in pairs:
        groups.setdefault((pair[0]["op"], pair[0]["dtype"], pair[0]["ranks"]), []).append(pair)
    sizes = sorted({peer["bytes"] for peer, _ in pairs})
    lines = [
        "| operation | dtype | ranks | geometric mean | "
        + " | ".join(map(size_words, sizes))
        + " |",
        "|---" * (4 + len(sizes)) + "|",
    ]
    for (op, dtype, ranks), members in groups.items():
        cells = {peer["bytes"]: cell_words(peer) for peer, _ in members}
        mean = interval_words(ratios.geometric_mean(members))
        lines.append(
            f"| {op} | {dtype} | {ranks} | {mean} | "
            + " | ".join(cells.get(size, "") for size in sizes)
            + " |"
        )
    return lines


def cell_words(peer: Row) -> str:
    """The ratio; marked where ACCL is not ahead."""
    mark = {"behind": " **behind**", "even": " even"}.get(peer["ratio"]["verdict"] or "", "")
    return f"{own(peer)['ratio']:.2f}{mark}"


def markdown(result: dict[str, Any], stages: dict[str, dict[str, Any]], ratios: Ratios) -> str:
    machine = result["machine"]
    lines = [
        f"# ACCL against its peers, {result['date']}",
        "",
        f"{machine['cpu_model']}, {machine['cores']} cores, Linux {result['kernel']}, load before: "
        f"{result['load_before']:.1f}. {result['blocks']} blocks of each library and size, in "
        "random order; ratios are ACCL's speed / the peer's, paired by block, with 95 % intervals.",
        "",
        "| comparison | target | measured | verdict |",
        "|---|---|---|---|",
    ]
    for entry in result["verdicts"]:
        lines.append("| " + " | ".join(entry[key] for key in entry) + " |")
    for skipped in result["skipped"]:
        lines += ["", f"Skipped: {skipped['library']}: {skipped['reason']}"]
    for stage, library in (("c10d", "gloo"), *(("c", peer) for peer in C_PEERS)):
        if pairs_of(stages[stage]["rows"], library):
            lines += ["", f"## ACCL's speed / {library}'s, {stage}", ""]
            lines += table_of_rows(stages[stage]["rows"], library, ratios)
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> int:
    ratios = Ratios(options.tool)
    load = os.getloadavg()[0]
    stages = {stage.name: measure(stage, options) for stage in STAGES}
    skipped = {
        entry["library"]: entry for document in stages.values() for entry in document["skipped"]
    }
    result = {
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "machine": stages["c"]["machine"],
        "kernel": platform.release(),
        "load_before": load,
        "blocks": stages["c"]["blocks"],
        "skipped": list(skipped.values()),
        "verdicts": verdicts_of(stages, ratios),
        "commands": {name: document["command_line"][1:] for name, document in stages.items()},
        "rows": {
            name: [{k: v for k, v in row.items() if k != "blocks_us"} for row in document["rows"]]
            for name, document in stages.items()
        },
    }
    text = markdown(result, stages, ratios)
    print("\n" + text)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        stem = f"{result['date']}-{'quick' if options.quick else 'full'}"
        (options.output / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.output / f"{stem}.md").write_text(text)
        print(options.output / f"{stem}.md")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes, 2 ranks, float32 only")
    parser.add_argument("--output", type=Path, help="folder for the dated result")
    parser.add_argument("--c-ranks", default="2", help="ranks of the comparison in C, as in 2,4")
    parser.add_argument("--oneccl-root", type=Path, help="folder with oneCCL's include/ and lib/")
    parser.add_argument("--python", type=Path, help="Python with PyTorch and DeepSpeed")
    parser.add_argument(
        "--ljperf", type=Path, default=Path(sysconfig.get_path("scripts")) / "ljperf"
    )
    parser.add_argument("--tool", type=Path, default=ROOT / "build/release/cnp/cnp_record_tool")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

"""Processor time of `ljperf plan` for each model of the catalogue, alternatives included.

    .venv/bin/python benchmarks/recompute/plan_time.py --output FILE

Times are user + system of the whole process, the median of 20 runs with the range: on a busy
machine they are less disturbed than the clock.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import statistics
import subprocess
from pathlib import Path

LJPERF = Path(__file__).resolve().parent.parent.parent / ".venv/bin/ljperf"
RUNS = 20


def milliseconds(model: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [str(LJPERF), "plan", "--model", model, "--devices", "512", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ValueError(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    listing = subprocess.run([LJPERF, "models", "--json"], capture_output=True, check=True)
    text = f"# Processor time of ljperf plan ({datetime.date.today()})\n\n"
    text += "512 H100, ZeRO-3, sequences of 8192 tokens; milliseconds.\n\n"
    text += "| model | layers | median | range |\n| --- | --- | --- | --- |\n"
    for model in json.loads(listing.stdout)["models"]:
        try:
            times = [milliseconds(model["id"]) for _ in range(RUNS)]
        except ValueError as error:
            text += f"| {model['id']} | {model['layers']} | not planned: {str(error)[:60]}... | |\n"
            continue
        text += f"| {model['id']} | {model['layers']} | {statistics.median(times):.0f} | "
        text += f"{min(times):.0f} to {max(times):.0f} |\n"
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()

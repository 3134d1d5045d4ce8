"""Stands in for ljperf in tests of `cnp ablate`: prints a record without training anything.

FAKE_LJPERF names a JSON file: {"template": RECORD, "log": FILE, "rules": [RULE, ...]}. A rule
{"when": [ARGUMENT, ...], "unless": [...], KEY: VALUE} counts for every call that has all of `when`
and none of `unless`; later rules win. Keys: step (seconds), noise (relative, of the block),
peak (bytes), loss (added), fail (sentence, exit 1), refuse (sentence, exit 2; with `when_started`
not by a dry run), garbage (text instead of a record), sleep (seconds), fail_from (call number of
its kind from which on it fails). Dry runs are not in the log.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any


def settings(configuration: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"step": 1.0, "noise": 0.0, "peak": 100 << 20, "loss": 0.0}
    words = [part for argument in arguments for part in (argument, *argument.split(","))]
    for rule in configuration["rules"]:
        has = all(word in words for word in rule.get("when", []))
        lacks = not any(word in words for word in rule.get("unless", []))
        if has and lacks:
            found.update(rule)
    return found


def record(configuration: dict[str, Any], rule: dict[str, Any], call: int) -> dict[str, Any]:
    document = dict(configuration["template"])
    step = rule["step"] * (1 + rule["noise"] * random.Random(call).gauss(0, 1))
    run = json.loads(json.dumps(document["runs"][0]))
    for entry in run["steps"]:
        entry["seconds"] = step
        entry["loss"] += rule["loss"]
    run["median_s"] = step
    document["runs"] = [run]
    document["record_id"] = f"20261130T000000Z-fake-{os.getpid():08x}{call:04x}"
    document["step_time_s"] = {
        **document["step_time_s"],
        "median": step, "p05": step, "p95": step, "ci95": None, "all": [step],
    }  # fmt: skip
    document["tokens_per_s"] = document["global_tokens_per_step"] / step
    document["loss"] = [value + rule["loss"] for value in document["loss"]]
    document["peak_memory_bytes"] = {**document["peak_memory_bytes"], "max": rule["peak"]}
    return document


def main() -> int:
    configuration = json.loads(Path(os.environ["FAKE_LJPERF"]).read_text())
    arguments = sys.argv[1:]
    rule = settings(configuration, arguments)
    if "--dry-run" in arguments:
        if "refuse" in rule and not rule.get("when_started"):
            print(f"ljperf: {rule['refuse']}", file=sys.stderr)
            return 2
        return 0
    log = Path(configuration["log"])
    lines = log.read_text().splitlines() if log.exists() else []
    with log.open("a") as stream:
        stream.write(json.dumps({"arguments": arguments, "ring": os.environ.get("NCCL_ALGO")}))
        stream.write("\n")
    same = sum(json.loads(line)["arguments"] == arguments for line in lines)
    try:
        time.sleep(rule.get("sleep", 0))
    except KeyboardInterrupt:
        return 130
    if "refuse" in rule:
        print(f"ljperf: {rule['refuse']}", file=sys.stderr)
        return 2
    if "garbage" in rule:
        print(rule["garbage"])
        return 0
    document = record(configuration, rule, len(lines))
    if "fail" in rule and same >= rule.get("fail_from", 0):
        document["status"] = "failed"
        document["failure"] = {"sentence": rule["fail"], "rank": 1, "last_lines": []}
    folder = Path(os.environ["LJTRAIN_RECORDS"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{document['record_id']}.json").write_text(json.dumps(document))
    print(json.dumps(document))
    return 0 if document["status"] == "completed" else 1


if __name__ == "__main__":
    sys.exit(main())

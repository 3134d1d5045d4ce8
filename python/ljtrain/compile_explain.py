"""Which graphs a model's layers become, what breaks them, and what each costs: what `ljperf compile
--explain MODEL` runs.

`python -m ljtrain.compile_explain < WORKER.json` trains one step in one process (the graphs are the
same under every engine) and prints a JSON document.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ljtrain.worker_config import BadInput, WorkerConfig, check

SCHEMA_VERSION = 1
ROUNDS = 3  # steps of which the last is taken apart


def _config() -> WorkerConfig:
    try:
        document = json.load(sys.stdin)
    except ValueError as error:
        raise BadInput(f"the standard input is not JSON: {error}.") from error
    known = {key: document[key] for key in WorkerConfig.__dataclass_fields__ if key in document}
    config = WorkerConfig(**known)
    check(config)
    return config


def _break_costs(graphs: list[Any]) -> dict[int, float]:
    """Seconds of the last step between the end of each graph that was broken off and the beginning
    of the next one, by the index of the graph.
    """
    spans = sorted(
        (began, ended, index) for index, graph in enumerate(graphs) for began, ended in graph.spans
    )
    calls = [len(graph.spans) for graph in graphs if graph.spans]
    share = max(1, min(calls, default=1))
    costs: dict[int, float] = {}
    for (_, ended, index), (began, _, _) in itertools.pairwise(spans):
        if graphs[index].ended_by is not None:
            costs[index] = costs.get(index, 0.0) + (began - ended) / share
    return costs


def _variant(variant: Any) -> dict[str, Any]:
    recorder = variant.recorder
    costs = _break_costs(recorder.graphs)
    by_line: dict[str, float] = {}
    for index, seconds in costs.items():
        place = str(recorder.graphs[index].ended_by)
        by_line[place] = by_line.get(place, 0.0) + seconds
    return {
        "name": variant.name,
        "decision": variant.mode,
        "eager_s": variant.decision.eager_s if variant.decision else None,
        "compiled_s": variant.decision.compiled_s if variant.decision else None,
        "seconds_to_compile": variant.seconds,
        "graphs": [
            {
                "operators": graph.operators,
                "lines": _ranges(graph.lines),
                "compiled": graph.compiled,
            }
            for graph in recorder.graphs
        ],
        "breaks": [
            {
                "file": item.file,
                "line": item.line,
                "cause": item.cause,
                "cost_s": by_line.get(str(item)),
            }
            for item in recorder.breaks
        ],
        "failures": [
            {"file": item.file, "line": item.line, "cause": item.cause}
            for item in recorder.failures
        ],
    }


def _ranges(lines: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """First and last line in each file of a model, PyTorch's own left out."""
    files: dict[str, list[int]] = {}
    for file, line in lines:
        if "/torch/" not in file:
            files.setdefault(file, []).append(line)
    return [
        {"file": file, "first": min(numbers), "last": max(numbers)}
        for file, numbers in sorted(files.items())
    ]


def explain(config: WorkerConfig) -> dict[str, Any]:
    """Compiles and tries the layers of the configured model, as the first step of a training does.

    Decisions of earlier trainings are neither read nor written; Inductor's cache is used.
    """
    import torch

    from ljtrain import compile as layers
    from ljtrain import compile_backend, compile_cache, worker_model

    compile_backend.RecordingBackend.watch = True
    model_config = worker_model.build_model_config(config)
    model = worker_model.build_model(config, model_config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.nn.Module.to(model, device).train()
    if config.training_arguments.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    found = layers.compile_layers.find_kinds(model)
    if not found:
        raise BadInput("this model has no list of repeated layers: nothing would be compiled.")
    vocabulary = worker_model.vocabulary_size(model_config)
    ids = torch.randint(1, vocabulary, (config.micro_batch, config.seq), device=device)
    callback = layers.CompileCallback()
    callback.begin(model, found, config.training_arguments.get("torch_compile_mode"))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        compile_cache.place = Path(place)
        bf16 = bool(config.training_arguments.get("bf16"))
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    seconds = time.perf_counter() - began
    kinds = [
        {
            "name": kind.kind.name,
            "layers": len(kind.kind.layers),
            "variants": [_variant(variant) for variant in kind.variants.values()],
        }
        for kind in callback.kinds
    ]
    callback.on_train_end()
    return {
        "schema_version": SCHEMA_VERSION,
        "seq": config.seq,
        "micro_batch": config.micro_batch,
        "seconds": seconds,
        "kinds": kinds,
    }


def text(report: dict[str, Any]) -> str:
    """The same for people."""
    lines = []
    for kind in report["kinds"]:
        for variant in kind["variants"]:
            lines += _variant_lines(kind, variant)
    return "\n".join(lines)


def span(part: dict[str, Any]) -> str:
    """ "64-314", or "103" for a single line."""
    first, last = part["first"], part["last"]
    return str(first) if first == last else f"{first}-{last}"


def _variant_lines(kind: dict[str, Any], variant: dict[str, Any]) -> list[str]:
    count = len(variant["graphs"])
    head = f"{kind['name']} x {kind['layers']} ({variant['name']}): "
    head += f"{count} graph{'s' * (count != 1)}, {len(variant['breaks'])} breaks"
    if variant["eager_s"]:
        head += (
            f"; a layer takes {variant['compiled_s'] * 1e3:.2f} ms compiled, "
            f"{variant['eager_s'] * 1e3:.2f} ms eagerly"
        )
    head += f"; runs {'eagerly' if variant['decision'] == 'eager' else 'compiled'}"
    lines = [head]
    for number, graph in enumerate(variant["graphs"], start=1):
        places = ", ".join(f"{Path(part['file']).name}:{span(part)}" for part in graph["lines"])
        lines.append(f"  graph {number}: {graph['operators']} operators of {places}")
    for item in variant["breaks"]:
        cost = "" if item["cost_s"] is None else f" ({item['cost_s'] * 1e3:.2f} ms a layer)"
        lines.append(f"  break at {item['file']}:{item['line']}: {item['cause']}{cost}")
    lines += [
        f"  failed at {item['file']}:{item['line']}: {item['cause']}"
        for item in variant["failures"]
    ]
    return lines


def main() -> int:
    try:
        report = explain(_config())
    except BadInput as error:
        print(f"compile_explain: {error}", file=sys.stderr)
        return 2
    print(json.dumps({**report, "text": text(report)}))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

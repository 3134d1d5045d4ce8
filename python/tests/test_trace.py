"""Profiles are what a trace of the real model gives, and what a real step allocates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from ljtrain.trace import pack, unpack
from ljtrain.trace_expressions import Solver, Unexplained
from ljtrain.trace_families import FAMILIES, Sizes, sizes_of
from ljtrain.trace_model import COMPILED, VARIANTS, Variant, record
from ljtrain.trace_profile import split
from ljtrain.trace_record import Recorder

PROFILES = Path(__file__).parents[2] / "recompute" / "profiles"
QUICK = Variant("eager", "bf16")


def evaluate(text: str, sizes: Sizes) -> Fraction:
    """What the C++ side does with an expression, independently of the tracer's classes."""
    total = Fraction(0)
    for term in text.split(" + "):
        coefficient, *symbols = term.split("*")
        value = Fraction(coefficient)
        for symbol in symbols:
            value *= sizes[symbol]
        total += value
    return total


def profile(family: str) -> dict[str, Any]:
    return unpack(json.loads((PROFILES / f"{family}.json").read_text()))


def segments(family: str, variant: Variant) -> dict[str, Any]:
    for candidate in profile(family)["variants"]:
        if (candidate["mode"], candidate["precision"], candidate["lora"]) == (
            variant.mode,
            variant.precision,
            variant.lora,
        ):
            found: dict[str, Any] = candidate["segments"]
            return found
    raise KeyError(variant)


def saved_bytes(segment: dict[str, Any], sizes: Sizes) -> Fraction:
    return sum(
        (evaluate(text, sizes) for text, _, role in segment["tensors"] if role == "activation"),
        start=Fraction(0),
    )


# ---- expressions ----


def test_sums_and_products_are_found_and_others_refused() -> None:
    traces = [sizes_of(FAMILIES["mistral"], "dense", i) for i in range(4)]
    solver = Solver(traces)
    fused = [s["heads"] * s["head_dim"] + 2 * s["kv_heads"] * s["head_dim"] for s in traces]
    assert str(solver.solve(fused)) == "1*heads*head_dim + 2*kv_heads*head_dim"
    assert str(solver.solve([s["seq"] + 1 for s in traces])) == "1 + 1*seq"
    repeated = [(s["micro_batch"], s["kv_heads"], s["groups"], s["seq"]) for s in traces]
    assert str(solver.product(repeated)) == "1*micro_batch*seq*heads"
    with pytest.raises(Unexplained, match="values"):
        solver.solve([7, 7001, 3, 11])


# ---- recording ----


def test_views_count_once_and_frees_are_seen_at_once() -> None:
    recorder = Recorder()
    with recorder:
        base = torch.empty(4, 6)
        view = base.t()[1:]
        del base
        torch.empty(3)
        assert [event for event in recorder.events if isinstance(event, int)] == [1, 2, -2]
        del view
    assert [event for event in recorder.events if isinstance(event, int)] == [1, 2, -2, -1]
    assert recorder.storages[1].bytes == 4 * 6 * 4


# ---- profiles ----


def test_a_packed_profile_is_the_same_profile() -> None:
    row = {"tensors": [["2*seq", "aten.mm", "output"]], "forward": [1], "backward": []}
    other = {**row, "parameters": [["w", "4*hidden", False]], "uses": [[0, 1]]}
    variants = [
        {"mode": "eager", "lora": False, "segments": {"prologue": row, "layer:dense": other}},
        {"mode": "checkpointed", "lora": False, "segments": {"prologue": row}},
    ]
    whole = {"family": "x", "variants": variants}
    stored = json.loads(json.dumps(pack(whole)))
    assert len(stored["parts"]) == 2
    assert unpack(stored) == whole


ENDS_HERE = ("input", "output_gradient", "activation", "temporary", "host_temporary")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_segment_balances(family: str) -> None:
    """What a segment allocates it frees, or its role says who does; nothing is freed twice."""
    for variant in profile(family)["variants"]:
        for name, segment in variant["segments"].items():
            allocated: set[int] = set()
            freed: set[int] = set()
            for event in segment["forward"] + segment["backward"]:
                assert event not in allocated and -event not in freed
                (allocated if event > 0 else freed).add(abs(event))
            for number, (_, _, role) in enumerate(segment["tensors"], start=1):
                ends_here = role in (
                    "input",
                    "output_gradient",
                    "activation",
                    "temporary",
                    "host_temporary",
                )
                begins_here = role not in ("input", "output_gradient")
                where = (family, variant["mode"], variant["precision"], name, number, role)
                assert (number in allocated) == begins_here, where
                if role != "weight_cast":
                    assert (number in freed) == ends_here, where


CAUSAL = [name for name in sorted(FAMILIES) if name not in ("gemma2", "mpt")]  # no SDPA there


@pytest.mark.parametrize("family", CAUSAL)
def test_attention_without_a_window_saves_no_scores(family: str) -> None:
    """Attention ran as the flash kernel: no tensor of seq x seq in any segment without a window."""
    for variant in profile(family)["variants"]:
        for name, segment in variant["segments"].items():
            if "window" not in name:
                for text, operator, _ in segment["tensors"]:
                    terms = [term.split("*") for term in text.split(" + ")]
                    assert all(term.count("seq") < 2 for term in terms), (name, operator, text)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_checkpointed_layer_keeps_less(family: str) -> None:
    sizes = sizes_of(FAMILIES[family], FAMILIES[family].kinds[0], 0)
    name = f"layer:{FAMILIES[family].kinds[0]}"
    eager = saved_bytes(segments(family, QUICK)[name], sizes)
    checkpointed = saved_bytes(segments(family, Variant("checkpointed", "bf16"))[name], sizes)
    assert checkpointed < eager / 10


@pytest.mark.parametrize(
    ("family", "variant"),
    [("llama", QUICK), ("llama", Variant("checkpointed", "autocast")), ("gpt2", QUICK)],
)
def test_sizes_that_no_trace_had(family: str, variant: Variant) -> None:
    """At sizes that share no prime with the traces', every storage has the bytes of its
    expression, and every event happens in its place.
    """
    sizes = {
        "micro_batch": 4,
        "seq": 50,
        "hidden": 8 * 25 if FAMILIES[family].own_head_dim else 8 * 6,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 6,
        "ffn": 90,
        "vocab": 300,
        "positions": 64,
        "lora_rank": 8,
    }
    described = segments(family, variant)
    recorded = record(FAMILIES[family], "dense", variant, sizes)
    for part, segment in split(recorded).items():
        expected = described["layer:dense" if part == "layer" else part]
        for phase in ("forward", "backward"):
            real = [event for event in getattr(segment, phase) if isinstance(event, int)]
            assert len(real) == len(expected[phase])
            for event, index in zip(real, expected[phase], strict=True):
                if event:
                    text = expected["tensors"][abs(index) - 1][0]
                    assert (event > 0) == (index > 0)
                    assert recorded.storages[abs(event)].bytes == evaluate(text, sizes), text


def test_tracing_again_gives_the_shipped_profile() -> None:
    from ljtrain.trace import trace_variant

    variant = Variant("checkpointed", "bf16")
    assert trace_variant(FAMILIES["llama"], variant)["segments"] == segments("llama", variant)


# ---- the real step ----


def replay(variant: dict[str, Any], sizes: Sizes, layers: list[str]) -> float:
    """The peak over a step, from nothing, of a profile's segments put together."""
    order = ["prologue", *(f"layer:{kind}" for kind in layers), "epilogue"]
    current = peak = Fraction(0)
    casts: dict[tuple[int, int], Fraction] = {}
    for phase in ("forward", "backward"):
        for place in range(len(order)) if phase == "forward" else reversed(range(len(order))):
            segment = variant[order[place]]
            explicit = set(segment["forward"] + segment["backward"])
            for event in segment[phase]:
                if event == 0:
                    current -= sum(casts.values())
                    casts.clear()
                    continue
                text, _, role = segment["tensors"][abs(event) - 1]
                size = evaluate(text, sizes)
                current += size if event > 0 else -size
                peak = max(peak, current)
                if event > 0 and role == "weight_cast" and -event not in explicit:
                    casts[place, event] = size
    return float(peak)


MEASURE = """
import gc, json, sys
import torch
from ljtrain import extension, trace_families, trace_model
sizes, family, variant, layers = json.loads(sys.argv[1])
allocator = extension.load()
allocator.allocator_install()
torch.set_num_threads(1)
trace_families.LAYERS = trace_model.LAYERS = layers
description = trace_families.FAMILIES[family]
variant = trace_model.Variant(*variant)
model = trace_model.build(description, description.kinds[0], variant, sizes)
ids = torch.randint(0, sizes["vocab"], (sizes["micro_batch"], sizes["seq"]))
batch = {"input_ids": ids, "labels": ids.clone()}
for _ in range(2):
    model.zero_grad(set_to_none=True)
    gc.collect()
    before = allocator.allocator_statistics()["current_bytes"]
    allocator.allocator_reset_peak()
    loss = trace_model._forward(model, batch)
    loss.backward()
    peak = allocator.allocator_statistics()["peak_bytes"] - before
    del loss
print(peak)
"""


def measured(family: str, variant: Variant, sizes: Sizes, layers: int) -> int:
    request = [sizes, family, [variant.mode, variant.precision, variant.lora], layers]
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", MEASURE, json.dumps(request)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return int(result.stdout.splitlines()[-1])


REAL_SIZES = {
    "micro_batch": 2,
    "seq": 384,
    "hidden": 256,
    "ffn": 768,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "vocab": 2000,
    "positions": 600,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 160,
    "window": 100,
    "lora_rank": 8,
}


def check_against_a_real_step(family: str, variant: Variant) -> None:
    layers = 4
    kind = FAMILIES[family].kinds[0]
    real = measured(family, variant, REAL_SIZES, layers)
    predicted = replay(segments(family, variant), REAL_SIZES, [kind] * layers)
    assert predicted == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize(
    ("family", "variant"), [("llama", QUICK), ("llama", Variant("checkpointed", "autocast"))]
)
def test_the_peak_of_a_real_step(family: str, variant: Variant) -> None:
    check_against_a_real_step(family, variant)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.mode not in COMPILED], ids=str)
def test_the_peak_of_a_real_step_of_every_family(family: str, variant: Variant) -> None:
    check_against_a_real_step(family, variant)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_tracing_every_family_again_gives_the_shipped_profiles(family: str) -> None:
    from ljtrain.trace import trace_family

    assert trace_family(FAMILIES[family]) == profile(family)


# ---- the command ----


def trace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ljtrain.trace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_an_unknown_family_gives_one_clear_line(tmp_path: Path) -> None:
    result = trace("--family", "lama")
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f"ljperf trace: there is no family 'lama' (there are {', '.join(FAMILIES)}); "
        "trace another by its config.json: --config FILE"
    ]
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "nobody_has_this"}')
    result = trace("--config", str(config))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "'nobody_has_this'" in result.stderr
    config.write_text("{")
    result = trace("--config", str(config))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "is not JSON" in result.stderr

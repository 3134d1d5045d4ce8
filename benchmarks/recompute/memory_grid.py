"""The grid of configurations that the memory model is checked on, and the draw from it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from memory_ranks import Run

SEED = 20261201
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "gpt2", "mixtral", "bert")
ENGINES = (
    ("deepspeed", 0),
    ("deepspeed", 1),
    ("deepspeed", 2),
    ("deepspeed", 3),
    ("deepspeed", 3),
    ("fsdp", 0),
    ("ddp", 0),
)
HIDDEN = (128, 192, 256)
LAYERS = (2, 4, 6)
VOCABULARY = (512, 1000, 2048)
# Enough tokens that activations make at least half of the peak in half of the draw.
SEQUENCE = (256, 384, 512)
MICRO_BATCH = (2, 4, 8)
HEAD_DIM = (32, 64)
GROUPS = (1, 2)  # heads a key-value head
# Elements; ZeRO's buckets, prefetch and persistence, small enough to matter at these sizes.
REDUCE_BUCKET = (200_000, 500_000, 2_000_000)
PREFETCH_BUCKET = (0, 50_000, 200_000)
PERSISTENCE = (0, 1_000, 100_000)
LIVE_PARAMETERS = (300_000, 1_000_000_000)
REUSE_DISTANCE = (100_000, 1_000_000_000)
# The axes of --variants: (rank of LoRA adapters, compiled by the layer).
VARIANTS = ((0, True), (4, False), (8, True), (16, False))


def _model(draw: random.Random, family: str) -> dict[str, Any]:
    hidden, layers = draw.choice(HIDDEN), draw.choice(LAYERS)
    head_dim, groups = draw.choice(HEAD_DIM), draw.choice(GROUPS)
    heads = hidden // head_dim
    kv_heads = heads // groups if heads % groups == 0 else heads
    ffn = hidden * draw.choice((2, 3, 4))
    vocabulary = draw.choice(VOCABULARY)
    if family == "gpt2":
        return {
            "model_type": family,
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": ffn,
            "n_positions": 512,
            "vocab_size": vocabulary,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
        }
    model: dict[str, Any] = {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "pad_token_id": None,
    }
    if family == "bert":
        return model | {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": 0,
        }
    model |= {"num_key_value_heads": kv_heads, "tie_word_embeddings": family == "gemma"}
    if family in ("llama", "mistral", "qwen3", "gemma", "mixtral"):
        model["head_dim"] = head_dim
    if family in ("mistral", "mixtral", "phi3"):
        model["sliding_window"] = draw.choice((None, 32))
    if family == "mixtral":
        model |= {"num_local_experts": draw.choice((4, 8)), "num_experts_per_tok": 2}
    return model


def _zero_options(draw: random.Random, stage: int) -> dict[str, Any]:
    options: dict[str, Any] = {"reduce_bucket_size": draw.choice(REDUCE_BUCKET)}
    if stage == 3:
        options |= {
            "stage3_prefetch_bucket_size": draw.choice(PREFETCH_BUCKET),
            "stage3_param_persistence_threshold": draw.choice(PERSISTENCE),
            "stage3_max_live_parameters": draw.choice(LIVE_PARAMETERS),
            "stage3_max_reuse_distance": draw.choice(REUSE_DISTANCE),
        }
    return options


def _run(draw: random.Random, number: int) -> Run:
    family = FAMILIES[number % len(FAMILIES)]
    engine, zero = ENGINES[number % len(ENGINES)]
    model = _model(draw, family)
    layers = model.get("num_hidden_layers") or model["n_layer"]
    return Run(
        model=model,
        engine=engine,
        zero=zero,
        ranks=draw.choice((1, 2, 2)),
        seq=draw.choice(SEQUENCE),
        micro_batch=draw.choice(MICRO_BATCH),
        recomputed=draw.choice((0, 0, layers // 2, layers)),
        accumulation=draw.choice((1, 1, 1, 2)),
        task="masked-lm" if family == "bert" else "causal-lm",
        zero_options=_zero_options(draw, zero) if engine == "deepspeed" else {},
    )


def draw_runs(count: int, seed: int = SEED) -> list[Run]:
    """`count` configurations; families and engines in turn, the rest by chance."""
    draw = random.Random(seed)
    return [_run(draw, number) for number in range(count)]


def draw_variants(count: int, seed: int = SEED) -> list[Run]:
    """The same draw with adapters, with compiled layers, or with both."""
    runs = []
    for number, run in enumerate(draw_runs(count, seed)):
        lora_rank, compiled = VARIANTS[number % len(VARIANTS)]
        runs.append(dataclasses.replace(run, lora_rank=lora_rank, compiled=compiled))
    return runs


# ---- the same configurations for the memory model ----

ENGINE_NAMES = {"ddp": "DDP", "fsdp": "FSDP2"}
KNOBS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters",
    "stage3_max_reuse_distance": "max_reuse_distance",
}


def question(run: Run, backend: str) -> dict[str, Any]:
    """The run as a line for `memory_predict_tool`."""
    from transformers import AutoConfig

    content = dict(run.model)
    config = AutoConfig.for_model(content.pop("model_type"), **content)
    heads = config.num_attention_heads
    ffn = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", 0)
    window = getattr(config, "sliding_window", None) or 0
    experts = getattr(config, "num_local_experts", 0)
    kind = ("moe" if experts else "dense") + ("_window" if 0 < window < run.seq else "")
    learned = run.model["model_type"] in ("gpt2", "bert")
    sizes = {
        "hidden": config.hidden_size,
        "ffn": 0 if experts else ffn,
        "moe_ffn": ffn if experts else 0,
        "experts": experts,
        "top_k": getattr(config, "num_experts_per_tok", 0),
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", heads) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab": config.vocab_size,
        "window": window,
        "lora_rank": run.lora_rank,
        "positions": config.max_position_embeddings if learned else 0,
    }
    return {
        "shape": {
            "family": run.model["model_type"],
            "sizes": sizes,
            "layers": [kind] * config.num_hidden_layers,
            "tied_embeddings": bool(config.tie_word_embeddings),
            "lora": run.lora_rank > 0,
        },
        "setup": {
            "engine": ENGINE_NAMES.get(run.engine, f"ZeRO-{run.zero}"),
            "ranks": run.ranks,
            "micro_batch": run.micro_batch,
            "seq": run.seq,
            "gradient_accumulation": run.accumulation,
            "backend": backend,
            "compiled": run.compiled,
            "knobs": {KNOBS[key]: value for key, value in run.zero_options.items()},
        },
        "recomputed": run.recomputed,
    }

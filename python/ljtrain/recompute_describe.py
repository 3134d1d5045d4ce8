"""What the memory model must know of a live model and its training, as it reads it
(`recompute/memory_model/include/memory_model/description.h`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

LEARNED_POSITIONS = ("gpt2", "bert", "mpt")
# DeepSpeed's keys, by the memory model's names. What is absent has DeepSpeed's own default.
ZERO_KNOBS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters",
    "stage3_max_reuse_distance": "max_reuse_distance",
    "sub_group_size": "sub_group_size",
}
ZERO_SWITCHES = ("overlap_comm", "contiguous_gradients")
# Bytes of state a parameter has under an optimizer of this name's; AdamW's two fp32 moments else.
OPTIMIZER_BYTES = {"sgd": 0.0, "adagrad": 4.0, "lion": 4.0, "8bit": 2.0, "adafactor": 0.1}


@dataclass
class Training:
    """How the model is trained, beside the shape of its batches."""

    engine: str  # "one rank", "DDP", "FSDP2", "ZeRO-0" .. "ZeRO-3"; see engine_name() in C++
    ranks: int = 1
    precision: str | None = None  # None: bf16 as the engine does it
    accumulation: int = 1
    compiled: bool = False
    fused_optimizer: bool = True
    optimizer_bytes: float | None = None
    knobs: dict[str, Any] = field(default_factory=dict)


class NotDescribed(Exception):
    """The memory model does not know this model; the message says what it lacks."""


# ---- the model ----


def text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise NotDescribed("the model has no transformers configuration")
    return config.get_text_config()


def _experts(config: Any) -> int:
    return int(
        getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 0
    )


def _moe_layer(config: Any, layer: int) -> bool:
    if not _experts(config):
        return False
    if layer in (getattr(config, "mlp_only_layers", None) or ()):
        return False
    every = int(getattr(config, "decoder_sparse_step", None) or 1)
    return (layer + 1) % every == 0


def _window(config: Any, layer: int) -> int:
    """Tokens a query of the layer may look at; 0: all."""
    window = int(getattr(config, "sliding_window", None) or 0)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return window if kinds[layer] == "sliding_attention" else 0
    if getattr(config, "use_sliding_window", True) is False:
        return 0
    return window


def shape(model: nn.Module, layers: int, seq: int) -> dict[str, Any]:
    """Raises NotDescribed where `layers` are not those of the configuration."""
    config = text_config(model)
    if config.num_hidden_layers != layers:
        raise NotDescribed(
            f"the model has {layers} layers, its configuration {config.num_hidden_layers}"
        )
    kinds, window = [], 0
    for layer in range(layers):
        own = _window(config, layer)
        windowed = 0 < own < seq
        window = own if windowed else window
        kinds.append(
            ("moe" if _moe_layer(config, layer) else "dense") + ("_window" if windowed else "")
        )
    heads = int(config.num_attention_heads)
    hidden = int(config.hidden_size)
    experts = _experts(config)
    ffn = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    ffn = int(ffn or 4 * hidden)
    expert_ffn = int(getattr(config, "moe_intermediate_size", None) or ffn) if experts else 0
    learned = config.model_type in LEARNED_POSITIONS
    lora = lora_rank(model)
    return {
        "family": config.model_type,
        "sizes": {
            "hidden": hidden,
            "ffn": ffn if "dense" in "".join(kinds) else 0,
            "moe_ffn": expert_ffn,
            "experts": experts,
            "top_k": int(getattr(config, "num_experts_per_tok", None) or 0) if experts else 0,
            "heads": heads,
            "kv_heads": int(getattr(config, "num_key_value_heads", None) or heads),
            "head_dim": int(getattr(config, "head_dim", None) or hidden // heads),
            "vocab": int(config.vocab_size),
            "window": window,
            "positions": int(config.max_position_embeddings) if learned else 0,
            "lora_rank": lora,
        },
        "layers": kinds,
        "tied_embeddings": bool(config.tie_word_embeddings),
        "lora": lora > 0,
    }


def lora_rank(model: nn.Module) -> int:
    """Of peft's adapters, where the base is frozen; 0: there are none."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict):
        return 0
    return max((int(getattr(config, "r", 0) or 0) for config in configs.values()), default=0)


# ---- the engine ----


def zero_knobs(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's live configuration ("auto" filled in) as the memory model's knobs."""
    zero = config.get("zero_optimization") or {}
    knobs: dict[str, Any] = {}
    for key, name in ZERO_KNOBS.items():
        value = zero.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            knobs[name] = float(value)
    for name in ZERO_SWITCHES:
        if isinstance(zero.get(name), bool):
            knobs[name] = zero[name]
    for section in ("optimizer", "param"):
        device = (zero.get(f"offload_{section}") or {}).get("device", "none")
        if device not in (None, "none"):
            knobs[f"offload_{section}"] = True
    clipping = config.get("gradient_clipping", 0)
    knobs["gradient_clipping"] = not isinstance(clipping, int | float) or clipping > 0
    return knobs


def leaf_layers(layers: list[nn.Module]) -> bool:
    """Whether ZeRO-3 gathers the layers as a whole."""
    return bool(layers) and all(getattr(layer, "_z3_leaf", False) for layer in layers)


def world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def backend() -> str:
    """Which library's copies count: as the groups of this process are made."""
    if torch.cuda.is_available():
        return "nccl"
    from ljtrain import autoload

    return "accl" if "accl" in autoload.active else "gloo"


def local_ranks() -> int:
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def describe(
    model: nn.Module,
    layers: int,
    training: Training,
    micro_batch: int,
    seq: int,
) -> dict[str, Any]:
    """The whole description of a step whose micro-batches are `micro_batch` x `seq` tokens."""
    setup: dict[str, Any] = {
        "engine": training.engine,
        "ranks": training.ranks,
        "micro_batch": micro_batch,
        "seq": seq,
        "gradient_accumulation": training.accumulation,
        "compiled": training.compiled,
        "platform": "cuda" if torch.cuda.is_available() else "host",
        "backend": backend(),
        "fused_optimizer": training.fused_optimizer,
        "knobs": training.knobs,
    }
    if training.precision is not None:
        setup["precision"] = training.precision
    if training.optimizer_bytes is not None:
        setup["optimizer_bytes_per_parameter"] = training.optimizer_bytes
    return {"shape": shape(model, layers, seq), "setup": setup}


# ---- batches ----


def shape_of(batch: Any) -> tuple[int, int]:
    """(sequences, tokens of the longest) of a micro-batch; (0, 0): it holds no tensor."""
    if isinstance(batch, torch.Tensor):
        tensors = [batch]
    elif hasattr(batch, "values"):
        named = [
            batch.get(name) for name in ("input_ids", "inputs_embeds") if hasattr(batch, "get")
        ]
        tensors = [item for item in (*named, *batch.values()) if isinstance(item, torch.Tensor)]
    elif isinstance(batch, list | tuple):
        tensors = [item for item in batch if isinstance(item, torch.Tensor)]
    else:
        tensors = []
    for tensor in tensors:
        if tensor.dim() >= 2:
            return int(tensor.shape[0]), int(tensor.shape[1])
    return (int(tensors[0].numel()), 1) if tensors else (0, 0)

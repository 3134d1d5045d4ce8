"""Which families are traced, with what sizes, and how sizes become a transformers configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# One row a trace; the last is held out: expressions are found in the others and checked in it.
# Within a row the primes differ; heads is kv_heads * groups, head_dim is even (rotary halves).
_PRIMES = {
    "micro_batch": (3, 5, 7, 2, 11),
    "seq": (29, 31, 37, 41, 43),
    "kv_heads": (3, 5, 2, 7, 11),
    "groups": (5, 3, 7, 2, 3),
    "half_head_dim": (7, 11, 13, 17, 19),
    "hidden_per_head": (23, 19, 17, 29, 13),
    "ffn": (101, 103, 107, 109, 113),
    "vocab": (211, 223, 227, 229, 233),
    "window": (17, 13, 19, 23, 29),
    "positions": (59, 61, 67, 71, 73),
    "lora_rank": (47, 53, 43, 37, 31),
}
TRACES = 5
LAYERS = 3  # the middle one is read: its neighbours are layers, too

Sizes = dict[str, int]


@dataclass(frozen=True)
class Family:
    """How one `model_type` is traced."""

    model_type: str
    kinds: tuple[str, ...] = ("dense",)
    config: Callable[[Sizes, str], dict[str, Any]] = lambda sizes, kind: {}
    own_head_dim: bool = True  # head_dim is a key of its own, not hidden / heads
    grouped: bool = True  # kv_heads is a key
    masked: bool = False  # a masked language model


def sizes_of(family: Family, trace: int) -> Sizes:
    """The sizes of one trace, by the symbols of the expressions."""
    prime = {name: values[trace] for name, values in _PRIMES.items()}
    heads = prime["kv_heads"] * prime["groups"]
    head_dim = 2 * prime["half_head_dim"]
    sizes = {
        "micro_batch": prime["micro_batch"],
        "seq": prime["seq"],
        "hidden": heads * (prime["hidden_per_head"] if family.own_head_dim else head_dim),
        "ffn": prime["ffn"],
        "heads": heads,
        "head_dim": head_dim,
        "vocab": prime["vocab"],
    }
    if family.grouped:
        sizes["kv_heads"] = prime["kv_heads"]
    return sizes


def _llama(sizes: Sizes, kind: str) -> dict[str, Any]:
    return {
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["ffn"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "vocab_size": sizes["vocab"],
        "tie_word_embeddings": False,
    }


FAMILIES = {
    family.model_type: family
    for family in (Family("llama", config=_llama),)
}

"""Which families are traced, with what sizes, and how sizes become a transformers configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ljtrain.trace_expressions import GROUPS

# One row a trace; the last is held out: expressions are found in the others and checked in it.
# Within a row the primes differ; heads is kv_heads * groups, head_dim is even (rotary halves).
_PRIMES = {
    "micro_batch": (3, 5, 7, 2),
    "seq": (29, 31, 37, 41),
    "kv_heads": (3, 5, 2, 7),
    "groups": (5, 3, 7, 2),
    "heads": (11, 13, 9, 15),  # without groups; one power of two above, which ALiBi rounds to
    "half_head_dim": (7, 11, 13, 17),
    "hidden_per_head": (23, 19, 17, 29),
    "ffn": (101, 103, 107, 109),
    "vocab": (211, 223, 227, 229),
    "window": (17, 13, 19, 23),
    "positions": (59, 61, 67, 71),
    "moe_ffn": (127, 131, 137, 139),
    "experts": (13, 17, 19, 23),
    "top_k": (2, 7, 5, 3),
    "lora_rank": (47, 53, 43, 37),
}
TRACES = 4
LONGER_THAN_ANY_SEQUENCE = 1 << 20
LAYERS = 3  # the middle one is read: its neighbours are layers, too

Sizes = dict[str, int]


@dataclass(frozen=True)
class Family:
    """How one `model_type` is traced."""

    model_type: str
    config: Callable[[Sizes, str], dict[str, Any]]
    kinds: tuple[str, ...] = ("dense",)
    symbols: tuple[str, ...] = ()  # sizes it has beside those of every model
    own_head_dim: bool = True  # head_dim is a key of its own, not hidden / heads
    masked: bool = False  # a masked language model
    assumption: str | None = None


EVERY_MODEL = ("micro_batch", "seq", "hidden", "heads", "head_dim", "vocab", "lora_rank")


def sizes_of(family: Family, kind: str, trace: int) -> Sizes:
    """The sizes of one trace, by the symbols of the expressions."""
    prime = {name: values[trace] for name, values in _PRIMES.items()}
    heads = prime["kv_heads"] * prime["groups"]
    head_dim = 2 * prime["half_head_dim"]
    if "kv_heads" not in family.symbols:
        heads = prime["heads"]
    hidden = heads * (prime["hidden_per_head"] if family.own_head_dim else head_dim)
    derived = {"heads": heads, "head_dim": head_dim, "hidden": hidden}
    symbols = EVERY_MODEL + family.symbols
    sizes = {symbol: derived.get(symbol) or prime[symbol] for symbol in symbols}
    if "experts" in symbols:  # grouped matrix products take rows of 16 bytes and their multiples
        sizes["hidden"] *= 8
        sizes["moe_ffn"] *= 8
    if "kv_heads" in symbols:
        sizes[GROUPS] = prime["groups"]
    if _ungrouped(kind):
        sizes["kv_heads"] = heads
        del sizes[GROUPS]
    return sizes


def larger(sizes: Sizes) -> Sizes:
    """For the compiler, whose choices are those of real models only where sizes are not tiny."""
    scaled = ("seq", "ffn", "vocab", "window", "positions")
    return {name: size * (8 if name in scaled else 1) for name, size in sizes.items()}


def _window(kind: str) -> bool:
    return "_window" in kind


def _ungrouped(kind: str) -> bool:
    """As many heads of keys as of queries: what attention repeats under a mask it need not here."""
    return kind.endswith("_ungrouped")


def _llama(sizes: Sizes, kind: str) -> dict[str, Any]:
    return {
        "num_hidden_layers": LAYERS,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes.get("ffn", sizes.get("moe_ffn")),
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "vocab_size": sizes["vocab"],
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _mistral(sizes: Sizes, kind: str) -> dict[str, Any]:
    """Windows on every layer or on none (mistral, mixtral, phi3)."""
    return _llama(sizes, kind) | {"sliding_window": sizes["window"] if _window(kind) else None}


def _phi3(sizes: Sizes, kind: str) -> dict[str, Any]:
    config = _mistral(sizes, kind)
    del config["head_dim"]
    return config


def _qwen(sizes: Sizes, kind: str) -> dict[str, Any]:
    """Windows by layer (qwen2, qwen3, gemma2, gemma3)."""
    layer = "sliding_attention" if _window(kind) else "full_attention"
    return _llama(sizes, kind) | {
        "use_sliding_window": _window(kind),
        # The models build a window's mask where it is shorter than the sequence, used or not.
        "sliding_window": sizes["window"] if _window(kind) else LONGER_THAN_ANY_SEQUENCE,
        "layer_types": [layer] * LAYERS,
    }


def _qwen2(sizes: Sizes, kind: str) -> dict[str, Any]:
    config = _qwen(sizes, kind)
    del config["head_dim"]
    return config


def _gemma(sizes: Sizes, kind: str) -> dict[str, Any]:
    config = _qwen(sizes, kind)
    del config["use_sliding_window"]
    return config


def _mixtral(sizes: Sizes, kind: str) -> dict[str, Any]:
    return _mistral(sizes, kind) | {
        "intermediate_size": sizes["moe_ffn"],
        "num_local_experts": sizes["experts"],
        "num_experts_per_tok": sizes["top_k"],
    }


def _qwen3_moe(sizes: Sizes, kind: str) -> dict[str, Any]:
    dense = kind.startswith("dense")
    config = _llama(sizes, kind) | {
        "use_sliding_window": _window(kind),
        "sliding_window": sizes["window"] if _window(kind) else None,
        "moe_intermediate_size": sizes["moe_ffn"],
        "num_experts": sizes["experts"],
        "num_experts_per_tok": sizes["top_k"],
        "norm_topk_prob": True,
        "mlp_only_layers": list(range(LAYERS)) if dense else [],
    }
    return config


def _gpt2(sizes: Sizes, kind: str) -> dict[str, Any]:
    return {
        "n_layer": LAYERS,
        "n_embd": sizes["hidden"],
        "n_inner": sizes["ffn"],
        "n_head": sizes["heads"],
        "n_positions": sizes["positions"],
        "vocab_size": sizes["vocab"],
        "tie_word_embeddings": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _bert(sizes: Sizes, kind: str) -> dict[str, Any]:
    return {
        "num_hidden_layers": LAYERS,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["ffn"],
        "num_attention_heads": sizes["heads"],
        "max_position_embeddings": sizes["positions"],
        "vocab_size": sizes["vocab"],
        "tie_word_embeddings": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": None,
    }


def _mpt(sizes: Sizes, kind: str) -> dict[str, Any]:
    return {
        "n_layers": LAYERS,
        "d_model": sizes["hidden"],
        "n_heads": sizes["heads"],
        "expansion_ratio": 4,
        "max_seq_len": sizes["positions"],
        "vocab_size": sizes["vocab"],
        "tie_word_embeddings": False,
    }


_WINDOW_KINDS = ("dense", "dense_window", "dense_window_ungrouped")
_MOE_KINDS = ("moe", "moe_window", "moe_window_ungrouped")
_GROUPED = ("kv_heads", "ffn")
_WINDOWED = (*_GROUPED, "window")
_MOE = ("kv_heads", "window", "moe_ffn", "experts", "top_k")
# transformers' MptAttention saves seq x seq; this is what llm-foundry, MPT's own trainer, runs.
FLASH = "dense_flash"
NO_DROPOUT = "dropout 0"
GROUPED_EXPERTS = (
    "experts as transformers' grouped matrix products: sizes do not depend on the routing"
)

FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama", _llama, symbols=_GROUPED),
        Family("mistral", _mistral, _WINDOW_KINDS, _WINDOWED),
        Family("qwen2", _qwen2, _WINDOW_KINDS, _WINDOWED, own_head_dim=False),
        Family("qwen3", _qwen, _WINDOW_KINDS, _WINDOWED),
        Family("phi3", _phi3, _WINDOW_KINDS, _WINDOWED, own_head_dim=False),
        Family("gemma", _llama, symbols=_GROUPED),
        Family("gemma2", _gemma, ("dense_ungrouped", *_WINDOW_KINDS), _WINDOWED),
        Family("gemma3_text", _gemma, _WINDOW_KINDS, _WINDOWED),
        Family("mixtral", _mixtral, _MOE_KINDS, _MOE, assumption=GROUPED_EXPERTS),
        Family(
            "qwen3_moe",
            _qwen3_moe,
            (*_MOE_KINDS, *_WINDOW_KINDS),
            (*_MOE, "ffn"),
            assumption=GROUPED_EXPERTS,
        ),
        Family(
            "gpt2", _gpt2, symbols=("ffn", "positions"), own_head_dim=False, assumption=NO_DROPOUT
        ),
        Family(
            "bert",
            _bert,
            symbols=("ffn", "positions"),
            own_head_dim=False,
            masked=True,
            assumption=NO_DROPOUT,
        ),
        Family("mpt", _mpt, ("dense", FLASH), ("positions",), own_head_dim=False),
    )
}


# Keys of a config.json that name a size, wherever a family has them.
_KEYS = {
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab",
    "max_position_embeddings": "positions",
}


def unknown_family(config: dict[str, Any]) -> Family:
    """A decoder by the usual keys; what else its config.json says is kept as it is."""
    grouped = config.get("num_key_value_heads", config.get("num_attention_heads"))
    grouped = grouped != config.get("num_attention_heads")

    def configured(sizes: Sizes, kind: str) -> dict[str, Any]:
        own = {key: value for key, value in config.items() if key not in ("model_type", "dtype")}
        for key, symbol in _KEYS.items():
            if key in own:
                own[key] = sizes.get(symbol, sizes["heads"])
        return own | {"num_hidden_layers": LAYERS, "tie_word_embeddings": False}

    return Family(
        config["model_type"],
        configured,
        symbols=(*(("kv_heads",) if grouped else ()), "ffn", "positions"),
        own_head_dim="head_dim" in config,
        assumption=f"traced from a config.json of model_type {config['model_type']}",
    )

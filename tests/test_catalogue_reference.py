"""The catalogue's counts against the real thing.

Parameters are compared with the models that transformers builds (on the meta device), and forward
and backward FLOPs with PyTorch's FlopCounterMode on small models of every family, trained one step
on the CPU. The numbers under test come from `ljperf models --json`.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEQ = 48

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def ljperf_models(*options: str) -> list[dict[str, Any]]:
    """`ljperf models --json OPTIONS`, of the program that LJPERF names or of the environment."""
    program = os.environ.get("LJPERF", str(ROOT / ".venv/bin/ljperf"))
    if not Path(program).exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [program, "models", "--json", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    models: list[dict[str, Any]] = json.loads(done.stdout)["models"]
    return models


def build(model: dict[str, Any], device: str, **options: Any) -> Any:
    config = transformers.AutoConfig.for_model(**model["config"])
    masked = model["task"] == "masked-lm"
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(config, **options)


@pytest.mark.parametrize("scale", ["full", "1/2", "1/4", "1/8"])
def test_parameters_equal_those_of_transformers(scale: str) -> None:
    for model in ljperf_models("--scale", scale, "--seq", str(SEQ)):
        real = build(model, "meta")
        assert type(real).__name__ == model["architecture"]
        assert sum(p.numel() for p in real.parameters()) == model["parameters"], model["id"]
        embeddings = [m for m in real.modules() if isinstance(m, torch.nn.Embedding)]
        looked_up = sum(m.weight.numel() for m in embeddings)
        assert looked_up == model["embedding_parameters"], model["id"]
        assert real.config.num_hidden_layers == model["layers"]
        assert real.config.hidden_size == model["hidden_size"]


# Small models of every family, with the options that change their shape.
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases and one head size": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
    "mistral": {"sliding_window": 16, "head_dim": 32},
    "llama without KV heads": {"num_key_value_heads": None},
    "mixtral": MOE,
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen3": {"attention_bias": True},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32, "sliding_window": 16},
    "gemma3_text": {"head_dim": 32, "sliding_window": 16, "sliding_window_pattern": 2},
    "phi3": {"pad_token_id": 0},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "gpt2 with a narrow MLP": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 64,
        "n_inner": 100,
        "tie_word_embeddings": False,
    },
    "mpt": {"d_model": 64, "n_layers": 4, "n_heads": 4, "max_seq_len": 64},
    "mpt untied, by the common names": {
        "model_type": "mpt",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_seq_len": 64,
        "tie_word_embeddings": False,
        "attn_config": {"alibi": True, "attn_pdrop": 0},
    },
    "bert": {"max_position_embeddings": 64},
    "bert untied": {
        "model_type": "bert",
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    },
}


def family_config(name: str) -> dict[str, Any]:
    own = FAMILIES[name]
    config: dict[str, Any] = {"model_type": name.split(maxsplit=1)[0], **COMMON, **own}
    if config["model_type"] in ("gpt2", "mpt"):
        for key in COMMON.keys() - {"vocab_size", "bos_token_id", "eos_token_id"} - own.keys():
            del config[key]
    return config


@pytest.fixture(params=FAMILIES)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """One small model as the catalogue describes it."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(family_config(request.param)))
    return ljperf_models("--config", str(file), "--seq", str(SEQ))[0]


@pytest.mark.parametrize("scale", ["full", "1/2"])
def test_parameters_of_every_family(scale: str, tmp_path: Path) -> None:
    for name in FAMILIES:
        file = tmp_path / "config.json"
        file.write_text(json.dumps(family_config(name)))
        model = ljperf_models("--config", str(file), "--scale", scale, "--seq", str(SEQ))[0]
        real = build(model, "meta")
        assert sum(p.numel() for p in real.parameters()) == model["parameters"], name
        assert model["proxy"]["notes"] == [], name


def count_step(model: Any, batch: int) -> int:
    """FLOPs of a forward and a backward pass, as PyTorch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    inputs = torch.randint(3, 100, (batch, SEQ))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=inputs, labels=inputs).loss.backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("recompute", [False, True])
def test_flops_equal_those_that_pytorch_counts(small: dict[str, Any], recompute: bool) -> None:
    batch = 2
    torch.manual_seed(0)
    # Eager attention computes every score, masked or not, and eager experts only those chosen.
    real = build(small, "cpu", attn_implementation="eager", experts_implementation="eager")
    real.train()
    whole = small["whole_attention_flops_per_token"]
    expected = whole["step"]
    if recompute:
        real.gradient_checkpointing_enable({"use_reentrant": False})
        expected += sum(whole["forward_layers"])
    # Recomputation that stops once it has what it needs leaves out a layer's last product.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        counted = count_step(real, batch)
    assert counted == pytest.approx(expected * batch * SEQ, rel=1e-9)

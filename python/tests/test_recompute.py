"""Recomputing while training, in one process: plans within a limit, the same losses and weights to
the last bit, and what happens when memory runs out all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ljtrain.autoload
import ljtrain.compile
import ljtrain.recompute
import pytest
import torch
from ljtrain import recompute_layers
from ljtrain.recompute_control import Controller
from ljtrain.recompute_failure import StepOutOfMemory, read_state, state_path
from ljtrain.worker_config import BadInput
from recompute_runs import LAYERS, LLAMA, Result, build, train, with_controller
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers import trainer as trainer_module

VARIABLE = "LJTRAIN_MEMORY_LIMIT"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("LJTRAIN_STATE", raising=False)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Everything recomputed by stock transformers."""
    return train(tmp_path_factory.mktemp("full"), optimised=False)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Planned with room for everything."""
    return train(tmp_path_factory.mktemp("free"))


def between(share: float) -> str:
    """A limit between the peaks of recomputing all layers and none."""
    return str(int(PEAKS["full"] + share * (PEAKS["none"] - PEAKS["full"])))


PEAKS: dict[str, float] = {}  # measured, with all and with no layer recomputed


def _everything(controller: Controller) -> None:
    controller.estimator.floor = (LAYERS, 0)


@pytest.fixture(scope="module", autouse=True)
def peaks(free: Result, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert free.report is not None
    PEAKS["none"] = free.report["measured_peak_bytes"]
    result = train(tmp_path_factory.mktemp("peak"), steps=3, prepare=with_controller(_everything))
    assert result.report is not None
    PEAKS["full"] = result.report["measured_peak_bytes"]


def assert_same(result: Result, other: Result) -> None:
    assert result.losses == other.losses and len(result.losses) > 2
    assert result.weights == other.weights


# ---- plans ----


def test_with_room_nothing_is_recomputed(full: Result, free: Result) -> None:
    assert free.report is not None
    assert free.report["layers"] == 0 and free.report["of"] == LAYERS
    assert_same(free, full)
    # Predicted before anything had been measured.
    assert free.report["predicted_peak_bytes"] == pytest.approx(
        free.report["measured_peak_bytes"], rel=0.05
    )


@pytest.mark.parametrize("share", [0.15, 0.5, 0.8])
def test_a_limit_is_kept_with_as_little_recomputing_as_fits(
    share: float, full: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = between(share)
    monkeypatch.setenv(VARIABLE, limit)
    result = train(tmp_path, steps=5, prepare=whole_layers_only)
    report = result.report
    assert report is not None
    assert 0 < report["layers"] < LAYERS
    assert report["measured_peak_bytes"] <= int(limit)
    assert_same(result, full)
    # One layer less would not fit: layers save the same.
    saved = (PEAKS["none"] - PEAKS["full"]) / LAYERS
    assert report["measured_peak_bytes"] + 1.2 * saved > int(limit)
    assert "of 6 layers are recomputed" in result.lines[0] and VARIABLE in result.lines[0]
    assert "measured" in result.lines[-1]


def _no_operators(controller: Controller) -> None:
    controller.trial.decision = False


whole_layers_only = with_controller(_no_operators)


def _operators(controller: Controller) -> None:
    controller.trial.decision = True


def test_operators_are_kept_where_that_saves_time(
    full: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = between(0.5)
    monkeypatch.setenv(VARIABLE, limit)
    result = train(tmp_path, prepare=with_controller(_operators))
    assert result.report is not None and result.report["kept_operators"]
    assert result.report["measured_peak_bytes"] <= int(limit)
    assert_same(result, full)


def test_longer_sequences_are_recomputed_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, between(0.6))

    def length(number: int) -> int:
        return (16, 64, 72, 40)[number // 4 % 4]

    arguments: dict[str, Any] = {
        "steps": 12,
        "length": length,
        "train_sampling_strategy": "sequential",
    }
    result = train(tmp_path, prepare=whole_layers_only, **arguments)
    assert result.report is not None and result.report["retries"] == 0
    assert result.report["measured_peak_bytes"] <= int(between(0.6))
    counts = [sum(policy) for policy in result.policies]
    assert min(counts) == 0 and counts[-2] > counts[-1] >= counts[-4]
    assert_same(result, train(tmp_path, optimised=False, **arguments))


# ---- what does not fit, and what is no limit ----


def test_a_limit_that_nothing_satisfies_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1MiB")
    with pytest.raises(BadInput, match=r"recomputing all 6 layers takes .* limit is 1.00 MiB"):
        train(tmp_path)


@pytest.mark.parametrize("value", ["much", "-3GiB", "0"])
def test_a_limit_that_is_none_is_refused(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(BadInput, match=VARIABLE):
        train(tmp_path)


def test_without_gradient_checkpointing_there_is_no_effect_and_one_line(tmp_path: Path) -> None:
    result = train(tmp_path, gradient_checkpointing=False)
    assert result.report is None and len(result.losses) == 5
    assert len([line for line in result.lines if "has no effect" in line]) == 1


def test_a_loss_that_is_not_finite_is_none_of_our_business(tmp_path: Path) -> None:
    result = train(tmp_path, learning_rate=1e30, max_grad_norm=0, logging_nan_inf_filter=False)
    assert result.report is not None and len(result.losses) == 5
    assert any(math.isnan(loss) for loss in result.losses)


# ---- an allocation fails ----


class Failing:
    """Fails as the allocator does, once: in the forward or backward of one layer."""

    def __init__(self, where: str, micro_batch: int, layer: int = 2) -> None:
        self.where, self.left, self.layer = where, micro_batch, layer

    def __call__(self, trainer: Any) -> None:
        def fail(*_: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("not enough memory: you tried to allocate 8 bytes")

        layers = recompute_layers.find(trainer.model)
        assert layers is not None
        layer = layers.modules[self.layer]
        if self.where == "forward":
            layer.register_forward_pre_hook(fail)
        else:
            layer.register_full_backward_hook(fail)


@pytest.mark.parametrize(
    ("where", "micro_batch"), [("forward", 3), ("backward", 3), ("backward", 4)]
)
def test_a_step_is_computed_again_and_gives_the_same(
    where: str, micro_batch: int, full: Result, tmp_path: Path
) -> None:
    """The second step has the micro-batches 3 and 4."""
    arguments: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 2,
        "steps": 4,
    }
    dropout = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 300,
    }
    result = train(tmp_path, build(dropout), prepare=Failing(where, micro_batch), **arguments)
    assert result.report is not None and result.report["retries"] == 1
    assert any("computed again" in line for line in result.lines)
    assert_same(result, train(tmp_path, build(dropout), optimised=False, **arguments))


def test_where_peers_wait_a_failure_ends_the_rank_and_the_next_start_is_safer(
    tmp_path: Path,
) -> None:
    def as_if_sharded(controller: Controller) -> None:
        controller.training.engine = "ZeRO-3"

    def sharded(trainer: Any) -> None:
        with_controller(as_if_sharded)(trainer)
        Failing("forward", 3)(trainer)

    with pytest.raises(
        StepOutOfMemory, match=r"rank 0 .* forward pass of layer 2 of step 3"
    ) as info:
        train(tmp_path, prepare=sharded)
    assert "start again: it will recompute at least 1 layers" in str(info.value)
    state = read_state(state_path(str(tmp_path)))
    assert state is not None and state.least_recomputed == 1 and state.margin == 0.10
    again = train(tmp_path)
    assert again.report is not None and again.report["layers"] == 1
    assert any("at least 1 of 6 layers" in line for line in again.lines)


# ---- models ----

MOE = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "router_jitter_noise": 0.1,
}
MODELS: dict[str, dict[str, Any]] = {
    "tied": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "experts": MOE,
    "cache": LLAMA | {"use_cache": True},
    "unknown to the memory model": LLAMA | {"model_type": "olmo2"},
}


def _every_other_amount(controller: Controller) -> None:
    """Recomputes 1, 2, 3, 1, ... layers, whatever would fit."""
    estimator: Any = controller.estimator
    amounts = itertools.cycle((1, 2, 3))
    estimator._whole_layers = lambda shape, limit: estimator.whole_layers(
        shape, next(amounts), limit
    )


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    every = None if name.startswith("unknown") else with_controller(_every_other_amount)
    result = train(tmp_path, build(MODELS[name]), prepare=every)
    assert result.report is not None
    assert result.report["moves"] >= 2
    assert_same(result, train(tmp_path, build(MODELS[name]), optimised=False))
    if name.startswith("unknown"):
        assert result.policies[0] == [True] * LAYERS and result.report["layers"] == 0
        assert any("goes by measured steps alone" in line for line in result.lines)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_either_kind(
    reentrant: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, between(0.5))
    arguments: dict[str, Any] = {
        "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
        "steps": 12,
    }
    result = train(tmp_path, **arguments)
    assert result.report is not None and 0 < result.report["layers"] < LAYERS
    assert (result.report["kept_operators_faster"] is None) == reentrant
    monkeypatch.delenv(VARIABLE)
    assert_same(result, train(tmp_path, optimised=False, **arguments))


def test_frozen_layers(tmp_path: Path) -> None:
    def frozen() -> Any:
        model = build()
        for layer in model.model.layers[:3]:
            layer.requires_grad_(False)
        model.model.embed_tokens.requires_grad_(False)
        return model

    result = train(tmp_path, frozen(), prepare=with_controller(_every_other_amount))
    assert result.report is not None and result.report["moves"] >= 2
    assert_same(result, train(tmp_path, frozen(), optimised=False))


def test_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        return peft.get_peft_model(build(), config)

    result = train(tmp_path, adapted(), prepare=with_controller(_every_other_amount))
    assert result.report is not None and result.report["moves"] >= 2
    assert_same(result, train(tmp_path, adapted(), optimised=False))


class Unlayered(nn.Module):
    """Checkpoints in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 32)
        self.head = nn.Linear(32, 300)
        self.gradient_checkpointing = False

    def activation_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        self.gradient_checkpointing = True

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embed(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def test_a_model_without_layers_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = train(tmp_path, Unlayered())
    assert result.report is None and len(result.losses) == 5
    assert len([line for line in result.lines if "as it is" in line]) == 1


# ---- loops of one's own ----


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(4)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def loop(planned: bool) -> tuple[list[float], list[Any]]:
    torch.manual_seed(5)
    model = Stack()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    applied = ljtrain.recompute.apply(model) if planned else ljtrain.recompute.Applied(None)
    losses, counts = [], []
    for number in range(6):
        batch = torch.randn(8, 32, 32, generator=torch.Generator().manual_seed(number))
        with applied.step(batch):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss))
        counts.append((applied.report() or {}).get("layers"))
    applied.remove()
    assert all("forward" not in vars(layer) for layer in model.layers)
    return losses, counts


def test_a_loop_over_plain_layers() -> None:
    losses, counts = loop(planned=True)
    assert losses == loop(planned=False)[0]
    assert counts[0] == 4 and counts[-1] == 0  # from all, by measured steps, to none


def wrapped_stack() -> nn.Module:
    """As accelerate's FSDP plugin and PyTorch's recipes checkpoint layers."""
    model = Stack()
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer)
    return model


def test_layers_in_checkpoint_wrappers() -> None:
    model = wrapped_stack()
    layers = recompute_layers.find(model)
    assert layers is not None and layers.how == "wrapper" and recompute_layers.asked_for(model)
    batch = torch.randn(2, 8, 32)
    seen = []
    for policy in (["full"] * 4, ["none"] * 4, ["full", "none", "selected", "none"]):
        recompute_layers.set_policy(layers, policy, ["aten.addmm"])
        torch.manual_seed(2)
        model.zero_grad()
        calls = _forwards_of(model)
        model(batch).square().mean().backward()
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert calls() == 4 + sum(choice != "none" for choice in policy)
    for gradients in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients, seen[0], strict=True))
    layers.take_back()


def _forwards_of(model: nn.Module) -> Callable[[], int]:
    """Counts the layers' forwards, recomputed ones included, until it is asked."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    handles = [
        module.register_forward_pre_hook(counted)
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoderLayer)
    ]

    def done() -> int:
        for handle in handles:
            handle.remove()
        return count

    return done


def test_deepspeeds_own_checkpoint_is_the_one_that_is_used(tmp_path: Path) -> None:
    deepspeed = pytest.importorskip("deepspeed")
    calls = 0

    def checkpoint(function: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return deepspeed.checkpointing.non_reentrant_checkpoint(function, *args)

    def prepare(trainer: Any) -> None:
        enable = trainer.model.activation_checkpointing_enable

        def with_deepspeed(*_: Any, **__: Any) -> None:
            enable()
            trainer.model._set_gradient_checkpointing(True, checkpoint)

        trainer.model.activation_checkpointing_enable = with_deepspeed
        with_controller(_every_other_amount)(trainer)

    deepspeed.checkpointing._configure_defaults()
    result = train(tmp_path, prepare=prepare, steps=3)
    assert result.report is not None and calls == 1 + 2 + 3
    assert_same(result, train(tmp_path, optimised=False, steps=3))


@pytest.mark.slow
def test_compiled_layers_have_two_variants_of_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ljtrain.autoload, "active", {"recompute", "compile"})
    callbacks = list(trainer_module.DEFAULT_CALLBACKS)
    ljtrain.compile.activate()
    try:
        changing = with_controller(_every_other_amount)
        result = train(tmp_path, prepare=changing, torch_compile=True)
        stock = train(tmp_path, optimised=False, torch_compile=True)
    finally:
        trainer_module.DEFAULT_CALLBACKS[:] = callbacks
    assert result.report is not None and result.report["moves"] == 4
    assert not result.report["kept_operators"]
    assert_same(result, stock)
    (kind,) = ljtrain.compile.report()[-2]["kinds"]
    assert sorted(variant["name"] for variant in kind["variants"]) == [
        "training",
        "training, checkpointed",
    ]
    for variant in kind["variants"]:
        assert variant["graphs"] == 1 and variant["recompilations"] == 0

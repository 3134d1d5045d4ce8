"""The parts of the compile integration that need no training: finding layers, fitting ZeRO's sizes,
telling calls apart, sharing decisions, agreeing on a step.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from ljtrain import (
    compile_agreement,
    compile_cache,
    compile_inputs,
    compile_kind,
    compile_layers,
    compile_trial,
    compile_zero,
    patches,
    versions,
)
from ljtrain.compile_cache import Decision
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

HIDDEN = 8


class Block(GradientCheckpointingLayer):
    count: Any

    def __init__(self, number: int, inner: int = HIDDEN) -> None:
        super().__init__()
        self.layer_idx = number
        self.up = nn.Linear(HIDDEN, inner)
        self.down = nn.Linear(inner, HIDDEN)
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.count += 1
        return hidden + nn.functional.dropout(self.down(self.up(hidden)), 0.5)


class Model(nn.Module):
    def __init__(self, *inner: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, HIDDEN)
        self.layers = nn.ModuleList(Block(*numbered) for numbered in enumerate(inner))
        self.head = nn.Sequential(nn.Linear(HIDDEN, 4), nn.Tanh())


def test_layers_of_one_structure_are_one_kind() -> None:
    kinds = compile_layers.find_kinds(Model(8, 16, 8, 16))
    assert [(kind.name, kind.names) for kind in kinds] == [
        ("Block #1", ["layers.0", "layers.2"]),
        ("Block #2", ["layers.1", "layers.3"]),
    ]


def test_a_frozen_layer_is_a_kind_of_its_own() -> None:
    model = Model(8, 8)
    model.layers[1].requires_grad_(False)
    assert len(compile_layers.find_kinds(model)) == 2


def test_experts_inside_a_layer_are_no_layers() -> None:
    model = Model(8, 8)
    layer: Any
    for layer in model.layers:
        layer.experts = nn.ModuleList(Block(number) for number in range(3))
    assert [name for name, _ in compile_layers.find_layers(model)] == ["layers.0", "layers.1"]


def test_a_layer_that_is_too_large_is_taken_apart() -> None:
    kinds = compile_layers.find_kinds(Model(8, 8), largest=100)
    assert [kind.names for kind in kinds] == [
        ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]
    ]


def test_a_model_without_repeated_layers_has_no_kinds() -> None:
    assert compile_layers.find_kinds(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []


def test_sizes_left_empty_or_auto_follow_the_layers() -> None:
    model = Model(16, 16)
    kinds = compile_layers.find_kinds(model)
    layer = compile_layers.numel_of(model.layers[0])
    for zero in ({"stage": 3}, {"stage": 3, compile_zero.PREFETCH: "auto"}):
        sizes = compile_zero.fit(zero, model, kinds)
        assert zero[compile_zero.PREFETCH] == sizes["layer_numel"] == layer
        assert sizes["gathered_numel"] == 2 * layer


def test_a_users_size_is_kept_and_its_cost_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(16, 16)
    zero = {"stage": 3, compile_zero.PREFETCH: 100, compile_zero.PERSISTENCE: 7}
    compile_zero.fit(zero, model, compile_layers.find_kinds(model))
    assert zero == {"stage": 3, compile_zero.PREFETCH: 100, compile_zero.PERSISTENCE: 7}
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "keeps stage3_prefetch_bucket_size=100" in said
    assert "only 1/3 of the next layer" in said


def test_what_stays_whole_is_a_small_share() -> None:
    model = Model(512, 512)
    threshold = compile_zero._persistence_threshold(model)
    sizes = [parameter.numel() for parameter in model.parameters()]
    kept = sum(size for size in sizes if size <= threshold)
    assert 0 < kept <= compile_zero.PERSISTENT_SHARE * sum(sizes)


# ---- calls ----


def test_calls_differ_by_what_dynamo_guards_on() -> None:
    def call(*shape: int, dtype: torch.dtype = torch.float32, flag: bool = True) -> Any:
        return ((torch.zeros(shape, dtype=dtype),), {"flag": flag})

    def form(arguments: Any, sizes: bool = True) -> Any:
        return compile_inputs.signature(arguments, sizes=sizes)

    assert form(call(2, 3)) == form(call(2, 3))
    assert form(call(2, 3)) != form(call(2, 4))
    assert form(call(2, 3)) != form(call(2, 3, dtype=torch.bfloat16))
    assert form(call(2, 3)) != form(call(2, 3, flag=False))
    assert form(call(2, 3), sizes=False) == form(call(5, 4), sizes=False)
    assert form(call(2, 3), sizes=False) != form(call(1, 3), sizes=False)
    assert compile_inputs.changed_sizes(form(call(2, 3)), form(call(2, 4))) == {4}


def test_copies_keep_strides_identity_and_nothing_else() -> None:
    mask = torch.zeros(1, 1, 4, 4).expand(3, 1, 4, 4)
    hidden = torch.ones(2, 3, requires_grad=True)
    (first, second), kwargs = compile_inputs.copy_to_try(((hidden, hidden), {"mask": mask}))
    assert first is second and first is not hidden
    assert first.requires_grad and first.is_leaf
    assert kwargs["mask"].stride() == mask.stride()
    kwargs["mask"][0] += 1
    assert mask.sum() == 0


def test_a_trial_leaves_no_trace() -> None:
    layer = Block(0)
    hidden = torch.ones(1, 2, HIDDEN)
    state = torch.get_rng_state()
    with compile_trial.no_trace(layer):
        seconds = compile_trial.step(Block.forward, compile_trial.Call(layer, (hidden,), {}))
    assert seconds > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert (layer.calls, layer.count.item()) == (0, 0)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_a_reentrant_checkpoint_can_be_tried() -> None:
    layer: Any = Block(0)
    reentrant = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
    layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, reentrant
    hidden = torch.ones(1, 2, HIDDEN, requires_grad=True)
    call = compile_trial.Call(layer, (hidden,), {})
    with pytest.raises(RuntimeError, match="use_reentrant"):
        compile_trial.step(Block.forward, call)
    assert compile_trial.step(functools.partial(compile_kind._tried, Block.forward), call) > 0
    assert layer._gradient_checkpointing_func is reentrant
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_checkpointing_stays_around_another_inner_forward() -> None:
    layer: Any = Block(0)
    seen: list[str] = []

    def checkpoint(function: Any, *args: Any) -> Any:
        seen.append("checkpoint")
        return function(*args)

    def inner(forward: Any) -> Any:
        def run(self: nn.Module, *args: Any) -> Any:
            seen.append("inner")
            return forward(self, *args)

        return run

    layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, checkpoint
    around = compile_kind.with_inner(Block.forward, inner)
    around(layer, torch.ones(1, 2, HIDDEN, requires_grad=True))
    assert seen == ["checkpoint", "inner"]
    seen.clear()
    around(layer.eval(), torch.ones(1, 2, HIDDEN))
    assert seen == ["inner"]


def test_a_copied_model_runs_its_own_layers() -> None:
    """As an average of weights is kept: by copying the model while it trains."""
    model = Model(8, 8)
    (kind,) = compile_layers.find_kinds(model)
    compiled = compile_kind.CompiledKind(kind, None, lambda *_: None, lambda *_: None)
    undo = compiled.install(patches.LAYER_FORWARD.apply)
    twin: Any = copy.deepcopy(model)
    for back in undo:
        back()
    assert "forward" not in vars(model.layers[0])
    assert twin.layers[0].forward.__self__ is twin.layers[0]


# ---- sharing and agreeing ----


def _decide_slowly(place: Path, into: Any) -> None:
    compile_cache.place = place
    with compile_cache.turn("key") as turn:
        found_out = turn.decision is None
        if found_out:
            time.sleep(0.3)
            turn.decide(Decision("whole", 2.0, 1.0, "faster than eager"))
        assert turn.decision is not None
        into.put((found_out, turn.decision.mode, turn.decision.speedup))


def test_one_process_decides_and_the_others_follow(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=_decide_slowly, args=(tmp_path, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    seen = sorted(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert seen == [(False, "whole", 2.0)] * 3 + [(True, "whole", 2.0)]


def test_a_folder_that_cannot_be_written_costs_only_the_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compile_cache, "place", tmp_path / "file" / "folder")
    with compile_cache.turn("key") as turn:
        assert turn.decision is None
        turn.decide(Decision("eager", None, None, "why"))


def test_a_damaged_decision_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "place", tmp_path)
    for content in ("{", "[]", '{"schema_version": 0}', '{"schema_version": 1, "mode": "whole"}'):
        (tmp_path / "key.json").write_text(content)
        with compile_cache.turn("key") as turn:
            assert turn.decision is None


def test_ranks_act_on_a_post_after_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(compile_agreement, "_store", lambda: store)
    quick, slow = compile_agreement.Agreement(0), compile_agreement.Agreement(0)
    assert slow.due(3) == []  # looked before the other one posted
    quick.post(3, {"mode": "eager"})
    assert quick.due(3) == []
    assert [post["mode"] for post in quick.due(4)] == ["eager"]
    assert [post["mode"] for post in slow.due(4)] == ["eager"]
    assert quick.due(5) == slow.due(5) == []


def test_alone_a_post_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_agreement, "_store", lambda: None)
    agreement = compile_agreement.Agreement(0)
    agreement.post(3, {"mode": "eager"})
    assert len(agreement.due(3)) == 1


# ---- when stock compilation stays ----


@pytest.mark.parametrize(
    ("backend", "variable", "torch_version", "why"),
    [
        ("inductor", "", "2.13.0", None),
        ("inductor", "", "2.14.0", "torch 2.14.0 is not a tested version"),
        ("aot_eager", "", "2.13.0", "the backend aot_eager was asked for"),
        ("inductor", "true", "2.13.0", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION is set"),
    ],
)
def test_why_it_is_left_to_stock_pytorch(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    variable: str,
    torch_version: str,
    why: str | None,
) -> None:
    from ljtrain import compile as layers

    monkeypatch.setenv(layers.REGIONAL_VARIABLE, variable)
    monkeypatch.setattr(versions, "installed", lambda _: torch_version)
    kinds = compile_layers.find_kinds(Model(8, 8))
    found = layers._why_not(SimpleNamespace(torch_compile_backend=backend), kinds)  # type: ignore[arg-type]
    assert found is None if why is None else why in str(found)
    assert layers._why_not(SimpleNamespace(torch_compile_backend="inductor"), [])  # type: ignore[arg-type]


def test_a_transformers_model_has_its_decoder_layers_found() -> None:
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
    )
    (kind,) = compile_layers.find_kinds(LlamaForCausalLM(config))
    assert kind.name == "LlamaDecoderLayer"
    assert kind.names == ["model.layers.0", "model.layers.1", "model.layers.2"]

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
    compile_backend,
    compile_cache,
    compile_dry,
    compile_inputs,
    compile_kernels,
    compile_kind,
    compile_layers,
    compile_loss,
    compile_outline,
    compile_passes,
    compile_patterns,
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
        turn.wait()
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


# ---- before the first step ----


class Preparing(Model):
    """Embedding, layers and what a pass through them must leave alone."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(self.embedding(ids), 0.1)
        for layer in self.layers:
            hidden = layer(hidden)
        output: torch.Tensor = self.head(hidden)
        return output.sum()


def eager_backend(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(compile_cache, "place", place)
    backend = property(lambda _: lambda module, _: module.forward, lambda *_: None)
    monkeypatch.setattr(compile_backend.RecordingBackend, "_inductor", backend, raising=False)
    monkeypatch.setattr(compile_trial, "compare", lambda *_: (2.0, 1.0))


@pytest.mark.parametrize("both", [False, True])
def test_a_dry_pass_compiles_all_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, both: bool
) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)
    model = Preparing(8, 16, 8, 16)
    checkpoint = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    layer: Any
    for layer in model.layers:
        layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, checkpoint
    calls: list[nn.Module] = []
    handle = model.layers[1].register_forward_pre_hook(lambda module, _: calls.append(module))
    hooks = dict(model.layers[1]._forward_pre_hooks)
    ids = torch.arange(6).view(1, 6)
    torch.manual_seed(3)
    wanted = model(ids)
    layers_of: list[Any] = list(model.layers)
    counts = [each.count.clone() for each in layers_of]

    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    dry = compile_dry.DryPass(model, callback.kinds, both=both)
    calls.clear()
    head = model.head.register_forward_pre_hook(lambda *_: pytest.fail("behind the last layer"))
    state = torch.get_rng_state()
    dry._start(model, (ids,), {})
    assert dry.report() == {"done": True, "seconds": dry.seconds, "failure": None}
    assert torch.equal(torch.get_rng_state(), state)
    assert calls == []
    assert hooks.items() <= model.layers[1]._forward_pre_hooks.items()
    assert [each.count for each in layers_of] == counts
    assert all(parameter.grad is None for parameter in model.parameters())
    names = {"training, checkpointed", "training"} if both else {"training, checkpointed"}
    for kind in callback.kinds:
        assert {variant.name for variant in kind.variants.values()} == names
        assert {variant.mode for variant in kind.variants.values()} <= {"whole", "parts"}

    compiled = [
        variant.compilations for kind in callback.kinds for variant in kind.variants.values()
    ]
    head.remove()
    torch.manual_seed(3)
    assert torch.equal(model(ids), wanted)
    assert len(calls) == 1
    assert compiled == [
        variant.compilations for kind in callback.kinds for variant in kind.variants.values()
    ]
    handle.remove()
    callback.on_train_end()


def test_a_dry_pass_that_fails_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)
    model = Preparing(8, 8)
    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    dry = compile_dry.DryPass(model, callback.kinds, both=False)
    dry._start(model, (torch.full((1, 6), 1000),), {})  # no such row of the embedding
    assert not dry.done and "index out of range" in str(dry.failure)
    model(torch.arange(6).view(1, 6)).backward()
    (variant,) = callback.kinds[0].variants.values()
    assert variant.mode == "whole"
    callback.on_train_end()


# ---- the loss ----


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    model.train()
    return model


def test_the_loss_is_compiled_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)
    model = small_llama()
    ids = torch.arange(6).view(1, 6)
    batch = {"input_ids": ids, "labels": ids}
    items = torch.tensor(5)
    wanted = model(**batch, num_items_in_batch=items).loss
    evaluated = model.eval()(**batch).loss
    model.train()
    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    dry = compile_dry.DryPass(model, callback.kinds, both=False)
    dry._start(model, (), {**batch, "num_items_in_batch": items})
    assert dry.done
    report = callback.report()
    assert [kind["name"] for kind in report["kinds"]] == ["LlamaDecoderLayer"]
    assert [variant["mode"] for variant in report["loss"]["variants"]] == ["whole"]
    assert torch.equal(model(**batch, num_items_in_batch=items).loss, wanted)
    assert torch.equal(model.eval()(**batch).loss, evaluated)
    assert layers.totals(callback.report())["recompilations"] == 0
    assert len(callback.report()["loss"]["variants"]) == 1  # an evaluation's is not compiled
    callback.on_train_end()
    assert "_loss_function" not in vars(model)
    assert len(list(model.named_modules())) == len(list(small_llama().named_modules()))


def test_another_number_of_targets_compiles_no_loss_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)
    model = small_llama()
    logits = torch.randn(1, 6, 32, requires_grad=True)
    call = {"logits": logits, "labels": torch.arange(6).view(1, 6), "vocab_size": 32}
    wanted = [model.loss_function(**call, num_items_in_batch=items) for items in (5, 7)]
    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    for items, loss in zip((5, 7), wanted, strict=True):
        assert torch.equal(model.loss_function(**call, num_items_in_batch=items), loss)
    (variant,) = callback.report()["loss"]["variants"]
    assert (variant["mode"], variant["compilations"]) == ("whole", 1)
    callback.on_train_end()


@pytest.mark.parametrize(("eager", "clear"), [([3.0, 3.0, 2.9], 2.5), ([3.0, 3.0, 2.4], None)])
def test_a_loss_is_tried_without_eagers_backward_where_that_tells(
    monkeypatch: pytest.MonkeyPatch, eager: list[float], clear: float | None
) -> None:
    found = compile_loss.find(small_llama())
    assert found is not None
    kind = compile_kind.CompiledKind(found[1], None, lambda *_: None, lambda *_: None)
    compiled = [2.5, 2.3, 2.4]
    monkeypatch.setattr(compile_trial, "forward_alone", lambda *_: eager.pop(0))
    monkeypatch.setattr(compile_trial, "step", lambda *_: compiled.pop(0))
    call: Any = None
    assert kind._clearly_faster(lambda: None, call) == clear


def test_a_forward_alone_keeps_nothing() -> None:
    layer = Block(0)
    hidden = torch.ones(1, 2, HIDDEN, requires_grad=True)
    seen: list[bool] = []

    def run(module: Any, value: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = Block.forward(module, value)
        seen.append(output.requires_grad)
        return output

    assert compile_trial.forward_alone(run, compile_trial.Call(layer, (hidden,), {})) > 0
    assert seen == [False]


def test_a_loss_of_the_users_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)

    def squared(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        return (logits.float() ** 2).mean()

    model = small_llama()
    model.loss_function = squared
    ids = torch.arange(6).view(1, 6)
    wanted = model(input_ids=ids, labels=ids).loss
    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    assert torch.equal(model(input_ids=ids, labels=ids).loss, wanted)
    assert callback.report()["loss"]["name"] == "squared"
    callback.on_train_end()
    assert model.loss_function is squared


def test_a_head_without_labels_has_no_loss_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ljtrain import compile as layers

    eager_backend(monkeypatch, tmp_path)
    model = small_llama()
    callback = layers.CompileCallback()
    callback.begin(model, compile_layers.find_kinds(model), None)
    dry = compile_dry.DryPass(model, callback.kinds, both=False)
    monkeypatch.setattr(model.lm_head, "forward", lambda *_: pytest.fail("behind the layers"))
    dry._start(model, (torch.arange(6).view(1, 6),), {})
    assert dry.done
    callback.on_train_end()


def test_what_another_process_found_useless_is_not_compiled() -> None:
    layers = compile_layers.find_kinds(Model(8, 8))[0]
    kind = compile_kind.CompiledKind(layers, None, lambda *_: None, lambda *_: None)
    assert kind._wanted("whole")
    for known, wanted in (("whole", "whole parts"), ("parts", "parts"), ("eager", "")):
        kind._turn = compile_cache.Turn()
        kind._turn.decision = Decision(known, None, None, "measured")
        assert [mode for mode in ("whole", "parts") if kind._wanted_in_turn(mode)] == wanted.split()


def test_a_trial_ends_when_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"one": [3.0, 3.1, 3.2, 9.0], "other": [1.0, 1.1, 1.2, 9.0]}
    monkeypatch.setattr(compile_trial, "step", lambda name, _: seconds[name].pop(0))
    call: Any = None
    assert compile_trial.compare("one", "other", call) == (3.1, 1.1)  # type: ignore[arg-type]
    seconds = {"one": [3.0, 1.0, 3.2, 3.3], "other": [1.0, 1.1, 1.2, 1.3]}
    monkeypatch.setattr(compile_trial, "MOST_ROUNDS", 4)
    compile_trial.compare("one", "other", call)  # type: ignore[arg-type]
    assert seconds == {"one": [], "other": []}


@pytest.mark.parametrize(
    ("value", "left", "said"),
    [
        ("", [], ""),
        ("trial, dry-pass", ["dry-pass", "trial"], ""),
        ("trial,magic", ["trial"], "names magic, which is no pass of the compiler"),
    ],
)
def test_passes_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: str,
    left: list[str],
    said: str,
) -> None:
    monkeypatch.setenv(compile_passes.VARIABLE, value)
    assert compile_passes.left_out() == left
    assert said in capsys.readouterr().err


def test_without_fitting_deepspeeds_sizes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_passes.VARIABLE, "prefetch")
    model = Model(16, 16)
    zero: dict[str, Any] = {"stage": 3, compile_zero.PREFETCH: "auto"}
    compile_zero.fit(zero, model, compile_layers.find_kinds(model))
    assert (zero[compile_zero.PREFETCH], zero[compile_zero.PERSISTENCE]) == (50_000_000, 100_000)


# ---- kernels together ----


def test_kernels_share_a_file_and_keep_their_arguments(tmp_path: Path) -> None:
    head = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
    add = head + 'extern "C"  void  kernel(float* out, const int64_t n)\n{ out[0] += n; }\n'
    scale = (
        head + 'extern "C"  void  kernel(const float* in, float* out)\n{ out[0] = 2 * in[0]; }\n'
    )
    assert compile_kernels.supported()
    assert compile_kernels._can_be_merged(add)
    assert not compile_kernels._can_be_merged("#define N 3\n" + add)
    source = compile_kernels.merged(
        [(["float*", "const int64_t"], add), (["const float*"] * 2, scale)]
    )
    assert source.count("#include <torch") == 1
    assert "kernel_0(parse_arg<float*>(args, 0), parse_arg<int64_t>(args, 1))" in source
    assert '{"kernel_0", kernel_0_py, METH_VARARGS, ""}' in source
    assert '{"kernel_1", kernel_1_py, METH_VARARGS, ""}' in source


def test_patterns_of_attention_are_loaded_for_a_graph_that_could_hold_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.fx_passes import fuse_attention

    def written_out(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).softmax(-1) @ x

    def fused(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x.expand(2, 2), x)

    loaded: list[Any] = []

    def inductors(input_device: Any = None) -> None:
        loaded.append(input_device)

    monkeypatch.setattr(fuse_attention, "_sfdp_init", inductors)
    back = compile_patterns.replace_loader()
    fuse_attention._sfdp_init(torch.device("cpu"))
    compile_patterns.before(torch.fx.symbolic_trace(fused))
    assert loaded == []
    compile_patterns.before(torch.fx.symbolic_trace(written_out))
    compile_patterns.before(torch.fx.symbolic_trace(written_out))
    assert loaded == [torch.device("cpu")]
    fuse_attention._sfdp_init(torch.device("meta"))
    assert len(loaded) == 2
    back()
    assert fuse_attention._sfdp_init is inductors


def test_a_compiler_that_fails_says_so_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compile_kernels, "_code_cache", lambda: SimpleNamespace(load=fail))
    monkeypatch.setattr(compile_kernels, "merged", lambda _: "")
    batch = compile_kernels.Batch()
    kernel = batch.add([], "")
    batch.start()
    with pytest.raises(RuntimeError, match="no compiler"):
        compile_kernels.finish()
    with pytest.raises(RuntimeError, match="no compiler"):
        kernel.result(timeout=60)


def test_a_cause_is_one_line() -> None:
    explained = compile_backend.explained
    assert explained("Title\n  Explanation: Cannot.\n  Hint: Do not.") == "Cannot."
    assert explained("Title\n  Explanation:\n  Cannot.\n  Hint: Do not.") == "Cannot."
    assert explained("Title\n  Explanation: \n  Hint: Do not.") == "Title"
    assert explained("") == "no reason given"


# ---- statements that no graph can begin in again ----


def _returns_from_a_loop(x: torch.Tensor, count: int = 3, *, at: int = 1) -> torch.Tensor:
    x = x.sin()
    shift = 5
    for number in range(count):
        print(number)
        x = x.cos()
        if number == at:
            return x + shift
    return x.tan()


def _in_a_closure() -> Any:
    factor = 3

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        with torch.no_grad():
            more = x + factor
        try:
            print(factor)
            late = x + 1
        except ValueError:
            late = x
        return x.tan() + factor + more + late

    return function


def _refused(x: torch.Tensor) -> torch.Tensor:
    for number in range(2):
        if number:
            here = locals()
            x = x + len(here)
    return x


def test_a_statement_becomes_a_function_of_its_own() -> None:
    for function in (_returns_from_a_loop, _in_a_closure()):
        x, before = torch.ones(3), function.__code__
        lines = [number for _, _, number in before.co_lines() if number]
        wanted = function(x)
        for line in sorted(set(lines))[1:]:
            frame = compile_outline.Failed(
                before.co_filename, before.co_name, before.co_firstlineno, line, "why"
            )
            compile_outline.mend([frame])
        assert function.__code__ is not before
        assert torch.equal(function(x), wanted)
        changed = [number for _, _, number in function.__code__.co_lines() if number]
        assert set(changed) <= set(lines)
        assert all("why (inside a " in cause for cause in compile_outline.causes.values())
        compile_outline.restore()
        assert function.__code__ is before
    assert torch.equal(_returns_from_a_loop(torch.ones(3), 1), torch.ones(3).sin().cos().tan())


def test_a_statement_that_reads_its_frame_stays() -> None:
    code = _refused.__code__
    line = code.co_firstlineno + 3
    frame = compile_outline.Failed(code.co_filename, code.co_name, code.co_firstlineno, line, "why")
    assert not compile_outline.mend([frame])
    assert _refused.__code__ is code

"""Runs one training step of a tiny model on fake tensors under the recorder.

What runs is transformers' own model as Trainer and accelerate run it: the loss inside the model,
outputs gone before backward, checkpoints by GradientCheckpointingLayer without reentrance. Only
the checks of data that a fake tensor cannot answer are answered for it: sequences are not packed
and no mask is given, as in pre-training on full samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ljtrain.trace_compiled import compile_layers, kernels_left_out
from ljtrain.trace_families import FLASH, LAYERS, Family, Sizes, larger
from ljtrain.trace_lora import adapt
from ljtrain.trace_record import Event, Recorder, Storage, add_in_place, address

PRECISIONS = ("bf16", "bf16_autocast", "autocast", "fp32")
COMPILED = ("compiled", "compiled_checkpointed")


@dataclass(frozen=True)
class Variant:
    mode: str
    precision: str
    lora: bool = False


VARIANTS = (
    *(Variant(mode, precision) for precision in PRECISIONS for mode in ("eager", "checkpointed")),
    *(
        Variant(mode, precision, lora=True)
        for precision in ("bf16", "autocast")
        for mode in ("eager", "checkpointed")
    ),
    *(Variant(mode, precision) for precision in ("bf16", "autocast") for mode in COMPILED),
)


def variants_of(family: Family) -> tuple[Variant, ...]:
    """The variants of a family's profile."""
    return tuple(v for v in VARIANTS if family.compiled or v.mode not in COMPILED)


@dataclass
class Parameter:
    name: str
    shape: tuple[int, ...]
    trainable: bool


@dataclass
class Record:
    """One traced step."""

    sizes: Sizes
    events: list[Event]
    storages: dict[int, Storage]
    parameters: dict[str, list[Parameter]]  # by segment: prologue, layer, epilogue
    gradients: dict[int, tuple[str, int]]  # storage to segment and ordinal of its parameter
    casts: set[int]  # storages that are casts of parameters
    addresses: dict[int, tuple[str, int]]  # parameter's storage to segment and ordinal


def record(family: Family, kind: str, variant: Variant, sizes: Sizes) -> Record:
    """Traces forward and backward of a model of `LAYERS` layers of `kind`."""
    compiled = variant.mode in COMPILED
    sizes = larger(sizes) if compiled else sizes
    mode: Any = kernels_left_out() if compiled else FakeTensorMode()
    with mode as reporter, patches_for_fakes(kind):
        model = build(family, kind, variant, sizes)
        parts = parts_of(model)
        inputs = _inputs(sizes)
        recorder = Recorder()
        if compiled:
            compile_layers(parts["layers"])
            _forward(model, inputs).backward()  # compiles
            model.zero_grad(set_to_none=True)
            reporter.report = recorder.allocated
        recorder.ignore([*model.parameters(), *model.buffers()])
        handles = _marks(parts, recorder)
        with recorder:
            batch = {name: tensor.clone() for name, tensor in inputs.items()}
            recorder.mark("prologue")
            loss = _forward(model, batch)
            recorder.mark("backward")
            loss.backward()
            recorder.mark("end")
        for handle in handles:
            handle.remove()
        return _collect(recorder, model, parts, sizes)


def build(family: Family, kind: str, variant: Variant, sizes: Sizes) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    config = AutoConfig.for_model(family.model_type, **family.config(sizes, kind))
    config.use_cache = False
    factory = AutoModelForMaskedLM if family.masked else AutoModelForCausalLM
    dtype = torch.bfloat16 if variant.precision.startswith("bf16") else torch.float32
    model = factory.from_config(config, dtype=dtype).train()
    if variant.lora:
        adapt(model, parts_of(model)["layers"], sizes["lora_rank"])
    if variant.mode.endswith("checkpointed"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    if "autocast" in variant.precision:
        _autocast(model)
    return model


def _autocast(model: Any) -> None:
    """What accelerate does to the model (prepare_model in accelerate/accelerator.py)."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward.__func__)
    model.forward = MethodType(convert_outputs_to_fp32(forward), model)


def _inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
    ids = torch.zeros(sizes["micro_batch"], sizes["seq"], dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}


def _forward(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As Trainer.compute_loss: the outputs, logits among them, end here."""
    outputs = model(**batch, num_items_in_batch=1)
    return outputs["loss"]


@contextlib.contextmanager
def patches_for_fakes(kind: str) -> Iterator[None]:
    from transformers import masking_utils

    names: list[tuple[Any, str, Any]] = [
        # Its answer for a fake tensor is "tracing": build the mask in case it is needed.
        (masking_utils, "is_tracing", lambda *_: False),
        (masking_utils, "find_packed_sequence_indices", lambda *_, **__: None),
    ]
    if kind == FLASH:
        from transformers.models.mpt.modeling_mpt import MptAttention

        names.append((MptAttention, "forward", _mpt_flash_attention))
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in names]
    try:
        for owner, name, replacement in names:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _mpt_flash_attention(
    self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """MptAttention with llm-foundry's `attn_impl: flash`: no scores are kept (ALiBi is applied
    inside the kernel, or positions are learned).
    """
    batch, seq = hidden_states.shape[:2]
    query, key, value = (
        part.reshape(batch, seq, self.n_heads, self.head_dim).transpose(1, 2)
        for part in self.Wqkv(hidden_states).chunk(3, dim=2)
    )
    context = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return self.out_proj(context.transpose(1, 2).reshape(batch, seq, -1)), None


# ---- the model's parts ----


def parts_of(model: Any) -> dict[str, Any]:
    """The layers, and what comes before and after them."""
    layers = next(
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == LAYERS
    )
    return {"model": model, "layers": list(layers)}


def _marks(parts: dict[str, Any], recorder: Recorder) -> list[Any]:
    """Hooks that mark where each layer begins and ends, in forward and in backward."""
    handles = []

    def crossing(name: str, hidden: torch.Tensor) -> None:
        # Runs when the gradient of `hidden` is complete: later segments are done with backward.
        # The frozen embedding of a model with adapters has none.
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: recorder.mark(f"backward {name}", gradient))

    def before(index: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            recorder.mark(f"layer {index}", hidden)
            if index == 0:
                crossing("prologue", hidden)

        return hook

    def after(index: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            hidden = output if isinstance(output, torch.Tensor) else output[0]
            recorder.mark(f"layer {index} done", hidden)
            crossing(f"layer {index}", hidden)

        return hook

    for index, layer in enumerate(parts["layers"]):
        handles.append(layer.register_forward_pre_hook(before(index), with_kwargs=True))
        handles.append(layer.register_forward_hook(after(index)))
    return handles


def _collect(recorder: Recorder, model: Any, parts: dict[str, Any], sizes: Sizes) -> Record:
    segments = _segments_of_parameters(model, parts)
    gradients: dict[int, tuple[str, int]] = {}
    addresses: dict[int, tuple[str, int]] = {}
    listed: dict[str, list[Parameter]] = {}
    for segment, named in segments.items():
        listed[segment] = [
            Parameter(name, tuple(parameter.shape), parameter.requires_grad)
            for name, parameter in named
        ]
        for ordinal, (_, parameter) in enumerate(named):
            addresses[address(parameter)] = (segment, ordinal)
            if parameter.grad is not None:
                number = recorder.number(parameter.grad)
                if number:
                    gradients[number] = (segment, ordinal)
    casts = {
        number
        for number, storage in recorder.storages.items()
        if storage.source == 0 and storage.operator == "aten._to_copy"
    }
    return Record(
        sizes=sizes,
        events=add_in_place(recorder.events, recorder.storages),
        storages=recorder.storages,
        parameters=listed,
        gradients=gradients,
        casts=casts,
        addresses=addresses,
    )


def _segments_of_parameters(
    model: Any, parts: dict[str, Any]
) -> dict[str, list[tuple[str, torch.nn.Parameter]]]:
    """Parameters by segment, in module order: what is registered before the layers is the
    prologue's, what comes after is the epilogue's.
    """
    layers = parts["layers"]
    in_layers = {id(p) for layer in layers for p in layer.parameters()}
    result: dict[str, list[tuple[str, torch.nn.Parameter]]] = {"prologue": [], "epilogue": []}
    result["layer"] = list(layers[LAYERS // 2].named_parameters())
    segment = "prologue"
    for name, parameter in model.named_parameters():
        if id(parameter) in in_layers:
            segment = "epilogue"
        else:
            result[segment].append((name, parameter))
    return result

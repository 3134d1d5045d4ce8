"""What a transformers user writes before `Trainer(...).train()`: the training arguments and the
model.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from datetime import timedelta
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    TrainingArguments,
    set_seed,
)

from ljtrain import argument_types, patches
from ljtrain.worker_config import BadInput, WorkerConfig

# accelerate's own switch to compile each repeated layer once instead of the whole model.
REGIONAL_COMPILATION_VARIABLE = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"


def group_timeout(config: WorkerConfig) -> timedelta:
    """How long a collective may take, in whole seconds. The launcher's own limit comes first: it
    names the rank that hangs, and where.
    """
    asked = config.training_arguments.get("ddp_timeout")
    if isinstance(asked, int) and asked > 0:
        return timedelta(seconds=asked)
    return timedelta(seconds=math.ceil(2 * config.step_timeout_s) + 60)


def build_training_arguments(config: WorkerConfig) -> TrainingArguments:
    """TrainingArguments with what costs time and measures nothing (logging, saving, progress bars)
    turned off.

    On hosts `use_cpu` is what makes the ranks see each other: without it accelerate under DeepSpeed
    names no backend, counts one process, and every rank trains on the same data.
    """
    on_host = not torch.cuda.is_available()
    owned: dict[str, Any] = {
        "max_steps": config.steps,
        "per_device_train_batch_size": config.micro_batch,
        "seed": config.seed,
        "deepspeed": config.deepspeed,
    }
    if config.engine == "fsdp":
        owned["fsdp"] = True
    quiet: dict[str, Any] = {
        "use_cpu": on_host,
        "ddp_backend": "gloo" if on_host else "nccl",
        "ddp_timeout": int(group_timeout(config).total_seconds()),
        "disable_tqdm": True,
        "report_to": "none",
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "dataloader_drop_last": True,
    }
    if config.stock_compile != "none" or config.compile:
        quiet["torch_compile"] = True
        if config.stock_compile == "regional":
            os.environ[REGIONAL_COMPILATION_VARIABLE] = "true"
    for key, value in config.training_arguments.items():
        if key in owned and owned[key] != value:
            raise BadInput(
                f"TrainingArguments {key}={value!r} contradicts the run's {owned[key]!r}; "
                "leave it out."
            )
    _refuse_unknown(config.training_arguments)
    types = argument_types.training_argument_types()
    given = {
        key: argument_types.as_text_where_text(value, types.get(key, "Any"))
        for key, value in config.training_arguments.items()
    }
    try:
        return TrainingArguments(**{**quiet, **given, **owned})
    except (TypeError, ValueError) as error:
        raise BadInput(f"TrainingArguments: {_first_line(error)}") from error


def precision(arguments: TrainingArguments) -> torch.dtype:
    """The type that the run's matrix products compute in."""
    if arguments.bf16:
        return torch.bfloat16
    return torch.float16 if arguments.fp16 else torch.float32


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    known = [item.name for item in dataclasses.fields(TrainingArguments) if item.init]
    for key in arguments:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else "."
            raise BadInput(f"TrainingArguments has no {key!r}{hint}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def build_model_config(config: WorkerConfig) -> PretrainedConfig:
    content = dict(config.model_config)
    model_type = content.pop("model_type", None)
    if not isinstance(model_type, str):
        raise BadInput("the model's config.json has no model_type.")
    try:
        model_config = AutoConfig.for_model(model_type, **content)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise BadInput(f"the model's config.json ({model_type}): {_first_line(error)}") from error
    model_config.use_cache = False  # a cache of keys and values only costs memory in training
    positions = getattr(model_config, "max_position_embeddings", None)
    if config.task == "masked-lm" and positions is not None and positions < config.seq:
        raise BadInput(f"--seq {config.seq} is longer than the model's {positions} positions.")
    return model_config


def build_model(config: WorkerConfig, model_config: PretrainedConfig) -> PreTrainedModel:
    """The model with random weights, the same on every rank; needs the TrainingArguments to exist.

    With ZeRO-3 transformers builds it inside `deepspeed.zero.Init`, as it does for any user.
    Weights are float32: the engines keep float32 masters and compute in what `bf16` asks for.
    """
    set_seed(config.seed)
    factory = AutoModelForCausalLM if config.task == "causal-lm" else AutoModelForMaskedLM
    try:
        model: PreTrainedModel = factory.from_config(model_config, dtype=torch.float32)
    except ValueError as error:  # an unknown architecture or impossible sizes
        raise BadInput(f"the model cannot be built: {_first_line(error)}") from error
    if config.task == "masked-lm":
        patches.OWN_MEAN_OF_THE_LOSS.apply(model)
    if config.engine == "fsdp":
        patches.SHARD_EMBEDDING_ONCE.apply(model)
        patches.FORGET_SECOND_NAME_OF_BIAS.apply(model)
    return model


def vocabulary_size(model_config: PretrainedConfig) -> int:
    return int(model_config.get_text_config().vocab_size)


def describe(model: torch.nn.Module) -> dict[str, Any]:
    """The `model` event: sizes are the whole model's, not this rank's shard. Call it once the
    engine has the model.
    """
    from torch.distributed.tensor import DTensor

    parameters = list(model.parameters())
    sizes = [int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters]
    sharding = "none"
    if any(hasattr(parameter, "ds_id") for parameter in parameters):
        sharding = "zero3"
    elif parameters and all(isinstance(parameter, DTensor) for parameter in parameters):
        sharding = "dtensor"
    config = getattr(model, "config", None)
    text_config = config.get_text_config() if config is not None else None
    return {
        "parameters": sum(sizes),
        "trainable_parameters": sum(
            size
            for size, parameter in zip(sizes, parameters, strict=True)
            if parameter.requires_grad
        ),
        "sharded": sharding != "none",
        "sharding": sharding,
        "layers": getattr(text_config, "num_hidden_layers", None),
    }

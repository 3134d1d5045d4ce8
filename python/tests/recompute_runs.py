"""Small trainings of this process, with and without ljtrain.recompute, for its tests."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ljtrain import announce, recompute
from ljtrain.recompute_control import Controller
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers import trainer as trainer_module

LAYERS, VOCABULARY = 6, 300
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def build(config: dict[str, Any] | None = None) -> Any:
    content = dict(config or LLAMA)
    set_seed(3)
    model_config = AutoConfig.for_model(content.pop("model_type"), **content)
    return AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """The same random tokens each time; `length(number)` of each sample."""

    def __init__(self, length: Callable[[int], int]) -> None:
        self._length = length

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, VOCABULARY, (self._length(number),), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


@dataclass
class Result:
    losses: list[float] = field(default_factory=list)
    weights: str = ""  # a digest of all parameters at the end
    policies: list[list[bool]] = field(default_factory=list)  # of each step: recomputed layers
    report: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)


@contextlib.contextmanager
def activated() -> Iterator[None]:
    """Trainers of this block plan their recomputing; afterwards all is as before."""
    methods = {name: getattr(Trainer, name) for name in ("get_batch_samples", "training_step")}
    callbacks = list(trainer_module.DEFAULT_CALLBACKS)
    recompute.activate()
    try:
        yield
    finally:
        trainer_module.DEFAULT_CALLBACKS[:] = callbacks
        for name, method in methods.items():
            setattr(Trainer, name, method)


class _Watch(TrainerCallback):
    def __init__(self, result: Result) -> None:
        self.result = result

    def on_step_begin(self, *_: Any, model: nn.Module | None = None, **__: Any) -> None:
        assert model is not None
        self.result.policies.append(
            [
                bool(module.gradient_checkpointing)
                for module in model.modules()
                if hasattr(module, "_gradient_checkpointing_func")
                and type(module).__name__.endswith(("Layer", "Block"))
            ]
        )


def with_controller(change: Callable[[Controller], None]) -> Callable[[Trainer], None]:
    """For `train(prepare=...)`: changes the training's controller before its first step."""

    def prepare(trainer: Trainer) -> None:
        callback: Any = recompute._callback_of(trainer)
        begin = callback.on_train_begin

        def begin_and_change(*args: Any, **kwargs: Any) -> None:
            begin(*args, **kwargs)
            change(callback.controller)

        callback.on_train_begin = begin_and_change

    return prepare


def _keep_losses(trainer: Trainer, losses: list[float]) -> None:
    step = trainer.training_step

    def kept(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = step(*args, **kwargs)
        losses.append(float(loss))
        return loss

    trainer.training_step = kept  # type: ignore[method-assign]


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(
    folder: Path,
    model: Any = None,
    *,
    optimised: bool = True,
    steps: int = 5,
    length: Callable[[int], int] = lambda _: 64,
    prepare: Callable[[Trainer], None] | None = None,
    **arguments: Any,
) -> Result:
    """Losses and weights to the last bit, and what was planned."""
    result = Result()
    lines: list[str] = result.lines
    said = announce.say
    announce.say = lambda line, level="info": lines.append(line)
    settings: dict[str, Any] = {
        "gradient_checkpointing": True,
        "per_device_train_batch_size": 4,
        "max_steps": steps,
        "logging_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 11,
        "learning_rate": 1e-3,
    }
    try:
        with activated() if optimised else contextlib.nullcontext():
            trainer = Trainer(
                model=model if model is not None else build(),
                args=TrainingArguments(output_dir=str(folder), **(settings | arguments)),
                train_dataset=Tokens(length),
                callbacks=[_Watch(result)],
            )
            if prepare is not None:
                prepare(trainer)
            before = len(recompute.report())
            _keep_losses(trainer, result.losses)
            trainer.train()
            reports = recompute.report()[before:]
            result.report = reports[-1] if reports else None
            assert isinstance(trainer.model, nn.Module)
            result.weights = _digest(trainer.model)
    finally:
        announce.say = said
    return result

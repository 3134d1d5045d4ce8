"""The model in whose layers the constructs of compile_corpus.py stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

HIDDEN, VOCABULARY = 32, 512
Tensor = torch.Tensor
Middle = Callable[[Any, Tensor], Tensor]
CONSTRUCTS: dict[str, Middle] = {}


def construct(function: Middle) -> Middle:
    CONSTRUCTS[function.__name__.removesuffix("_")] = function
    return function


class CorpusConfig(PretrainedConfig):
    model_type = "corpus"
    hidden_size = HIDDEN


class Layer(GradientCheckpointingLayer):
    """Something before, the construct, something after."""

    middle: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.after = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.calls = 0
        self.seen: dict[str, Any] = {}
        self.register_buffer("total", torch.zeros(()))
        self.generator = random.Random(3)

    def forward(self, hidden: Tensor) -> Tensor:
        x = torch.tanh(self.before(hidden))  # graph
        x = self.middle(x)
        return hidden + self.after(x)  # graph


class CorpusModel(PreTrainedModel):
    """An embedding, three layers, a head and the loss of a language model."""

    config_class = CorpusConfig
    supports_gradient_checkpointing = True
    base_model_prefix = "model"

    def __init__(self, config: CorpusConfig, layer: type[Layer]) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss}


def build(name: str) -> nn.Module:
    """A model whose layers hold the construct; each has a class of its own, as users' layers do."""
    layer = type(f"Layer_{name}", (Layer,), {"middle": CONSTRUCTS[name]})
    return CorpusModel(CorpusConfig(), layer)

"""Finds what repeats in a model: its layers, and which of them one compilation can serve.

Layers are the elements of the outermost `ModuleList`s (or `Sequential`s) of at least two like
elements with parameters: decoder layers, encoder layers, vision blocks. Lists inside a layer
(experts) are part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Signature = tuple[Any, ...]
FEWEST_LAYERS = 2  # of a class in a list, to count as repeating
PLAIN = (bool, int, float, str, type(None))


@dataclass
class LayerKind:
    """Layers that one compilation can serve: same class, same structure, same sizes."""

    name: str  # the class's, and what tells it from others of that class
    signature: Signature
    layers: list[nn.Module] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # as in named_modules()


def _lists(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Outermost containers that hold layers; what is inside of one is not looked at."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList | nn.Sequential) and _repeats(child):
            yield path, child
        else:
            yield from _lists(child, f"{path}.")


def _repeats(container: nn.Module) -> bool:
    classes = Counter(
        layer_class(child)
        for child in container.children()
        if any(True for _ in child.parameters()) and any(True for _ in child.children())
    )
    return any(count >= FEWEST_LAYERS for count in classes.values())


def layer_class(module: nn.Module) -> type[nn.Module]:
    """The class as the model's author wrote it: FSDP2 replaces a module's class by a subclass."""
    kind = type(module)
    while kind.__name__.startswith("FSDP") and kind.__bases__[-1] is not object:
        kind = kind.__bases__[-1]
    return kind


def find_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, layer) in the order in which the model names them."""
    return [
        (f"{path}.{name}", layer)
        for path, container in _lists(model, "")
        for name, layer in container.named_children()
        if any(True for _ in layer.parameters())
    ]


def _whole_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Of the whole parameter, also where ZeRO-3 has left this rank a part of it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _signature(layer: nn.Module) -> Signature:
    modules = tuple(
        (name, layer_class(module).__qualname__, _settings(module))
        for name, module in layer.named_modules()
    )
    parameters = tuple(
        (name, _whole_shape(parameter), str(parameter.dtype), parameter.requires_grad)
        for name, parameter in layer.named_parameters()
    )
    buffers = tuple(
        (name, tuple(buffer.shape), str(buffer.dtype)) for name, buffer in layer.named_buffers()
    )
    return (layer_class(layer).__module__, modules, parameters, buffers)


# Attributes that say where a layer stands and not what it computes.
POSITIONS = ("layer_idx", "layer_id", "idx", "index", "training", "gradient_checkpointing")


def _settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """Plain attributes: Dynamo specialises on those that forward reads."""
    return tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if isinstance(value, PLAIN) and not name.startswith(("_", "ds_")) and name not in POSITIONS
    )


def _units(name: str, layer: nn.Module, largest: int | None) -> Iterator[tuple[str, nn.Module]]:
    """The layer, or its parts where it has more than `largest` parameters."""
    children = [(part, child) for part, child in layer.named_children() if numel_of(child)]
    if largest is None or numel_of(layer) <= largest or not children:
        yield name, layer
        return
    for part, child in children:
        yield from _units(f"{name}.{part}", child, largest)


def numel_of(module: nn.Module) -> int:
    """Whole parameters in elements, also where ZeRO-3 has left this rank a part of them."""
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in module.parameters())


def find_kinds(model: nn.Module, largest: int | None = None) -> list[LayerKind]:
    """The kinds of layers, in order of their first layer. Layers of more than `largest` parameters
    are taken apart.
    """
    kinds: dict[Signature, LayerKind] = {}
    units = [unit for name, layer in find_layers(model) for unit in _units(name, layer, largest)]
    for name, layer in units:
        signature = _signature(layer)
        kind = kinds.get(signature)
        if kind is None:
            kind = kinds[signature] = LayerKind(layer_class(layer).__name__, signature)
        kind.layers.append(layer)
        kind.names.append(name)
    found = list(kinds.values())
    names = Counter(kind.name for kind in found)
    seen: Counter[str] = Counter()
    for kind in found:
        if names[kind.name] > 1:
            seen[kind.name] += 1
            kind.name = f"{kind.name} #{seen[kind.name]}"
    return found

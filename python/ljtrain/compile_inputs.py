"""The inputs of a layer: what tells two calls apart for the compiler, copies to try a layer on, and
which sizes vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

PLAIN = (bool, int, float, str, type(None))
Signature = tuple[Any, ...]


def values(value: Any) -> Iterator[Any]:
    """Leaves of nested tuples, lists and dictionaries, in a fixed order."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from values(part)
    elif isinstance(value, dict):
        for key in value:
            yield from values(value[key])
    else:
        yield value


def signature(arguments: Any, *, sizes: bool) -> Signature:
    """What Dynamo guards on in a call's arguments. Without `sizes`, tensors of other sizes count as
    alike, except that a size of 1 never does.
    """
    return tuple(_of(value, sizes) for value in values(arguments))


def _of(value: Any, sizes: bool) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape) if sizes else tuple(size == 1 for size in value.shape)
        return (shape, value.dtype, value.requires_grad)
    return value if isinstance(value, PLAIN) else type(value)


def changed_sizes(before: Signature, after: Signature) -> frozenset[int]:
    """Sizes of `after` that differ from `before`, where both are tensors of the same rank."""
    found: set[int] = set()
    for one, other in zip(before, after, strict=False):
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one[0]) == len(other[0]):
            found |= {b for a, b in zip(one[0], other[0], strict=True) if a != b}
    return frozenset(found)


def mark_dynamic(arguments: Any, sizes: frozenset[int]) -> None:
    """Tells Dynamo that these sizes, and the batch's, may be others the next time."""
    tensors = [value for value in values(arguments) if isinstance(value, torch.Tensor)]
    if not tensors:
        return
    batch = tensors[0].shape[0] if tensors[0].dim() else 1
    for tensor in tensors:
        last = tensor.dim() - 1
        for dimension, size in enumerate(tensor.shape):
            # The features of hidden states are the model's, whatever else happens to be as long.
            features = dimension == last and tensor.is_floating_point() and tensor.dim() == 3
            is_batch = dimension == 0 and size == batch
            if size > 1 and not features and (size in sizes or is_batch):
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nest with each tensor replaced; a tensor that appears twice stays one."""
    memo: dict[int, torch.Tensor] = {}

    def replaced(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if id(part) not in memo:
                memo[id(part)] = function(part)
            return memo[id(part)]
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*(replaced(item) for item in part))
        if isinstance(part, tuple | list):
            return type(part)(replaced(item) for item in part)
        if isinstance(part, dict):
            return {key: replaced(item) for key, item in part.items()}
        return part

    return replaced(value)


def without_gradients(arguments: Any) -> Any:
    """The arguments where nothing is differentiated: whether a tensor would have asked for
    gradients then makes no difference to a layer, but would to Dynamo.
    """
    if not any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in values(arguments)
    ):
        return arguments
    return map_tensors(arguments, lambda tensor: tensor.detach())


def copy_to_try(value: Any) -> Any:
    """Inputs with the same values that share neither memory nor history with the real ones."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone(memory_format=torch.preserve_format)
        if copy.stride() != tensor.stride() and tensor.numel():  # expanded, as masks are
            extent = 1 + sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            flat = tensor.detach().as_strided((extent,), (1,)).clone()
            copy = flat.as_strided(tensor.shape, tensor.stride())
        return copy.requires_grad_(tensor.requires_grad)

    return map_tensors(value, copied)

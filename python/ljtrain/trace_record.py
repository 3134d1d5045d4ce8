"""Records which storages a training step allocates and frees, in order.

A dispatch mode sees every operator below autograd, with the storages it returns; a finaliser on
each storage sees its end. Views share a storage and so count once. Marks divide the record into
segments (prologue, layers, epilogue) of forward and backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ljtrain import trace_kernels


@dataclass
class Storage:
    """One allocation: the shape and type of the tensor that came with it, and who asked."""

    shape: tuple[int, ...]
    item_bytes: int
    bytes: int
    operator: str
    source: int | None = None  # the storage that a cast copied
    inside_kernel: bool = False
    in_place_of: int | None = None  # a gradient that real tensors would have added to in place


@dataclass
class Call:
    """An operator that wrote something: what the time model counts."""

    operator: str
    inputs: list[tuple[tuple[int, ...], int]]  # shape, bytes an element
    outputs: list[tuple[tuple[int, ...], int]]
    causal: bool = False


@dataclass(frozen=True)
class Mark:
    """A boundary: what begins here, and the storage of the tensor that crosses it."""

    name: str
    storage: int | None = None


RECOMPUTED = Mark("recomputed")  # the operator before ran in a recomputed forward


@dataclass(frozen=True)
class Read:
    """An operator is about to read a parameter, given by its storage's address."""

    address: int


# +i: storage i allocated, -i: freed (from 1); the others stand between them.
Event = int | Mark | Call | Read


class Recorder(TorchDispatchMode):
    """Records what happens while it is entered; `events` and `storages` are the result."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.storages: dict[int, Storage] = {}
        self._identities: dict[int, int] = {}  # StorageImpl's address to our number, 0: not counted
        self._in_backward = False

    # ---- from the tracer ----

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """What exists before the step: parameters and buffers."""
        for tensor in tensors:
            self._identities[address(tensor)] = 0

    def mark(self, name: str, tensor: torch.Tensor | None = None) -> None:
        self.events.append(Mark(name, None if tensor is None else self.number(tensor)))
        if name == "backward":
            self._in_backward = True

    def number(self, tensor: torch.Tensor) -> int | None:
        return self._identities.get(address(tensor))

    def allocated(self, tensor: torch.Tensor, operator: str) -> None:
        """What was allocated without an operator."""
        self._see(tensor, operator, [], accumulates=False)

    # ---- from PyTorch ----

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # compiled code runs as it is

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = len(self.storages)
        accumulates = self._accumulates(function)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not self._in_backward:
            self.events += [Read(address(i)) for i in inputs if self.number(i) == 0]
        result = _run(function, args, kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        name = str(function.name()).replace("::", ".")
        for output in outputs:
            self._see(output, name, inputs, accumulates)
        self._inside_the_kernel(name, trace_kernels.temporaries(name, args))
        if len(self.storages) > before or _writes(function):
            causal = _causal(name, function, args, kwargs)
            self.events.append(Call(name, _shapes(inputs), _shapes(outputs), causal))
        if self._in_backward and torch.is_grad_enabled():
            self.events.append(RECOMPUTED)
        return result

    def _accumulates(self, function: Any) -> bool:
        """Whether autograd's engine itself calls, to add two gradients of one tensor: no formula
        of a derivative adds, and recomputation runs with gradients enabled.

        With plain tensors it adds in place where it holds the last reference; under a dispatch
        mode it never does (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp).
        """
        return (
            self._in_backward
            and function is torch.ops.aten.add.Tensor
            and not torch.is_grad_enabled()
        )

    def _see(
        self, tensor: torch.Tensor, name: str, inputs: list[torch.Tensor], accumulates: bool
    ) -> None:
        at = address(tensor)
        if at in self._identities:
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return
        number = len(self.storages) + 1
        self._identities[at] = number
        self.storages[number] = Storage(
            shape=tuple(tensor.shape),
            item_bytes=tensor.element_size(),
            bytes=storage.nbytes(),
            operator=name,
            source=self.number(inputs[0]) if name == "aten._to_copy" and inputs else None,
            in_place_of=self.number(inputs[0]) if accumulates else None,
        )
        self.events.append(number)
        weakref.finalize(storage, self._free, at, number).atexit = False

    def _free(self, at: int, number: int) -> None:
        if self._identities.get(at) == number:
            del self._identities[at]
        self.events.append(-number)

    def _inside_the_kernel(self, name: str, extras: list[trace_kernels.Temporary]) -> None:
        numbers = range(len(self.storages) + 1, len(self.storages) + 1 + len(extras))
        for number, extra in zip(numbers, extras, strict=True):
            self.storages[number] = Storage(
                shape=extra.shape,
                item_bytes=extra.item_bytes,
                bytes=extra.bytes,
                operator=name,
                inside_kernel=True,
            )
        self.events += [*numbers, *(-number for number in numbers)]


def _writes(function: Any) -> bool:
    return isinstance(function, torch._ops.OpOverload) and function._schema.is_mutable


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the operator; a grouped matrix product on float32 by way of bfloat16, as its shape
    function knows no other type while its CPU kernel does.
    """
    if function is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float32:
        matrices = [matrix.bfloat16() for matrix in args[:2]]
        return function(*matrices, *args[2:], **kwargs).float()
    return function(*args, **kwargs)


def address(tensor: torch.Tensor) -> int:
    """What views of one storage have in common."""
    return int(tensor.untyped_storage()._cdata)


def _shapes(tensors: list[torch.Tensor]) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(tensor.shape), tensor.element_size()) for tensor in tensors]


def _causal(name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "scaled_dot_product" not in name or not isinstance(function, torch._ops.OpOverload):
        return False
    for position, argument in enumerate(function._schema.arguments):
        if argument.name == "is_causal":
            given = args[position] if position < len(args) else argument.default_value
            return bool(kwargs.get("is_causal", given))
    return False


def add_in_place(events: list[Event], storages: dict[int, Storage]) -> list[Event]:
    """Replays additions of gradients as autograd does them without a dispatch mode: in place,
    when the first summand ends with the addition, which is when the engine held the last reference.
    """
    renamed: dict[int, int] = {}
    result: list[Event] = []
    skip: set[int] = set()  # positions of frees that do not happen
    for position, event in enumerate(events):
        if position in skip:
            continue
        if isinstance(event, int) and event > 0:
            target = storages[event].in_place_of
            if target:
                freed = _freed_at_once(events, position, target)
                if freed is not None:
                    skip.add(freed)
                    renamed[event] = renamed.get(target, target)
                    continue
        result.append(_rename(event, renamed))
    return result


def _freed_at_once(events: list[Event], position: int, number: int) -> int | None:
    """Where `number` is freed by what follows the addition at `position` (its Call is next)."""
    for later in range(position + 2, len(events)):
        event = events[later]
        if event == -number:
            return later
        if not isinstance(event, int) or event > 0:
            return None
    return None


def _rename(event: Event, renamed: dict[int, int]) -> Event:
    if isinstance(event, int):
        number = renamed.get(abs(event), abs(event))
        return number if event > 0 else -number
    if isinstance(event, Mark) and event.storage in renamed:
        return Mark(event.name, renamed[event.storage])
    return event

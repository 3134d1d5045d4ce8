"""Writes a memory snapshot as PyTorch would for a small training run, on a machine without a GPU.

    python examples/memory_snapshot.py snapshot.pickle
    ljperf memory snapshot.pickle

The run trains a transformer of a few layers on sequences of varying length, which fragments
memory, and ends in an out-of-memory error (none with --device-memory 3072). A snapshot of your own
comes from torch.cuda.memory._record_memory_history() before the training and
torch.cuda.memory._dump_snapshot(FILE) after it.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20


class OutOfMemoryError(Exception):
    pass


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Segment:
    address: int
    small: bool
    blocks: list[Block]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)


class Allocator:
    """The rules of PyTorch's CUDA caching allocator with its default settings and one stream,
    written for reading: lists instead of trees. Records what it does as torch.cuda.memory does."""

    def __init__(self, device_memory: int) -> None:
        self.device_memory = device_memory
        self.segments: list[Segment] = []
        self.trace: list[dict[str, Any]] = []
        self.time_us = 1_700_000_000_000_000
        self.next_address = 0x7F0000000000

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    def record(self, action: str, size: int, frames: list[dict[str, Any]], **where: int) -> None:
        self.time_us += 10
        self.trace.append(
            {
                "action": action,
                **where,
                "size": size,
                "stream": 0,
                "frames": frames,
                "time_us": self.time_us,
            }
        )

    def allocate(self, requested: int, frames: list[dict[str, Any]]) -> int:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        found = self.find(size, small) or self.reserve(size, small, requested, frames)
        segment, index = found
        block = segment.blocks[index]
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            segment.blocks.insert(index + 1, Block(block.address + size, rest))
            block.size = size
        block.requested, block.state, block.frames = requested, "active_allocated", frames
        self.record("alloc", requested, frames, addr=block.address)
        return block.address

    def find(self, size: int, small: bool) -> tuple[Segment, int] | None:
        """The smallest free block that holds the request; of equals that of the lowest address."""
        fits = [
            (block.size, block.address, segment, index)
            for segment in self.segments
            if segment.small == small
            for index, block in enumerate(segment.blocks)
            if block.state == "inactive" and block.size >= size
        ]
        return min(fits, key=lambda fit: fit[:2])[2:] if fits else None

    def reserve(
        self, size: int, small: bool, requested: int, frames: list[dict[str, Any]]
    ) -> tuple[Segment, int]:
        wanted = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        if self.reserved + wanted > self.device_memory:
            self.empty_cache()
        if self.reserved + wanted > self.device_memory:
            self.record("oom", size, frames, device_free=self.device_memory - self.reserved)
            raise OutOfMemoryError(f"tried to allocate {requested} bytes")
        segment = Segment(self.next_address, small, [Block(self.next_address, wanted)])
        self.next_address += wanted
        self.segments.append(segment)
        self.record("segment_alloc", wanted, frames, addr=segment.address)
        return segment, 0

    def empty_cache(self) -> None:
        for small in (False, True):
            idle = [
                s
                for s in self.segments
                if s.small == small and all(b.state == "inactive" for b in s.blocks)
            ]
            for segment in sorted(idle, key=lambda s: (s.size, s.address)):
                self.segments.remove(segment)
                self.record("segment_free", segment.size, [], addr=segment.address)

    def free(self, address: int) -> None:
        for segment in self.segments:
            for index, block in enumerate(segment.blocks):
                if block.address == address and block.state == "active_allocated":
                    self.record("free_requested", block.requested, block.frames, addr=address)
                    self.record("free_completed", block.requested, block.frames, addr=address)
                    block.requested, block.state, block.frames = 0, "inactive", []
                    self.merge(segment, index)
                    return
        raise KeyError(address)

    @staticmethod
    def merge(segment: Segment, index: int) -> None:
        for left in (index, index - 1):
            if 0 <= left < len(segment.blocks) - 1:
                first, second = segment.blocks[left], segment.blocks[left + 1]
                if first.state == second.state == "inactive":
                    first.size += second.size
                    del segment.blocks[left + 1]

    def snapshot(self, settings: str = "") -> dict[str, Any]:
        return {
            "segments": [
                self.segment_info(segment)
                for segment in sorted(self.segments, key=lambda s: s.address)
            ],
            "device_traces": [self.trace],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": settings,
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "roundup_power2_divisions": {str(2**power): 0 for power in range(16)},
            },
            "external_annotations": [],
        }

    @staticmethod
    def segment_info(segment: Segment) -> dict[str, Any]:
        active = [block for block in segment.blocks if block.state == "active_allocated"]
        return {
            "device": 0,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(block.size for block in active),
            "active_size": sum(block.size for block in active),
            "requested_size": sum(block.requested for block in active),
            "stream": 0,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": block.state,
                    "frames": block.frames,
                }
                for block in segment.blocks
            ],
        }


def stack(*frames: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Innermost frame first, as PyTorch records them."""
    outer = [("/home/user/train.py", 41, "main")]
    return [
        {"filename": file, "line": line, "name": name} for file, line, name in [*frames, *outer]
    ]


LINEAR = ("/venv/torch/nn/modules/linear.py", 134, "forward")
MODEL = "/venv/transformers/models/llama/modeling_llama.py"
EMBEDDING = stack(("/venv/torch/nn/functional.py", 2542, "embedding"), (MODEL, 391, "forward"))
ATTENTION = stack(LINEAR, (MODEL, 252, "forward"))
MLP = stack(LINEAR, (MODEL, 176, "forward"))
LOGITS = stack(LINEAR, (MODEL, 480, "forward"))
WEIGHTS = stack(
    ("/venv/torch/nn/modules/module.py", 1360, "convert"),
    ("/home/user/train.py", 12, "build_model"),
)
OPTIMIZER = stack(("/venv/torch/optim/adamw.py", 164, "_init_group"))
BACKWARD: list[dict[str, Any]] = []  # autograd's threads have no Python frames


def train(
    allocator: Allocator, lengths: Iterable[int], layers: int = 4, hidden: int = 1024
) -> None:
    """Weights, optimizer state, and for each sequence a forward and a backward pass, in bf16."""
    vocabulary = 32000
    parameters = [vocabulary * hidden] + [12 * hidden * hidden] * layers
    for count in parameters:
        allocator.allocate(2 * count, WEIGHTS)
    moments: list[int] = []
    for length in lengths:
        tokens = 2 * length
        activation = 2 * tokens * hidden
        saved = [allocator.allocate(activation, EMBEDDING)]
        for _ in range(layers):
            saved += [allocator.allocate(activation, ATTENTION) for _ in range(5)]
            saved.append(allocator.allocate(4 * tokens * 16, ATTENTION))  # log-sum-exp of the heads
            saved += [allocator.allocate(int(activation * 2.75), MLP) for _ in range(3)]
        saved.append(allocator.allocate(4 * tokens * vocabulary, LOGITS))
        gradients: list[int] = []
        for index, block in enumerate(reversed(saved)):
            temporary = allocator.allocate(activation, BACKWARD)
            if index % 9 == 0 and len(gradients) < len(parameters):
                gradients.append(allocator.allocate(2 * parameters[-1 - len(gradients)], BACKWARD))
            allocator.free(block)
            allocator.free(temporary)
        if not moments:
            moments = [
                allocator.allocate(4 * count, OPTIMIZER) for count in parameters for _ in range(2)
            ]
        for gradient in gradients:
            allocator.free(gradient)


def make_snapshot(device_memory: int, steps: int = 12, seed: int = 1) -> dict[str, Any]:
    allocator = Allocator(device_memory)
    draw = random.Random(seed)
    with contextlib.suppress(OutOfMemoryError):
        train(allocator, (draw.randrange(256, 2049, 8) for _ in range(steps)))
    return allocator.snapshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file")
    parser.add_argument(
        "--device-memory", type=int, default=1800, help="MiB (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    with open(arguments.file, "wb") as file:
        pickle.dump(make_snapshot(arguments.device_memory * MIB, arguments.steps), file)


if __name__ == "__main__":
    main()

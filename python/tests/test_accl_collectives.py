"""Every collective of the backend accl against Gloo's result on the same random tensors: ranks are
threads, which meet in a HashStore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accl_ranks import Ranks
from torch import Tensor, distributed
from torch.distributed import ReduceOp

Body = Callable[[int, Any], Any]
TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
SHAPES = [(0,), (1,), (7,), (3, 5), (70_001,)]
OPERATORS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(request.param, gloo=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    made = Ranks(2)
    yield made
    made.close()


def random(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Small whole numbers: sums and products are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions(ranks: Ranks, dtype: torch.dtype) -> None:
    size = ranks.size

    def body(rank: int, backend: Any) -> list[Tensor]:
        results = []
        for shape in SHAPES:
            for operator in OPERATORS:
                options: Any = distributed.AllreduceOptions()
                options.reduceOp = operator
                whole = random(rank, *shape, dtype=dtype)
                backend.allreduce([whole], options).wait()
                root = random(rank, *shape, dtype=dtype)
                reduce_options: Any = distributed.ReduceOptions()
                reduce_options.reduceOp, reduce_options.rootRank = operator, size - 1
                backend.reduce([root], reduce_options).wait()
                share = torch.empty(shape, dtype=dtype)
                scatter_options: Any = distributed.ReduceScatterOptions()
                scatter_options.reduceOp = operator
                parts = random(rank, size * shape[0], *shape[1:], dtype=dtype)
                backend._reduce_scatter_base(share, parts, scatter_options).wait()
                results += [whole, share] + ([root] if rank == size - 1 else [])
        return results

    ranks.compare(body)


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool], ids=str)
def test_movements(ranks: Ranks, dtype: torch.dtype) -> None:
    size = ranks.size

    def body(rank: int, backend: Any) -> list[Tensor]:
        results = []
        for shape in SHAPES:
            mine = random(rank, *shape, dtype=dtype)
            copy = mine.clone()
            broadcast = distributed.BroadcastOptions()
            broadcast.rootRank = 1
            backend.broadcast([copy], broadcast).wait()
            gathered = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            backend.allgather([gathered], [mine]).wait()
            flat = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
            backend._allgather_base(flat, mine).wait()
            everything = random(rank, size * shape[0], *shape[1:], dtype=dtype)
            exchanged = torch.empty_like(everything)
            backend.alltoall_base(exchanged, everything, [], []).wait()
            gather = distributed.GatherOptions()
            gather.rootRank = 1
            at_root = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            backend.gather([at_root] if rank == 1 else [], [mine], gather).wait()
            scatter = distributed.ScatterOptions()
            scatter.rootRank = 0
            part = torch.empty(shape, dtype=dtype)
            parts = [random(rank, *shape, dtype=dtype, seed=other) for other in range(size)]
            backend.scatter([part], [parts] if rank == 0 else [], scatter).wait()
            results += [copy, flat, exchanged, part, *gathered, *(at_root if rank == 1 else [])]
        return results

    ranks.compare(body)


def test_shares_of_different_sizes(ranks: Ranks) -> None:
    """Rank r sends (r + 1) * (s + 1) rows to rank s."""
    size = ranks.size

    def body(rank: int, backend: Any) -> list[Tensor]:
        sent = [(rank + 1) * (other + 1) for other in range(size)]
        received = [(other + 1) * (rank + 1) for other in range(size)]
        rows = random(rank, sum(sent), 3)
        out = torch.empty(sum(received), 3)
        backend.alltoall_base(out, rows, received, sent).wait()
        return [out]

    ranks.compare(body)

    def lists(rank: int, backend: Any) -> None:
        """Gloo has none of these."""
        inputs = [torch.full((rank + other,), 10.0 * rank + other) for other in range(size)]
        outputs = [torch.empty(rank + other) for other in range(size)]
        backend.alltoall(outputs, inputs).wait()
        for other, part in enumerate(outputs):
            assert part.tolist() == [10.0 * other + rank] * (rank + other)
        shares = [torch.empty(2 * other) for other in range(size)]
        backend.allgather([shares], [torch.full((2 * rank,), float(rank))]).wait()
        for other, share in enumerate(shares):
            assert share.tolist() == [float(other)] * (2 * other)
        mine = torch.empty(rank + 1)
        parts = [torch.full((other + 1,), float(rank)) for other in range(size)]
        backend.reduce_scatter([mine], [parts]).wait()
        assert mine.tolist() == [sum(range(size))] * (rank + 1)

    ranks.run(lists)


def test_averages_and_types_that_gloo_lacks(ranks: Ranks) -> None:
    size = ranks.size

    def body(rank: int, backend: Any) -> None:
        options: Any = distributed.AllreduceOptions()
        options.reduceOp = ReduceOp.AVG
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            tensor = torch.full((5,), float(rank), dtype=dtype)
            backend.allreduce([tensor], options).wait()
            torch.testing.assert_close(tensor, torch.full((5,), (size - 1) / 2, dtype=dtype))
        options.reduceOp = ReduceOp.SUM
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.uint16):
            tensor = torch.full((5,), 1.0 + rank).to(dtype)
            backend.allreduce([tensor], options).wait()
            assert tensor.to(torch.float32).tolist() == [size * (size + 1) / 2] * 5
        complex_tensor = torch.full((4,), complex(1, rank), dtype=torch.complex128)
        backend.allreduce([complex_tensor], options).wait()
        assert complex_tensor.tolist() == [complex(size, size * (size - 1) / 2)] * 4
        options.reduceOp = ReduceOp.PRODUCT
        complex_tensor = torch.full((4,), 1j, dtype=torch.complex64)
        backend.allreduce([complex_tensor], options).wait()
        assert complex_tensor.tolist() == [1j**size] * 4
        for dtype in (torch.complex32, torch.complex64, torch.float8_e8m0fnu):
            moved = torch.full((3,), 1.0 + rank).to(dtype)
            backend.broadcast([moved], distributed.BroadcastOptions()).wait()
            assert moved.tolist() == [1.0] * 3
        flags = torch.tensor([rank == 0, False, True])
        options.reduceOp = ReduceOp.BAND
        backend.allreduce([flags], options).wait()
        assert flags.tolist() == [False, False, True]
        bits = torch.tensor([1 << rank, 7], dtype=torch.int32)
        options.reduceOp = ReduceOp.BXOR
        backend.allreduce([bits], options).wait()
        assert bits.tolist() == [(1 << size) - 1, 7 if size % 2 else 0]
        options.reduceOp = distributed._make_nccl_premul_sum(0.5)
        scaled = torch.full((3,), 2.0 + rank)
        backend.allreduce([scaled], options).wait()
        assert scaled.tolist() == [0.5 * (2 * size + size * (size - 1) / 2)] * 3

    ranks.run(body)


def test_tensors_that_are_no_plain_block(ranks: Ranks) -> None:
    """Strided, transposed, expanded to read, conjugated, requiring gradients; each rank its own."""

    def body(rank: int, backend: Any) -> list[Tensor]:
        base = random(rank, 6, 8)
        strided, transposed = base.clone()[:, ::2], base.clone().t()[::3]
        backend.allreduce([strided]).wait()
        backend.allreduce([transposed if rank % 2 else transposed.contiguous()]).wait()
        gathered = torch.empty(8, ranks.size * 6).t()
        backend._allgather_base(gathered, base.t().contiguous().t()).wait()
        flat = torch.empty(ranks.size, 4)
        backend._allgather_base(flat, torch.full((1,), float(rank)).expand(4)).wait()
        leaf = torch.full((5,), 1.0 + rank, requires_grad=True)
        backend.allreduce([leaf]).wait()
        with torch.inference_mode():
            inferred = torch.full((5, 2), 1.0 + rank).t()
        backend.allreduce([inferred]).wait()
        conjugated = torch.full((4,), complex(rank, 1)).conj()
        everyone = torch.empty(ranks.size * 4, dtype=conjugated.dtype)
        backend._allgather_base(everyone, conjugated).wait()
        return [
            strided,
            gathered,
            flat,
            leaf.detach(),
            inferred.clone(),
            torch.view_as_real(everyone),
        ]

    found = ranks.run(body)
    size = ranks.size
    base = [random(rank, 6, 8) for rank in range(size)]
    for strided, gathered, flat, leaf, inferred, everyone in found:
        assert torch.equal(strided, sum(base)[:, ::2])  # type: ignore[index]
        assert torch.equal(gathered, torch.cat(base))
        assert flat.tolist() == [[float(rank)] * 4 for rank in range(size)]
        assert leaf.tolist() == [size * (size + 1) / 2] * 5
        assert inferred.tolist() == [[size * (size + 1) / 2] * 5] * 2
        assert everyone.tolist() == [[float(rank), -1.0] for rank in range(size) for _ in range(4)]


def test_coalesced(ranks: Ranks) -> None:
    size = ranks.size

    def body(rank: int, backend: Any) -> list[Tensor]:
        several = [random(rank, *shape) for shape in SHAPES]
        backend.allreduce_coalesced(several).wait()
        lists = [[torch.empty(shape) for shape in SHAPES[1:]] for _ in range(size)]
        backend.allgather_coalesced(lists, [random(rank, *shape) for shape in SHAPES[1:]]).wait()
        return several + [tensor for one in lists for tensor in one]

    ranks.compare(body)


@pytest.mark.parametrize("dense", [0, 1, 2])
def test_sparse(ranks: Ranks, dense: int) -> None:
    def body(rank: int, backend: Any) -> Tensor:
        indices = torch.tensor([[0, rank + 1, 2], [rank, 0, 1]])
        values = random(rank, 3, *([2] * dense))
        tensor = torch.sparse_coo_tensor(indices, values, (8, 8, *([2] * dense)))
        backend.allreduce([tensor]).wait()
        return tensor.to_dense()

    ranks.compare(body)


def test_several_tensors_of_one_rank(ranks: Ranks) -> None:
    def body(rank: int, backend: Any) -> list[Tensor]:
        pair = [random(rank, 5), random(rank, 5, seed=1)]
        backend.allreduce(pair).wait()
        copies = [random(rank, 5), random(rank, 5, seed=1)]
        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 1
        backend.broadcast(copies, options).wait()
        inputs = [random(rank, 4), random(rank, 4, seed=1)]
        outputs = [[torch.empty(4) for _ in range(2 * ranks.size)] for _ in range(2)]
        backend.allgather(outputs, inputs).wait()
        return [*pair, *copies, *outputs[0], *outputs[1]]

    ranks.compare(body)


def test_messages(ranks: Ranks) -> None:
    """A ring of short and long ones, two tags crossed, and receiving from whoever sends."""
    size = ranks.size

    def body(rank: int, backend: Any) -> list[Tensor]:
        right, left = (rank + 1) % size, (rank - 1) % size
        received = []
        for count in (0, 1, 1000, 300_001):
            sends = [backend.send([random(rank, count, seed=tag)], right, tag) for tag in range(2)]
            first, second = torch.empty(count), torch.empty(count)
            backend.recv([second], left, 1).wait()
            backend.recv([first], left, 0).wait()
            for work in sends:
                work.wait()
            received += [first, second]
        strided = torch.zeros(4, 2)[:, 0]
        out = backend.send([random(rank, 8)[::2]], right, 5)
        backend.recv([strided], left, 5).wait()
        out.wait()
        return [*received, strided]

    found = ranks.run(body)
    for rank in range(size):
        left = (rank - 1) % size
        expected = [
            random(left, count, seed=tag) for count in (0, 1, 1000, 300_001) for tag in range(2)
        ]
        assert all(map(torch.equal, found[rank], [*expected, random(left, 8)[::2]]))

    def from_anyone(rank: int, backend: Any) -> list[tuple[int, float]]:
        if rank != 0:
            backend.send([torch.full((3,), float(rank))], 0, 9).wait()
            return []
        seen = []
        for _ in range(size - 1):
            tensor = torch.empty(3)
            work = backend.recv_anysource([tensor], 9)
            work.wait()
            seen.append((work._source_rank(), tensor[0].item()))
        return seen

    seen = ranks.run(from_anyone)[0]
    assert sorted(seen) == [(rank, float(rank)) for rank in range(1, size)]


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda b: b.allreduce([]), ValueError, "requires non-empty tensor list"),
        (lambda b: b.broadcast(torch.ones(1), 7), ValueError, "invalid root rank: 7"),
        (
            lambda b: b.allgather([[torch.ones(2)] * 4], [torch.ones(2)]),
            ValueError,
            r"invalid output tensor list at index 0 \(expected length 2, got 4\)",
        ),
        (
            lambda b: b.allgather([[torch.ones(3)] * 2], [torch.ones(2)]),
            ValueError,
            "invalid tensor size at index",
        ),
        (
            lambda b: b.allgather([[torch.ones(2).int()] * 2], [torch.ones(2)]),
            ValueError,
            "invalid tensor type at index 0",
        ),
        (
            lambda b: b._allgather_base(torch.ones(3), torch.ones(2)),
            ValueError,
            "output tensor size must be equal to world_size times input tensor size",
        ),
        (
            lambda b: b.alltoall_base(torch.ones(3), torch.ones(3), [], []),
            RuntimeError,
            "does not divide equally",
        ),
        (
            lambda b: b.alltoall_base(torch.ones(3), torch.ones(3), [1, 1], [1, 2]),
            RuntimeError,
            "Split sizes doesn't match",
        ),
        (lambda b: b.allreduce([torch.ones(2, 2).to_sparse_csr()]), ValueError, "dense"),
        (lambda b: b.send([torch.ones(1)], 0, -1), RuntimeError, "Tag must be nonnegative"),
        (lambda b: b.send([torch.ones(1)], 9, 0), ValueError, "there is no rank 9"),
    ],
)
def test_bad_arguments_are_named_and_harm_nothing(
    two: Ranks, call: Callable[[Any], Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        call(two.accl[0])
    two.run(lambda rank, backend: backend.barrier().wait())


def test_operators_without_meaning_are_refused(ranks: Ranks) -> None:
    options: Any = distributed.AllreduceOptions()
    for operator, tensor in (
        (ReduceOp.BAND, torch.ones(2)),
        (ReduceOp.MAX, torch.ones(2, dtype=torch.complex64)),
    ):
        options.reduceOp = operator
        with pytest.raises(ValueError, match="has no meaning on"):
            ranks.accl[0].allreduce([tensor], options)

"""Expressions in model sizes, read off from the same dimension in several traces.

An expression is a sum of products (docs/recompute.md): a polynomial whose symbols are the sizes
below. Each trace runs at sizes that are products of distinct primes, so a dimension that equals
`c * product of symbols` in every trace is that product, and one that is a short sum is found by
solving for its coefficients in two traces and checking the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

SYMBOLS = (
    "micro_batch",
    "seq",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "experts",
    "top_k",
    "moe_ffn",
    "shared_ffn",
    "lora_rank",
    "window",
    "positions",
)
# heads / kv_heads, where keys and values are repeated: kv_heads * groups becomes heads.
GROUPS = "groups"
_ORDER = (*SYMBOLS, GROUPS)

Sizes = Mapping[str, int]
Monomial = tuple[str, ...]  # symbols in the order of SYMBOLS, repeated for powers

LARGEST_COEFFICIENT = 16
DENOMINATORS = (1, 2)
LONGEST_PRODUCT = 3  # symbols in one dimension: micro_batch * seq * top_k


class Unexplained(ValueError):
    """No expression fits the values of the traces."""


class Expression:
    """A polynomial with rational coefficients; immutable."""

    def __init__(self, terms: Mapping[Monomial, Fraction] | None = None) -> None:
        self._terms = {key: value for key, value in (terms or {}).items() if value != 0}

    @staticmethod
    def constant(value: int | Fraction) -> Expression:
        return Expression({(): Fraction(value)})

    def __add__(self, other: Expression) -> Expression:
        terms = dict(self._terms)
        for monomial, coefficient in other._terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
        return Expression(terms)

    def __mul__(self, other: Expression | int) -> Expression:
        if isinstance(other, int):
            other = Expression.constant(other)
        terms: dict[Monomial, Fraction] = {}
        for (left, a), (right, b) in itertools.product(self._terms.items(), other._terms.items()):
            monomial = tuple(sorted(left + right, key=_ORDER.index))
            terms[monomial] = terms.get(monomial, Fraction(0)) + a * b
        return Expression(terms)

    def halved(self) -> Expression:
        return Expression({key: value / 2 for key, value in self._terms.items()})

    def without_groups(self) -> Expression:
        """With kv_heads * groups written as heads."""
        terms = Expression()
        for monomial, coefficient in self._terms.items():
            symbols = list(monomial)
            while GROUPS in symbols:
                if "kv_heads" not in symbols:
                    raise Unexplained(f"heads / kv_heads without kv_heads in {self}")
                symbols.remove(GROUPS)
                symbols.remove("kv_heads")
                symbols.append("heads")
            key = tuple(sorted(symbols, key=_ORDER.index))
            terms = terms + Expression({key: coefficient})
        return terms

    def evaluate(self, sizes: Sizes) -> Fraction:
        total = Fraction(0)
        for monomial, coefficient in self._terms.items():
            total += coefficient * math.prod(sizes[symbol] for symbol in monomial)
        return total

    def mentions(self, *symbols: str) -> bool:
        """Whether one term has all of `symbols`, as often as they are given."""
        return any(
            all(monomial.count(symbol) >= symbols.count(symbol) for symbol in symbols)
            for monomial in self._terms
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(frozenset(self._terms.items()))

    def __str__(self) -> str:
        """As the profile has it: `2*micro_batch*seq*hidden + 4*micro_batch*heads*seq`."""
        if not self._terms:
            return "0"
        return " + ".join(
            "*".join([_decimal(coefficient), *monomial])
            for monomial, coefficient in sorted(
                self._terms.items(), key=lambda term: [_ORDER.index(s) for s in term[0]]
            )
        )


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


class Solver:
    """Finds the expression of a dimension from its values in `traces`, whose sizes it is given."""

    def __init__(self, traces: Sequence[Sizes]) -> None:
        self.traces = traces
        symbols = [symbol for symbol in _ORDER if symbol in traces[0]]
        self._products: list[tuple[Monomial, tuple[int, ...]]] = []
        for length in range(LONGEST_PRODUCT + 1):
            for monomial in itertools.combinations_with_replacement(symbols, length):
                self._products.append((monomial, self._values(monomial)))
        self._known: dict[tuple[int, ...], Expression] = {}

    def _values(self, monomial: Monomial) -> tuple[int, ...]:
        values = []
        for sizes in self.traces:
            values.append(math.prod(sizes[symbol] for symbol in monomial))
        return tuple(values)

    def solve(self, values: Sequence[int]) -> Expression:
        """The expression that has `values[i]` in trace i."""
        key = tuple(values)
        if key not in self._known:
            self._known[key] = self._product(key) or self._sum(key) or self._fail(key)
        return self._known[key]

    def product(self, shapes: Sequence[Sequence[int]]) -> Expression:
        """The number of elements of a tensor that has `shapes[i]` in trace i."""
        total = Expression.constant(1)
        for dimension in zip(*shapes, strict=True):
            total = total * self.solve(dimension)
        return total.without_groups()

    def _product(self, values: tuple[int, ...]) -> Expression | None:
        for monomial, products in self._products:
            coefficient = Fraction(values[0], products[0])
            if (
                _is_plain(coefficient, with_constant=not monomial)
                and coefficient >= 0
                and all(
                    coefficient * product == value
                    for product, value in zip(products, values, strict=True)
                )
            ):
                return Expression({monomial: coefficient})
        return None

    def _sum(self, values: tuple[int, ...]) -> Expression | None:
        short = [item for item in self._products if len(item[0]) <= 2]
        for (first, p), (second, q) in itertools.combinations(short, 2):
            determinant = p[0] * q[1] - p[1] * q[0]
            if determinant == 0:
                continue
            a = Fraction(values[0] * q[1] - values[1] * q[0], determinant)
            b = Fraction(p[0] * values[1] - p[1] * values[0], determinant)
            if (
                _is_plain(a)
                and _is_plain(b)
                and all(a * x + b * y == v for x, y, v in zip(p, q, values, strict=True))
            ):
                return Expression({first: a, second: b})
        return None

    def _fail(self, values: tuple[int, ...]) -> Expression:
        raise Unexplained(f"no expression of {', '.join(self.traces[0])} has the values {values}")


def _is_plain(coefficient: Fraction, with_constant: bool = False) -> bool:
    if with_constant:
        return True
    return coefficient.denominator in DENOMINATORS and abs(coefficient) <= LARGEST_COEFFICIENT

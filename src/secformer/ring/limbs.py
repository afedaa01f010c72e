"""Exact products modulo 2^w out of float64 products: how to cut the operands into digits.

float64 adds and multiplies integers exactly up to 2^53. A signed digit of l bits is at most 2^(l-1) in
magnitude, so the sum of K products of an l-bit and an l'-bit digit is exact, in any order of addition, if

    K * 2^(l-1) * 2^(l'-1) <= 2^53,    that is    l + l' <= 55 - ceil(log2 K) =: room.

Write a = sum of a_i 2^(x_i) and b = sum of b_j 2^(y_j). Modulo 2^w only the pairs of bits with x + y < w
matter: a triangle of side w, to be covered by as few rectangles (one float64 matmul each) of half-perimeter
`room` as possible. Equal digits of both operands (two: 3 products up to 44 bits at K = 768; three: 6 up to
64) are rarely the best cover. Cutting a into columns, and b anew for every column, does with

    K = 768, room 45:    1 product to 22 bits,  2 to 33,  3 to 44,  4 to 52,  6 to 64.

Operands known to be small (`bits`) shrink the triangle to a trapezium; two small ones need one product.
Large K may be cut into chunks, which widens the room at the price of more recombination.

The digit of x on bits [start, start + l) is what is left after subtracting all lower digits, taken modulo
2^l into [-2^(l-1), 2^(l-1)): ((x + carry) >> start) sign-extended from l bits, where carry = sum of 2^(c-1)
over all cuts c <= start (a lower digit whose top bit is set was negative, so it passes a one upwards).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Digit:
    """One digit of an int64: ((x + carry) << drop) >> (drop + start)."""

    start: int
    carry: int
    drop: int  # bits above the digit, shifted out; 0 where the operand is known to end with this digit

    def of(self, x: Tensor) -> Tensor:
        """This digit of every element, as float64; wraps modulo 2^64 like everything else."""
        word = x + self.carry if self.carry else x
        if self.drop:
            word = word << self.drop
        if self.drop + self.start:
            word = word >> (self.drop + self.start)
        return word.to(torch.float64)


@dataclass(frozen=True)
class Column:
    """A digit of the left operand and the digits of the right one that it meets."""

    left: Digit
    right: tuple[Digit, ...]


@dataclass(frozen=True)
class Plan:
    """Which digits to multiply, over how many chunks of the inner dimension."""

    columns: tuple[Column, ...]
    chunks: int

    @property
    def products(self) -> int:
        return sum(len(column.right) for column in self.columns)

    @property
    def digits(self) -> int:
        """Distinct digits of both operands: what splitting costs, and what a prepared operand stores."""
        return len(self.columns) + len({digit for column in self.columns for digit in column.right})


@dataclass
class Prepared:
    """A right operand with what kernels derive from it (its digits), made on first use and kept."""

    tensor: Tensor
    width: int
    bits: int
    static: bool = False  # serves many products, so deriving costs nothing in the long run
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    def derive(self, key: Any, make: Callable[[Tensor], Any]) -> Any:
        if key not in self.derived:
            self.derived[key] = make(self.tensor)
        return self.derived[key]

    def __repr__(self) -> str:
        return f"Prepared(shape={tuple(self.tensor.shape)}, width={self.width}, bits={self.bits})"


@lru_cache(maxsize=4096)
def plan(inner: int, width: int, left_bits: int, right_bits: int, recombination: int = 32) -> Plan:
    """The cheapest plan for an inner dimension K; operands are left_bits and right_bits wide (<= width).

    Turning an element of a product into int64 and adding it costs as much as `recombination` multiply-adds.
    """
    candidates = []
    for chunks in (1, 2, 4, 8, 16, 32, 64):
        length = -(-inner // chunks)
        room = 55 - (length - 1).bit_length()  # bit_length(K - 1) = ceil(log2 K)
        for widths in (_cover(room, width, left_bits, right_bits), _equal(room, width, left_bits)):
            if widths:
                candidates.append(Plan(_columns(widths, room, width, left_bits, right_bits), chunks))
        if length == 1:
            break
    return min(candidates, key=lambda p: (p.products * (inner + recombination * p.chunks), p.digits))


def _cover(room: int, width: int, left_bits: int, right_bits: int) -> tuple[int, ...]:
    """Widths of the left operand's digits that need the fewest products in all."""

    @cache
    def best(start: int) -> tuple[int, tuple[int, ...]]:
        if start >= left_bits:
            return 0, ()
        height = min(right_bits, width - start)
        options = []
        for size in range(1, min(room, left_bits - start + 1)):
            count, widths = best(start + size)
            options.append((count - (-height // (room - size)), (size, *widths)))
        return min(options, key=lambda option: (option[0], len(option[1])))

    return best(0)[1]


def _equal(room: int, width: int, left_bits: int) -> tuple[int, ...]:
    """Equal digits of at most half the room: more products at times, but all columns share b's digits."""
    count = -(-width // (room // 2))
    size = -(-width // count)
    starts = range(0, left_bits, size)
    return tuple(min(size, left_bits - start) for start in starts)


def _columns(widths: tuple[int, ...], room: int, width: int, left_bits: int, right_bits: int) -> tuple[Column, ...]:
    """Cut b for every column: into the column's own width where that fits, otherwise evenly."""
    columns, start = [], 0
    for size, left in zip(widths, _digits(widths, left_bits < width), strict=True):
        height = min(right_bits, width - start)
        count = -(-height // (room - size))
        even = -(-height // count)
        step = widths[0] if even <= widths[0] <= room - size else even
        pieces = [min(step, height - low) for low in range(0, height, step)]
        columns.append(Column(left, _digits(tuple(pieces), right_bits < width and height == right_bits)))
        start += size
    return tuple(columns)


def _digits(widths: tuple[int, ...], complete: bool) -> tuple[Digit, ...]:
    """Digits of these widths, lowest first.

    `complete`: the operand's magnitude is known to end with the last digit, which then must not be wrapped
    (a carry may bring it to exactly +2^(l-1), still within its bound).
    """
    digits, start, carry = [], 0, 0
    for index, size in enumerate(widths):
        last = complete and index == len(widths) - 1
        digits.append(Digit(start, carry, 0 if last else 64 - start - size))
        start += size
        carry += 1 << (start - 1)
    return tuple(digits)

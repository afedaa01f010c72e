"""Comparison on wires: the sign of x from one opening of x and local table lookups of its digits.

c = x + r modulo 2^w is public, so with c', r' the low w−1 bits of c and r:  msb(x) = msb(c) ⊕ msb(r) ⊕ [c' < r'].
T shares, for every digit of r', two truth tables over the values a public digit of c' can have: *below* and *equal*.
The servers look up their shares of the entries. Four digits at a time are combined,

    below = l_0 ⊕ e_0 l_1 ⊕ e_0 e_1 l_2 ⊕ e_0 e_1 e_2 l_3,   equal = e_0 e_1 e_2 e_3     (most significant first)

with one opening of masked bits per level. The terms are disjoint, so the last level gives arithmetic shares.

    64 bits: 16 digits of 4, 2 rounds, 34 bits each way after the wire.   24 bits: 4 digits of 6, 1 round, 7 bits.

(The paper's Π_LT runs an adder: 8 rounds, 3,456 bits. See the lab, paper/adder.py.)
Safe: each level opens bits under fresh masks; the tables are XOR-shared, and each share alone is uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.form import Form, bits
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime, Steps
from secformer.engine.values import Bits, Masked, MaskedBits, Public, Shared
from secformer.errors import WidthError
from secformer.protocols.bits import BitPolynomials, DisjointSum, SignedSum, Terms, select, side_by_side
from secformer.ring.fixed_point import encode, shift_right

MAXIMUM_DIGIT = 6
"""Most bits of a digit: its table must fit one word of 2^6 bits."""


@dataclass(frozen=True)
class DigitTables(Gate[Bits]):
    """The bits "public digit equals mask digit" and "public digit is below mask digit" for every digit of the wire's low bits.

    Output bits: equal of digit 0..n−1 (most significant first), then, `with_below`, below of digit 0..n−1. (A word of opened
    bits is zero where it equals its mask, so the same tables test it for zero.)
    """

    takes = ((Masked, MaskedBits),)
    digits: tuple[tuple[int, int], ...]  # (lowest bit, bits), most significant first
    with_below: bool = True

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return bits(tuple(x.shape), len(self.digits) * (2 if self.with_below else 1))

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        equal = tuple(bits(tuple(x.shape), 1 << size) for _, size in self.digits)
        return equal + equal if self.with_below else equal

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        digits = [(x.mask >> low) & ((1 << size) - 1) for low, size in self.digits]
        equal = [torch.ones_like(digit) << digit for digit in digits]
        below = [table - 1 for table in equal]  # entries 0 .. digit−1 are set
        return equal + below if self.with_below else equal

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        result = torch.zeros_like(dealt[0])
        for number, table in enumerate(dealt):
            low, size = self.digits[number % len(self.digits)]
            digit = (x.public >> low) & ((1 << size) - 1)
            result |= ((table >> digit) & 1) << number
        return result

    def plain(self, x: Masked) -> Tensor:
        """Compute the bits for a mask of zero: a digit is equal where it is zero, and never below."""
        result = torch.zeros_like(x.public)
        for number, (low, size) in enumerate(self.digits):
            zero = ((x.public >> low) & ((1 << size) - 1)) == 0
            result |= zero.to(torch.int64) << number
        return result


def digits_of(width: int) -> tuple[tuple[int, int], ...]:
    """Cut `width` low bits into digits: as few levels as possible, then digits as narrow as possible."""
    levels = 0
    while 4**levels * MAXIMUM_DIGIT < width:
        levels += 1
    return cut(width, min(4**levels, width))


def cut(width: int, count: int) -> tuple[tuple[int, int], ...]:
    """Cut `width` bits into `count` digits (lowest bit, bits), most significant first, of sizes as even as possible."""
    size, larger = divmod(width, count)
    digits, low = [], 0
    for number in range(count):
        own = size + (number < larger)
        digits.append((low, own))
        low += own
    return tuple(reversed(digits))


def _below_terms(count: int) -> Terms:
    """Return the terms of `below` for a word of bits equal_0 .. equal_(count−2), then below_0 .. below_(count−1)."""
    return tuple((*range(number), count - 1 + number) for number in range(count))


def _combine(runtime: Runtime, below: list[Bits], equal: list[Bits]) -> Steps[tuple[list[Bits], list[Bits]]]:
    """Combine groups of four digits into one digit each (one level). below_0 enters linearly and stays unopened."""
    groups = [(below[start : start + 4], equal[start : start + 4]) for start in range(0, len(below), 4)]
    last = len(groups) - 1
    words = []
    for number, (lower, same) in enumerate(groups):
        kept = same[:-1] if number == last else same
        words.append(side_by_side(*kept, *lower[1:]) if len(kept) + len(lower) > 1 else None)
    opened = yield tuple(word for word in words if word is not None)
    wires = iter(opened)
    next_below, next_equal = [], []
    for number, ((lower, _), word) in enumerate(zip(groups, words, strict=True)):
        if word is None:
            next_below.append(lower[0])
            continue
        result = runtime.apply(BitPolynomials(_level_outputs(len(lower), number == last)), next(wires))
        next_below.append(lower[0] ^ select(result, [0]))
        if number != last:
            next_equal.append(select(result, [1]))
    return next_below, next_equal


def _level_outputs(count: int, last: bool) -> tuple[Terms, ...]:
    """Return the terms of below (without below_0) and, unless this group is the least significant one, of equal."""
    offset = count - 2 if last else count - 1
    below: Terms = tuple((*range(number), offset + number) for number in range(1, count))
    return (below,) if last else (below, (tuple(range(count)),))


def sign_bit(runtime: Runtime, x: Masked, width: int = 64) -> Shared:
    """Return [x < 0] in arithmetic shares modulo 2^width, exact for −2^(w−1) ≤ x < 2^(w−1)."""
    return runtime.at_once(sign_steps(runtime, x, width))


def sign_steps(runtime: Runtime, x: Masked, width: int) -> Steps[Shared]:
    """Compute `sign_bit`, yielding each opening."""
    word, terms = yield from borrow_steps(runtime, x)
    return _xor_public(runtime, runtime.apply(SignedSum(terms, width), word, x), x)


def borrow_word(runtime: Runtime, x: Masked) -> tuple[MaskedBits, Terms]:
    """Return the opened bits of the comparison's last level, and the disjoint terms of them whose sum is [c' < r']."""
    return runtime.at_once(borrow_steps(runtime, x))


def borrow_steps(runtime: Runtime, x: Masked) -> Steps[tuple[MaskedBits, Terms]]:
    """Compute `borrow_word`, yielding each opening. Raise WidthError for a wire of fewer than two bits."""
    if x.width < 2:
        raise WidthError(f"{runtime.where}: a wire of {x.width} bit has no sign: open it wider")
    digits = digits_of(x.width - 1)
    leaves = runtime.apply(DigitTables(digits), x)
    count = len(digits)
    if count <= 4:
        (word,) = yield (select(leaves, [*range(count - 1), *range(count, 2 * count)]),)
        return word, _below_terms(count)
    equal = [select(leaves, [number]) for number in range(count)]
    below = [select(leaves, [count + number]) for number in range(count)]
    while len(below) > 4:
        below, equal = yield from _combine(runtime, below, equal)
    (word,) = yield (side_by_side(*equal[: len(below) - 1], *below),)
    return word, _below_terms(len(below))


def _xor_public(runtime: Runtime, bit_share: Shared, x: Masked) -> Shared:
    """Return v ⊕ msb(c) with msb(c) public: c + (1 − 2c)v."""
    top = shift_right(x.public, x.width - 1, x.width)
    return runtime.constant(Public(top), bit_share.width) + bit_share * Public(1 - 2 * top)


def are_zero(runtime: Runtime, values: Sequence[tuple[Masked, int]]) -> list[Shared]:
    """Return [x = 0] modulo 2^width for each (x, width): c = r in every digit. One round, one bit for every six bits of x."""
    return runtime.at_once(zero_steps(runtime, values))


def zero_steps(runtime: Runtime, values: Sequence[tuple[Masked | MaskedBits, int]]) -> Steps[list[Shared]]:
    """Compute `are_zero`, yielding its one opening."""
    tables = [
        runtime.apply(DigitTables(cut(x.width, -(-x.width // MAXIMUM_DIGIT)), with_below=False), x) for x, _ in values
    ]
    words = yield tuple(tables)
    return [
        runtime.apply(DisjointSum((tuple(range(word.width)),), width), word)
        for word, (_, width) in zip(words, values, strict=True)
    ]


def less_than(runtime: Runtime, x: Shared, other: Shared | float, width: int = 64) -> Shared:
    """Return [x < other] for a public constant or another secret; |x − other| must stay below 2^(w−1−scale)."""
    difference = x - other if isinstance(other, Shared) else _minus_public(runtime, x, other)
    (wire,) = runtime.open(difference)
    return sign_bit(runtime, wire, width)


def _minus_public(runtime: Runtime, x: Shared, constant: float) -> Shared:
    value = encode(torch.tensor([constant], dtype=torch.float64), x.scale, x.width)
    return x - runtime.constant(Public(value, x.scale), x.width)

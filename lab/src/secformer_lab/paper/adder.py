"""Π_LT as the paper counts it: the sign of x − c by an adder on XOR shares (appendix, "comparison").

x − c = a + b modulo 2^64 with a known to S0 and b to S1. Each word is trivially XOR-shared, and the servers
add them as a circuit, in Kogge and Stone's tree:

    generate = a ∧ b, propagate = a ⊕ b                                    1 round,  2 openings of 64 bits
    for d = 1, 2, 4, …, 32:  generate ⊕= propagate ∧ (generate << d)
                             propagate ∧= propagate << d                   6 rounds, 4 openings each
    sign = bit 63 of a ⊕ b ⊕ (generate << 1)
    δ = sign ⊕ β,  [sign]_j = j·δ + (1 − 2δ)[β]_j                          1 round,  1 opening

8 rounds (the paper says 7) and 27 openings of 64 bits each way: 3,456 bits. Exact for |x − c| < 2^63 units.
Every AND opens both its inputs, and the sign travels in a whole word: this is the paper's cost, not the
least possible (compare.py).

Safe: words and bits are opened under fresh masks of their full width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Shared
from secformer.errors import WidthError
from secformer.protocols.bits import bit_to_arithmetic, both
from secformer_lab.paper.beaver import RING_BITS, multiply
from secformer_lab.paper.local import split

SPANS = (1, 2, 4, 8, 16, 32)


def less_than(runtime: Runtime, x: Shared, other: Shared | Tensor | float) -> Shared:
    """[x < other] as 0 or 1 at scale 0. `other` is secret or public.

    Several thresholds at once (a tensor that broadcasts) take the same 8 rounds.
    """
    difference = x - other if isinstance(other, Shared) else runtime.add(x, -other)
    return is_negative(runtime, difference)


def is_negative(runtime: Runtime, x: Shared) -> Shared:
    """[x < 0]: the top bit of the sum of the two servers' words."""
    if x.width != RING_BITS:
        raise WidthError(f"{runtime.where}: the adder takes {RING_BITS}-bit shares, not {x.width}-bit ones")
    left, right = split(runtime, x)
    without_carry = left ^ right
    carry = _carries(runtime, left, right, without_carry)
    total = without_carry ^ _shift(carry, 1)
    return _top_bit(runtime, total)


def _carries(runtime: Runtime, left: Bits, right: Bits, propagate: Bits) -> Bits:
    """Bit i: does the sum of bits 0..i carry over?"""
    generate = both(runtime, *runtime.open(left, right))
    for span in SPANS:
        opened = runtime.open(propagate, _shift(generate, span), propagate, _shift(propagate, span))
        generate = generate ^ both(runtime, opened[0], opened[1])
        propagate = both(runtime, opened[2], opened[3])
    return generate


def _shift(word: Bits, places: int) -> Bits:
    return word.map(lambda tensor: tensor << places)


def _top_bit(runtime: Runtime, total: Bits) -> Shared:
    """Bit 63 in arithmetic shares, opened in a word of its own: its other 63 bits are masks of zero."""
    (opened,) = runtime.open(total.map(lambda tensor: (tensor >> (RING_BITS - 1)) & 1))
    return bit_to_arithmetic(runtime, replace(opened.map(lambda tensor: tensor & 1), width=1), RING_BITS)


def relu(runtime: Runtime, x: Shared) -> Shared:
    """max(x, 0) = x·(1 − [x < 0]): 9 rounds, 3,712 bits."""
    return multiply(runtime, x, runtime.add(-is_negative(runtime, x), 1.0))


def maximum(runtime: Runtime, x: Shared) -> Shared:
    """The maximum of each row, (..., n) → (..., 1), by a tree of n − 1 comparisons: 9⌈log2 n⌉ rounds."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        rest = x[..., 2 * half :]
        winners = larger(runtime, x[..., :half], x[..., half : 2 * half])
        x = winners.map(lambda tensor, rest=rest: torch.cat((tensor, rest.share), -1))
    return x


def larger(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    """max(x, y) = x + [x < y]·(y − x)."""
    return x + multiply(runtime, y - x, less_than(runtime, x, y))

"""Protocols over GF(2): products of opened bits, into XOR shares or directly into arithmetic shares.

A bit v is opened as δ = v ⊕ β. A product of such bits expands in the masks,

    Π_{i∈S} v_i = Σ_{T⊆S} Π_{i∈S∖T} δ_i · Π_{i∈T} β_i        over GF(2)
    Π_{i∈S} v_i = Σ_{T⊆S} Π_{i∈S∖T} δ_i · Π_{i∈T} (1−2δ_i) · Π_{i∈T} β_i        over the integers

so T shares the monomials of β, and the servers combine them with coefficients that depend only on the public δ: a table
of 2^k rows. A sum of *disjoint* products (at most one is 1) is the same over GF(2) and over the integers. So the last
level of a Boolean circuit gives arithmetic shares directly, without a separate conversion round.

Rounds 0 after the opening of the bits; dealer: one bit (or one ring element) per monomial.
Safe: the servers learn only δ, and β is uniform and fresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from secformer.engine.form import Form, bits, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Lifted, Masked, MaskedBits, Shared
from secformer.ring.fixed_point import shift_right
from secformer.ring.resident import entries, resident

Terms = tuple[tuple[int, ...], ...]
"""A sum of products: each term lists the bits that are multiplied."""


def bit(word: Tensor, position: int) -> Tensor:
    """Return the bit at `position` of each word."""
    return (word >> position) & 1


def parity(word: Tensor) -> Tensor:
    """XOR all 64 bits of each word."""
    for shift in (32, 16, 8, 4, 2, 1):
        word = word ^ (word >> shift)
    return word & 1


@cache
def monomials(outputs: tuple[Terms, ...]) -> tuple[tuple[int, ...], ...]:
    """List every non-empty subset of every term, each once."""
    found = {
        subset
        for terms in outputs
        for term in terms
        for size in range(1, len(term) + 1)
        for subset in combinations(term, size)
    }
    return tuple(sorted(found, key=lambda subset: (len(subset), subset)))


@resident
def _coefficients(terms: Terms, outputs: tuple[Terms, ...], size: int, integer: bool, device: torch.device) -> Tensor:
    """Return (2^size, 1 + monomials): the constant and the coefficient of each monomial, for every public word δ."""
    names = monomials(outputs)
    column = {name: number + 1 for number, name in enumerate(names)}
    delta = [(torch.arange(1 << size) >> position) & 1 for position in range(size)]
    table = torch.zeros(1 << size, 1 + len(names), dtype=torch.int64)
    for term in terms:
        for count in range(len(term) + 1):
            for subset in combinations(term, count):
                value = torch.ones(1 << size, dtype=torch.int64)
                for position in term:
                    inside = 1 - 2 * delta[position] if integer else torch.ones_like(value)
                    value = value * (inside if position in subset else delta[position])
                table[:, column.get(subset, 0)] += value
    return (table if integer else table & 1).to(device)


@resident
def _coefficient_words(outputs: tuple[Terms, ...], size: int, device: torch.device) -> Tensor:
    """Return (outputs, 2^size): GF(2) coefficients packed into words, with the constant in bit 0."""
    rows = [_coefficients(terms, outputs, size, False, device) for terms in outputs]
    weights = torch.arange(rows[0].shape[1], device=device)
    return torch.stack([(row << weights).sum(1) for row in rows])


def _monomial_values(outputs: tuple[Terms, ...], word: Tensor) -> list[Tensor]:
    """Return each monomial of the mask bits as a 0/1 tensor."""
    values = []
    for subset in monomials(outputs):
        mask = sum(1 << position for position in subset)
        values.append(((word & mask) == mask).to(torch.int64))
    return values


def evaluate_plain(terms: Terms, word: Tensor) -> Tensor:
    """Evaluate the sum of products on plain bits, over the integers."""
    total = torch.zeros_like(word)
    for term in terms:
        mask = sum(1 << position for position in term)
        total = total + ((word & mask) == mask).to(torch.int64)
    return total


@dataclass(frozen=True)
class BitPolynomials(Gate[Bits]):
    """Several GF(2) polynomials of one opened word; output i is bit i of the result."""

    takes = (MaskedBits,)
    outputs: tuple[Terms, ...]

    def result(self, x: MaskedBits) -> Form:
        """Return the form of the result."""
        return bits(tuple(x.shape), len(self.outputs))

    def materials(self, x: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (bits(tuple(x.shape), len(monomials(self.outputs))),)

    def deal(self, x: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        packed = torch.zeros_like(x.mask)
        for number, value in enumerate(_monomial_values(self.outputs, x.mask)):
            packed |= value << number
        return (packed,)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        known = (dealt[0] << 1) | party
        result = torch.zeros_like(known)
        for number, table in enumerate(_coefficient_words(self.outputs, x.width, known.device)):
            result |= parity(entries(table, x.public) & known) << number
        return result

    def plain(self, x: MaskedBits) -> Tensor:
        """Compute the result on plain numbers."""
        result = torch.zeros_like(x.public)
        for number, terms in enumerate(self.outputs):
            result |= (evaluate_plain(terms, x.public) & 1) << number
        return result


@dataclass(frozen=True)
class DisjointSum(Gate[Shared]):
    """A sum of disjoint products of one opened word, in arithmetic shares modulo 2^width."""

    takes = (MaskedBits,)
    terms: Terms
    width: int

    def result(self, x: MaskedBits) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), self.width)

    def materials(self, x: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, len(monomials((self.terms,)))), self.width),)

    def deal(self, x: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (torch.stack(_monomial_values((self.terms,), x.mask), -1),)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        chosen = coefficients(self.terms, wires[0])
        return party * chosen[..., 0] + (chosen[..., 1:] * dealt[0]).sum(-1)

    def plain(self, x: MaskedBits) -> Tensor:
        """Compute the result on plain numbers."""
        return evaluate_plain(self.terms, x.public)


@dataclass(frozen=True)
class SignedSum(Gate[Shared]):
    """A disjoint sum XOR ρ, the top mask bit of a second wire: T multiplies every monomial by 1 − 2ρ, and deals ρ."""

    takes = (MaskedBits, (Masked, Lifted))
    terms: Terms
    width: int

    def result(self, x: MaskedBits, y: Masked | Lifted) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), self.width)

    def materials(self, x: MaskedBits, y: Masked | Lifted) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, len(monomials((self.terms,))) + 2), self.width),)

    def deal(self, x: MaskedBits, y: Masked | Lifted) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        width = y.narrow_width if isinstance(y, Lifted) else y.width
        top = shift_right(y.mask, width - 1, width)
        sign = 1 - 2 * top
        return (torch.stack([top, sign, *(sign * value for value in _monomial_values((self.terms,), x.mask))], -1),)

    def evaluate(self, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        return dealt[0][..., 0] + (coefficients(self.terms, wires[0]) * dealt[0][..., 1:]).sum(-1)

    def plain(self, x: MaskedBits, y: Masked | Lifted) -> Tensor:
        """Compute the result on plain numbers."""
        return evaluate_plain(self.terms, x.public)


def coefficients(terms: Terms, word: MaskedBits) -> Tensor:
    """Return (..., 1 + monomials): the public word's row in the table of coefficients over the integers."""
    return _coefficients(terms, (terms,), word.width, True, word.public.device)[word.public]


@dataclass(frozen=True)
class And(Gate[Bits]):
    """Bitwise AND of two wires of words: j·x̂ŷ ⊕ x̂[s] ⊕ [r]ŷ ⊕ [rs]."""

    takes = (MaskedBits, MaskedBits)

    def result(self, x: MaskedBits, y: MaskedBits) -> Form:
        """Return the form of the result."""
        return bits(tuple(torch.broadcast_shapes(x.shape, y.shape)), min(x.width, y.width))

    def materials(self, x: MaskedBits, y: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (self.result(x, y),)

    def deal(self, x: MaskedBits, y: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (x.mask & y.mask,)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, y = wires
        own = y.mask ^ y.public if party else y.mask
        return (x.public & own) ^ (x.mask & y.public) ^ dealt[0]

    def plain(self, x: MaskedBits, y: MaskedBits) -> Tensor:
        """Compute the result on plain numbers."""
        return x.public & y.public


def both(runtime: Runtime, x: MaskedBits, y: MaskedBits) -> Bits:
    """Return x AND y, bit by bit."""
    return runtime.apply(And(), x, y)


def bit_to_arithmetic(runtime: Runtime, x: MaskedBits, width: int = 64) -> Shared:
    """Return an opened bit as an arithmetic share: v = δ + (1 − 2δ)β."""
    return runtime.apply(DisjointSum(((0,),), width), x)


def side_by_side(*parts: Bits) -> Bits:
    """Concatenate words into one word, the first part in the lowest bits."""
    share, width = parts[0].share & ((1 << parts[0].width) - 1), parts[0].width
    for part in parts[1:]:
        share = share | ((part.share & ((1 << part.width) - 1)) << width)
        width += part.width
    return Bits(share, width)


def select(word: Bits, positions: Sequence[int]) -> Bits:
    """Pack the chosen bits of each word into a new word, in the order given."""
    share, width = None, 0
    for first, count in _neighbours(positions):
        part = (word.share >> first if first else word.share) & ((1 << count) - 1)
        share = part if share is None else share | (part << width)
        width += count
    assert share is not None
    return Bits(share, width)


def _neighbours(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Group consecutive positions into runs (first, length); the bits of a run are moved together."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs

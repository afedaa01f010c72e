"""Protocols over GF(2): products of opened bits, into XOR shares or straight into arithmetic shares.

A bit v is opened as δ = v ⊕ β. A product of such bits expands in the masks,

    Π_{i∈S} v_i = Σ_{T⊆S} Π_{i∈S∖T} δ_i · Π_{i∈T} β_i        over GF(2)
    Π_{i∈S} v_i = Σ_{T⊆S} Π_{i∈S∖T} δ_i · Π_{i∈T} (1−2δ_i) · Π_{i∈T} β_i        over the integers

so T shares the monomials of β and the servers combine them with coefficients that depend on the public δ alone: a table
of 2^k rows. A sum of *disjoint* products (at most one is 1) is the same over GF(2) and over the integers, so the last
level of a Boolean circuit lands directly in arithmetic shares: no separate conversion round.

Rounds 0 beside the opening of the bits; dealer: one bit (or one ring element) a monomial.
Safe: only δ is known, and β is uniform and fresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from secformer.engine.gate import Gate, Material
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Masked, MaskedBits, Shared
from secformer.ring.fixed_point import shift_right

Terms = tuple[tuple[int, ...], ...]
"""A sum of products: each term lists the bits that are multiplied."""


def bit(word: Tensor, position: int) -> Tensor:
    return (word >> position) & 1


def parity(word: Tensor) -> Tensor:
    """XOR of all 64 bits of each word."""
    for shift in (32, 16, 8, 4, 2, 1):
        word = word ^ (word >> shift)
    return word & 1


@cache
def monomials(outputs: tuple[Terms, ...]) -> tuple[tuple[int, ...], ...]:
    """Every non-empty subset of every term, each once."""
    found = {
        subset
        for terms in outputs
        for term in terms
        for size in range(1, len(term) + 1)
        for subset in combinations(term, size)
    }
    return tuple(sorted(found, key=lambda subset: (len(subset), subset)))


@cache
def _coefficients(terms: Terms, outputs: tuple[Terms, ...], bits: int, integer: bool) -> Tensor:
    """(2^bits, 1 + monomials): the constant and the coefficient of each monomial, for every public word δ."""
    names = monomials(outputs)
    column = {name: number + 1 for number, name in enumerate(names)}
    delta = [(torch.arange(1 << bits) >> position) & 1 for position in range(bits)]
    table = torch.zeros(1 << bits, 1 + len(names), dtype=torch.int64)
    for term in terms:
        for size in range(len(term) + 1):
            for subset in combinations(term, size):
                value = torch.ones(1 << bits, dtype=torch.int64)
                for position in term:
                    inside = 1 - 2 * delta[position] if integer else torch.ones_like(value)
                    value = value * (inside if position in subset else delta[position])
                table[:, column.get(subset, 0)] += value
    return table if integer else table & 1


@cache
def _coefficient_words(outputs: tuple[Terms, ...], bits: int) -> Tensor:
    """(outputs, 2^bits): GF(2) coefficients packed into words, bit 0 the constant."""
    rows = [_coefficients(terms, outputs, bits, integer=False) for terms in outputs]
    weights = torch.arange(rows[0].shape[1])
    return torch.stack([(row << weights).sum(1) for row in rows])


def _monomial_values(outputs: tuple[Terms, ...], word: Tensor) -> list[Tensor]:
    """Each monomial of the mask bits, as 0/1 tensors."""
    values = []
    for subset in monomials(outputs):
        mask = sum(1 << position for position in subset)
        values.append(((word & mask) == mask).to(torch.int64))
    return values


def evaluate_plain(terms: Terms, word: Tensor) -> Tensor:
    """The sum of products on plain bits, over the integers."""
    total = torch.zeros_like(word)
    for term in terms:
        mask = sum(1 << position for position in term)
        total = total + ((word & mask) == mask).to(torch.int64)
    return total


@dataclass(frozen=True)
class BitPolynomials(Gate):
    """Several GF(2) polynomials of one opened word; output i is bit i of the result."""

    outputs: tuple[Terms, ...]

    def materials(self, x: MaskedBits) -> tuple[Material, ...]:
        return (Material(tuple(x.shape), len(monomials(self.outputs)), boolean=True),)

    def deal(self, x: MaskedBits) -> Sequence[Tensor]:
        packed = torch.zeros_like(x.mask)
        for number, value in enumerate(_monomial_values(self.outputs, x.mask)):
            packed |= value << number
        return (packed,)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Bits:
        (x,) = wires
        known = (dealt[0] << 1) | party
        result = torch.zeros_like(known)
        if known.device.type != "meta":
            tables = _coefficient_words(self.outputs, x.width).to(known.device)
            for number, table in enumerate(tables):
                result |= parity(table[x.public] & known) << number
        return Bits(result, len(self.outputs))

    def plain(self, x: MaskedBits) -> Bits:
        result = torch.zeros_like(x.public)
        for number, terms in enumerate(self.outputs):
            result |= (evaluate_plain(terms, x.public) & 1) << number
        return Bits(result, len(self.outputs))


@dataclass(frozen=True)
class DisjointSum(Gate):
    """A sum of disjoint products of one opened word, in arithmetic shares modulo 2^width.

    With a second wire whose top mask bit is ρ, the result is the sum xor ρ: T multiplies every monomial by 1 − 2ρ.
    """

    terms: Terms
    width: int

    def materials(self, x: MaskedBits, *signed_by: Masked) -> tuple[Material, ...]:
        extra = 2 if signed_by else 0
        return (Material((*x.shape, len(monomials((self.terms,))) + extra), self.width),)

    def deal(self, x: MaskedBits, *signed_by: Masked) -> Sequence[Tensor]:
        values = _monomial_values((self.terms,), x.mask)
        if not signed_by:
            return (torch.stack(values, -1),)
        (wire,) = signed_by
        top = shift_right(wire.mask, wire.width - 1, wire.width)
        sign = 1 - 2 * top
        return (torch.stack([top, sign, *(sign * value for value in values)], -1),)

    def evaluate(self, party: int, wires: Sequence[MaskedBits | Masked], dealt: Sequence[Tensor]) -> Shared:
        x, material = wires[0], dealt[0]
        if material.device.type == "meta":
            return Shared(torch.empty_like(material[..., 0]), self.width)
        table = _coefficients(self.terms, (self.terms,), x.width, integer=True).to(material.device)
        coefficients = table[x.public]
        if len(wires) == 1:
            share = party * coefficients[..., 0] + (coefficients[..., 1:] * material).sum(-1)
        else:
            share = material[..., 0] + (coefficients * material[..., 1:]).sum(-1)
        return Shared(share, self.width)

    def plain(self, x: MaskedBits, *signed_by: Masked) -> Shared:
        return Shared(evaluate_plain(self.terms, x.public), self.width)


@dataclass(frozen=True)
class And(Gate):
    """Bitwise AND of two words of wires: j·x̂ŷ ⊕ x̂[s] ⊕ [r]ŷ ⊕ [rs]."""

    def materials(self, x: MaskedBits, y: MaskedBits) -> tuple[Material, ...]:
        shape = tuple(torch.broadcast_shapes(x.shape, y.shape))
        return (Material(shape, min(x.width, y.width), boolean=True),)

    def deal(self, x: MaskedBits, y: MaskedBits) -> Sequence[Tensor]:
        return (x.mask & y.mask,)

    def evaluate(self, party: int, wires: Sequence[MaskedBits], dealt: Sequence[Tensor]) -> Bits:
        x, y = wires
        own = y.mask ^ y.public if party else y.mask
        return Bits((x.public & own) ^ (x.mask & y.public) ^ dealt[0], min(x.width, y.width))

    def plain(self, x: MaskedBits, y: MaskedBits) -> Bits:
        return Bits(x.public & y.public, min(x.width, y.width))


def both(runtime: Runtime, x: MaskedBits, y: MaskedBits) -> Bits:
    """x and y, bit by bit."""
    return runtime.bits(And(), x, y)


def bit_to_arithmetic(runtime: Runtime, x: MaskedBits, width: int = 64) -> Shared:
    """An opened bit as an arithmetic share: v = δ + (1 − 2δ)β."""
    return runtime.shared(DisjointSum(((0,),), width), x)


def concatenate(*parts: Bits) -> Bits:
    """Words side by side in one word, the first part lowest."""
    share, width = parts[0].share & ((1 << parts[0].width) - 1), parts[0].width
    for part in parts[1:]:
        share = share | ((part.share & ((1 << part.width) - 1)) << width)
        width += part.width
    return Bits(share, width)


def select(word: Bits, positions: Sequence[int]) -> Bits:
    """Some bits of each word, packed anew in the order given."""
    share = torch.zeros_like(word.share)
    for place, position in enumerate(positions):
        share |= ((word.share >> position) & 1) << place
    return Bits(share, len(positions))

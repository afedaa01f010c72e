"""What a case computes on: plain integers, and how each kind of input is brought to the servers.

    Number      additive shares modulo 2^width, at a scale
    Wire        the same as a static wire, dealt before the run begins (a weight)
    Words       XOR shares
    WordsWire   the same as a static GF(2) wire (a table)
    OneHot      XOR shares of one-hot rows, from DPF keys

Test data is drawn with a seeded, non-cryptographic generator; shares and masks never are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.crypto import dpf
from secformer.crypto.prg import Seed, Stream
from secformer.engine.local import share_bits, share_ring
from secformer.engine.program import InputSpec
from secformer.engine.values import Bits, Masked, MaskedBits, Shared, Value
from secformer.ring.fixed_point import reduce, signed

Shape = tuple[int, ...]
Forced = Callable[[Tensor, int], Tensor]
"""S0's share for a plain tensor and its width: tests choose it so that the shares wrap."""


@dataclass(frozen=True)
class Sharing:
    """Both servers' views of an input, and T's if its mask was dealt earlier."""

    pair: tuple[Value, Value]
    dealt: Value | None = None


@dataclass(frozen=True)
class Number:
    ring: Tensor
    width: int = 64
    scale: int = 0

    @property
    def real(self) -> Tensor:
        return self.ring.to(torch.float64) * 2.0**-self.scale

    def spec(self) -> InputSpec:
        return InputSpec("shared", tuple(self.ring.shape), self.width, self.scale)

    def plain(self) -> Value:
        return Shared(signed(self.ring, self.width), self.width, self.scale)

    def share(self, forced: Forced | None = None) -> Sharing:
        if forced is None:
            return Sharing(share_ring(self.ring, self.width, self.scale))
        zero = reduce(forced(self.ring, self.width), self.width)
        one = reduce(self.ring - zero, self.width)
        return Sharing((Shared(zero, self.width, self.scale), Shared(one, self.width, self.scale)))


@dataclass(frozen=True)
class Wire(Number):
    def spec(self) -> InputSpec:
        return InputSpec("masked", tuple(self.ring.shape), self.width, self.scale)

    def plain(self) -> Value:
        return Masked(self.ring, _absent(self.ring), self.width, self.scale)

    def share(self, forced: Forced | None = None) -> Sharing:
        zero, one = _mask(self.ring, self.width, forced), _mask(self.ring, self.width)
        public = reduce(self.ring + zero + one, self.width)
        pair = tuple(Masked(public, half, self.width, self.scale) for half in (zero, one))
        dealt = Masked(_absent(self.ring), zero + one, self.width, self.scale)
        return Sharing((pair[0], pair[1]), dealt)


@dataclass(frozen=True)
class Words:
    ring: Tensor
    width: int = 1

    @property
    def real(self) -> Tensor:
        return self.ring

    def spec(self) -> InputSpec:
        return InputSpec("bits", tuple(self.ring.shape), self.width)

    def plain(self) -> Value:
        return Bits(self.ring, self.width)

    def share(self, forced: Forced | None = None) -> Sharing:
        if forced is None:
            return Sharing(share_bits(self.ring, self.width))
        zero = reduce(forced(self.ring, self.width), self.width)
        return Sharing((Bits(zero, self.width), Bits(reduce(self.ring ^ zero, self.width), self.width)))


@dataclass(frozen=True)
class WordsWire(Words):
    def spec(self) -> InputSpec:
        return InputSpec("masked_bits", tuple(self.ring.shape), self.width)

    def plain(self) -> Value:
        return MaskedBits(self.ring, _absent(self.ring), self.width)

    def share(self, forced: Forced | None = None) -> Sharing:
        zero, one = _mask(self.ring, self.width, forced), _mask(self.ring, self.width)
        public = self.ring ^ zero ^ one
        pair = tuple(MaskedBits(public, half, self.width) for half in (zero, one))
        return Sharing((pair[0], pair[1]), MaskedBits(_absent(self.ring), zero ^ one, self.width))


@dataclass(frozen=True)
class OneHot:
    """Token numbers below `domain`; a row is ceil(domain / 8) words of 8 bits."""

    tokens: Tensor
    domain: int

    @property
    def real(self) -> Tensor:
        return self.tokens

    def spec(self) -> InputSpec:
        return InputSpec("bits", (len(self.tokens), -(-self.domain // 8)), 8)

    def plain(self) -> Value:
        rows = torch.zeros(self.spec().shape, dtype=torch.int64)
        bit = torch.ones_like(self.tokens) << (self.tokens % 8)
        return Bits(rows.scatter_(1, (self.tokens // 8).unsqueeze(1), bit.unsqueeze(1)), 8)

    def share(self, forced: Forced | None = None) -> Sharing:
        if forced is not None:
            plain = self.plain()
            assert isinstance(plain, Bits)
            return Words(plain.share, 8).share(forced)
        zero, one = dpf.keygen(self.tokens, self.domain)
        rows = [dpf.evaluate(key, self.domain).to(torch.int64) for key in (zero, one)]
        return Sharing((Bits(rows[0], 8), Bits(rows[1], 8)))


Secret = Number | Wire | Words | WordsWire | OneHot


def _absent(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.int64, device="meta")


def _mask(like: Tensor, width: int, forced: Forced | None = None) -> Tensor:
    if forced is not None:
        return reduce(forced(like, width), width)
    return Stream(Seed.from_os(), os.urandom(16), "local", "mask").draw(0, tuple(like.shape), width)


def integers(seed: int, shape: Shape, low: int, high: int) -> Tensor:
    """Uniform in [low, high], with the corners of the range in the first places."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(low, high + 1, shape, generator=generator)
    corners = [corner for corner in (low, high, 0, -1, 1) if low <= corner <= high]
    flat = values.view(-1)
    for place, corner in enumerate(corners[: flat.numel()]):
        flat[place] = corner
    return values

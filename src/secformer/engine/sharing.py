"""A plain tensor in its form, split between two servers, and put together again.

The provider's weights, a client's inputs, a test's and a benchmark's: all are `Encoded` before they are shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, single_draw
from secformer.engine.form import Form, Kind
from secformer.engine.values import Bits, Disclosed, Share, Shared, Value, share_of, wire_of
from secformer.errors import ShapeError
from secformer.ring.fixed_point import decode, encode, reduce, signed

Forced = Callable[[Tensor, int], Tensor]
"""S0's share for a plain tensor and its width: tests choose it so that the shares wrap."""


@dataclass(frozen=True, repr=False)
class Encoded:
    """Ring elements at the form's scale, or words of bits. Secret, all but the form."""

    form: Form
    ring: Tensor

    def __post_init__(self) -> None:
        if tuple(self.ring.shape) != self.form.shape:
            raise ShapeError(f"a tensor of shape {tuple(self.ring.shape)} does not have the form {self.form}")

    def __repr__(self) -> str:
        return f"Encoded({self.form})"

    @classmethod
    def numbers(cls, real: Tensor, scale: int, width: int = 64, kind: Kind = "shared") -> Encoded:
        """Real numbers, rounded; they must fit the ring."""
        return cls.ring_elements(encode(real, scale, width), scale, width, kind)

    @classmethod
    def ring_elements(cls, ring: Tensor, scale: int = 0, width: int = 64, kind: Kind = "shared") -> Encoded:
        return cls(Form(kind, tuple(ring.shape), width, scale), ring)

    @property
    def real(self) -> Tensor:
        """The numbers in float64; words of bits as they are."""
        return self.ring if self.form.boolean else self.ring.to(torch.float64) * 2.0**-self.form.scale

    def plain(self, device: torch.device | str = "cpu") -> Value:
        """As simulation reads it: the whole value in the place of a share, or of a wire's public part."""
        form, ring = self.form, self.ring.to(device)
        if form.is_wire:
            return wire_of(form, ring, form.empty())
        return share_of(form, ring if form.boolean else signed(ring, form.width))


class Sharing(NamedTuple):
    """Both servers' views of a tensor, and T's if its mask was dealt earlier (a wire)."""

    pair: tuple[Value, Value]
    dealt: Value | None = None


def share(encoded: Encoded, forced: Forced | None = None) -> Sharing:
    """Two shares, one of them fresh; for a wire, the wire under a fresh mask."""
    form, ring = encoded.form, encoded.ring
    zero = fresh(form, ring.device) if forced is None else reduce(forced(ring, form.width), form.width)
    if not form.is_wire:
        one = other_half(encoded, zero)
        return Sharing((share_of(form, zero), share_of(form, one)))
    one = fresh(form, ring.device)
    mask = zero ^ one if form.boolean else zero + one
    public = reduce(ring ^ mask if form.boolean else ring + mask, form.width)
    return Sharing((wire_of(form, public, zero), wire_of(form, public, one)), wire_of(form, form.empty(), mask))


def other_half(encoded: Encoded, zero: Tensor) -> Tensor:
    """S1's share, given S0's."""
    form, ring = encoded.form, encoded.ring
    return reduce(ring ^ zero if form.boolean else ring - zero, form.width)


def fresh(form: Form, device: torch.device | str = "cpu") -> Tensor:
    """A uniform tensor of this form, from a seed that is forgotten."""
    return single_draw(Seed.from_os(), os.urandom(16), "own", "sharing", form.shape, form.width, device)


def reconstruct(zero: Value | Disclosed, one: Value | Disclosed) -> Tensor:
    """Both shares together, float64 or words of bits: only the caller, and tests, may do this."""
    first, second = _share(zero), _share(one)
    if isinstance(first, Bits):
        return reduce(first.share ^ second.share, first.width)
    return decode(first.share + second.share, first.scale, first.width)


def _share(value: Value | Disclosed) -> Share:
    held = value.value if isinstance(value, Disclosed) else value
    if not isinstance(held, Shared | Bits):
        raise TypeError(f"only shares can be reconstructed, not {type(held).__name__}")
    return held

"""The form of a tensor: all that is public about it.

One type for inputs and outputs of a program, for what is opened, for what T deals, for stored weights and for what
travels between parties: where two of them must agree, their forms are equal.
"""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from secformer.ring.packing import packed_bytes

Kind = Literal["shared", "bits", "masked", "masked_bits"]
"""The four kinds of secret of values.py."""

SHARES: tuple[Kind, ...] = ("shared", "bits")
"""What travels to and from a caller, and what T deals; wires stay with the servers."""

_WIRE: dict[Kind, Kind] = {"shared": "masked", "bits": "masked_bits", "masked": "masked", "masked_bits": "masked_bits"}
_SHARE: dict[Kind, Kind] = {"shared": "shared", "bits": "bits", "masked": "shared", "masked_bits": "bits"}


class Form(NamedTuple):
    """`shape` elements of `width` bits each; numbers have `scale` fraction bits."""

    kind: Kind
    shape: tuple[int, ...]
    width: int = 64
    scale: int = 0

    @property
    def boolean(self) -> bool:
        """Combined by xor; otherwise by addition modulo 2^width."""
        return self.kind in ("bits", "masked_bits")

    @property
    def is_wire(self) -> bool:
        return self.kind not in SHARES

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bits(self) -> int:
        return self.elements * self.width

    @property
    def packed_bytes(self) -> int:
        return packed_bytes(self.elements, self.width)

    def as_wire(self) -> Form:
        """The form this value has once it is opened."""
        return self._replace(kind=_WIRE[self.kind])

    def as_share(self) -> Form:
        return self._replace(kind=_SHARE[self.kind])

    def empty(self) -> Tensor:
        """A tensor of this shape without content."""
        return torch.empty(self.shape, dtype=torch.int64, device="meta")


def shared(shape: tuple[int, ...], width: int = 64, scale: int = 0) -> Form:
    return Form("shared", tuple(shape), width, scale)


def bits(shape: tuple[int, ...], width: int = 1) -> Form:
    return Form("bits", tuple(shape), width)


def masked(shape: tuple[int, ...], width: int = 64, scale: int = 0) -> Form:
    return Form("masked", tuple(shape), width, scale)


def masked_bits(shape: tuple[int, ...], width: int = 64) -> Form:
    return Form("masked_bits", tuple(shape), width)

"""What a protocol computes with: four kinds of value, told apart by who may know them.

    Public      every server knows it
    Shared      x = [x]_0 + [x]_1 modulo 2^width, each server holds one summand
    Masked      "a wire": both servers know x + r modulo 2^width; r is uniform, known to T, shared between the servers
    Bits        x = [x]_0 xor [x]_1, `width` bits in each word; MaskedBits is the same idea as Masked

A value carries its *scale* (fraction bits) and its *width* (it is known modulo 2^width). Tensors are int64 and hold
any representative: only the low `width` bits count. Slices, transposes and linear combinations of wires are wires:
the same map is applied to the public part and to the mask, and nothing is sent.

What the tensor fields hold depends on who reads the program (see runtime.py):

    field           S_j             T (dealing)         tracing     simulating
    Shared.share    [x]_j           meta                meta        x
    Masked.public   x + r           meta                meta        x
    Masked.mask     [r]_j           r_0 + r_1           meta        meta

Printing a value prints its type and shape, never its content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from secformer.errors import ShapeError, WidthError

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Public:
    """An integer tensor that every server knows, at a scale."""

    value: Tensor
    scale: int = 0


class _Shaped:
    """Shape and a repr that hides content, for every kind of secret."""

    __slots__ = ()
    width: int

    def _tensor(self) -> Tensor:
        raise AssertionError("every kind of value names its tensor")

    @property
    def shape(self) -> torch.Size:
        return self._tensor().shape

    @property
    def device(self) -> torch.device:
        return self._tensor().device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, width={self.width})"


def _same_scale(left: int, right: int) -> int:
    if left != right:
        raise WidthError(f"cannot add values at scales {left} and {right}: drop or raise one of them first")
    return left


@dataclass(frozen=True, slots=True, repr=False)
class Shared(_Shaped):
    """An additive share modulo 2^width."""

    share: Tensor
    width: int
    scale: int = 0

    def _tensor(self) -> Tensor:
        return self.share

    def map(self, function: TensorMap) -> Shared:
        """Apply a structural or linear map (slice, transpose, sum over a dimension)."""
        return replace(self, share=function(self.share))

    def __add__(self, other: Shared) -> Shared:
        scale = _same_scale(self.scale, other.scale)
        return Shared(self.share + other.share, min(self.width, other.width), scale)

    def __sub__(self, other: Shared) -> Shared:
        scale = _same_scale(self.scale, other.scale)
        return Shared(self.share - other.share, min(self.width, other.width), scale)

    def __neg__(self) -> Shared:
        return replace(self, share=-self.share)

    def __mul__(self, factor: int | Public) -> Shared:
        if isinstance(factor, Public):
            return replace(self, share=self.share * factor.value, scale=self.scale + factor.scale)
        return replace(self, share=self.share * factor)

    def __getitem__(self, key: Any) -> Shared:
        return replace(self, share=self.share[key])

    def narrow(self, width: int) -> Shared:
        """Forget the bits above `width`."""
        if width > self.width:
            raise WidthError(f"a value known modulo 2^{self.width} cannot be read modulo 2^{width}: lift it")
        return replace(self, width=width)

    def raise_scale(self, bits: int) -> Shared:
        """Multiply by 2^bits exactly: both scale and width grow (up to 64)."""
        return Shared(self.share << bits, min(64, self.width + bits), self.scale + bits)


@dataclass(frozen=True, slots=True, repr=False)
class Masked(_Shaped):
    """A wire: public = x + r modulo 2^width, and this reader's part of the mask r."""

    public: Tensor
    mask: Tensor
    width: int
    scale: int = 0
    sources: tuple[str, ...] = ()
    cache: dict[str, Any] | None = field(default=None, compare=False)

    def _tensor(self) -> Tensor:
        return self.public

    def map(self, function: TensorMap) -> Masked:
        """Apply the same structural or linear map to the public part and to the mask."""
        return replace(self, public=function(self.public), mask=function(self.mask), cache=None)

    def __add__(self, other: Masked) -> Masked:
        return self._combine(other, 1)

    def __sub__(self, other: Masked) -> Masked:
        return self._combine(other, -1)

    def _combine(self, other: Masked, sign: int) -> Masked:
        return Masked(
            self.public + sign * other.public,
            self.mask + sign * other.mask,
            min(self.width, other.width),
            _same_scale(self.scale, other.scale),
            merge_sources(self, other),
        )

    def __mul__(self, factor: int | Public) -> Masked:
        if isinstance(factor, Public):
            scaled = self.map(lambda tensor: tensor * factor.value.to(tensor.device))
            return replace(scaled, scale=self.scale + factor.scale)
        return self.map(lambda tensor: tensor * factor)

    def __getitem__(self, key: Any) -> Masked:
        return self.map(lambda tensor: tensor[key])

    def add_public(self, constant: Tensor | int) -> Masked:
        """x + constant: only the public part moves."""
        return replace(self, public=self.public + constant, cache=None)

    def narrow(self, width: int) -> Masked:
        if width > self.width:
            raise WidthError(f"a wire of {self.width} bits cannot be read modulo 2^{width}: lift it")
        return replace(self, width=width)

    def as_static(self) -> Masked:
        """Keep derived tables (limbs of a weight) with this wire from one query to the next."""
        return replace(self, cache={})

    def cached(self, key: str, build: Callable[[], Any]) -> Any:
        if self.cache is None:
            return build()
        if key not in self.cache:
            self.cache[key] = build()
        return self.cache[key]


@dataclass(frozen=True, slots=True, repr=False)
class Bits(_Shaped):
    """XOR shares, `width` of them in every word."""

    share: Tensor
    width: int = 1

    def _tensor(self) -> Tensor:
        return self.share

    def map(self, function: TensorMap) -> Bits:
        return replace(self, share=function(self.share))

    def __xor__(self, other: Bits) -> Bits:
        if self.width != other.width:
            raise WidthError(f"cannot xor words of {self.width} and {other.width} bits")
        return replace(self, share=self.share ^ other.share)

    def __getitem__(self, key: Any) -> Bits:
        return replace(self, share=self.share[key])


@dataclass(frozen=True, slots=True, repr=False)
class MaskedBits(_Shaped):
    """A wire over GF(2): public = x xor r, and this reader's part of r."""

    public: Tensor
    mask: Tensor
    width: int = 1
    sources: tuple[str, ...] = ()
    cache: dict[str, Any] | None = field(default=None, compare=False)

    def _tensor(self) -> Tensor:
        return self.public

    def map(self, function: TensorMap) -> MaskedBits:
        return replace(self, public=function(self.public), mask=function(self.mask), cache=None)

    def __getitem__(self, key: Any) -> MaskedBits:
        return self.map(lambda tensor: tensor[key])

    def as_static(self) -> MaskedBits:
        return replace(self, cache={})

    cached = Masked.cached


Wire = Masked | MaskedBits
Share = Shared | Bits
Value = Shared | Bits | Masked | MaskedBits


def merge_sources(*wires: Wire) -> tuple[str, ...]:
    """The openings a combination of wires draws its mask from, each once, in order."""
    return tuple(dict.fromkeys(source for wire in wires for source in wire.sources))


def on_meta(wire: Wire) -> Wire:
    """The same wire without content, for reading shapes."""
    return wire.map(lambda tensor: tensor.to("meta"))


def check_same_shape(left: _Shaped, right: _Shaped) -> None:
    if left.shape != right.shape:
        raise ShapeError(f"shapes {tuple(left.shape)} and {tuple(right.shape)} must be equal")


def as_shared(value: Value) -> Shared:
    """The value, which the program's declaration promises to be an additive share."""
    assert isinstance(value, Shared)
    return value


def as_masked(value: Value) -> Masked:
    assert isinstance(value, Masked)
    return value


def as_bits(value: Value) -> Bits:
    assert isinstance(value, Bits)
    return value


def as_masked_bits(value: Value) -> MaskedBits:
    assert isinstance(value, MaskedBits)
    return value

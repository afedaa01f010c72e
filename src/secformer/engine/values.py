"""What a protocol computes with: kinds of value, told apart by who may know them.

    Public      every server knows it
    Shared      x = [x]_0 + [x]_1 modulo 2^width, each server holds one summand
    Masked      "a wire": both servers know x + r modulo 2^width; r is uniform, known to T, shared between the servers
    Bits        x = [x]_0 xor [x]_1, `width` bits in each word; MaskedBits is the same idea as Masked
    Lifted      a narrow wire read over the integers (protocols/lift.py): its mask wraps, so no gate for wires takes it
    Rounded     a share that loses its low bits as it is opened: what `Shared.at` gives to `Runtime.open`
    Disclosed   a result that may go to the caller: what `Runtime.disclose` gives

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from secformer.engine.form import Form, Kind
from secformer.errors import InputError, WidthError

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Public:
    """An integer tensor that every server knows, at a scale."""

    value: Tensor
    scale: int = 0


class _Secret:
    """What every kind of secret has: shape, maps, and a repr that hides content."""

    __slots__ = ()
    _tensors: ClassVar[tuple[str, ...]]
    width: int

    def _tensor(self) -> Tensor:
        return getattr(self, self._tensors[0])

    def map(self, function: TensorMap) -> Self:
        """Apply a structural or linear map (slice, transpose, sum over a dimension), to a wire's mask as well."""
        changed: dict[str, Any] = {name: function(getattr(self, name)) for name in self._tensors}
        if hasattr(self, "cache"):  # what was derived from the whole does not serve a part
            changed["cache"] = None
        return replace(self, **changed)  # type: ignore[type-var]

    def __getitem__(self, key: Any) -> Self:
        return self.map(lambda tensor: tensor[key])

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
class Shared(_Secret):
    """An additive share modulo 2^width."""

    _tensors = ("share",)
    share: Tensor
    width: int
    scale: int = 0

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

    def narrow(self, width: int) -> Shared:
        """Forget the bits above `width`."""
        if width > self.width:
            raise WidthError(f"a value known modulo 2^{self.width} cannot be read modulo 2^{width}: lift it")
        return replace(self, width=width)

    def raise_scale(self, bits: int) -> Shared:
        """Multiply by 2^bits exactly: both scale and width grow (up to 64)."""
        return Shared(self.share << bits, min(64, self.width + bits), self.scale + bits)

    def rescaled(self, scale: int) -> Shared:
        """The same ring elements read at another scale: a public power of two, for nothing."""
        return replace(self, scale=scale)

    def at(self, scale: int, width: int | None = None) -> Rounded:
        """To be opened at `scale`, dropping what is finer, and modulo 2^width (by default all that is left)."""
        drop = self.scale - scale
        left = self.width - drop
        if drop < 0 or left < 1:
            raise WidthError(
                f"a value of {self.width} bits at scale {self.scale} cannot be opened at scale {scale}: "
                "its ring is exhausted, open it wider"
            )
        if width is not None and width > left:
            raise WidthError(f"a value known modulo 2^{left} cannot be read modulo 2^{width}: lift it")
        return Rounded(self, drop, left if width is None else width)


@dataclass(frozen=True, slots=True)
class Rounded:
    """`value` / 2^drop modulo 2^width, to be opened: exact up to one unit (see `Runtime.drop`)."""

    value: Shared
    drop: int
    width: int

    @property
    def form(self) -> Form:
        return Form("shared", tuple(self.value.shape), self.width, self.value.scale - self.drop)


@dataclass(frozen=True, slots=True, repr=False)
class Masked(_Secret):
    """A wire: public = x + r modulo 2^width, and this reader's part of the mask r."""

    _tensors = ("public", "mask")
    public: Tensor
    mask: Tensor
    width: int
    scale: int = 0
    cache: dict[str, Any] | None = field(default=None, compare=False)

    def __add__(self, other: Masked) -> Masked:
        return self._combine(other, 1)

    def __sub__(self, other: Masked) -> Masked:
        return self._combine(other, -1)

    def _combine(self, other: Masked, sign: int) -> Masked:
        return Masked(
            torch.add(self.public, other.public, alpha=sign),
            torch.add(self.mask, other.mask, alpha=sign),
            min(self.width, other.width),
            _same_scale(self.scale, other.scale),
        )

    def __mul__(self, factor: int) -> Masked:
        return self.map(lambda tensor: tensor * factor)

    def beside(self, other: Masked) -> Masked:
        """Both along the last dimension, at this wire's scale and width."""
        scaled = other * (1 << (_at_most(other.scale, self.scale) - other.scale))
        return Masked(
            torch.cat((self.public, scaled.public), -1),
            torch.cat((self.mask, scaled.mask), -1),
            min(self.width, other.width),
            self.scale,
        )

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


def _at_most(scale: int, limit: int) -> int:
    if scale > limit:
        raise WidthError(f"a wire at scale {scale} does not fit beside one at scale {limit}: open it coarser")
    return limit


@dataclass(frozen=True, slots=True, repr=False)
class Bits(_Secret):
    """XOR shares, `width` of them in every word."""

    _tensors = ("share",)
    share: Tensor
    width: int = 1

    def __xor__(self, other: Bits) -> Bits:
        if self.width != other.width:
            raise WidthError(f"cannot xor words of {self.width} and {other.width} bits")
        return replace(self, share=self.share ^ other.share)


@dataclass(frozen=True, slots=True, repr=False)
class MaskedBits(_Secret):
    """A wire over GF(2): public = x xor r, and this reader's part of r."""

    _tensors = ("public", "mask")
    public: Tensor
    mask: Tensor
    width: int = 1
    cache: dict[str, Any] | None = field(default=None, compare=False)

    as_static = Masked.as_static
    cached = Masked.cached


@dataclass(frozen=True, slots=True, repr=False)
class Lifted(_Secret):
    """A wire over the integers, usable modulo 2^width: public = X̂, mask as opened (narrow_width bits), carry = [κ_m]_j. Its mask
    is R = r − 2^w·m·b, which `mask` alone is not: that is why it is no `Masked`."""

    _tensors = ("public", "mask", "carry")
    public: Tensor
    mask: Tensor
    carry: Tensor
    width: int
    scale: int
    narrow_width: int

    @property
    def wrapped(self) -> Tensor:
        """m = 1 − msb(x̂)."""
        return wrap_flag(self.public, self.narrow_width)

    def integer_mask(self) -> Tensor:
        """[R]_j = [r_0 + r_1]_j − 2^w [κ_m]_j."""
        return self.mask - (self.carry << self.narrow_width)


def wrap_flag(public: Tensor, width: int) -> Tensor:
    """m = 1 − msb(x̂) of X̂ = x̂ − 2^(w−2), the public part of a lifted wire."""
    return 1 - ((public + (1 << (width - 2))) >> (width - 1))


def joined(parts: Sequence[Shared], dimension: int) -> Shared:
    """Shares of one form, one after the other along a dimension."""
    if len(parts) == 1:
        return parts[0]
    return replace(parts[0], share=torch.cat([part.share for part in parts], dimension))


Wire = Masked | MaskedBits | Lifted
Share = Shared | Bits
Value = Shared | Bits | Masked | MaskedBits


@dataclass(frozen=True, slots=True, repr=False)
class Disclosed(_Secret):
    """This server's new share of a result: together with the other's it tells the result and nothing else."""

    value: Share

    def _tensor(self) -> Tensor:
        return self.value.share

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.value.width


_KINDS: dict[type, Kind] = {Shared: "shared", Bits: "bits", Masked: "masked", MaskedBits: "masked_bits"}


def form_of(value: Value) -> Form:
    return Form(_KINDS[type(value)], tuple(value._tensor().shape), value.width, getattr(value, "scale", 0))


def share_of(form: Form, share: Tensor) -> Share:
    """The share of this form that a tensor holds."""
    return Bits(share, form.width) if form.boolean else Shared(share, form.width, form.scale)


def wire_of(form: Form, public: Tensor, mask: Tensor) -> Masked | MaskedBits:
    return MaskedBits(public, mask, form.width) if form.boolean else Masked(public, mask, form.width, form.scale)


Chosen = TypeVar("Chosen", Shared, Bits, Masked, MaskedBits)


def need(value: Value, kind: type[Chosen]) -> Chosen:
    """The value, which the program's declaration promises to be of this kind."""
    if type(value) is not kind:
        raise InputError(f"a {kind.__name__} is needed here, not a {type(value).__name__}")
    return value  # type: ignore[return-value]

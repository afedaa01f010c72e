"""Any function of one variable on a window, with one opening, by a masked Fourier series.

A value x is opened modulo a period P that is 2^w in ring units: δ = x + t mod P is uniform, so it hides x perfectly.
With g(x) ≈ a_0 + Σ_k a_k cos(2πk x/P) + b_k sin(2πk x/P) on the window (fit.py) and x = δ − t,

    cos k(δ−t) = cos kδ cos kt + sin kδ sin kt        sin k(δ−t) = sin kδ cos kt − cos kδ sin kt

so [g(x)] = j·a_0 + Σ_k A_k [cos kt] + B_k [sin kt] with public A_k = a_k cos kδ + b_k sin kδ and
B_k = a_k sin kδ − b_k cos kδ. T shares cos kt and sin kt at `dealt_scale`; the public factors are rounded to
`public_scale`, in integers that are the same on every machine (ring/trigonometry.py).

Balance: the rounding error of the dealt values counts times |c_k|, c_k = (a_k, b_k), that of the public factors times one.
A series read from tables (a wire of at most DIRECT_BITS) therefore moves, for each k, as many bits from the dealt values to
the public factors as make both errors alike. The sum of the two scales stays the same, and so does every cost.

Opening: 1 round, w bits each way. Dealer: 2K values of `width` bits per element. The result has scale dealt + public
and is correct modulo 2^width; the next opening drops the excess bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.engine.form import Form, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, MaskedBits, Rounded, Shared
from secformer.errors import WidthError
from secformer.protocols.blocks import blockwise, in_cache
from secformer.protocols.fit import FourierFit
from secformer.ring.fixed_point import encode, reduce
from secformer.ring.resident import entries, resident
from secformer.ring.trigonometry import DIRECT_BITS, FRACTION, cosine_sine

COEFFICIENT_SIZE = 31
"""Bits of a_k and b_k, without sign, when multiplied by a cosine of 30 fraction bits: a sum of two products fits 63 bits."""

LONG_SERIES = 1024
"""Number of terms above which a gated series handles its rows in blocks."""


@dataclass(frozen=True)
class Series(Gate[Shared]):
    """A function by its Fourier fit, on a wire whose 2^width is the period."""

    fit: FourierFit
    dealt_scale: int
    public_scale: int
    width: int

    def describe(self) -> str:
        """Describe the gate for the tape."""
        return f"{type(self).__name__}({self.fit.digest()}, {self.dealt_scale}, {self.public_scale}, {self.width})"

    def result(self, x: Masked, *_: MaskedBits) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), self.width, self.dealt_scale + self.public_scale)

    def _values(self, mask: Tensor, bits: int) -> Tensor:
        """Return (..., 2K): cos kt and sin kt of every mask t."""

        def values(mask: Tensor) -> Tensor:
            return _dealt_values(reduce(mask, bits), self.fit.terms, bits, self.dealt_scale)

        return in_cache(values, 2 * self.fit.terms, mask.reshape(-1)).reshape(*mask.shape, 2 * self.fit.terms)

    def _plain(self, x: Masked) -> Tensor:
        """Evaluate the series on plain numbers, at the result's scale."""
        scale = self.dealt_scale + self.public_scale
        if x.width <= DIRECT_BITS:
            return entries(_plain_table(self.fit, x.width, scale, x.device), reduce(x.public, x.width))
        return _plain_values(x.public, self.fit, x.width, scale)


@dataclass(frozen=True)
class Fourier(Series):
    """The function g(x)."""

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, 2 * self.fit.terms), self.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        if x.width <= DIRECT_BITS:
            table = _dealt_table(self.fit, x.width, self.dealt_scale, self.public_scale, x.mask.device)
            return (_rows(table, reduce(x.mask, x.width)),)
        return (self._values(x.mask, x.width),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        share = self._series(reduce(x.public, x.width), dealt[0], x.width)
        if party:
            share += _integer(self.fit.constant, self.dealt_scale + self.public_scale)
        return share

    def _series(self, public: Tensor, dealt: Tensor, bits: int) -> Tensor:
        """Return Σ_k A_k [cos kt] + B_k [sin kt]."""

        def add_up(public: Tensor, dealt: Tensor) -> Tensor:
            return (self._factors(public, bits) * dealt).sum(-1)

        values = dealt.shape[-1]
        return in_cache(add_up, values, public.reshape(-1), dealt.reshape(-1, values)).reshape(public.shape)

    def _factors(self, public: Tensor, bits: int) -> Tensor:
        if bits > DIRECT_BITS:
            return _public_values(public, self.fit, bits, self.public_scale)
        return _rows(_public_table(self.fit, bits, self.dealt_scale, self.public_scale, public.device), public)

    def plain(self, x: Masked) -> Tensor:
        """Compute the result on plain numbers."""
        return self._plain(x)


@dataclass(frozen=True)
class GatedFourier(Series):
    """The product m·g(x) for a secret bit m opened as δ = m ⊕ β, without an extra round: padding becomes exactly zero.

    T shares the series' values twice, times β and times 1 − β. The public δ selects: m = β where δ = 0, else 1 − β.
    """

    takes = (Masked, MaskedBits)

    def materials(self, x: Masked, gate: MaskedBits) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, 2, 2 * self.fit.terms + 1), self.width),)

    def deal(self, x: Masked, gate: MaskedBits) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        series = self._values(x.mask, x.width)
        one = torch.full_like(series[..., :1], 1 << self.dealt_scale)
        values = torch.cat((series, one), -1)
        kept = gate.mask.unsqueeze(-1) * values
        return (torch.stack((kept, values - kept), -2),)

    def evaluate(self, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, gate = wires

        def add_up(public: Tensor, bit: Tensor, dealt: Tensor) -> Tensor:
            chosen = torch.where(bit.unsqueeze(-1) == 1, dealt[..., 1, :], dealt[..., 0, :])
            factors = _public_values(reduce(public, x.width), self.fit, x.width, self.public_scale)
            share = (factors * chosen[..., :-1]).sum(-1)
            share += _integer(self.fit.constant, self.public_scale) * chosen[..., -1]
            return share

        values = dealt[0].shape[-1]
        rows = (x.public.reshape(-1), gate.public.reshape(-1), dealt[0].reshape(-1, 2, values))
        return in_cache(add_up, 2 * values, *rows).reshape(x.shape)

    def plain(self, x: Masked, gate: MaskedBits) -> Tensor:
        """Compute the result on plain numbers."""
        return self._plain(x) * gate.public


def _integer(number: float, scale: int) -> int:
    return round(number * 2.0**scale)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index] as int64. The table has narrow entries so that it stays in cache."""
    flat = table.index_select(0, index.reshape(-1))
    return flat.to(torch.int64).reshape(*index.shape, table.shape[1])


def balance(fit: FourierFit, dealt_scale: int, public_scale: int) -> tuple[int, ...]:
    """Return for each k the bits d to move from the dealt values to the public factors: 4^d nearest to 2^(dealt − public)/|c_k|.

    Exact in floating point: with |c_k|²·4^(public − dealt) = m·2^e and ½ ≤ m < 1, −d is the integer nearest to a quarter of
    log2 of that, and the ends of its interval are powers of two.
    """
    least, most = dealt_scale + 1 - FRACTION, min(dealt_scale - 1, FRACTION - public_scale)
    squares = (
        math.ldexp(a * a + b * b, 2 * (public_scale - dealt_scale)) for a, b in zip(fit.cosine, fit.sine, strict=True)
    )
    return tuple(max(least, min(most, -((math.frexp(square)[1] + 1) // 4))) if square else most for square in squares)


def _moved(fit: FourierFit, dealt_scale: int, public_scale: int) -> Tensor:
    """Return (2K,): the balance of cosines, then of sines."""
    return torch.tensor(balance(fit, dealt_scale, public_scale)).repeat(2)


def _dealt_values(mask: Tensor, terms: int, bits: int, scale: int | Tensor) -> Tensor:
    """Return (..., 2K): cos kt for k = 1..K, then sin kt, at `scale` fraction bits."""
    orders = torch.arange(1, terms + 1, device=mask.device)
    cosine, sine = cosine_sine(mask.unsqueeze(-1) * orders, bits)
    return _rounded(torch.cat((cosine, sine), -1), FRACTION - scale)


def _rounded(values: Tensor, shift: int | Tensor) -> Tensor:
    """Return values / 2^shift, rounded to the nearest integer."""
    return (values + (1 << (shift - 1))) >> shift


def _public_values(public: Tensor, fit: FourierFit, bits: int, scale: int | Tensor) -> Tensor:
    """Return (..., 2K): A_k, then B_k, at `scale` fraction bits."""
    orders = torch.arange(1, fit.terms + 1, device=public.device)
    cosine, sine = cosine_sine(public.unsqueeze(-1) * orders, bits)
    a, b, fraction = _coefficients(fit, public.device)
    return _rounded(torch.cat((a * cosine + b * sine, a * sine - b * cosine), -1), FRACTION + fraction - scale)


@resident
def _coefficients(fit: FourierFit, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Return a_k and b_k as integers, and the number of their fraction bits."""
    fraction = COEFFICIENT_SIZE - math.frexp(max(map(abs, (*fit.cosine, *fit.sine))))[1]
    a, b = ([_integer(number, fraction) for number in numbers] for numbers in (fit.cosine, fit.sine))
    return torch.tensor(a, device=device), torch.tensor(b, device=device), fraction


def _plain_values(x: Tensor, fit: FourierFit, bits: int, scale: int) -> Tensor:
    return encode(fit(x.to(torch.float64) * (fit.period / 2.0**bits)), scale)


@resident
def _plain_table(fit: FourierFit, bits: int, scale: int, device: torch.device) -> Tensor:
    return _plain_values(torch.arange(1 << bits), fit, bits, scale).to(device)


@resident
def _dealt_table(fit: FourierFit, bits: int, dealt_scale: int, public_scale: int, device: torch.device) -> Tensor:
    scale = dealt_scale - _moved(fit, dealt_scale, public_scale)
    return _dealt_values(torch.arange(1 << bits), fit.terms, bits, scale).to(device, torch.int32)


@resident
def _public_table(fit: FourierFit, bits: int, dealt_scale: int, public_scale: int, device: torch.device) -> Tensor:
    scale = public_scale + _moved(fit, dealt_scale, public_scale)
    return _public_values(torch.arange(1 << bits), fit, bits, scale).to(device, torch.int32)


def fourier(
    runtime: Runtime, x: Masked, fit: FourierFit, dealt_scale: int, public_scale: int, width: int = 64
) -> Shared:
    """Return g(x) for a wire in period units; large tensors are handled in blocks. Raise WidthError for too fine a scale."""
    if dealt_scale >= FRACTION or public_scale > FRACTION:
        raise WidthError(f"scales {dealt_scale} and {public_scale} exceed the {FRACTION} bits of the tables")
    elements = x.map(lambda tensor: tensor.reshape(-1))
    result = blockwise(runtime, Fourier(fit, dealt_scale, public_scale, width), 2 * fit.terms, elements)
    return result.map(lambda tensor: tensor.reshape(x.shape))


def gated_fourier(
    runtime: Runtime, x: Masked, gate: MaskedBits, fit: FourierFit, dealt_scale: int, public_scale: int, width: int = 64
) -> Shared:
    """Return m·g(x) elementwise, for one value per row; `gate` has the shape of x. Long series are handled in blocks of rows."""
    series = GatedFourier(fit, dealt_scale, public_scale, width)
    if fit.terms <= LONG_SERIES:
        return runtime.apply(series, x, gate)
    rows = (wire.map(lambda tensor: tensor.reshape(-1)) for wire in (x, gate))
    return blockwise(runtime, series, 4 * fit.terms, *rows).map(lambda tensor: tensor.reshape(x.shape))


def to_period(runtime: Runtime, x: Shared, fit: FourierFit, bits: int, where: Shared | None = None) -> Rounded:
    """Return x modulo the period as `bits` bits, to be opened: multiply by a public factor, then drop. Exact up to one unit."""
    runtime.expect(x, fit.low, fit.high, where)
    drop = x.width - bits
    factor = round(2.0 ** (bits + drop - x.scale) / fit.period)
    if factor < 1 << 10:
        raise WidthError(f"{x.width} bits at scale {x.scale} are too few to rescale to a period of {bits} bits")
    return Shared(x.share * factor, x.width, drop).at(0)

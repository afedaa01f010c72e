"""Fourier series of numbers too wide for a table: cosines, factors, products and sum in one Triton kernel.

The integers are those of protocols/fourier.py and ring/trigonometry.py, step by step: a coarse and a fine table, the addition
theorem, A_k and B_k rounded to the public scale. A gated series picks its row of dealt values by the public bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels import tables
from secformer.ring.kernels.launching import launch
from secformer.ring.resident import resident
from secformer.ring.trigonometry import DIRECT_BITS, FRACTION, placed

_COEFFICIENT_SIZE = 31  # protocols/fourier.py
_TERMS = 64
_MOST_ROWS, _PROGRAMS = 16, 1024
"""Rows of a program: few, until there are so many programs that the device is full. A program waits for one look-up after the
other."""


@triton.jit(do_not_specialize=("count", "terms", "bits", "low", "shift", "stride", "gated"))
def _sum(
    public, gate, dealt, coarse_cosine, coarse_sine, fine_cosine, fine_sine, cosines, sines, scalars, out,
    count, terms, bits, low, shift, stride, gated,
    FRACTION: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    one = tl.full((), 1, tl.int64)
    number = tl.load(public + row, mask=inside, other=0)
    start = row * stride
    if gated != 0:
        start += tl.load(gate + row, mask=inside, other=0) * (2 * terms + 1)
    total = tl.zeros((ROWS,), tl.int64)
    for first in range(0, terms, TERMS):
        order = first + tl.arange(0, TERMS)[None, :]
        both = inside[:, None] & (order < terms)
        angle = (number[:, None] * (order + 1)) & ((one << bits) - 1)
        high, rest = angle >> low, angle & ((one << low) - 1)
        c0, s0 = tl.load(coarse_cosine + high), tl.load(coarse_sine + high)
        c1, s1 = tl.load(fine_cosine + rest), tl.load(fine_sine + rest)
        half = one << (FRACTION - 1)
        cosine = (c0 * c1 - s0 * s1 + half) >> FRACTION
        sine = (s0 * c1 + c0 * s1 + half) >> FRACTION
        a = tl.load(cosines + order, mask=order < terms, other=0)
        b = tl.load(sines + order, mask=order < terms, other=0)
        unit = one << (shift - 1)
        place = start[:, None] + order
        total += tl.sum(((a * cosine + b * sine + unit) >> shift) * tl.load(dealt + place, mask=both, other=0), axis=1)
        place += terms
        total += tl.sum(((a * sine - b * cosine + unit) >> shift) * tl.load(dealt + place, mask=both, other=0), axis=1)
    if gated != 0:
        total += tl.load(scalars + 1) * tl.load(dealt + start + 2 * terms, mask=inside, other=0)
    else:
        total += tl.load(scalars)
    tl.store(out + row, total, mask=inside)


@resident
def _coefficients(gate: Any, party: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    """a_k, b_k; the constant that the party adds and the one of a gated series; by how much a product is shifted."""
    fit = gate.fit
    fraction = _COEFFICIENT_SIZE - math.frexp(max(map(abs, (*fit.cosine, *fit.sine))))[1]
    a, b = (torch.tensor([_integer(number, fraction) for number in numbers]) for numbers in (fit.cosine, fit.sine))
    own = party * _integer(fit.constant, gate.dealt_scale + gate.public_scale)
    scalars = torch.tensor([own, _integer(fit.constant, gate.public_scale)])
    return a.to(device), b.to(device), scalars.to(device), FRACTION + fraction - gate.public_scale


def _integer(number: float, scale: int) -> int:
    return round(number * 2.0**scale)


def evaluate_fourier(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    if wires[0].width <= tables.LARGEST:
        return tables.evaluate_rows(gate, party, wires, dealt)
    return _summed(gate, party, wires[0], None, dealt[0])


def evaluate_gated(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    x, bit = wires
    if x.width <= DIRECT_BITS:
        return gate.evaluate(party, wires, dealt)
    return _summed(gate, party, x, bit.public.contiguous(), dealt[0])


def _summed(gate: Any, party: int, x: Any, bit: Tensor | None, dealt: Tensor) -> Tensor:
    public, dealt = x.public.contiguous(), dealt.contiguous()
    low, device, terms = x.width - DIRECT_BITS + 3, public.device, gate.fit.terms
    a, b, scalars, shift = _coefficients(gate, party, device)
    coarse, fine = placed(device, DIRECT_BITS - 3), placed(device, x.width, 1 << low)
    out = torch.empty_like(public)
    rows = min(_MOST_ROWS, triton.next_power_of_2(max(1, out.numel() // _PROGRAMS)))
    launch(
        _sum, triton.cdiv(out.numel(), rows), public, public if bit is None else bit, dealt, *coarse, *fine, a, b,
        scalars, out, out.numel(), terms, x.width, low, shift, dealt.numel() // out.numel(), int(bit is not None),
        FRACTION=FRACTION, ROWS=rows, TERMS=_TERMS,
    )  # fmt: skip
    return out

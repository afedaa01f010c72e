"""Cosine and sine of ring angles, in integers: the same bits on every machine.

S0 and S1 multiply their shares by public coefficients that they compute from cosines of public angles. A difference of
one unit in the last place between the two would turn the sum of the products into noise, and libraries do differ there.
So the tables are made with Python integers (a rotation at 2^-96), and everything after them is integer arithmetic.

An angle is an integer a modulo 2^bits, meaning 2π·a/2^bits; results have FRACTION fraction bits.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from secformer.ring.resident import entries

FRACTION = 30
DIRECT_BITS = 18
"""Up to here one table of all angles; above, a coarse and a fine table and the addition theorem."""

_WORKING = 96
_TWO_PI = 497805226624462170461043889244  # 2π · 2^96, rounded to the nearest integer


def _first_rotation(bits: int) -> tuple[int, int]:
    """cos and sin of 2π/2^bits at 2^-96, by Taylor series (the angle is at most π/4)."""
    angle = _TWO_PI >> bits
    one = 1 << _WORKING
    cosine, sine, term, order = one, 0, one, 0
    while term:
        order += 1
        term = (term * angle >> _WORKING) // order
        signs = (1, 1, -1, -1)[order % 4]
        if order % 2:
            sine += signs * term
        else:
            cosine += signs * term
    return cosine, sine


def _rotations(bits: int, count: int) -> tuple[list[int], list[int]]:
    """cos and sin of 2π·a/2^bits for a < count, rounded to FRACTION bits."""
    step_cosine, step_sine = _first_rotation(bits)
    cosine, sine = 1 << _WORKING, 0
    shift = _WORKING - FRACTION
    half = 1 << (shift - 1)
    cosines, sines = [], []
    for _ in range(count):
        cosines.append((cosine + half) >> shift)
        sines.append((sine + half) >> shift)
        cosine, sine = (
            (cosine * step_cosine - sine * step_sine) >> _WORKING,
            (sine * step_cosine + cosine * step_sine) >> _WORKING,
        )
    return cosines, sines


@cache
def circle(bits: int) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle modulo 2^bits, from one quarter of the circle (bits ≥ 3)."""
    quarter = 1 << (bits - 2)
    cosines, sines = _rotations(bits, quarter + 1)
    cosine = torch.tensor(cosines, dtype=torch.int64)
    sine = torch.tensor(sines, dtype=torch.int64)
    full_cosine = torch.cat((cosine[:-1], -sine[:-1], -cosine[:-1], sine[:-1]))
    full_sine = torch.cat((sine[:-1], cosine[:-1], -sine[:-1], -cosine[:-1]))
    return full_cosine, full_sine


@cache
def _fine(bits: int, count: int) -> tuple[Tensor, Tensor]:
    cosines, sines = _rotations(bits, count)
    return torch.tensor(cosines, dtype=torch.int64), torch.tensor(sines, dtype=torch.int64)


@cache
def placed(device: torch.device, bits: int, count: int | None = None) -> tuple[Tensor, Tensor]:
    """A table on a device, copied there once: all angles, or the first `count`."""
    cosine, sine = circle(bits) if count is None else _fine(bits, count)
    return cosine.to(device), sine.to(device)


def cosine_sine(angle: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π·angle/2^bits for any int64 angle, at FRACTION bits (error below 2^-29)."""
    angle = angle & ((1 << bits) - 1)
    if bits <= DIRECT_BITS:
        cosine, sine = placed(angle.device, max(bits, 3))
        index = angle << (3 - bits) if bits < 3 else angle
        return entries(cosine, index), entries(sine, index)
    low_bits = bits - DIRECT_BITS + 3
    high, low = angle >> low_bits, angle & ((1 << low_bits) - 1)
    coarse = [entries(table, high) for table in placed(angle.device, DIRECT_BITS - 3)]
    fine = [entries(table, low) for table in placed(angle.device, bits, 1 << low_bits)]
    cosine = coarse[0] * fine[0] - coarse[1] * fine[1]
    sine = coarse[1] * fine[0] + coarse[0] * fine[1]
    half = 1 << (FRACTION - 1)
    return (cosine + half) >> FRACTION, (sine + half) >> FRACTION

"""Powers of two with a fraction, in integers: the same bits on every machine (see trigonometry.py for why)."""

from __future__ import annotations

from functools import cache
from math import isqrt

import torch
from torch import Tensor

_WORKING = 96


@cache
def powers_of_two(octaves: int, step_bits: int, scale: int) -> Tensor:
    """2^(i / 2^step_bits) at `scale` fraction bits, for 0 ≤ i < octaves·2^step_bits, rounded to the nearest."""
    root = 2 << _WORKING
    for _ in range(step_bits):
        root = isqrt(root << _WORKING)
    octave_values = [_octave(root, step_bits, _WORKING - scale - octave) for octave in range(octaves)]
    return torch.tensor([value for octave in octave_values for value in octave], dtype=torch.int64)


def _octave(root: int, step_bits: int, shift: int) -> list[int]:
    """One octave, every entry rounded from the exact power: shift = working bits − scale − number of the octave."""
    values, power = [], 1 << _WORKING
    half = 1 << (shift - 1)
    for _ in range(1 << step_bits):
        values.append((power + half) >> shift)
        power = power * root >> _WORKING
    return values

"""Π_Exp: e^x ≈ (1 + x/2^n)^(2^n) by n squarings (appendix, "exponential").

    CrypTen     n = 8: 8 rounds, 1,024 bits; relative error about x²/2^9; below −256 the base is negative,
                below −512 the result explodes
    PUMA        n = 5 and zero below −14: one Π_LT and one Π_Mul more, 14 rounds, 4,352 bits

Rounding is amplified: the base carries an error of up to 2 units of 2^-16 and is raised to the power 2^n,
which alone is a relative error of up to 2^(n−15), 0.8 % for n = 8. That, and failing truncations once e^x
is large, is the paper's arithmetic.

Safe: squarings and the comparison open values under fresh masks.
"""

from __future__ import annotations

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer_lab.paper.adder import less_than
from secformer_lab.paper.beaver import multiply, shift_down, square

CRYPTEN_SQUARINGS = 8
PUMA_SQUARINGS = 5
PUMA_CLIP = -14.0


def exponential(runtime: Runtime, x: Shared, squarings: int = CRYPTEN_SQUARINGS) -> Shared:
    """(1 + x/2^n)^(2^n), n = squarings: n rounds, 128 n bits."""
    power = runtime.add(shift_down(runtime, x, squarings), 1.0)
    for _ in range(squarings):
        power = square(runtime, power)
    return power


def clipped_exponential(
    runtime: Runtime, x: Shared, clip: float = PUMA_CLIP, squarings: int = PUMA_SQUARINGS
) -> Shared:
    """The same for x ≥ clip, exactly 0 below: what the squarings gave is multiplied by the integer 0."""
    kept = runtime.add(-less_than(runtime, x, clip), 1.0)
    return multiply(runtime, exponential(runtime, x, squarings), kept)

"""Π_Div and Π_rSqrt of Table 1: Newton's method from an exponential first guess.

    1/x     y ← 2y − y²x        y_0 = 3e^(1−2x) + 0.003     CrypTen's code: 10 steps of Π_Square and Π_Mul
            y ← y(2 − xy)       y_0 = 3e^(1/2−x) + 0.003    the appendix: 10 steps of two Π_Mul
    1/√x    y ← y(3 − xy²)/2    y_0 = 2.2e^(−(x/2+0.2)) + 0.2 − x/1024
                                                            CrypTen's code: 3 steps of Π_Square and two Π_Mul

                                     rounds              bits                    Table 1 (t = 10, 3)
    1/x, CrypTen                     8 + 2t = 28         1,024 + 384t = 4,864    16 + 2t = 36, 10,368
    1/x, appendix                    8 + 2t = 28         1,024 + 512t = 6,144
    either, x of any sign            10 more             3,968 more
    1/√x                             8 + 3t = 17         1,024 + 640t = 2,944     9 + 3t = 18,  6,400

Table 1's bits do not follow from these steps; ours are counted from the tape. What to expect at 16 fraction
bits: CrypTen's 1/x is off by about x·2^-16, because y² has lost its digits for large x (4 % at 64, a third
at 200); the appendix's form keeps xy near 1 and is off by 2^-16 from 0.5 to 200. Three steps leave 1/√x
within 0.5 % from 0.1 to 64 and 16 % off at 180. Above 250 the exponential spoils the first
guess.

Safe: products of shares only.
"""

from __future__ import annotations

from typing import Literal

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer_lab.paper.adder import is_negative
from secformer_lab.paper.beaver import multiply, multiply_public, shift_down, square
from secformer_lab.paper.exponential import exponential

Variant = Literal["crypten", "paper"]
RECIPROCAL_STEPS = 10
INVERSE_SQRT_STEPS = 3


def reciprocal(
    runtime: Runtime,
    x: Shared,
    *,
    variant: Variant = "crypten",
    start: Shared | None = None,
    steps: int = RECIPROCAL_STEPS,
) -> Shared:
    """1/x for x > 0. A `start` of the caller's spares the exponential."""
    y = first_reciprocal(runtime, x, variant) if start is None else start
    step = _crypten_step if variant == "crypten" else _paper_step
    for _ in range(steps):
        y = step(runtime, x, y)
    return y


def first_reciprocal(runtime: Runtime, x: Shared, variant: Variant = "crypten") -> Shared:
    """3e^(1−2x) + 0.003, or 3e^(1/2−x) + 0.003."""
    exponent = runtime.add(-x * 2, 1.0) if variant == "crypten" else runtime.add(-x, 0.5)
    return runtime.add(exponential(runtime, exponent) * 3, 0.003)


def _crypten_step(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    return y * 2 - multiply(runtime, square(runtime, y), x)


def _paper_step(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    return multiply(runtime, y, runtime.add(-multiply(runtime, x, y), 2.0))


def signed_reciprocal(runtime: Runtime, x: Shared, *, variant: Variant = "crypten") -> Shared:
    """1/x for x of either sign: sign(x) · 1/|x|, a Π_LT and two Π_Mul more."""
    sign = runtime.add(is_negative(runtime, x) * -2, 1.0)
    return multiply(runtime, reciprocal(runtime, multiply(runtime, x, sign), variant=variant), sign)


def inverse_sqrt(runtime: Runtime, x: Shared, steps: int = INVERSE_SQRT_STEPS) -> Shared:
    """1/√x for x > 0."""
    y = first_inverse_sqrt(runtime, x)
    for _ in range(steps):
        excess = runtime.add(-multiply(runtime, x, square(runtime, y)), 3.0)
        y = shift_down(runtime, multiply(runtime, y, excess), 1)
    return y


def first_inverse_sqrt(runtime: Runtime, x: Shared) -> Shared:
    """2.2e^(−(x/2 + 0.2)) + 0.2 − x/1024."""
    decay = exponential(runtime, runtime.add(-shift_down(runtime, x, 1), -0.2))
    return runtime.add(multiply_public(runtime, decay, 2.2), 0.2) - shift_down(runtime, x, 10)

"""GeLU(x) = x/2·(1 + erf(x/√2)): the paper's systems side by side, with ours (protocols/activation.py) for comparison.

                    how                                             rounds  bits     mean error on [−5, 5]
    gelu_crypten      tanh form, tanh by exponential and reciprocal  27      6,784    .0007
    gelu_crypten_erf  Taylor series of erf, 8 terms                  35      6,272    useless beyond |x| = 3
    gelu_puma         3 comparisons, 2 polynomials                   12     11,776    .003
    gelu_quad         0.125x² + 0.25x + 0.5                           1        128    another function
    gelu_secformer    2 comparisons, 7-term Fourier series of erf    11      7,466    .005
    (activate_one)    one opening modulo the period                   1         36    6e-5

Bits are both directions, an element. These compute at 16 fraction bits modulo 2^64 with local
truncation (beaver.py); thresholds that are tested together share their rounds. What the public scripts open
instead is in published.py.

**SecFormer** (section "Protocol for GeLU", algorithm Π_GeLU). With u = x/√2,

    1   c_0 = [u < −1.7],  c_1 = [u < 1.7]
    2   f(u) = Σ_k β_k sin(kπu/10), k = 1..7        one opening of 21 bits (sine.py), period 20
    3   erf ≈ −c_0 + (c_1 − c_0)·f + (1 − c_1)
    4   y = x/2·(1 + erf)

The listing in the paper has the thresholds on x, other signs, and a polynomial in place of the series: with
those the accuracy table cannot be met. Its 7,210 bits count one of the two products. β_7 is 0.118092
(0.118029 is misprinted).

**PUMA**: 0 below −4, F_0 to −1.95, F_1 to 3, x above. A polynomial is multiplied by the 0 or 1 of its
segment, an integer, so that what it does elsewhere does not matter.

**CrypTen's erf** raises to odd powers p ≥ 5 as (x³)^((p−1)/2), which is x^(3(p−1)/2): its sum is no Taylor
series beyond the second term. With its rounding of the coefficients (towards zero) and its wrapping products
this reproduces the paper's accuracy table, blow-up included. It is here for that table.

Safe: products and comparisons of shares; the sine opens under masks uniform on exactly the period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from secformer.engine.runtime import Runtime
from secformer.engine.values import Public, Shared
from secformer.ring.resident import numbers
from secformer_lab.paper.adder import less_than
from secformer_lab.paper.beaver import (
    FRACTION_BITS,
    divide_public,
    multiply,
    multiply_public,
    multiply_together,
    settle,
    shift_down,
    square,
)
from secformer_lab.paper.sigmoid import tanh_crypten
from secformer_lab.paper.sine import PERIOD, sine_series

SQRT_HALF = math.sqrt(0.5)

# -- SecFormer -----------------------------------------------------------------------------------------------

SEGMENT = 1.7
FOURIER_TERMS = 7


def erf_coefficient(k: int, period: float = PERIOD) -> float:
    """β_k of erf's odd continuation with this period: 2/(kπ)·((−1)^(k+1) + exp(−(kπ/(period/2))²/4))."""
    angle = 2 * math.pi * k / period
    return 2 / (k * math.pi) * ((-1) ** (k + 1) + math.exp(-(angle**2) / 4))


ERF_SERIES = tuple(erf_coefficient(k) for k in range(1, FOURIER_TERMS + 1))


def gelu_secformer(runtime: Runtime, x: Shared) -> Shared:
    """Π_GeLU: segments at ±1.7 of x/√2 and a Fourier series between."""
    u = multiply_public(runtime, x, SQRT_HALF)
    below, inside, above = segments(runtime, u, -SEGMENT, SEGMENT)
    return join_erf(runtime, x, sine_series(runtime, u, ERF_SERIES), below, inside, above)


def join_erf(runtime: Runtime, x: Shared, middle: Shared, below: Shared, inside: Shared, above: Shared) -> Shared:
    """x/2·(1 + erf) with erf = −below + inside·middle + above."""
    ends = (above - below).raise_scale(FRACTION_BITS)
    erf = multiply(runtime, inside, middle) + ends
    return multiply(runtime, shift_down(runtime, x, 1), runtime.add(erf, 1.0))


def segments(runtime: Runtime, x: Shared, *thresholds: float) -> tuple[Shared, ...]:
    """For ascending thresholds a, b, …: [x < a], [a ≤ x < b], …, [x ≥ last], at scale 0, in 8 rounds."""
    levels = torch.tensor(thresholds, dtype=torch.float64).reshape(-1, *[1] * len(x.shape))
    under = less_than(runtime, x.map(lambda tensor: tensor.unsqueeze(0)), levels)
    middle = tuple(under[number] - under[number - 1] for number in range(1, len(thresholds)))
    return under[0], *middle, runtime.add(-under[-1], 1.0)


# -- PUMA ----------------------------------------------------------------------------------------------------

PUMA_SEGMENTS = (-4.0, -1.95, 3.0)
PUMA_LEFT = {3: -0.011034134030615728, 2: -0.11807612951181953, 1: -0.42226581151983866, 0: -0.5054031199708174}
PUMA_MIDDLE = {
    6: 0.0018067462606141187,
    4: -0.037688200365904236,
    2: 0.3603292692789629,
    1: 0.5,
    0: 0.008526321541038084,
}


def gelu_puma(runtime: Runtime, x: Shared) -> Shared:
    """Segments at −4, −1.95 and 3; x², x³, x⁴ and x⁶ are shared by both polynomials."""
    _, left, middle, right = segments(runtime, x, *PUMA_SEGMENTS)
    second = square(runtime, x)
    third = multiply(runtime, second, x)
    higher = square(runtime, stack(second, third))
    powers = {1: x, 2: second, 3: third, 4: higher[0], 6: higher[1]}
    return join_segments(
        runtime,
        (left, polynomial(runtime, PUMA_LEFT, powers)),
        (middle, polynomial(runtime, PUMA_MIDDLE, powers)),
        (right, x),
    )


def polynomial(runtime: Runtime, coefficients: Mapping[int, float], powers: Mapping[int, Shared]) -> Shared:
    """Σ c_k x^k for coefficients |c_k| < 1: local. Small ones keep 16 significant bits, as in `divide_public`."""
    total = None
    for power, factor in coefficients.items():
        if power == 0:
            continue
        term = divide_public(runtime, powers[power], 1 / abs(factor))
        term = term if factor > 0 else -term
        total = term if total is None else total + term
    assert total is not None
    return runtime.add(total, coefficients.get(0, 0.0))


def join_segments(runtime: Runtime, *pairs: tuple[Shared, Shared]) -> Shared:
    """Σ segment·value, all products in one round."""
    products = multiply_together(runtime, *pairs)
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def stack(*values: Shared) -> Shared:
    return values[0].map(lambda _: torch.stack([value.share for value in values]))


# -- MPCFormer -----------------------------------------------------------------------------------------------


def gelu_quad(runtime: Runtime, x: Shared) -> Shared:
    """Quad: 0.125x² + 0.25x + 0.5 = ((x + 1)² + 3)/8. Not GeLU: the model is distilled for it."""
    return runtime.add(shift_down(runtime, square(runtime, runtime.add(x, 1.0)), 3), 0.375)


# -- CrypTen -------------------------------------------------------------------------------------------------

TANH_CUBE = 0.044715
ERF_TERMS = 8


def gelu_crypten(runtime: Runtime, x: Shared) -> Shared:
    """x/2·(1 + tanh(√(2/π)(x + 0.044715x³))), for |x| < 14: beyond, tanh's exponential leaves its range."""
    cube = multiply(runtime, square(runtime, x), x)
    inner = multiply_public(runtime, x + multiply_public(runtime, cube, TANH_CUBE), math.sqrt(2 / math.pi))
    return multiply(runtime, shift_down(runtime, x, 1), runtime.add(tanh_crypten(runtime, inner), 1.0))


def gelu_crypten_erf(runtime: Runtime, x: Shared) -> Shared:
    """x/2·(1 + erf(x/√2)) with CrypTen's erf, 2/√π·Σ_n (−1)^n x^(2n+1)/(n!(2n+1)), n = 0..8."""
    u = settle(runtime, x * _coded(runtime, SQRT_HALF))
    erf = u
    for n in range(1, ERF_TERMS + 1):
        factor = (-1) ** n / (math.factorial(n) * (2 * n + 1))
        erf = erf + settle(runtime, power(runtime, u, 2 * n + 1) * _coded(runtime, factor))
    erf = settle(runtime, erf * _coded(runtime, 2 / math.sqrt(math.pi)))
    return multiply(runtime, shift_down(runtime, x, 1), runtime.add(erf, 1.0))


def power(runtime: Runtime, x: Shared, exponent: int) -> Shared:
    """x^exponent as CrypTen computes it, wrong for odd exponents from 5 on."""
    if exponent == 1:
        return x
    squared = square(runtime, x)
    if exponent % 2 == 0:
        return power(runtime, squared, exponent // 2)
    cubed = multiply(runtime, squared, x)
    return cubed if exponent == 3 else power(runtime, cubed, exponent // 2)


def _coded(runtime: Runtime, real: float) -> Public:
    """A factor as CrypTen encodes it: towards zero."""
    return Public(numbers((int(real * 2.0**FRACTION_BITS),), runtime.device), FRACTION_BITS)

"""LayerNorm, γ·(x − x̄)/√(v + ε) + β over the last dimension, v the mean square: the paper's systems
side by side.

                          1/σ                                            rounds  bits a row
    layernorm_crypten     √v = v·Π_rSqrt(v), then Π_Div of it            59      12,160
    layernorm_puma        Π_rSqrt(v)                                     20       3,072
    layernorm_secformer   Goldschmidt on Σ(x − x̄)²/η, 11 steps           25       7,168
    (normalise.py: ours)  one opening of the variance                     4          96, and 126 an element

Besides, an element is opened three times, 384 bits, by these: for its square, for the product with
1/σ and for the one with γ, whose wire is opened once a model. Everything at 16 fraction bits modulo 2^64 with
local truncation (beaver.py).

**SecFormer** (algorithm Π_LayerNorm). With S = Σ(x − x̄)², q = (S + nε)/η and p_t → 1/√q,

    (x − x̄)/σ = (x − x̄)·p_t·√(n/η)

which the listing's (x − x̄)/η·p_t is not. Good to 1e-3 for q from 0.001 to 2.9, so η must follow the
variances: the paper's 2000 serves variances from 0.003 to 7.5 of 768 values.

**CrypTen and PUMA.** The first guess of Π_rSqrt holds for v from 0.1 to 64 (newton.py). `eta` brings other
variances there: v/η is used, and 1/√η multiplied back, a public factor. CrypTen has no inverse root in its
LayerNorm: the paper has it "sequentially invoking Π_rSqrt and Π_Div", and its Table 3 agrees.

An ε below 2^-17 is zero at 16 fraction bits. It keeps padding rows of zeros from a division by zero in the
clear; here their numerator is an exact zero and so is the result.

Safe: products of shares only.
"""

from __future__ import annotations

import math

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared
from secformer.protocols.multiply import multiply as multiply_wires
from secformer_lab.paper import goldschmidt, newton
from secformer_lab.paper.beaver import multiply, open_whole, settle, square
from secformer_lab.paper.rows import row_sum, scaled

EPSILON = 1e-12
GOLDSCHMIDT_DEFLATION = 2000.0


def layernorm_crypten(
    runtime: Runtime, x: Shared, gain: Masked | Shared, bias: Shared, epsilon: float = EPSILON, eta: float = 1.0
) -> Shared:
    """Π_rSqrt and Π_Div, for variances from 0.1·eta to 64·eta."""
    centred, variance = deflated_variance(runtime, x, epsilon, eta)
    deviation = multiply(runtime, variance, newton.inverse_sqrt(runtime, variance))
    inverse = scaled(runtime, newton.signed_reciprocal(runtime, deviation), eta**-0.5)
    return affine(runtime, multiply(runtime, centred, inverse), gain, bias)


def layernorm_puma(
    runtime: Runtime, x: Shared, gain: Masked | Shared, bias: Shared, epsilon: float = EPSILON, eta: float = 1.0
) -> Shared:
    """Π_rSqrt alone, for variances from 0.1·eta to 64·eta."""
    centred, variance = deflated_variance(runtime, x, epsilon, eta)
    inverse = scaled(runtime, newton.inverse_sqrt(runtime, variance), eta**-0.5)
    return affine(runtime, multiply(runtime, centred, inverse), gain, bias)


def layernorm_secformer(
    runtime: Runtime,
    x: Shared,
    gain: Masked | Shared,
    bias: Shared,
    epsilon: float = EPSILON,
    eta: float = GOLDSCHMIDT_DEFLATION,
    steps: int = goldschmidt.INVERSE_SQRT_STEPS,
) -> Shared:
    """Π_LayerNorm for sums of squares from 0.001·eta to 2.9·eta."""
    count = x.shape[-1]
    centred = centre(runtime, x)
    squares = runtime.add(row_sum(square(runtime, centred)), count * epsilon)
    inverse = goldschmidt.inverse_sqrt(runtime, scaled(runtime, squares, 1 / eta), steps)
    normal = multiply(runtime, centred, scaled(runtime, inverse, math.sqrt(count / eta)))
    return affine(runtime, normal, gain, bias)


def centre(runtime: Runtime, x: Shared) -> Shared:
    """x − x̄: local."""
    return x - scaled(runtime, row_sum(x), 1 / x.shape[-1])


def deflated_variance(runtime: Runtime, x: Shared, epsilon: float, eta: float) -> tuple[Shared, Shared]:
    """x − x̄, and (v + ε)/η."""
    centred = centre(runtime, x)
    variance = scaled(runtime, row_sum(square(runtime, centred)), 1 / centred.shape[-1])
    return centred, scaled(runtime, runtime.add(variance, epsilon), 1 / eta)


def affine(runtime: Runtime, normal: Shared, gain: Masked | Shared, bias: Shared) -> Shared:
    """γ·x + β: x is opened, and γ too unless it is a wire already."""
    if isinstance(gain, Shared):
        return multiply(runtime, normal, gain) + bias
    (opened,) = open_whole(runtime, normal)
    return settle(runtime, multiply_wires(runtime, opened, gain)) + bias

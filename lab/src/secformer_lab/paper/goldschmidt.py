"""Goldschmidt's method on deflated inputs: the paper's division and inverse square root.

(Section "SMPC Protocols of SecFormer", the algorithms for LayerNorm and 2Quad.)

    1/q     m = 2 − q,        p ← pm, q ← qm            q → 1, p → 1/q       for 0 < q < 2
    1/√q    m = (3 − q)/2,    p ← pm, q ← qm²           q → 1, p → 1/√q      for 0 < q < 3

Deflation by a public η (q = x/η) brings x into range, so no first guess is computed.

    1/q     t = 13 steps of one round: Π_Mul(p, m) beside Π_Mul(q, m)                   13 rounds, 6,656 bits
    1/√q    t = 11 steps of two: Π_Square(m) beside Π_Mul(p, m), then Π_Mul(q, m²)      22 rounds, 7,040 bits

as the paper's text counts them, first p and last q included. Where they hold: 1 − pq = (1 − q)^(2^t) for
the quotient, below 2^-16 for q from 0.002 to 1.998; the root is good to 1e-3 for q from 0.001 to 2.9 (at
the 2.99 that the paper prints it has reached 0.47 of its value). Outside they are wrong or diverge without
notice, so η has to follow length and range. Rounding comes on top, and is worst at both ends: at 16
fraction bits q = 0.001 is 65 units, itself 0.8 % coarse, and at 2.9 the root's first m² is 164 units, which
leaves it 0.3 % off.

A row's reciprocal is computed once and multiplied with the numerator (`divide`): iterating on the numerator
itself, as the listing reads, would cost 8.5 GB in BERT-base instead of the printed 1.8. x/η is computed by
`divide_public`: at 16 bits 1/5000 itself is one per cent off.

Safe: products of shares only.
"""

from __future__ import annotations

import torch

from secformer.engine.runtime import Runtime
from secformer.engine.values import Public, Shared
from secformer.protocols.multiply import multiply as multiply_wires
from secformer.protocols.multiply import square as square_wire
from secformer_lab.paper.beaver import (
    RING_BITS,
    divide_public,
    multiply,
    multiply_public,
    multiply_together,
    open_whole,
    settle,
    shift_down,
)

RECIPROCAL_STEPS = 13
INVERSE_SQRT_STEPS = 11


def reciprocal(runtime: Runtime, q: Shared, steps: int = RECIPROCAL_STEPS) -> Shared:
    """1/q for 0 < q < 2."""
    p = _ones(runtime, q)
    for _ in range(steps):
        m = runtime.add(-q, 2.0)
        p, q = multiply_together(runtime, (p, m), (q, m))
    return p


def divide(
    runtime: Runtime, numerator: Shared, denominator: Shared, eta: float, steps: int = RECIPROCAL_STEPS
) -> Shared:
    """numerator / denominator for 0 < denominator < 2·eta: both deflated, then (numerator/η)·(η/denominator).

    14 rounds; with one denominator a row the steps are paid once a row. numerator/η is rounded to 2^-16,
    which leaves an error of up to 2η/denominator units of 2^-16: with the paper's η = 5000 a numerator of 25
    has eight bits left. That is its listing; keep η as small as the range allows.
    """
    inverse = reciprocal(runtime, divide_public(runtime, denominator, eta), steps)
    return multiply(runtime, divide_public(runtime, numerator, eta), inverse)


def inverse_sqrt(runtime: Runtime, q: Shared, steps: int = INVERSE_SQRT_STEPS) -> Shared:
    """1/√q for 0.001 ≤ q ≤ 2.9."""
    p = _ones(runtime, q)
    for _ in range(steps):
        m = shift_down(runtime, runtime.add(-q, 3.0), 1)
        p, m_squared = _multiply_and_square(runtime, p, m)
        q = multiply(runtime, q, m_squared)
    return p


def deflated_inverse_sqrt(runtime: Runtime, x: Shared, eta: float, steps: int = INVERSE_SQRT_STEPS) -> Shared:
    """1/√x = (1/√η)·1/√(x/η) for 0.001·eta ≤ x ≤ 2.9·eta."""
    return multiply_public(runtime, inverse_sqrt(runtime, divide_public(runtime, x, eta), steps), eta**-0.5)


def _multiply_and_square(runtime: Runtime, p: Shared, m: Shared) -> tuple[Shared, Shared]:
    """pm and m² in one round; m is opened for each, as the paper's 640 bits a step have it."""
    left, right, base = open_whole(runtime, p, m, m)
    product = settle(runtime, multiply_wires(runtime, left, right))
    return product, settle(runtime, square_wire(runtime, base))


def _ones(runtime: Runtime, like: Shared) -> Shared:
    """p_0 = 1, at the scale and shape of q."""
    one = torch.full(tuple(like.shape), 1 << like.scale, dtype=torch.int64)
    return runtime.constant(Public(one, like.scale), RING_BITS)

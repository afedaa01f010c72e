"""What the paper's public scripts open: the same functions, counted as its Table 3 counts them.

The table's traffic is sent plus received by one party, 128 bits an opened element, of programs whose output
nobody looked at. These variants open what those scripts open, so that tracing them gives the table's cells
(docs/errata.md has the recipe):

    GeLU, SecFormer     7,552 bits  the sine's angle in a 64-bit word: 2 Π_LT + 128 + 2 Π_Mul
    GeLU, PUMA         12,160       x² and x³ once a polynomial: 3 Π_LT + 2·128 + 2·256 + 2·128 + 3 Π_Mul
    GeLU, CrypTen      12,160       the cell is PUMA's
    GeLU, MPCFormer       256       x·(0.125x + 0.25) + 0.5, a Π_Mul
    Softmax, SecFormer    384       Π_Square, a product with the reciprocal at full size; 7 steps a row, no η, no mask
    Softmax, MPCFormer    384       the same with Π_Div of either sign a row

The GeLUs are right, only dearer. 2Quad without η diverges for every row sum above 2 (MPCFormer: above 250):
it is here to be counted.

Safe: every opening is 64 bits under a fresh 64-bit mask. (The scripts' own sine reuses its mask, or opens x −
t unreduced.)
"""

from __future__ import annotations

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer_lab.paper import goldschmidt, newton
from secformer_lab.paper.beaver import RING_BITS, multiply, multiply_public, square
from secformer_lab.paper.gelu import (
    ERF_SERIES,
    PUMA_LEFT,
    PUMA_MIDDLE,
    PUMA_SEGMENTS,
    SEGMENT,
    SQRT_HALF,
    join_erf,
    join_segments,
    polynomial,
    segments,
)
from secformer_lab.paper.rows import row_sum
from secformer_lab.paper.sine import sine_series
from secformer_lab.paper.softmax import SHIFT

SOFTMAX_STEPS = 7


def gelu_secformer(runtime: Runtime, x: Shared) -> Shared:
    u = multiply_public(runtime, x, SQRT_HALF)
    below, inside, above = segments(runtime, u, -SEGMENT, SEGMENT)
    middle = sine_series(runtime, u, ERF_SERIES, opened_bits=RING_BITS)
    return join_erf(runtime, x, middle, below, inside, above)


def gelu_puma(runtime: Runtime, x: Shared) -> Shared:
    _, left, middle, right = segments(runtime, x, *PUMA_SEGMENTS)
    second = square(runtime, x)
    first_cubic = {1: x, 2: second, 3: multiply(runtime, second, x)}
    second_again = square(runtime, x)
    third = multiply(runtime, second_again, x)
    sextic = {1: x, 2: second_again, 4: square(runtime, second_again), 6: square(runtime, third)}
    return join_segments(
        runtime,
        (left, polynomial(runtime, PUMA_LEFT, first_cubic)),
        (middle, polynomial(runtime, PUMA_MIDDLE, sextic)),
        (right, x),
    )


def gelu_quad(runtime: Runtime, x: Shared) -> Shared:
    slope = runtime.add(multiply_public(runtime, x, 0.125), 0.25)
    return runtime.add(multiply(runtime, x, slope), 0.5)


def quad_secformer(runtime: Runtime, scores: Shared) -> Shared:
    """To be counted, not used: diverges."""
    weights = square(runtime, runtime.add(scores, SHIFT))
    return _times_row(runtime, weights, goldschmidt.reciprocal(runtime, row_sum(weights), SOFTMAX_STEPS))


def quad_mpcformer(runtime: Runtime, scores: Shared) -> Shared:
    """To be counted, not used: diverges."""
    weights = square(runtime, runtime.add(scores, SHIFT))
    return _times_row(runtime, weights, newton.signed_reciprocal(runtime, row_sum(weights)))


def _times_row(runtime: Runtime, weights: Shared, factor: Shared) -> Shared:
    """Both sides opened at full size, though a row has one factor."""
    return multiply(runtime, weights, factor.map(lambda tensor: tensor.expand(weights.shape).contiguous()))

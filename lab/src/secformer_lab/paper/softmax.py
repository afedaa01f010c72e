"""Softmax over the last dimension: the paper's systems side by side, with secret padding.

                      weights                                   a row's normaliser              rounds
    softmax_crypten   e^(x − max), max by a tree                Newton, 10 steps                9⌈log2 n⌉ + 38
    softmax_puma      the same, 2^5-th power, 0 below −14       Newton, 10 steps                9⌈log2 n⌉ + 44
    quad_mpcformer    (x + c)²                                  Newton, 10 steps, deflated      31
    relu2_mpcformer   max(x, 0)                                 Newton, 10 steps                39
    quad_secformer    (x + c)²                                  Goldschmidt, 13 steps, deflated 16

(Ours, from scores to output, take 7 rounds and 4: protocols/attention.py.) They compute at 16 fraction bits modulo 2^64
with local truncation (beaver.py). One round of each count is the mask's product; without a mask it is one less.

**Mask.** `key_mask` holds 1 for a token and 0 for padding, shared at scale 0, and broadcasts over the scores
(batch, 1, 1, n). It multiplies *after* squaring or exponentiation, and being the integer 0 it removes
whatever was there. Adding a large negative number before squaring would destroy the result. Only a maximum
needs help before: a bounded penalty, twice the largest score, so that padding never wins it. Every row needs
one token at least.

**2Quad** (equation "2Quad", algorithm Π_2Quad). With p = (x + c)² and η > Σp/2, y = (p/η)·(η/Σp). The row's
reciprocal is computed once: iterating on p, as the listing reads, would cost 8.5 GB in BERT-base instead of
the printed 1.8. The paper sets c = 5 and η = 5000, which holds at 128 tokens and diverges at 512: η must
follow length and range (`goldschmidt.py` says where it holds). MPCFormer divides by CrypTen's Newton, whose
first guess needs Σp/η under 200 or so; the public script does not deflate.

**The reciprocal.** CrypTen's step y ← 2y − y²x is off by about x·2^-16, a third at x = 200: long flat rows
come out wrong with `softmax_crypten`, as they do in CrypTen. The others use the appendix's step, which keeps
its digits.

Safe: products and comparisons of shares.
"""

from __future__ import annotations

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer_lab.paper import goldschmidt, newton
from secformer_lab.paper.adder import maximum, relu
from secformer_lab.paper.beaver import multiply, square
from secformer_lab.paper.exponential import clipped_exponential, exponential
from secformer_lab.paper.rows import row_sum, scaled

SHIFT = 5.0
PENALTY = 64.0
NEWTON_DEFLATION = 64.0
GOLDSCHMIDT_DEFLATION = 5000.0
RELU_EPSILON = 1e-12


def softmax_crypten(
    runtime: Runtime, scores: Shared, key_mask: Shared | None = None, penalty: float = PENALTY
) -> Shared:
    """e^(x − max)/Σ, for |scores| ≤ penalty/2 = 32."""
    weights = exponential(runtime, _below_maximum(runtime, scores, key_mask, penalty))
    weights = masked(runtime, weights, key_mask)
    return multiply(runtime, weights, newton.reciprocal(runtime, row_sum(weights)))


def softmax_puma(runtime: Runtime, scores: Shared, key_mask: Shared | None = None, penalty: float = PENALTY) -> Shared:
    """The same with e^x ≈ (1 + x/2^5)^(2^5) for x ≥ −14, exactly 0 below."""
    weights = clipped_exponential(runtime, _below_maximum(runtime, scores, key_mask, penalty))
    weights = masked(runtime, weights, key_mask)
    return multiply(runtime, weights, newton.reciprocal(runtime, row_sum(weights), variant="paper"))


def quad_mpcformer(
    runtime: Runtime,
    scores: Shared,
    key_mask: Shared | None = None,
    shift: float = SHIFT,
    eta: float = NEWTON_DEFLATION,
) -> Shared:
    """(x + c)²/Σ(x + c)² with Newton's reciprocal, for 0.01·eta ≤ Σ ≤ 200·eta."""
    weights = scaled(runtime, quad_weights(runtime, scores, key_mask, shift), 1 / eta)
    return multiply(runtime, weights, newton.reciprocal(runtime, row_sum(weights), variant="paper"))


def relu2_mpcformer(
    runtime: Runtime, scores: Shared, key_mask: Shared | None = None, epsilon: float = RELU_EPSILON
) -> Shared:
    """max(x, 0)/(Σ max(x, 0) + ε), for sums up to 200.

    At 16 fraction bits an ε under 2^-17 is zero. A row without a positive score is then 0 times what ten
    doublings of the first guess give: zeros.
    """
    weights = masked(runtime, relu(runtime, scores), key_mask)
    total = runtime.add(row_sum(weights), epsilon)
    return multiply(runtime, weights, newton.reciprocal(runtime, total, variant="paper"))


def quad_secformer(
    runtime: Runtime,
    scores: Shared,
    key_mask: Shared | None = None,
    shift: float = SHIFT,
    eta: float = GOLDSCHMIDT_DEFLATION,
    steps: int = goldschmidt.RECIPROCAL_STEPS,
) -> Shared:
    """Π_2Quad for 0.002·eta ≤ Σ(x + c)² ≤ 1.99·eta."""
    weights = quad_weights(runtime, scores, key_mask, shift)
    return goldschmidt.divide(runtime, weights, row_sum(weights), eta, steps)


def quad_weights(runtime: Runtime, scores: Shared, key_mask: Shared | None, shift: float) -> Shared:
    """(x + c)², zero for padding."""
    return masked(runtime, square(runtime, runtime.add(scores, shift)), key_mask)


def masked(runtime: Runtime, weights: Shared, key_mask: Shared | None) -> Shared:
    return weights if key_mask is None else multiply(runtime, weights, key_mask)


def _below_maximum(runtime: Runtime, scores: Shared, key_mask: Shared | None, penalty: float) -> Shared:
    """x − max over the tokens of the row; padding is lowered by `penalty` and so never the maximum."""
    if key_mask is not None:
        runtime.expect(scores, -penalty / 2, penalty / 2)
        lowered = runtime.add(scores, -penalty)
        scores = lowered + Shared(key_mask.share * round(penalty * 2.0**scores.scale), scores.width, scores.scale)
    return scores - maximum(runtime, scores)

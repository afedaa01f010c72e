"""Two local steps that the paper's row functions share: the sum of a row, and a public factor of any size."""

from __future__ import annotations

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer_lab.paper.beaver import divide_public, multiply_public


def row_sum(x: Shared) -> Shared:
    """(..., n) → (..., 1)."""
    return x.map(lambda tensor: tensor.sum(-1, keepdim=True))


def scaled(runtime: Runtime, x: Shared, factor: float) -> Shared:
    """x times a public factor > 0 with 16 significant bits: small factors as `divide_public` does it."""
    if factor == 1:
        return x
    return divide_public(runtime, x, 1 / factor) if factor < 1 else multiply_public(runtime, x, factor)

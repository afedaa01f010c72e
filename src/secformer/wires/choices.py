"""What the public constants of a model may be: few values each, because each choice tells something about the weights.

How many heads and neurons have a window *at least* as wide as some class is rounded up to a share of all: those that are
promoted get a wider window than they need. (Dummy neurons would round class sizes up as well, but they would be computed,
opened and multiplied for nothing; a promoted neuron costs the few terms its wider series has more.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

from secformer.protocols.functions import activation_named
from secformer.protocols.menu import ACTIVATION_WINDOWS, INVERSE_SQRT_RATIOS, RECIPROCAL_RATIOS, TANH_WINDOWS

WINDOW_BITS = (6, 7, 8, 9, 10)
"""log2 of the octaves in a head's window."""

HEAD_SHARES = ((0, 1, 2, 4, 6, 8, 12), (0, 1, 2, 4, 12), (0, 1, 12), (0, 1, 12))
"""Twelfths of the heads with at least each window but the narrowest."""

NEURON_CLASSES = tuple(ACTIVATION_WINDOWS)
NEURON_SHARES = ((32, 64, 128, 192, 256), (8, 32, 64, 128, 256), (2, 16, 256), (0, 1, 256))
"""256ths of the neurons with at least each class but the narrowest."""

RESIDUAL_BITS = (5, 7, 9, 11, 13)
"""log2 of the largest centred residual, after scaling."""

STREAM_BITS = tuple(range(-3, 14))
"""The same where residuals of all layers are one stream: one factor scales it, so that each has a size of its own."""

PROJECTED_BITS = (4, 6, 8, 10)
"""log2 of the largest entry of queries, keys and values, or of a gate, where a bound of it is needed."""

VARIANCE_RATIOS = tuple(INVERSE_SQRT_RATIOS)[:-1]
OUTPUT_RATIOS = (VARIANCE_RATIOS, (*VARIANCE_RATIOS[:-1], max(INVERSE_SQRT_RATIOS)))
"""Of what comes behind a feed-forward block, and of a stream: there a few tokens of some models are a hundred times as large as
others. One menu for all of a model, so that this tells a bit and not one a layer."""

TABLE_BITS = (-1, 1, 3, 5, 7)
"""log2 of the largest sum of centred embedding rows, after scaling."""

PROJECTION_BITS = (4, 6, 8, 10)
"""log2 of the largest entry behind an embedding's projection."""

RELU_BITS = (6, 8, 10, 12)
"""log2 of the largest input of a ReLU."""

HEAD_WINDOWS = {int(high): name for name, (_, high) in ACTIVATION_WINDOWS.items() if name in ("wide", "huge", "vast")}
"""The largest input of a head's activation, either way; a tanh has windows of its own."""


def head_windows(activation: str) -> tuple[int, ...]:
    """What a head's activation may be calibrated to; "": there is none."""
    if not activation:
        return (0,)
    if activation == "tanh":
        return TANH_WINDOWS
    return RELU_BITS if activation_named(activation).rectifies else tuple(HEAD_WINDOWS)


TRANSFORM_BITS = tuple(range(-3, 13))
"""log2 of the largest centred row behind a head's activation: there is no factor to bring it to one of few sizes."""

QUAD_BITS = tuple(range(8, 24))
"""log2 of the largest row sum of 2Quad."""

QUAD_RATIOS = (25, 100, 230, 680, 1200, max(RECIPROCAL_RATIOS))


def smallest(options: Sequence[int], least: float) -> int | None:
    """The first option, in rising order, that is not below `least`."""
    return next((option for option in options if option >= least), None)


def rounded_up(needed: Sequence[int], shares: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Members of every class, the narrowest first, from how many need each."""
    total, whole, wider = sum(needed), shares[0][-1], 0
    counts: list[int] = []
    for number, options in reversed(list(enumerate(shares, 1))):
        allowed = sorted({-(-option * total // whole) for option in options})
        bound = next(option for option in allowed if option >= max(wider, sum(needed[number:])))
        counts.insert(0, bound - wider)
        wider = bound
    return (total - wider, *counts)


def bits_of_counts(shares: Sequence[Sequence[int]]) -> float:
    """log2 of how many outcomes `rounded_up` has."""
    outcomes = sum(1 for choice in product(*shares) if all(a >= b for a, b in pairwise(choice)))
    return math.log2(outcomes)


def bits_of(options: Sequence[object]) -> float:
    return math.log2(len(options))

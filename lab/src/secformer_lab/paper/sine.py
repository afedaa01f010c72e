"""Π_Sin: sines of a secret with one opening, whatever their number (appendix, "Privacy-preserving sine").

With t uniform over the period and δ = x + t public,

    sin k(δ−t) = sin kδ · cos kt − cos kδ · sin kt
    [y]_j = Σ_k β_k (sin kδ [cos kt]_j − cos kδ [sin kt]_j)

T shares cos kt and sin kt for k = 1..K; the servers multiply by public numbers. (The paper opens x − t: the
same.)

The paper reduces shares modulo 20, but 20·2^16 does not divide 2^64, so wrapped shares would be reduced
wrongly in about a quarter of the cases. Rescaling mends it: u = x·2^21/20 makes the period 2^21 ring units
(20 becomes 32 at 16 fraction bits), a multiplication by a public factor and an exact drop, and u is shared
modulo 2^21. It is off by one unit of 20/2^21 < 2^-16 at the most.

1 round, 21 bits each way = the paper's 42, for any K. Dealer: 2K values of 64 bits an element.
Safe: t is fresh for every use, uniform on exactly the period and known to neither server, and δ is opened
modulo the period only, so δ is uniform whatever x is. (Reusing t, or opening x − t unreduced, leaks.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, to_period
from secformer_lab.paper.beaver import FRACTION_BITS, settle

PERIOD = 20.0
PERIOD_BITS = 21


def sine(runtime: Runtime, x: Shared, period: float = PERIOD) -> Shared:
    """sin(2πx/period); pass period = 2π for sin(x)."""
    return sine_series(runtime, x, (1.0,), period)


def sine_series(
    runtime: Runtime,
    x: Shared,
    coefficients: Sequence[float],
    period: float = PERIOD,
    opened_bits: int = PERIOD_BITS,
) -> Shared:
    """Σ_k β_k sin(2πk x/period), k = 1, 2, …, for any |x| < 2^26.

    With `opened_bits` above 21 the angle travels in a wider word under a mask as wide (published.py counts that way).
    """
    series = _series(tuple(coefficients), period)
    angle = to_period(runtime, x, series, PERIOD_BITS)
    if opened_bits > PERIOD_BITS:
        whole = runtime.drop(angle.value, angle.drop)
        (opened,) = runtime.open(replace(whole, width=opened_bits))
    else:
        (opened,) = runtime.open(angle)
    wire = opened.narrow(PERIOD_BITS)
    return settle(runtime, fourier(runtime, wire, series, FRACTION_BITS, FRACTION_BITS))


def _series(coefficients: tuple[float, ...], period: float) -> FourierFit:
    """A Fourier series without cosines; it holds everywhere, being periodic itself."""
    return FourierFit(
        low=-math.inf,
        high=math.inf,
        period=period,
        constant=0.0,
        cosine=(0.0,) * len(coefficients),
        sine=coefficients,
        max_error=0.0,
        relative=False,
        name="sine series",
    )

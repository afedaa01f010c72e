"""Sigmoid, tanh and SiLU: CrypTen's, and ours.

**CrypTen** (its method "reciprocal"). With s = 1 − 2·[x < 0], so that s·x = |x|,

    p = 1/(1 + e^(−|x|))                the exponential of exponential.py, then 3 Newton steps from y_0 = 0.75
    sigmoid(x) = [x < 0] + s·p          that is p for x ≥ 0 and 1 − p below
    tanh(x) = 2·sigmoid(2x) − 1         silu(x) = x·sigmoid(x)

    sigmoid, tanh   24 rounds, 6,144 bits       silu   25 rounds, 6,400 bits

The denominator lies in (1, 2], which is why three steps suffice. Holds for |x| < 256 (tanh: 128); beyond 512
the exponential explodes. Off by up to 3e-3, nearly all of it from the exponential.

**Ours.** One opening modulo the period of a Fourier series (activation.py): 1 round, 36 bits. The default
windows are for tests and benchmarks; a model's come from its calibration.

Safe: products of shares; one opening under a mask uniform on exactly the period.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import torch

from secformer.engine.runtime import Runtime
from secformer.engine.values import Public, Shared
from secformer.errors import SettingsError
from secformer.protocols import newton
from secformer.protocols.activation import activate_one
from secformer.protocols.adder import is_negative
from secformer.protocols.beaver import RING_BITS, multiply
from secformer.protocols.exponential import exponential
from secformer.protocols.fit import FourierFit, fit
from secformer.protocols.functions import FUNCTIONS
from secformer.ring.fixed_point import encode

FIRST_GUESS = 0.75
NEWTON_STEPS = 3


def sigmoid_crypten(runtime: Runtime, x: Shared) -> Shared:
    """1/(1 + e^(−x)), two-sided."""
    negative = is_negative(runtime, x)
    sign = runtime.add(negative * -2, 1.0)
    magnitude = multiply(runtime, x, sign)
    denominator = runtime.add(exponential(runtime, -magnitude), 1.0)
    start = _constant_like(runtime, denominator, FIRST_GUESS)
    positive = newton.reciprocal(runtime, denominator, start=start, steps=NEWTON_STEPS)
    return multiply(runtime, positive, sign) + negative.raise_scale(positive.scale)


def tanh_crypten(runtime: Runtime, x: Shared) -> Shared:
    return runtime.add(sigmoid_crypten(runtime, x * 2) * 2, -1.0)


def silu_crypten(runtime: Runtime, x: Shared) -> Shared:
    return multiply(runtime, x, sigmoid_crypten(runtime, x))


def _constant_like(runtime: Runtime, like: Shared, real: float) -> Shared:
    value = encode(torch.full(tuple(like.shape), real, dtype=torch.float64), like.scale)
    return runtime.constant(Public(value, like.scale), RING_BITS)


# -- ours ----------------------------------------------------------------------------------------------------

PERIOD_BITS = 18  # a unit is the period/2^18, 1e-4: rounded without bias, it adds 5e-5 to the mean error
DEALT_SCALE = 20
PUBLIC_SCALE = 14


class Window(NamedTuple):
    """Where a series has to hold, and the largest error it may have there."""

    low: float
    high: float
    error: float = 5e-5


WINDOWS: Mapping[str, Window] = MappingProxyType(
    {
        "gelu": Window(-10.25, 10.25),
        "gelu_new": Window(-10.25, 10.25),
        "tanh": Window(-8.0, 8.0),
        "sigmoid": Window(-16.0, 16.0),
        "silu": Window(-16.0, 16.0, 1e-4),
    }
)


@cache
def default_series(name: str) -> FourierFit:
    """The series of a function on its default window."""
    if name not in WINDOWS:
        raise SettingsError(f"no default window for '{name}'; known are {', '.join(WINDOWS)}")
    low, high, error = WINDOWS[name]
    return fit(FUNCTIONS[name], low, high, error=error, dealt_bits=DEALT_SCALE, name=name)


def by_series(runtime: Runtime, x: Shared, name: str, series: FourierFit | None = None) -> Shared:
    """Any function of WINDOWS, or any other by a `series` of the caller's: shares in, shares out, one round."""
    series = series or default_series(name)
    return activate_one(runtime, x, series, PERIOD_BITS, DEALT_SCALE, PUBLIC_SCALE)


def sigmoid_ours(runtime: Runtime, x: Shared, series: FourierFit | None = None) -> Shared:
    return by_series(runtime, x, "sigmoid", series)


def tanh_ours(runtime: Runtime, x: Shared, series: FourierFit | None = None) -> Shared:
    return by_series(runtime, x, "tanh", series)


def silu_ours(runtime: Runtime, x: Shared, series: FourierFit | None = None) -> Shared:
    return by_series(runtime, x, "silu", series)

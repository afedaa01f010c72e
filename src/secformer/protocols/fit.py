"""A Fourier fit: a function of one variable on a window as a short trigonometric series.

    g(x) ≈ a_0 + Σ_{k=1..K} a_k cos(2πk x/P) + b_k sin(2πk x/P),     low <= x <= high, P > high - low.

The dealer sends 2K values for each use. With cos, sin dealt at s1 fraction bits and public coefficients at s2, evaluation
adds an error of about 2^-s1·‖c‖ + 2^-s2·√K (3.5 standard deviations). Fits are computed offline (package `fitting`) and
shipped as numbers (menu.py), so that S0, S1 and T use the same coefficients to the last bit.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from secformer.errors import DtypeError, RangeError, ShapeError

GUARD_ERROR = 0.05
BLOCK = 1 << 21  # most cosines held at once when a series is evaluated (16 MiB)


@dataclass(frozen=True)
class FourierFit:
    """A series and the window on which it holds. `max_error` was measured on a dense grid, relative to |g| if `relative`."""

    low: float
    high: float
    period: float  # in units of x, exactly this float64
    constant: float  # a_0
    cosine: tuple[float, ...]  # a_1 .. a_K
    sine: tuple[float, ...]  # b_1 .. b_K
    max_error: float
    relative: bool
    name: str = ""
    below: float = 0.0
    above: float = 0.0
    """Distance beyond either end (`below`, `above`) within which the error stays below GUARD_ERROR, if measured: the series
    degrades slowly there."""

    def __post_init__(self) -> None:
        if len(self.cosine) != len(self.sine) or not self.cosine:
            raise ShapeError(f"a fit needs as many sines as cosines, not {len(self.sine)} and {len(self.cosine)}")
        if not (self.low < self.high and 0 < self.period < math.inf):
            raise RangeError(f"a fit needs low < high and a period, not [{self.low}, {self.high}] and {self.period}")
        if not all(map(math.isfinite, (self.constant, *self.cosine, *self.sine))):
            raise RangeError("every coefficient of a fit must be finite")

    @property
    def terms(self) -> int:
        """Number of harmonics K."""
        return len(self.cosine)

    @property
    def coefficient_norm(self) -> float:
        """√(Σ a_k² + b_k²), the factor on the rounding error of the dealt cosines and sines."""
        return math.hypot(*self.cosine, *self.sine)

    @property
    def coefficient_sum(self) -> float:
        """Σ √(a_k² + b_k²), the size of the rounding errors where each harmonic's are balanced (fourier.py)."""
        return math.fsum(map(math.hypot, self.cosine, self.sine))

    def fixed_point_error(self, dealt_bits: int, public_bits: int) -> float:
        """Estimate the absolute error of evaluation with s1 = `dealt_bits`, s2 = `public_bits`, in addition to `max_error`.

        About 3.5 standard deviations: a rounding error is uniform, with deviation 2^-s/√12, and all are independent.
        """
        return math.ldexp(self.coefficient_norm, -dealt_bits) + math.ldexp(math.sqrt(self.terms), -public_bits)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the series at x (float64, any shape and device). Raise DtypeError for another dtype."""
        if x.dtype != torch.float64:
            raise DtypeError(f"a fit is evaluated in float64, not {x.dtype}: convert the input first")
        order = torch.arange(1, self.terms + 1, dtype=torch.float64, device=x.device)
        cosine, sine = (torch.tensor(c, dtype=torch.float64, device=x.device) for c in (self.cosine, self.sine))
        turns = x.reshape(-1) / self.period
        turns = turns - torch.round(turns)
        result = torch.empty_like(turns)
        size = max(1, BLOCK // self.terms)
        for start in range(0, len(turns), size):
            angle = 2 * math.pi * turns[start : start + size, None] * order  # (block, K)
            result[start : start + size] = angle.cos() @ cosine + angle.sin() @ sine
        return (result + self.constant).reshape(x.shape)

    def digest(self) -> str:
        """Return the SHA-256 of every field, floats exactly; equal digests mean equal series."""
        text = "\n".join(_canonical(value) for value in astuple(self))
        return hashlib.sha256(b"secformer fourier fit 1\n" + text.encode()).hexdigest()


def _canonical(value: float | bool | str | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(float(v).hex() for v in value)
    return value.encode().hex() if isinstance(value, str) else float(value).hex()


def scaled(fitted: FourierFit, stretch: float, factor: float, name: str = "") -> FourierFit:
    """Return the series of factor·g(x/stretch): the same fit on a window `stretch` times as large."""
    return FourierFit(
        low=fitted.low * stretch,
        high=fitted.high * stretch,
        period=fitted.period * stretch,
        constant=fitted.constant * factor,
        cosine=tuple(number * factor for number in fitted.cosine),
        sine=tuple(number * factor for number in fitted.sine),
        max_error=fitted.max_error if fitted.relative else fitted.max_error * abs(factor),
        relative=fitted.relative,
        name=name or fitted.name,
        below=fitted.below * stretch,
        above=fitted.above * stretch,
    )

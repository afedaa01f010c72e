"""What protocols/menu.py promises, as requests to the search."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from secformer.protocols.fit import GUARD_ERROR, FourierFit
from secformer.protocols.functions import FUNCTIONS, Function, fitted_activations
from secformer.protocols.menu import ACTIVATION_WINDOWS, INVERSE_SQRT_RATIOS, RECIPROCAL_RATIOS, TANH_WINDOWS
from secformer_lab.fits.search import TERMS, fit

ROW_DEALT_BITS = 24
"""Fraction bits of dealt cosines for per-row functions; elements have 15 (activation.py)."""

LONG_RATIO, LONG_TERMS, LONG_DEALT_BITS = 8192, 3840, 20
"""From that ratio on series have thousands of terms, fewer are not tried, and they are fitted as if they were dealt coarser: the
ridge that this gives can be solved for in minutes (extension.py)."""


@dataclass(frozen=True)
class Request:
    function: Function
    low: float
    high: float
    error: float
    relative: bool
    dealt_bits: int
    guarded: bool = False
    least_terms: int = TERMS[0]

    def find(self, name: str) -> FourierFit:
        found = fit(
            self.function,
            self.low,
            self.high,
            error=self.error,
            relative=self.relative,
            max_terms=TERMS[-1],
            least_terms=self.least_terms,
            dealt_bits=self.dealt_bits,
            name=name,
        )
        return with_guard(found, self.function) if self.guarded else found


def with_guard(found: FourierFit, function: Function) -> FourierFit:
    """How far beyond its window the series is still good for something, on a grid of 2^-12 periods."""
    steps = torch.arange(1 << 10, dtype=torch.float64) * (found.period * 2.0**-12)
    below, above = (
        float(steps[_first((found(place) - function(place)).abs() > GUARD_ERROR) - 1])
        for place in (found.low - steps, found.high + steps)
    )
    return replace(found, below=below, above=above)


def _first(flags: Tensor) -> int:
    return int(flags.to(torch.int8).argmax()) if bool(flags.any()) else len(flags)


def requests() -> dict[str, Request]:
    """Every entry of the menu by name."""
    found = {}
    for activation in fitted_activations():
        found.update(activation_requests(activation.name, FUNCTIONS[activation.name]))
    for name, ratios in (("inverse_sqrt", INVERSE_SQRT_RATIOS), ("reciprocal", RECIPROCAL_RATIOS)):
        for ratio, error in ratios.items():
            found[f"{name} {ratio}"] = _row_request(FUNCTIONS[name], ratio, error)
    for limit in TANH_WINDOWS:
        found[f"tanh {limit}"] = Request(FUNCTIONS["tanh"], -float(limit), float(limit), 1e-4, False, 26)
    return found


def _row_request(function: Function, ratio: int, error: float) -> Request:
    long = ratio >= LONG_RATIO
    bits, least = (LONG_DEALT_BITS, LONG_TERMS) if long else (ROW_DEALT_BITS, TERMS[0])
    return Request(function, 1.0 / ratio, 1.0, error, True, bits, least_terms=least)


WINDOW_ERRORS = {"tight": (2e-4, 16), "narrow": (2e-4, 16), "wide": (2e-4, 16), "huge": (2e-4, 18), "vast": (5e-3, 18)}
"""Error and dealt bits by window; the narrow ones serve nearly all neurons, so theirs have few dealt bits."""


def activation_requests(name: str, function: Function) -> dict[str, Request]:
    """An activation on every window."""
    return {
        f"{name} {window}": Request(function, low, high, error, False, bits, guarded=True)
        for window, (low, high) in ACTIVATION_WINDOWS.items()
        for error, bits in (WINDOW_ERRORS[window],)
    }


def record(fitted: FourierFit) -> dict:
    """A fit as fits.json has it."""
    return asdict(fitted)

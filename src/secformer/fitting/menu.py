"""What protocols/menu.py promises, as requests to the search."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from secformer.fitting.search import fit
from secformer.protocols.fit import FourierFit
from secformer.protocols.functions import FUNCTIONS, Function, fitted_activations
from secformer.protocols.menu import ACTIVATION_WINDOWS, INVERSE_SQRT_RATIOS, RECIPROCAL_RATIOS, TANH_WINDOWS

ROW_DEALT_BITS = 24
"""Fraction bits of dealt cosines for per-row functions; elements have 15 (activation.py)."""


@dataclass(frozen=True)
class Request:
    function: Function
    low: float
    high: float
    error: float
    relative: bool
    dealt_bits: int

    def find(self, name: str) -> FourierFit:
        numbers = {key: value for key, value in self.__dict__.items() if key not in ("function", "low", "high")}
        return fit(self.function, self.low, self.high, **numbers, max_terms=2048, name=name)


def requests() -> dict[str, Request]:
    """Every entry of the menu by name."""
    found = {}
    for activation in fitted_activations():
        found.update(activation_requests(activation.name, FUNCTIONS[activation.name]))
    for name, ratios in (("inverse_sqrt", INVERSE_SQRT_RATIOS), ("reciprocal", RECIPROCAL_RATIOS)):
        for ratio, error in ratios.items():
            found[f"{name} {ratio}"] = Request(FUNCTIONS[name], 1.0 / ratio, 1.0, error, True, ROW_DEALT_BITS)
    for limit in TANH_WINDOWS:
        found[f"tanh {limit}"] = Request(FUNCTIONS["tanh"], -float(limit), float(limit), 1e-4, False, 26)
    return found


WINDOW_ERRORS = {"tight": (1e-4, 16), "narrow": (1e-4, 16), "wide": (1e-4, 16), "huge": (2e-4, 18), "vast": (5e-3, 18)}
"""Error and dealt bits by window; the narrow ones serve nearly all neurons, so theirs have few dealt bits."""


def activation_requests(name: str, function: Function) -> dict[str, Request]:
    """An activation on every window."""
    return {
        f"{name} {window}": Request(function, low, high, error, False, bits)
        for window, (low, high) in ACTIVATION_WINDOWS.items()
        for error, bits in (WINDOW_ERRORS[window],)
    }


def record(fitted: FourierFit) -> dict:
    """A fit as fits.json has it."""
    return asdict(fitted)

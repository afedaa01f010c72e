"""A menu of Fourier fits: what a calibration may choose from.

Coarse on purpose. Constants of a calibration are public and say something about the weights, so they come from few
windows; and S0, S1 and T must use the same coefficients to the last bit, so the menu's fits are shipped as numbers
(fits.json, written by `python -m secformer.protocols.menu`) instead of being computed on each machine.

1/√v and 1/v are fitted once for each *ratio* R on [1/R, 1]; any window of that ratio is a rescaled copy.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from importlib import resources

from secformer.errors import FitError
from secformer.protocols.fit import FourierFit, fit, scaled
from secformer.protocols.functions import FUNCTIONS

ACTIVATION_WINDOWS: dict[str, tuple[float, float]] = {
    "tight": (-8.0, 5.0),
    "narrow": (-10.0, 6.5),
    "wide": (-24.0, 36.0),
    "huge": (-64.0, 64.0),
}
ACTIVATIONS = ("gelu", "gelu_new", "silu")
ACTIVATION_ERROR = 1e-4
INVERSE_SQRT_RATIOS: dict[int, float] = {8: 2e-5, 32: 3e-5, 128: 1e-4, 512: 1.5e-4, 1024: 2e-4, 2048: 4e-4}
RECIPROCAL_RATIOS: dict[int, float] = {
    25: 5e-5,
    100: 1e-4,
    230: 1.4e-4,
    260: 1.5e-4,
    300: 1.6e-4,
    325: 1.7e-4,
    360: 1.8e-4,
    420: 2e-4,
    485: 2.2e-4,
    550: 2.5e-4,
    680: 3e-4,
    1200: 3.5e-4,
    1600: 4e-4,
    2240: 5e-4,
}
"""From 230 on, what attention rows of 16, 24, 32, 40, 48, 64, 80, 96, 128, 256, (352) and 512 keys need (attention.py)."""

TANH_WINDOW = 32.0
ROW_DEALT_BITS = 24
"""Fraction bits of dealt cosines for per-row functions; elements have 15 (see activation.py)."""


def _requests() -> dict[str, dict]:
    requests: dict[str, dict] = {}
    for function in ACTIVATIONS:
        for window, (low, high) in ACTIVATION_WINDOWS.items():
            few = window in ("tight", "narrow")
            requests[f"{function} {window}"] = {
                "function": function,
                "low": low,
                "high": high,
                "relative": False,
                "error": ACTIVATION_ERROR if few else 2 * ACTIVATION_ERROR,
                "dealt_bits": 16 if few else 18,
            }
    for ratio, error in INVERSE_SQRT_RATIOS.items():
        requests[f"inverse_sqrt {ratio}"] = _row_request("inverse_sqrt", ratio, error)
    for ratio, error in RECIPROCAL_RATIOS.items():
        requests[f"reciprocal {ratio}"] = _row_request("reciprocal", ratio, error)
    requests["tanh"] = {
        "function": "tanh",
        "low": -TANH_WINDOW,
        "high": TANH_WINDOW,
        "error": 1e-4,
        "relative": False,
        "dealt_bits": 26,
    }
    return requests


def _row_request(function: str, ratio: int, error: float) -> dict:
    return {
        "function": function,
        "low": 1.0 / ratio,
        "high": 1.0,
        "error": error,
        "relative": True,
        "dealt_bits": ROW_DEALT_BITS,
    }


def compute(name: str) -> FourierFit:
    """Fit one entry of the menu anew."""
    request = _requests()[name]
    return fit(
        FUNCTIONS[request["function"]],
        request["low"],
        request["high"],
        error=request["error"],
        relative=request["relative"],
        dealt_bits=request["dealt_bits"],
        max_terms=1024,
        name=name,
    )


@cache
def entry(name: str) -> FourierFit:
    """An entry of the shipped menu."""
    stored = _shipped().get(name)
    if stored is None:
        raise FitError(f"the menu of fits has no entry {name!r}: it has {', '.join(sorted(_shipped()))}")
    return FourierFit(**{**stored, "cosine": tuple(stored["cosine"]), "sine": tuple(stored["sine"])})


@cache
def _shipped() -> dict[str, dict]:
    return json.loads(resources.files("secformer.protocols").joinpath("fits.json").read_text())


def activation(function: str, window: str) -> FourierFit:
    return entry(f"{function} {window}")


def inverse_sqrt(low: float, high: float) -> FourierFit:
    """1/√v on a window that contains [low, high] and ends at `high`."""
    fitted = entry(f"inverse_sqrt {_ratio(low, high, INVERSE_SQRT_RATIOS)}")
    return scaled(fitted, high, high**-0.5)


def reciprocal(low: float, high: float) -> FourierFit:
    """1/v on a window that contains [low, high] and ends at `high`."""
    fitted = entry(f"reciprocal {_ratio(low, high, RECIPROCAL_RATIOS)}")
    return scaled(fitted, high, 1.0 / high)


def _ratio(low: float, high: float, ratios: dict[int, float]) -> int:
    for ratio in sorted(ratios):
        if high / low <= ratio * (1 + 1e-9):
            return ratio
    raise FitError(
        f"a range of {low:.3g} to {high:.3g} spans a ratio of {high / low:.0f}, the menu ends at {max(ratios)}"
    )


def write(path: str) -> None:
    """Compute the whole menu and write it."""
    fits = {name: asdict(compute(name)) for name in _requests()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fits, file, separators=(",", ":"))


if __name__ == "__main__":
    write(str(resources.files("secformer.protocols").joinpath("fits.json")))

"""The menu of Fourier fits that calibration can choose from.

It is coarse on purpose. The constants of a calibration are public and reveal something about the weights, so they come from
few windows. S0, S1 and T must use the same coefficients to the last bit, so the fits are shipped as numbers
(fits.json, written by `python -m secformer_lab.fits`) instead of being computed on each machine.

1/√v and 1/v are fitted once for each *ratio* R on [1/R, 1]; any window of that ratio is a rescaled copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources

from secformer.errors import FitError
from secformer.protocols.fit import FourierFit, scaled

ACTIVATION_WINDOWS: dict[str, tuple[float, float]] = {
    "tight": (-8.0, 6.5),
    "narrow": (-11.5, 8.5),
    "wide": (-17.0, 13.0),
    "huge": (-64.0, 64.0),
    "vast": (-256.0, 256.0),
}
INVERSE_SQRT_RATIOS: dict[int, float] = {32: 3e-5, 512: 1.5e-4, 2048: 4e-4, 16384: 5e-4}
"""Ratio → relative error. RECIPROCAL_RATIOS has the same form."""
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
"""From 230 on: the ratios of attention rows of 16, 24, 32, 40, 48, 64, 80, 96, 128, 256, (352) and 512 keys (attention.py)."""

TANH_WINDOWS = (32, 64, 128, 256)
"""Windows of a pooler's tanh. The window follows from a bound, so no value leaves it (wires/calibration.py)."""

FILE = "fits.json"

_added: dict[str, FourierFit] = {}


@cache
def _shipped() -> dict[str, FourierFit]:
    text = resources.files("secformer.protocols").joinpath(FILE).read_text()
    return {name: from_numbers(stored) for name, stored in json.loads(text).items()}


def from_numbers(stored: Mapping) -> FourierFit:
    """Return the fit stored in a JSON record."""
    return FourierFit(**{**stored, "cosine": tuple(stored["cosine"]), "sine": tuple(stored["sine"])})


def add_fits(fits: Mapping[str, FourierFit]) -> None:
    """Add fits from outside the package, for example those of your own activation ("mish tight", …)."""
    _added.update(fits)


def entry(name: str) -> FourierFit:
    """Return a fit of the menu by name. Raise FitError if there is none."""
    found = _added.get(name) or _shipped().get(name)
    if found is None:
        raise FitError(f"the menu of fits has no entry {name!r}: it has {', '.join(sorted({**_shipped(), **_added}))}")
    return found


def activation(function: str, window: str) -> FourierFit:
    """Return the fit of an activation on a named window."""
    return entry(f"{function} {window}")


@lru_cache(maxsize=256)
def inverse_sqrt(low: float, high: float) -> FourierFit:
    """Return the fit of 1/√v on a window that contains [low, high] and ends at `high`."""
    fitted = entry(f"inverse_sqrt {_ratio(low, high, INVERSE_SQRT_RATIOS)}")
    return scaled(fitted, high, high**-0.5)


@lru_cache(maxsize=256)
def reciprocal(low: float, high: float) -> FourierFit:
    """Return the fit of 1/v on a window that contains [low, high] and ends at `high`."""
    fitted = entry(f"reciprocal {_ratio(low, high, RECIPROCAL_RATIOS)}")
    return scaled(fitted, high, 1.0 / high)


def _ratio(low: float, high: float, ratios: dict[int, float]) -> int:
    for ratio in sorted(ratios):
        if high / low <= ratio * (1 + 1e-9):
            return ratio
    raise FitError(
        f"a range of {low:.3g} to {high:.3g} spans a ratio of {high / low:.0f}, the menu ends at {max(ratios)}"
    )

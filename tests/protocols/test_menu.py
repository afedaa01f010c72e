"""The shipped menu of fits: every entry keeps its promise on a grid of this file's own, in floats and in fixed point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secformer.engine.values import Masked
from secformer.errors import FitError
from secformer.protocols import menu
from secformer.protocols.activation import ActivationSetting
from secformer.protocols.attention import RowSetting
from secformer.protocols.fit import FourierFit, scaled
from secformer.protocols.fourier import COEFFICIENT_SIZE, Fourier
from secformer.protocols.functions import fitted_activations
from secformer.protocols.normalise import NormSetting
from secformer.ring.trigonometry import DIRECT_BITS, FRACTION
from secformer_lab.fits.menu import requests
from secformer_lab.fits.search import COEFFICIENT_LIMIT

REFERENCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "inverse_sqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
}
NAMES = sorted(menu._shipped())
ACTIVATIONS = [activation.name for activation in fitted_activations()]


def reference(name: str, x: np.ndarray) -> np.ndarray:
    return REFERENCES[name.split()[0]](torch.from_numpy(x)).numpy()


def series(fitted: FourierFit, x: np.ndarray) -> np.ndarray:
    """The series at x as a polynomial in exp(2πi x/P), by Horner: not the code under test."""
    coefficients = np.array(fitted.cosine) - 1j * np.array(fitted.sine)
    turn = np.exp(2j * math.pi * x / fitted.period)
    return np.polyval([*coefficients[::-1], fitted.constant], turn).real


def grid(fitted: FourierFit) -> np.ndarray:
    """Even steps, 24 to the shortest wave, and both ends; half a step off wherever the fit was made."""
    count = 20_011 + 24 * fitted.terms
    inner = fitted.low + (np.arange(count) + 0.5) / count * (fitted.high - fitted.low)
    return np.concatenate(([fitted.low], inner, [fitted.high]))


def worst(name: str, fitted: FourierFit, x: np.ndarray, y: np.ndarray) -> float:
    exact = reference(name, x)
    errors = np.abs(y - exact)
    return float((errors / np.abs(exact) if fitted.relative else errors).max())


# Every entry


def test_the_shipped_menu_is_the_requested_one():
    assert set(NAMES) == set(requests())


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_meets_its_request(name):
    request, fitted = requests()[name], menu.entry(name)
    assert (fitted.low, fitted.high, fitted.relative) == (request.low, request.high, request.relative)
    assert fitted.name == name and fitted.period > fitted.high - fitted.low
    assert fitted.max_error <= request.error
    error = worst(name, fitted, x := grid(fitted), series(fitted, x))
    assert error <= request.error and error <= 1.02 * fitted.max_error  # measured on another grid


def use(name: str) -> tuple[int, int, int]:
    """How the entry is used: bits of the opened angle, fraction bits dealt and public."""
    function = name.split()[0]
    if function in ACTIVATIONS:
        return ActivationSetting.bits, ActivationSetting.dealt_scale, ActivationSetting.public_scale
    if function == "inverse_sqrt":
        return NormSetting.variance_bits, NormSetting.dealt_scale, NormSetting.public_scale
    if function == "reciprocal":
        return RowSetting.denominator_bits, RowSetting.dealt_scale, RowSetting.public_scale
    return 22, 20, 18  # the pooler's tanh, encoder.py


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_keeps_its_promise_in_fixed_point(name):
    """Real halves, random masks: the fit's own error and the estimated rounding, nothing more."""
    fitted, (bits, dealt_scale, public_scale) = menu.entry(name), use(name)
    gate = Fourier(fitted, dealt_scale, public_scale, 64)
    generator = torch.Generator().manual_seed(1)
    places = torch.linspace(fitted.low, fitted.high, 499, dtype=torch.float64)
    if fitted.relative:  # per row: many octaves
        places = torch.logspace(math.log2(fitted.low), math.log2(fitted.high), 499, 2.0, dtype=torch.float64)
    ring = torch.round(places / fitted.period * 2.0**bits).to(torch.int64)
    mask = torch.randint(0, 1 << bits, ring.shape, generator=generator)
    public = (ring + mask) % (1 << bits)
    dealt = gate.deal(Masked(ring, mask, bits))[0]
    half = torch.randint(-(1 << 62), 1 << 62, dealt.shape, generator=generator)
    wire = Masked(public, mask, bits)
    total = gate.evaluate(0, [wire], [half]) + gate.evaluate(1, [wire], [dealt - half])
    result = total.double() * 2.0 ** -(dealt_scale + public_scale)
    exact = torch.from_numpy(reference(name, (ring.double() * fitted.period / 2.0**bits).numpy()))
    allowed = fitted.max_error * (exact.abs() if fitted.relative else 1.0)
    allowed = 1.02 * allowed + 1.5 * fitted.fixed_point_error(dealt_scale, public_scale)
    assert bool(((result - exact).abs() <= allowed).all())


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_fit_the_integers_of_fourier(name):
    fitted, (bits, dealt_scale, public_scale) = menu.entry(name), use(name)
    numbers = (fitted.constant, *fitted.cosine, *fitted.sine)
    largest = max(map(abs, numbers[1:]))
    assert largest < COEFFICIENT_LIMIT
    fraction = COEFFICIENT_SIZE - math.frexp(largest)[1]
    pairs = zip(fitted.cosine, fitted.sine, strict=True)
    assert max(math.hypot(*pair) for pair in pairs) * 2.0 ** (fraction + FRACTION) < 2.0**63  # a·cos + b·sin
    assert FRACTION + fraction - public_scale > 0
    if bits <= DIRECT_BITS:  # tables of 32 bits
        assert math.sqrt(2) * largest * 2.0**public_scale < 2.0**31 and 2.0**dealt_scale < 2.0**31
    assert abs(fitted.constant) * 2.0 ** (dealt_scale + public_scale) < 2.0**63
    assert all(math.ldexp(number, 60) == round(math.ldexp(number, 60)) for number in numbers)  # rounded, not raw floats


@pytest.mark.parametrize("name", ["gelu tight", "silu narrow", "inverse_sqrt 32", "reciprocal 25"])
def test_computing_an_entry_again_gives_the_shipped_one(name):
    found, shipped = requests()[name].find(name), menu.entry(name)
    assert (found.terms, found.period) == (shipped.terms, shipped.period)
    x = torch.linspace(shipped.low, shipped.high, 10_001, dtype=torch.float64)
    size = shipped(x).abs() if shipped.relative else torch.ones_like(x)
    assert ((found(x) - shipped(x)).abs() <= (found.max_error + shipped.max_error) * size).all()


# Windows of any size


@given(stretch=st.floats(1e-6, 1e6), factor=st.floats(1e-6, 1e6), place=st.floats(0, 1))
def test_a_scaled_fit_is_the_scaled_function(stretch, factor, place):
    fitted = menu.entry("inverse_sqrt 32")
    other = scaled(fitted, stretch, factor, "another")
    x = torch.tensor([fitted.low + place * (fitted.high - fitted.low)], dtype=torch.float64)
    torch.testing.assert_close(other(x * stretch), fitted(x) * factor, rtol=1e-9, atol=0)
    assert (other.low, other.high, other.period) == (
        fitted.low * stretch,
        fitted.high * stretch,
        fitted.period * stretch,
    )
    assert other.max_error == fitted.max_error and other.name == "another"  # relative


def test_an_absolute_error_is_scaled_too():
    fitted = menu.entry("gelu tight")
    assert scaled(fitted, 2.0, -3.0).max_error == 3 * fitted.max_error
    assert scaled(fitted, 2.0, -3.0).name == fitted.name


@pytest.mark.parametrize("function", ["inverse_sqrt", "reciprocal"])
@given(low=st.floats(1e-5, 1e4), ratio=st.floats(1.0, 2000.0))
def test_a_window_of_any_size_is_covered(function, low, ratio):
    ratios = menu.INVERSE_SQRT_RATIOS if function == "inverse_sqrt" else menu.RECIPROCAL_RATIOS
    high = low * min(ratio, max(ratios))
    fitted = getattr(menu, function)(low, high)
    assert fitted.low <= low * (1 + 1e-8) and math.isclose(fitted.high, high)
    chosen = int(fitted.name.split()[1])
    assert chosen == min(each for each in ratios if each * (1 + 1e-9) >= high / low)  # not larger than it must be
    x = np.array([low * (1 + 1e-8), math.sqrt(low * high), high])
    errors = series(fitted, x) / reference(function, x) - 1
    assert np.abs(errors).max() <= 1.05 * fitted.max_error


def test_beyond_the_menu():
    for function, ratios in ((menu.inverse_sqrt, menu.INVERSE_SQRT_RATIOS), (menu.reciprocal, menu.RECIPROCAL_RATIOS)):
        function(1.0, float(max(ratios)))
        with pytest.raises(FitError, match=f"the menu ends at {max(ratios)}"):
            function(1.0, 1.01 * max(ratios))
    with pytest.raises(FitError, match="the menu of fits has no entry 'gelu tiny'"):
        menu.activation("gelu", "tiny")


def test_windows_of_activations_are_nested():
    """A neuron in the widest window alone is in no other: classes are tried from narrow to wide."""
    windows = list(menu.ACTIVATION_WINDOWS.values())
    for inner, outer in itertools.pairwise(windows):
        assert outer[0] <= inner[0] and inner[1] <= outer[1]
    for function in ACTIVATIONS:
        terms = [menu.activation(function, window).terms for window in menu.ACTIVATION_WINDOWS]
        assert terms == sorted(terms)  # and cost more

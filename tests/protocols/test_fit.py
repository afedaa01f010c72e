"""Fits: accuracy on independent grids, coefficient sizes, refusals."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.errors import DtypeError, FitError, RangeError, ShapeError
from secformer.protocols import fit as fit_module
from secformer.protocols.fit import FourierFit
from secformer.protocols.functions import FUNCTIONS
from secformer_lab.fits.search import fit

REFERENCES = {
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "reciprocal": lambda x: 1 / x,
    "inverse_sqrt": lambda x: 1 / math.sqrt(x),
}

# function, window, relative, error, largest K, largest coefficient norm
TARGETS = [
    ("gelu", -10, 6.5, False, 7e-5, 12, 5),
    ("gelu", -20, 28, False, 1.1e-4, 31, 20),
    ("gelu", -10, 10, False, 1e-4, 14, 8),
    ("gelu_new", -10, 6.5, False, 1e-4, 12, 5),
    ("tanh", -6, 6, False, 1e-4, 13, 2),
    ("sigmoid", -10, 10, False, 1e-4, 11, 1),
    ("silu", -10, 10, False, 1e-4, 12, 8),
    ("exp", -16, 0, False, 1e-4, 8, 20),
    ("exp2", -16, 0, False, 1e-4, 7, 10),
    ("inverse_sqrt", 1, 30, True, 2e-5, 18, 200),
    ("reciprocal", 1, 30, True, 1e-5, 29, 25),
    ("reciprocal", 1, 100, True, 3e-5, 72, 25),
    ("inverse_sqrt", 1, 350, True, 1e-4, 112, 200),
]


def named(name: str, low: float, high: float, relative: bool, error: float, **more) -> FourierFit:
    return fit(FUNCTIONS[name], low, high, error=error, relative=relative, name=name, **more)


def measured(series: FourierFit, name: str, points: int = 30011) -> torch.Tensor:
    """Errors on a uniform grid plus one that crowds at `low`, neither of them the grid of the fit itself."""
    unit = torch.linspace(0, 1, points, dtype=torch.float64)
    x = series.low + (series.high - series.low) * torch.cat([unit, unit**3])
    exact = FUNCTIONS[name](x)
    errors = (series(x) - exact).abs()
    return errors / exact.abs() if series.relative else errors


def direct(series: FourierFit, x: float) -> float:
    """The series, term by term."""
    total = series.constant
    for k, (a, b) in enumerate(zip(series.cosine, series.sine, strict=True), start=1):
        angle = 2 * math.pi * k * x / series.period
        total += a * math.cos(angle) + b * math.sin(angle)
    return total


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_functions_match_references(name):
    low = 0.01 if name in ("reciprocal", "inverse_sqrt") else -20
    x = torch.linspace(low, 20, 997, dtype=torch.float64)
    expected = torch.tensor([REFERENCES[name](v) for v in x.tolist()], dtype=torch.float64)
    result = FUNCTIONS[name](x)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)


def test_every_function_is_tested():
    assert set(FUNCTIONS) == set(REFERENCES)


def test_gelu_tail_keeps_its_digits():
    x = torch.tensor([-9.0, -12.0], dtype=torch.float64)
    expected = torch.tensor([REFERENCES["gelu"](v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(FUNCTIONS["gelu"](x), expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("name", "low", "high", "relative", "error", "terms", "norm"), TARGETS)
def test_targets(name, low, high, relative, error, terms, norm):
    series = named(name, low, high, relative, error)
    worst = float(measured(series, name).max())
    assert worst <= series.max_error * 1.005 <= error * 1.005
    assert series.max_error <= worst * 1.05  # an honest figure, not a loose one
    assert series.terms <= terms
    assert series.coefficient_norm <= norm


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "high", "error", "terms"), [("inverse_sqrt", 1000, 1e-4, 288), ("reciprocal", 700, 4e-4, 288)]
)
def test_widest_windows(name, high, error, terms):
    series = named(name, 1, high, True, error)
    assert float(measured(series, name).max()) <= 1.005 * error
    assert series.terms <= terms


def test_gelu_mean_error():
    series = named("gelu", -10, 10, False, 1e-4)
    uniform = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    assert float((series(uniform) - FUNCTIONS["gelu"](uniform)).abs().mean()) <= 6e-5


def test_tiny_values_keep_relative_accuracy():
    """1/v around 1e6: the coefficients are far below 2^-20, their rounding follows."""
    series = named("reciprocal", 1e6, 3e7, True, 1e-5)
    assert series.terms <= 29
    assert float(measured(series, "reciprocal").max()) <= 1.005e-5


@settings(max_examples=15, deadline=None)
@given(center=st.floats(-30, 30), half=st.floats(1, 8))
def test_any_window(center, half):
    """Windows anywhere on the circle: every quarter turn of the node construction is met."""
    series = fit(torch.tanh, center - half, center + half, error=1e-3)
    x = torch.linspace(center - half, center + half, 4001, dtype=torch.float64)
    assert float((series(x) - torch.tanh(x)).abs().max()) <= 1.005e-3


def test_more_dealt_bits_need_fewer_terms():
    few, many = (named("inverse_sqrt", 1, 30, True, 3e-5, dealt_bits=bits) for bits in (20, 30))
    assert many.terms < few.terms
    assert many.coefficient_norm > few.coefficient_norm


def test_noise_stays_under_the_error():
    for name, low, high, relative, error, _, _ in TARGETS:
        series = named(name, low, high, relative, error)
        smallest = REFERENCES[name](high) if relative else 1  # the relative ones fall
        assert math.ldexp(series.coefficient_norm, -26) <= 1.01 * error * smallest


def test_fixed_point_error_estimate():
    """Round dealt and public numbers as the servers do: the estimate covers the result, and not by a factor of ten."""
    series = named("gelu", -10, 6.5, False, 7e-5)
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(20000, 1, generator=generator, dtype=torch.float64) * 16.5 - 10
    mask = torch.rand(20000, 1, generator=generator, dtype=torch.float64) * series.period
    order = torch.arange(1, series.terms + 1, dtype=torch.float64) * 2 * math.pi / series.period
    a, b = (torch.tensor(c, dtype=torch.float64) for c in (series.cosine, series.sine))
    opened, hidden = (x + mask) * order, mask * order

    def at_scale(v: torch.Tensor, bits: int) -> torch.Tensor:
        return torch.round(v * 2**bits) / 2**bits

    public_cosine = at_scale(a * opened.cos() + b * opened.sin(), 14)
    public_sine = at_scale(a * opened.sin() - b * opened.cos(), 14)
    result = (public_cosine * at_scale(hidden.cos(), 12) + public_sine * at_scale(hidden.sin(), 12)).sum(1)
    errors = (result + series.constant - series(x[:, 0])).abs()
    estimate = series.fixed_point_error(12, 14)
    assert float(errors.quantile(0.999)) <= estimate <= 10 * float(errors.quantile(0.999))


def test_call_matches_the_definition():
    series = FourierFit(-1.0, 2.0, 4.5, 0.25, (1.0, -0.5), (0.125, 2.0), 0.0, False)
    x = torch.tensor([[-1.0, 0.3], [1.9, 2.0]], dtype=torch.float64)
    expected = torch.tensor([[direct(series, v) for v in row] for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(series(x), expected, rtol=1e-13, atol=1e-13)
    shifted = series(x + 1000 * series.period)
    torch.testing.assert_close(shifted, expected, rtol=1e-9, atol=1e-9)


def test_call_in_blocks(monkeypatch):
    series = named("gelu", -10, 6.5, False, 7e-5)
    x = torch.linspace(-10, 6.5, 1001, dtype=torch.float64)
    whole = series(x)
    monkeypatch.setattr(fit_module, "BLOCK", 100)
    torch.testing.assert_close(series(x), whole, rtol=0, atol=1e-13)
    assert series(x[:0]).shape == (0,)


def test_call_refuses_float32():
    with pytest.raises(DtypeError, match="float64"):
        named("gelu", -10, 6.5, False, 7e-5)(torch.zeros(3))


def test_sizes():
    series = FourierFit(0.0, 1.0, 2.0, -1.0, (3.0,), (-4.0,), 0.0, False)
    assert (series.terms, series.coefficient_norm) == (1, 5.0)


def test_coefficients_are_rounded():
    series = named("gelu", -10, 6.5, False, 7e-5)
    for value in (series.constant, *series.cosine, *series.sine):
        assert math.ldexp(value, 40).is_integer()


@pytest.mark.parametrize(
    "arguments",
    [
        {"error": 1e-6, "max_terms": 8},
        {"error": 1e-9},
    ],
)
def test_impossible_fits_are_refused_with_advice(arguments):
    with pytest.raises(FitError, match=r"(narrow the window|ask for at least)"):
        fit(FUNCTIONS["gelu"], -10, 6.5, **arguments)


def test_refusal_names_what_to_relax():
    with pytest.raises(FitError) as refusal:
        fit(FUNCTIONS["reciprocal"], 1, 100, error=1e-5, relative=True, max_terms=32, dealt_bits=16, name="inverse")
    for words in ("inverse", "[1, 100]", "32 terms", "max_terms", "dealt_bits"):
        assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("low", "high", "more"),
    [
        (1, 1, {}),
        (2, 1, {}),
        (math.nan, 1, {}),
        (0, math.inf, {}),
        (0, 1, {"error": 0.0}),
        (0, 1, {"max_terms": 2}),
        (0, 1, {"dealt_bits": 50}),
    ],
)
def test_bad_requests(low, high, more):
    with pytest.raises(RangeError):
        fit(torch.tanh, low, high, **{"error": 1e-3, **more})


def test_functions_a_fit_cannot_take():
    with pytest.raises(RangeError, match="not finite"):
        fit(FUNCTIONS["reciprocal"], 0, 1, error=1e-3)
    with pytest.raises(RangeError, match="without zeros"):
        fit(torch.tanh, -1, 1, error=1e-3, relative=True)
    with pytest.raises(DtypeError):
        fit(lambda x: x.float(), -1, 1, error=1e-3)


def test_malformed_records_are_refused():
    """A fit may arrive with the settings of another party."""
    good = named("gelu", -10, 6.5, False, 7e-5)
    with pytest.raises(ShapeError):
        replace(good, sine=good.sine[1:])
    with pytest.raises(RangeError):
        replace(good, cosine=(math.nan, *good.cosine[1:]))
    with pytest.raises(RangeError):
        replace(good, period=math.inf)


def test_constant_function():
    series = fit(torch.ones_like, 0, 1, error=1e-4)
    assert abs(float(series(torch.tensor([0.5], dtype=torch.float64))) - 1) < 1e-4


def test_a_name_does_not_hide_another_function():
    tanh, sigmoid = (fit(FUNCTIONS[f], -4, 4, error=1e-3, name="same") for f in ("tanh", "sigmoid"))
    assert tanh.digest() != sigmoid.digest()


def test_digest_covers_every_field():
    base = FourierFit(-1.0, 2.0, 4.5, 0.25, (1.0, -0.5), (0.125, 2.0), 1e-3, False, "f")
    others = [
        replace(base, low=-0.5),
        replace(base, high=2.5),
        replace(base, period=math.nextafter(4.5, 5)),
        replace(base, constant=0.5),
        replace(base, cosine=(1.0, math.nextafter(-0.5, 0))),
        replace(base, sine=(2.0, 0.125)),
        replace(base, max_error=2e-3),
        replace(base, relative=True),
        replace(base, name="g"),
        replace(base, below=0.5),
        replace(base, above=0.5),
    ]
    assert len({base.digest(), *(other.digest() for other in others)}) == len(others) + 1
    assert base.digest() == replace(base).digest()
    assert base.digest() == "13f3605bc9797a1634aac600c4df40b5d06aa6c3e747c01af422ae493b3db50b"

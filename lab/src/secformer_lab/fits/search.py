"""The search for Fourier fits: a function of one variable on a window as a short trigonometric series.

    g(x) ≈ a_0 + Σ_{k=1..K} a_k cos(2πk x/P) + b_k sin(2πk x/P),     low <= x <= high, P > high - low.

The dealer pays 2K values for each use, so `fit` looks for the smallest K, over a menu of periods, that meets the
requested maximum error with coefficients that fixed point can carry. With cos, sin dealt at s1 fraction bits and
public coefficients at s2, evaluation adds an error of about 2^-s1·‖c‖ + 2^-s2·√K (3.5 standard deviations); `fit` is
told s1 (`dealt_bits`) and admits a fit only if the first part, too, stays under the requested error. `extension` has
the theory of a single fit.

Everything here is public and happens offline: the servers read the numbers that protocols/menu.py ships. (Two machines may
find coefficients that differ in their last digits.)
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from secformer.errors import FitError, RangeError
from secformer.protocols.fit import FourierFit
from secformer.protocols.functions import Function
from secformer_lab.fits.extension import Array, Solution, pose, sample, solve

# Every K while a step matters to a per-element function (one more on 12 is 8 % of the dealer's bytes), then coarser.
TERMS = (
    *range(4, 41),
    *range(44, 65, 4),
    *range(72, 129, 8),
    *range(144, 321, 16),
    *range(352, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
    *range(2304, 4097, 256),
)
# Period / window. Short periods resolve more with K terms, long ones leave room for the function to return.
RATIOS = (1.04, 1.06, 1.08, 1.1, 1.125, 1.15, 1.175, 1.2, 1.25, 1.3, 1.35, 1.375, 1.4, 1.45, 1.5, 1.6, 1.8)
START_RATIO = 1.2
COEFFICIENT_BITS = 40
COEFFICIENT_LIMIT = 2.0**8  # a_k, b_k: leaves 64-bit products 54 fraction bits
SMALLEST_ERROR = 2.0**-24  # relative to max|g|
LAWSON_ROUNDS = 8  # 64 gain another 3 %
LAWSON_GAIN = 3.0  # Lawson rounds lower the maximum error by 1.3 to 2.6; beyond this they are not tried
LONG = 64  # beyond this many terms Lawson rounds stop as soon as the error is met
GRID_MARGIN = 0.97  # between the nodes the error is up to 2 % larger than at them


def fit(
    function: Function,
    low: float,
    high: float,
    *,
    error: float,
    relative: bool = False,
    max_terms: int = 512,
    least_terms: int = TERMS[0],
    dealt_bits: int = 26,
    name: str = "",
) -> FourierFit:
    """The shortest series within `error` of `function` on [low, high]; FitError says what to relax if there is none.

    `relative` measures the error against |g|. `dealt_bits` is s1 of the later evaluation: more bits admit larger
    coefficients and so fewer terms on wide windows. Below `least_terms` nothing is tried.
    """
    window = float(low), float(high)
    request = _Request(function, *window, float(error), relative, max_terms, least_terms, dealt_bits, name)
    return _search(request)


@dataclass(frozen=True)
class _Request:
    function: Function
    low: float
    high: float
    error: float
    relative: bool
    max_terms: int
    least_terms: int
    dealt_bits: int
    name: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise RangeError(f"a window needs finite low < high, not [{self.low}, {self.high}]")
        if not self.error > 0:
            raise RangeError(f"the error of a fit must be positive, not {self.error}")
        if self.max_terms < TERMS[0] or self.max_terms < self.least_terms:
            raise RangeError(f"fits start at {TERMS[0]} terms, max_terms is {self.max_terms}")
        if not 8 <= self.dealt_bits <= 32:
            raise RangeError(f"dealt_bits must lie between 8 and 32, not {self.dealt_bits}")


@dataclass(frozen=True)
class _Candidate:
    """The best period found for one K."""

    terms: int
    ratio: float
    least_squares: float  # error before Lawson rounds
    found: Solution
    accepted: bool


@lru_cache(maxsize=256)
def _search(request: _Request) -> FourierFit:
    """Climb the menu until a fit is good enough, then bisect between it and the last refusal."""
    _check_resolution(request)
    menu = [terms for terms in TERMS if request.least_terms <= terms <= request.max_terms]
    tried = [_try(request, menu[0], START_RATIO if menu[0] <= LONG else RATIOS[0])]
    refused, index = -1, 0
    while not tried[-1].accepted:
        if index == len(menu) - 1:
            raise _failure(request, tried[-1])
        refused, wanted = index, _next_terms(request, tried)
        index = next((i for i, terms in enumerate(menu) if terms >= wanted), len(menu) - 1)
        tried.append(_try(request, menu[index], tried[-1].ratio))
    candidate = tried[-1]
    while index - refused > 1:
        middle = (index + refused) // 2
        attempt = _try(request, menu[middle], candidate.ratio)
        if attempt.accepted:
            index, candidate = middle, attempt
        else:
            refused = middle
    return _settle(request, menu[index:], candidate)


def _next_terms(request: _Request, tried: list[_Candidate]) -> int:
    """The K at which least squares, its error falling about exponentially, should need only what Lawson rounds gain.

    Never more than double: a large K costs K³. The curve flattens a little, so the secant rarely overshoots.
    """
    last = tried[-1]
    if len(tried) < 2 or last.least_squares >= tried[-2].least_squares:
        return 2 * last.terms
    fall = math.log(tried[-2].least_squares / last.least_squares) / (last.terms - tried[-2].terms)
    missing = math.log(max(last.least_squares / (2 * request.error), 1.0)) / fall
    return min(2 * last.terms, last.terms + max(1, round(missing)))


def _settle(request: _Request, menu: list[int], candidate: _Candidate) -> FourierFit:
    """The fit of the accepted K; the next K if its measured error is a hair above what was promised."""
    for terms in menu:
        if terms != candidate.terms:
            candidate = _try(request, terms, candidate.ratio)
        result = _compute(request, candidate)
        if result.max_error <= request.error:
            return result
    raise _failure(request, candidate)


def _try(request: _Request, terms: int, start: float) -> _Candidate:
    """Walk the menu of periods downhill from `start` by least squares, then Lawson rounds where they may help."""
    seen: dict[int, float] = {}

    def error_at(place: int) -> float:
        if place not in seen:
            inside = 0 <= place < len(RATIOS)
            seen[place] = _solved(request, terms, RATIOS[place], 0).error if inside else math.inf
        return seen[place]

    place = min(range(len(RATIOS)), key=lambda i: abs(RATIOS[i] - start))
    while (best := min((place, place - 1, place + 1), key=error_at)) != place:
        place = best
    rounds = LAWSON_ROUNDS if seen[place] <= LAWSON_GAIN * request.error else 0
    found = _solved(request, terms, RATIOS[place], rounds)
    return _Candidate(terms, RATIOS[place], seen[place], found, _accepts(request, found))


def _solved(request: _Request, terms: int, ratio: float, rounds: int) -> Solution:
    period = ratio * (request.high - request.low)
    problem = pose(request.function, request.low, request.high, period, terms, request.relative, request.dealt_bits)
    return solve(problem, rounds, GRID_MARGIN * request.error if terms > LONG else 0.0)


def _accepts(request: _Request, found: Solution) -> bool:
    small = found.noise <= request.error and found.largest < COEFFICIENT_LIMIT
    return small and found.error <= GRID_MARGIN * request.error


def _compute(request: _Request, candidate: _Candidate) -> FourierFit:
    """Round, and measure what was rounded."""
    c = _round_coefficients(candidate.found.coefficients)
    cosine, sine = np.split(c[1:], 2)
    unmeasured = FourierFit(
        low=request.low,
        high=request.high,
        period=candidate.ratio * (request.high - request.low),
        constant=float(c[0]),
        cosine=tuple(cosine.tolist()),
        sine=tuple(sine.tolist()),
        max_error=math.inf,
        relative=request.relative,
        name=request.name,
    )
    return _measured(unmeasured, request.function)


def _round_coefficients(c: Array) -> Array:
    """To multiples of 2^-40, finer by the leading zero bits of the largest when all are small (1/v for large v)."""
    bits = COEFFICIENT_BITS - min(0, math.frexp(float(np.abs(c).max()))[1])
    return np.ldexp(np.rint(np.ldexp(c, bits)), -bits)


def _measured(unmeasured: FourierFit, function: Function) -> FourierFit:
    """Fill in the maximum error on a grid of >= 30 points a wave, dense at the ends, rounded up to three digits."""
    count = max(8192, 48 * unmeasured.terms)
    grid = np.cos(np.linspace(0, math.pi, count))
    x = (unmeasured.low + unmeasured.high) / 2 + (unmeasured.high - unmeasured.low) / 2 * grid
    x = np.clip(x, unmeasured.low, unmeasured.high)
    exact = sample(function, x)
    errors = np.abs(unmeasured(torch.from_numpy(x)).numpy() - exact)
    worst = float((errors / np.abs(exact) if unmeasured.relative else errors).max())
    step = 10.0 ** (math.floor(math.log10(max(worst, 1e-300))) - 2)
    rounded = float(f"{math.ceil(worst / step) * step:.2e}")
    return replace(unmeasured, max_error=rounded)


def _check_resolution(request: _Request) -> None:
    """Refuse errors that no fixed point shows."""
    x = np.linspace(request.low, request.high, 257)
    scale = 1.0 if request.relative else float(np.abs(sample(request.function, x)).max())
    if request.error < SMALLEST_ERROR * scale:
        raise FitError(
            f"{_describe(request)}: an error of {request.error:.1e} is below what fixed point can show;"
            f" ask for at least {SMALLEST_ERROR * scale:.1e}"
        )


def _describe(request: _Request) -> str:
    return f"fit of {request.name or 'a function'} on [{request.low:g}, {request.high:g}]"


def _failure(request: _Request, best: _Candidate) -> FitError:
    """What was reached, and what to relax."""
    advice = ["narrow the window", f"allow an error of {1.2 * max(best.found.error, best.found.noise):.1e}"]
    if best.terms < TERMS[-1]:
        advice.append(f"raise max_terms (now {request.max_terms})")
    if best.found.noise > best.found.error / 8:
        advice.append(f"deal with more fraction bits (dealt_bits, now {request.dealt_bits})")
    kind = "relative " if request.relative else ""
    return FitError(
        f"{_describe(request)}: {best.terms} terms reach a {kind}error of {best.found.error:.1e} with"
        f" {best.found.noise:.1e} of rounding, {request.error:.1e} was asked for; {', or '.join(advice)}"
    )

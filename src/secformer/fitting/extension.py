"""Fourier extensions of a fixed size: regularised minimax fits, the last step reproducible bit for bit.

Given K and a period P longer than the window, find c = (a_0, a_1..a_K, b_1..b_K) such that

    g(x) ≈ a_0 + Σ_k a_k cos(2πk x/P) + b_k sin(2πk x/P)     on the window; the rest of the period is free.

**Objective.** The basis is nearly dependent on a window shorter than the period, so plain least squares returns huge
coefficients that cancel. Evaluated in fixed point they cannot: cos kt, sin kt are dealt with s1 fraction bits, whose
rounding adds an error of about 2^-s1·‖c‖ (a_0 aside). So the fit minimises what the servers will really see,

    Σ_i q_i (e(x_i)/β_i)²  +  (2^-s1·‖c‖/min β)²,     β = 1 (absolute) or |g| (relative), Σ q = 1,

a ridge whose strength is *derived* from s1 (a smooth version of the truncated SVD, with nothing to tune). The weights
q start uniform on Chebyshev nodes; Lawson's iteration (q ← q·|e|, damped) then trades the mean error for the maximum
error, which falls by a factor of 1.3 to 2.6.

**Reproducibility.** The servers compare a digest of the coefficients, and the problem amplifies a rounding difference
by up to 2^s1: two BLAS libraries agree on perhaps eight digits of c. Hence two paths. `explore` uses LAPACK to decide
what is discrete (K, period, weights of WEIGHT_BITS bits). `solve_reproducibly` computes c from those decisions with
elementwise IEEE additions, multiplications, divisions and square roots in a fixed order, no library sine, no fused
operations, so that every machine gets the same bits. What enters it from library functions (node positions, values of
g) is rounded first to a grid some 10^7 times coarser than their last bit, so that a difference survives with a
probability of about 10^-4 a fit.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from secformer.errors import DtypeError, RangeError
from secformer.protocols.functions import Function

Array = NDArray[np.float64]

NODE_BITS = 26  # node positions: a shift of 2^-26 radians is harmless, ties are rare
VALUE_BITS = 30  # values of g: 2^-30 relative, far under any error a fit is asked for
WEIGHT_BITS = 6  # Lawson weights steer the fit, they need no digits
NODES_PER_TERM = 6  # >= 3.8 nodes per shortest wave in mid-window, where Chebyshev nodes are sparsest
SMALL_SYSTEM = 81  # unknowns (K = 40) up to which waking BLAS threads costs more than it saves, on a busy machine
DAMPING = 0.02  # a node whose error is zero today keeps some weight


@dataclass(frozen=True)
class Problem:
    """Sampled fit: nodes as rows of cosines and sines, values and base weights 1/β (1 for absolute fits)."""

    basis: Array  # (2K+1, nodes): ones, cos kθ, sin kθ
    values: Array  # (nodes,)
    base: Array  # (nodes,)
    ridge: float  # 2^-s1 · max base


@dataclass(frozen=True)
class Exploration:
    """Outcome of `explore`; error and noise are relative in a relative fit."""

    error: float  # largest at the nodes
    noise: float  # rounding of the dealt values, 2^-s1 · ‖(a_k, b_k)‖ / min β
    largest: float  # max |a_k|, |b_k|
    weights: Array  # that led there


def round_significand(x: Array, bits: int) -> Array:
    """Keep `bits` bits of every significand; exact in IEEE arithmetic."""
    significand, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)


def sample(function: Function, x: Array) -> Array:
    """g at x in float64; refuses what is not finite."""
    result = function(torch.from_numpy(np.ascontiguousarray(x)))
    if result.dtype != torch.float64:
        raise DtypeError(f"a function to fit must stay in float64, this one returns {result.dtype}")
    values = result.numpy()
    if not np.isfinite(values).all():
        raise RangeError("the function is not finite on the whole window: move the window away from its poles")
    return values


def pose(function: Function, low: float, high: float, period: float, terms: int, relative: bool, bits: int) -> Problem:
    """Sample g on Chebyshev nodes and lay out the basis; `bits` is s1."""
    x, cosine, sine = _nodes(low, high, period, NODES_PER_TERM * terms + 50)
    values = sample(function, x)
    if relative:
        values = round_significand(values, VALUE_BITS)
        if not (values > 0).all() and not (values < 0).all():
            raise RangeError("a relative fit needs a function without zeros on the window: ask for an absolute error")
        base = 1 / np.abs(values)
    else:
        unit = math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - VALUE_BITS)
        values = np.rint(values / unit) * unit
        base = np.ones_like(values)
    return Problem(_basis(cosine, sine, terms), values, base, math.ldexp(float(base.max()), -bits))


def _nodes(low: float, high: float, period: float, count: int) -> tuple[Array, Array, Array]:
    """Chebyshev nodes x of the window with cos and sin of θ = 2πx/P, exactly reproducible.

    θ = j·π/2 + 2·atan(t) with |t| <= tan(π/8); t is rounded, and the rounded t *is* the node: the circle's rational
    parametrisation (1-t²)/(1+t²), 2t/(1+t²) then needs no library function, and j quarter turns only swap and negate.
    """
    chebyshev = -np.cos(np.pi * (np.arange(count) + 0.5) / count)
    theta = 2 * np.pi / period * ((low + high) / 2 + (high - low) / 2 * chebyshev)
    quarter = np.rint(theta / (np.pi / 2))
    t = np.ldexp(np.rint(np.ldexp(np.tan((theta - quarter * (np.pi / 2)) / 2), NODE_BITS)), -NODE_BITS)
    x = period / (2 * np.pi) * (quarter * (np.pi / 2) + 2 * np.arctan(t))
    cosine, sine = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    turn = quarter.astype(np.int64) % 4
    turned_cosine = np.choose(turn, [cosine, -sine, -cosine, sine])
    turned_sine = np.choose(turn, [sine, cosine, -sine, -cosine])
    return np.clip(x, low, high), turned_cosine, turned_sine


def _basis(cosine: Array, sine: Array, terms: int) -> Array:
    """Rows 1, cos kθ, sin kθ from cos θ, sin θ by doubling: the rows of k+1..2k are those of 1..k turned by kθ."""
    cosines, sines = cosine[None], sine[None]
    while len(cosines) < terms:
        c, s = cosines[-1], sines[-1]
        cosines, sines = (
            np.concatenate([cosines, cosines * c - sines * s]),
            np.concatenate([sines, sines * c + cosines * s]),
        )
    return np.concatenate([np.ones_like(cosine)[None], cosines[:terms], sines[:terms]])


def explore(problem: Problem, rounds: int, enough: float = 0.0) -> Exploration:
    """Least squares, then up to `rounds` Lawson rounds towards the minimax fit, until the maximum error is `enough`.

    The best round counts. Large systems go through LAPACK, whose last digits are not reproducible.
    """
    weights = np.full(problem.values.shape, 1 / math.sqrt(len(problem.values)))
    solve = solve_reproducibly if len(problem.basis) <= SMALL_SYSTEM else _solve_fast
    best: Exploration | None = None
    for _ in range(rounds + 1):
        weights = round_significand(weights, WEIGHT_BITS)
        c = solve(problem, weights)
        error = np.abs(c @ problem.basis - problem.values) * problem.base
        if best is None or error.max() < best.error:
            noise = problem.ridge * float(np.linalg.norm(c[1:]))
            best = Exploration(float(error.max()), noise, float(np.abs(c[1:]).max()), weights)
        if best.error <= enough:
            break
        squared = weights * weights * (error / error.max() + DAMPING)
        weights = np.sqrt(squared / squared.sum())
    assert best is not None  # rounds >= 0
    return best


def _ridge(problem: Problem) -> Array:
    """The ridge of each unknown: none for a_0, which is public and multiplies nothing dealt."""
    ridge = np.full(len(problem.basis), problem.ridge)
    ridge[0] = 0
    return ridge


def _solve_fast(problem: Problem, weights: Array) -> Array:
    """Ridge least squares by LAPACK's QR of the stacked system."""
    size = len(problem.basis)
    scale = weights * problem.base
    stacked = np.zeros((len(scale) + size, size + 1))
    stacked[: len(scale), :size] = (problem.basis * scale).T
    stacked[: len(scale), size] = problem.values * scale
    stacked[len(scale) :, :size] = np.diag(_ridge(problem))
    triangle = np.asarray(np.linalg.qr(stacked, mode="r"), dtype=np.float64)
    return np.asarray(np.linalg.solve(triangle[:size, :size], triangle[:size, size]), dtype=np.float64)


def solve_reproducibly(problem: Problem, weights: Array) -> Array:
    """The same solution with the same bits everywhere: modified Gram-Schmidt, the values as last column.

    One row of `system` is a column of the stacked system (contiguous sums), of length nodes + unknowns: below the nodes
    stands ridge·identity, whose fill-in stays within the first `j+1` entries at step j, so later ones are skipped.
    """
    size, nodes = problem.basis.shape
    scale = weights * problem.base
    system = np.zeros((size + 1, nodes + size))
    system[:size, :nodes] = problem.basis * scale
    system[size, :nodes] = problem.values * scale
    system[np.arange(size), nodes + np.arange(size)] = _ridge(problem)
    triangle = np.zeros((size, size + 1))
    for j in range(size):
        filled = nodes + j + 1
        row = system[j, :filled]
        length = math.sqrt(float(_sum_rows((row * row)[None])[0]))
        unit = row / length
        rest = system[j + 1 :, :filled]
        product = rest * unit
        overlap = _sum_rows(product)
        rest -= np.multiply(overlap[:, None], unit, out=product)
        triangle[j, j], triangle[j, j + 1 :] = length, overlap
    return _back_substitute(triangle)


def _back_substitute(triangle: Array) -> Array:
    """Solve R·c = z for R, z the left block and last column of `triangle`."""
    size = len(triangle)
    c, rest = np.zeros(size), triangle[:, size].copy()
    for j in range(size - 1, -1, -1):
        c[j] = rest[j] / triangle[j, j]
        rest[:j] -= c[j] * triangle[:j, j]
    return c


def _sum_rows(x: Array) -> Array:
    """Row sums by halving, destroying x: a fixed order, where numpy's own depends on the vector unit."""
    length = x.shape[1]
    while length > 1:
        half = length // 2
        x[:, :half] += x[:, length - half : length]
        length -= half
    return x[:, 0].copy()

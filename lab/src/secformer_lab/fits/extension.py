"""A Fourier extension of a given size: the regularised minimax fit for K terms and a period P longer than the window.

Find c = (a_0, a_1..a_K, b_1..b_K) such that

    g(x) ≈ a_0 + Σ_k a_k cos(2πk x/P) + b_k sin(2πk x/P)     on the window; the rest of the period is free.

The basis is nearly dependent on a window shorter than the period, so plain least squares returns huge coefficients that
cancel. Evaluated in fixed point they cannot: cos kt, sin kt are dealt with s1 fraction bits, whose rounding adds an error of
about 2^-s1·‖c‖ (a_0 aside). So the fit minimises what the servers will really see,

    Σ_i q_i (e(x_i)/β_i)²  +  (2^-s1·‖c‖/min β)²,     β = 1 (absolute) or |g| (relative), Σ q = 1,

a ridge whose strength is *derived* from s1 (a smooth version of the truncated SVD, with nothing to tune). The weights
q start uniform on Chebyshev nodes; Lawson's iteration (q ← q·|e|, damped) then trades the mean error for the maximum
error, which falls by a factor of 1.3 to 2.6.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from secformer.errors import DtypeError, RangeError
from secformer.protocols.functions import Function

Array = NDArray[np.float64]

NODES_PER_TERM = 6  # >= 3.8 nodes per shortest wave in mid-window, where Chebyshev nodes are sparsest
MOST_DENSE = 2048  # terms up to which a fit is solved by QR
DAMPING = 0.02  # a node whose error is zero today keeps some weight


@dataclass(frozen=True)
class Problem:
    """Sampled fit: nodes as rows of cosines and sines, values and base weights 1/β (1 for absolute fits)."""

    basis: Array  # (2K+1, nodes): ones, cos kθ, sin kθ
    values: Array  # (nodes,)
    base: Array  # (nodes,)
    ridge: float  # 2^-s1 · max base


@dataclass(frozen=True)
class Solution:
    """`coefficients` are a_0, a_1..a_K, b_1..b_K; error and noise are relative in a relative fit."""

    error: float  # largest at the nodes
    noise: float  # rounding of the dealt values, 2^-s1 · ‖(a_k, b_k)‖ / min β
    coefficients: Array

    @property
    def largest(self) -> float:
        """max |a_k|, |b_k|."""
        return float(np.abs(self.coefficients[1:]).max())


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
    count = NODES_PER_TERM * terms + 50
    nodes = (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * (np.arange(count) + 0.5) / count)
    values = sample(function, nodes)
    if relative and not (values > 0).all() and not (values < 0).all():
        raise RangeError("a relative fit needs a function without zeros on the window: ask for an absolute error")
    base = 1 / np.abs(values) if relative else np.ones_like(values)
    angles = 2 * np.pi / period * np.outer(np.arange(1, terms + 1), nodes)
    basis = np.concatenate([np.ones_like(nodes)[None], np.cos(angles), np.sin(angles)])
    return Problem(basis, values, base, math.ldexp(float(base.max()), -bits))


def solve(problem: Problem, rounds: int, enough: float = 0.0) -> Solution:
    """Least squares, then up to `rounds` Lawson rounds towards the minimax fit, until the maximum error is `enough`.

    The best round counts.
    """
    weights = np.full(problem.values.shape, 1 / math.sqrt(len(problem.values)))
    squares = _by_moments if len(problem.basis) > 2 * MOST_DENSE + 1 else _least_squares
    best: Solution | None = None
    for _ in range(rounds + 1):
        coefficients = squares(problem, weights)
        error = np.abs(coefficients @ problem.basis - problem.values) * problem.base
        if best is None or error.max() < best.error:
            noise = problem.ridge * float(np.linalg.norm(coefficients[1:]))
            best = Solution(float(error.max()), noise, coefficients)
        if best.error <= enough:
            break
        squared = weights * weights * (error / error.max() + DAMPING)
        weights = np.sqrt(squared / squared.sum())
    assert best is not None  # rounds >= 0
    return best


def _least_squares(problem: Problem, weights: Array) -> Array:
    """With the ridge, by a QR of the stacked system; none for a_0, which is public and multiplies nothing dealt."""
    size = len(problem.basis)
    scale = weights * problem.base
    stacked = np.zeros((len(scale) + size, size + 1))
    stacked[: len(scale), :size] = (problem.basis * scale).T
    stacked[: len(scale), size] = problem.values * scale
    stacked[len(scale) + 1 :, 1:size] = problem.ridge * np.eye(size - 1)
    triangle = np.asarray(np.linalg.qr(stacked, mode="r"), dtype=np.float64)
    return np.asarray(np.linalg.solve(triangle[:size, :size], triangle[:size, size]), dtype=np.float64)


def _by_moments(problem: Problem, weights: Array) -> Array:
    """The same by normal equations, in a tenth of the time. A product of two cosines is a sum of two, so 4K + 1 moments give all
    entries. Their condition is the square of a QR's: float64 carries a ridge of 2^-21 of the largest base, no finer one."""
    terms = len(problem.basis) // 2
    squared = (weights * problem.base) ** 2
    cosines, sines = problem.basis[1 : terms + 1], problem.basis[terms + 1 :]
    highest = (cosines[-1] * squared, sines[-1] * squared)
    even = np.concatenate(([squared.sum()], cosines @ squared, cosines @ highest[0] - sines @ highest[1]))
    odd = np.concatenate(([0.0], sines @ squared, sines @ highest[0] + cosines @ highest[1]))
    order = np.arange(terms + 1)
    total, apart = order[:, None] + order, order[:, None] - order
    upper, lower = even[total], even[np.abs(apart)]
    mixed = (odd[total] + np.sign(apart) * odd[np.abs(apart)])[1:]  # sines by cosines
    normal = np.block([[lower + upper, mixed.T], [mixed, (lower - upper)[1:, 1:]]]) / 2
    diagonal = np.arange(1, 2 * terms + 1)
    normal[diagonal, diagonal] += problem.ridge**2
    return np.asarray(np.linalg.solve(normal, problem.basis @ (squared * problem.values)), dtype=np.float64)

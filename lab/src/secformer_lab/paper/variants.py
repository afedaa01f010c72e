"""Each variant of a function as a pair that cannot come apart: the protocol, and its twin in the clear.

A secure result is compared with the twin's (twins.py has them, in float64 without fixed point), so that a variant with one
half missing, or with another's, does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared
from secformer_lab.paper import adder, gelu, goldschmidt, newton, published, sigmoid, softmax, twins
from secformer_lab.paper import layernorm as norms
from secformer_lab.paper.rows import scaled

Eta = Callable[[float, float], float]
"""η from the lowest and highest value that is deflated by it."""


def half_octave(eta: float) -> float:
    """The next η on the menu, √2 to a whole power. η is public, so it says no more than that about the weights."""
    return 2.0 ** (math.ceil(2 * math.log2(eta) - 1e-9) / 2)


# -- activations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unary:
    protocol: Callable[[Runtime, Shared], Shared]
    twin: Callable[[Tensor], Tensor]
    published: Callable[[Runtime, Shared], Shared] | None = None
    """What the paper's public script opens instead, where that is known."""


GELU_CRYPTEN = Unary(gelu.gelu_crypten, twins.gelu_crypten, published.gelu_puma)  # Table 3's cell is PUMA's
GELU_PUMA = Unary(gelu.gelu_puma, twins.gelu_puma, published.gelu_puma)
GELU_QUAD = Unary(gelu.gelu_quad, twins.gelu_quad, published.gelu_quad)
GELU_SECFORMER = Unary(gelu.gelu_secformer, twins.gelu_secformer, published.gelu_secformer)
SILU = Unary(sigmoid.silu_crypten, twins.silu_crypten)
RELU = Unary(adder.relu, torch.relu)
TANH = Unary(sigmoid.tanh_crypten, twins.tanh_crypten)


# -- Softmax -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Softmax:
    """`protocol(runtime, scores, key_mask, shift, eta)`; numerators and the reciprocal of their sum in the clear."""

    protocol: Callable[[Runtime, Shared, Shared | None, float, float], Shared]
    weights: Callable[[Tensor, Tensor, float], Tensor]
    reciprocal: Callable[[Tensor, float], Tensor]
    quad: bool = False
    """2Quad: (x + c)², and row sums that are deflated."""
    eta: Eta | None = None
    default_eta: float = 1.0
    published: Callable[[Runtime, Shared], Shared] | None = None


NEWTON_QUOTIENT = 4.0  # √(0.1·160): the middle of where Π_Div's first guess holds
GOLDSCHMIDT_QUOTIENT = 1.0  # of 2: room for inputs twice as large as those measured


def _exponential_weights(scores: Tensor, keys: Tensor, exponential: Callable[[Tensor], Tensor]) -> Tensor:
    lowered = scores - scores.masked_fill(~keys, -math.inf).amax(-1, keepdim=True)
    return torch.where(keys, exponential(lowered), 0.0)


def _quad_weights(scores: Tensor, keys: Tensor, shift: float) -> Tensor:
    return (scores + shift).square() * keys


SOFTMAX_CRYPTEN = Softmax(
    lambda runtime, scores, mask, shift, eta: softmax.softmax_crypten(runtime, scores, mask),
    lambda scores, keys, shift: _exponential_weights(scores, keys, twins.exponential),
    lambda total, eta: twins.newton_reciprocal(total, "crypten"),
)
SOFTMAX_PUMA = Softmax(
    lambda runtime, scores, mask, shift, eta: softmax.softmax_puma(runtime, scores, mask),
    lambda scores, keys, shift: _exponential_weights(scores, keys, twins.clipped_exponential),
    lambda total, eta: twins.newton_reciprocal(total, "paper"),
)
QUAD_MPCFORMER = Softmax(
    softmax.quad_mpcformer,
    _quad_weights,
    lambda total, eta: twins.newton_reciprocal(total / eta, "paper") / eta,
    quad=True,
    eta=lambda low, high: math.sqrt(low * high) / NEWTON_QUOTIENT,
    default_eta=softmax.NEWTON_DEFLATION,
    published=published.quad_mpcformer,
)
QUAD_SECFORMER = Softmax(
    softmax.quad_secformer,
    _quad_weights,
    lambda total, eta: twins.goldschmidt_reciprocal(total / eta) / eta,
    quad=True,
    eta=lambda low, high: max(2.0, high / GOLDSCHMIDT_QUOTIENT),
    default_eta=softmax.GOLDSCHMIDT_DEFLATION,
    published=published.quad_secformer,
)
RELU2_MPCFORMER = Softmax(
    lambda runtime, scores, mask, shift, eta: softmax.relu2_mpcformer(runtime, scores, mask),
    lambda scores, keys, shift: scores.clamp(min=0) * keys,
    lambda total, eta: twins.newton_reciprocal(total, "paper"),
)


# -- LayerNorm -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerNorm:
    """`protocol(runtime, x, gain, bias, epsilon, eta)`, and 1/√ of a sentence vector's squared length by the same means."""

    protocol: Callable[[Runtime, Shared, Masked | Shared, Shared, float, float], Shared]
    inverse_deviation: Callable[[Tensor, int, float], Tensor]
    """1/√v of `count` values in the clear."""
    inverse_sqrt: Callable[[Runtime, Shared], Shared]
    """1/√x for a deflated x."""
    inverse_sqrt_twin: Callable[[Tensor], Tensor]
    eta: Eta
    sums: bool
    """Whether η deflates the sum of squares, or the variance."""
    default_eta: float = 1.0
    head_eta: float = 1.0
    """For squared lengths of sentence vectors, which are near 10."""

    def inverse_length(self, runtime: Runtime, squared: Shared, eta: float) -> Shared:
        return scaled(runtime, self.inverse_sqrt(runtime, scaled(runtime, squared, 1 / eta)), eta**-0.5)

    def inverse_length_twin(self, squared: Tensor, eta: float) -> Tensor:
        return self.inverse_sqrt_twin(squared / eta) / math.sqrt(eta)


NEWTON_ROOT = 2.5  # √(0.1·64): the middle of where Π_rSqrt's first guess holds
GOLDSCHMIDT_ROOT = 1.5  # of 2.9


def _newton_eta(low: float, high: float) -> float:
    return math.sqrt(low * high) / NEWTON_ROOT


NORM_CRYPTEN = LayerNorm(
    norms.layernorm_crypten,
    lambda variance, count, eta: (
        twins.newton_reciprocal(variance / eta * twins.newton_inverse_sqrt(variance / eta)) / math.sqrt(eta)
    ),
    newton.inverse_sqrt,
    twins.newton_inverse_sqrt,
    _newton_eta,
    sums=False,
)
NORM_PUMA = LayerNorm(
    norms.layernorm_puma,
    lambda variance, count, eta: twins.newton_inverse_sqrt(variance / eta) / math.sqrt(eta),
    newton.inverse_sqrt,
    twins.newton_inverse_sqrt,
    _newton_eta,
    sums=False,
)
NORM_SECFORMER = LayerNorm(
    norms.layernorm_secformer,
    lambda variance, count, eta: twins.goldschmidt_inverse_sqrt(count * variance / eta) * math.sqrt(count / eta),
    goldschmidt.inverse_sqrt,
    twins.goldschmidt_inverse_sqrt,
    lambda low, high: high / GOLDSCHMIDT_ROOT,
    sums=True,
    default_eta=norms.GOLDSCHMIDT_DEFLATION,
    head_eta=16.0,
)

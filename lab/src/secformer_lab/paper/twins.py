"""The paper's variants in the clear: the same approximations in float64, without fixed point.

A suite must decrypt to what its own twin gives, up to the rounding of 16 fraction bits: what is compared with
exact GeLU or Softmax instead measures the approximation. Names follow the protocols' files; variants.py puts each beside
its protocol.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secformer.training.network import gelu_quad as gelu_quad
from secformer_lab.paper import exponential as exp
from secformer_lab.paper import goldschmidt, newton
from secformer_lab.paper.gelu import (
    ERF_SERIES,
    PUMA_LEFT,
    PUMA_MIDDLE,
    PUMA_SEGMENTS,
    SEGMENT,
    SQRT_HALF,
    TANH_CUBE,
)
from secformer_lab.paper.sigmoid import FIRST_GUESS, NEWTON_STEPS
from secformer_lab.paper.sine import PERIOD

# -- exponential, reciprocal, inverse square root ------------------------------------------------------------


def exponential(x: Tensor, squarings: int = exp.CRYPTEN_SQUARINGS) -> Tensor:
    """(1 + x/2^n)^(2^n)."""
    return (1 + x / 2**squarings) ** (2**squarings)


def clipped_exponential(x: Tensor) -> Tensor:
    return torch.where(x < exp.PUMA_CLIP, 0.0, exponential(x, exp.PUMA_SQUARINGS))


def newton_reciprocal(
    x: Tensor, variant: newton.Variant = "crypten", start: float | None = None, steps: int = newton.RECIPROCAL_STEPS
) -> Tensor:
    exponent = 1 - 2 * x if variant == "crypten" else 0.5 - x
    y = 3 * exponential(exponent) + 0.003 if start is None else torch.full_like(x, start)
    for _ in range(steps):
        y = y * (2 - x * y)
    return y


def newton_inverse_sqrt(x: Tensor, steps: int = newton.INVERSE_SQRT_STEPS) -> Tensor:
    y = 2.2 * exponential(-(x / 2 + 0.2)) + 0.2 - x / 1024
    for _ in range(steps):
        y = y * (3 - x * y * y) / 2
    return y


def goldschmidt_reciprocal(q: Tensor, steps: int = goldschmidt.RECIPROCAL_STEPS) -> Tensor:
    p = torch.ones_like(q)
    for _ in range(steps):
        m = 2 - q
        p, q = p * m, q * m
    return p


def goldschmidt_inverse_sqrt(q: Tensor, steps: int = goldschmidt.INVERSE_SQRT_STEPS) -> Tensor:
    p = torch.ones_like(q)
    for _ in range(steps):
        m = (3 - q) / 2
        p, q = p * m, q * m * m
    return p


# -- activations ---------------------------------------------------------------------------------------------


def sigmoid_crypten(x: Tensor) -> Tensor:
    positive = newton_reciprocal(1 + exponential(-x.abs()), start=FIRST_GUESS, steps=NEWTON_STEPS)
    return torch.where(x < 0, 1 - positive, positive)


def tanh_crypten(x: Tensor) -> Tensor:
    return 2 * sigmoid_crypten(2 * x) - 1


def silu_crypten(x: Tensor) -> Tensor:
    return x * sigmoid_crypten(x)


def gelu_crypten(x: Tensor) -> Tensor:
    return x / 2 * (1 + tanh_crypten(math.sqrt(2 / math.pi) * (x + TANH_CUBE * x**3)))


def gelu_puma(x: Tensor) -> Tensor:
    low, middle, high = PUMA_SEGMENTS
    left, centre = (
        sum((factor * x**power for power, factor in terms.items()), torch.zeros_like(x))
        for terms in (PUMA_LEFT, PUMA_MIDDLE)
    )
    return torch.where(x < low, 0.0, torch.where(x < middle, left, torch.where(x < high, centre, x)))


def gelu_secformer(x: Tensor) -> Tensor:
    u = SQRT_HALF * x
    series = sum(
        (beta * torch.sin(2 * math.pi * k * u / PERIOD) for k, beta in enumerate(ERF_SERIES, 1)), torch.zeros_like(x)
    )
    erf = torch.where(u < -SEGMENT, -1.0, torch.where(u < SEGMENT, series, 1.0))
    return x / 2 * (1 + erf)

"""Sums and products of shares as the paper counts them (Table 1): Beaver's, with local truncation.

    Π_Add       [u+v]_j = [u]_j + [v]_j                                    0 rounds, 0 bits
    Π_Mul       open û = u + a, v̂ = v + b; [uv]_j as in multiply.py        1 round, 256 bits: 2 × 64 each way
    Π_Square    open û; [u²]_j                                             1 round, 128 bits
    Π_MatMul    open Û, V̂; [UV]_j                                          1 round, 256 n² bits for n × n

(Appendix "Underlying SMPC Protocols"; a mask added instead of subtracted is the same protocol.) Every
product opens its operands anew, as CrypTen does; our own suites open a value once and keep the wire.

Numbers have 16 fraction bits in Z_2^64. A product of two of them has 32 and is truncated by each server on
its own: right up to one unit, unless the shares wrap, which puts it off by 2^32 with probability |uv|·2^-32
an element. That is the paper's arithmetic and its weakness: keep magnitudes small. A factor at scale 0 (a
comparison bit) needs no truncation.

Safe: the openings are 64 bits under fresh 64-bit masks, truncation sends nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Public, Shared
from secformer.errors import RangeError, WidthError
from secformer.protocols import multiply as wires
from secformer.ring.fixed_point import encode
from secformer.ring.resident import placed
from secformer_lab.paper.local import truncate_locally

FRACTION_BITS = 16
RING_BITS = 64


def add(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    """Π_Add: local."""
    return x + y


def square(runtime: Runtime, x: Shared) -> Shared:
    """Π_Square: x² elementwise."""
    (opened,) = open_whole(runtime, x)
    return settle(runtime, wires.square(runtime, opened))


def multiply(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    """Π_Mul: xy elementwise, with broadcasting (each side is opened at its own size)."""
    (product,) = multiply_together(runtime, (x, y))
    return product


def multiply_together(runtime: Runtime, *pairs: tuple[Shared, Shared]) -> tuple[Shared, ...]:
    """Several Π_Mul in one round, each at its full 256 bits."""
    opened = iter(open_whole(runtime, *(value for pair in pairs for value in pair)))
    return tuple(settle(runtime, wires.multiply(runtime, left, right)) for left, right in zip(opened, opened))


def matmul(runtime: Runtime, x: Shared, y: Shared) -> Shared:
    """Π_MatMul: x @ y, plain or batched; one truncation an output element."""
    left, right = open_whole(runtime, x, y)
    return settle(runtime, wires.matmul(runtime, left, right))


def multiply_public(runtime: Runtime, x: Shared, real: Tensor | float) -> Shared:
    """x times public real numbers rounded to 16 fraction bits: local. For 1/η see `divide_public`."""
    number = torch.as_tensor(real, dtype=torch.float64)
    factor = placed(encode(number.reshape(number.shape or (1,)), FRACTION_BITS), runtime.device)
    return settle(runtime, x * Public(factor, FRACTION_BITS))


def divide_public(runtime: Runtime, x: Shared, divisor: float) -> Shared:
    """x / divisor for a public divisor > 1: local, off by less than two units and 2^-16 of the quotient.

    1/5000 is 13 units of 2^-16, one per cent off. So shift by a power of two first and multiply by what is
    left of the factor, a number in [1/2, 1): it has 16 significant bits, and what is truncated is no larger
    than x/divisor, so that truncation fails no more often than it must.
    """
    if not (divisor > 1 and math.isfinite(divisor)):
        raise RangeError(f"a public divisor must be finite and above 1, not {divisor}")
    mantissa, exponent = math.frexp(1 / divisor)  # 1/divisor = mantissa · 2^exponent, mantissa in [1/2, 1)
    return multiply_public(runtime, shift_down(runtime, x, -exponent), mantissa)


def shift_down(runtime: Runtime, x: Shared, bits: int) -> Shared:
    """x / 2^bits at the same scale: local truncation, off by less than one unit."""
    return x if bits == 0 else replace(truncate_locally(runtime, x, bits), scale=x.scale)


def open_whole(runtime: Runtime, *values: Shared) -> tuple[Masked, ...]:
    """Open values of the full ring in one round."""
    for value in values:
        if value.width != RING_BITS:
            raise WidthError(
                f"{runtime.where}: the paper's protocols compute modulo 2^{RING_BITS}, a value known modulo "
                f"2^{value.width} cannot enter: lift it first"
            )
    return runtime.open(*values)


def settle(runtime: Runtime, product: Shared) -> Shared:
    """Back to 16 fraction bits after a product of two fixed-point numbers."""
    excess = product.scale - FRACTION_BITS
    return truncate_locally(runtime, product, excess) if excess > 0 else product

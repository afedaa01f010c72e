"""Matrix products on the CPU: integers on one core, or float64 digits through BLAS on all of them.

Up to 32 bits the integers are int32, twice as many to a register; wider rings take int64.

Which is faster depends on the processor (AVX-512 multiplies int64 in one instruction, others in a dozen) and
on the threads torch may use, so both speeds are measured when first needed, in a few milliseconds, and kept
a thread count. Both ways are exact; the choice only moves time.

Measured on two cores of an AVX-512 processor, nanoseconds a multiply-add: int64 0.059; float64 0.040 with
one thread, 0.021 with two. There one product of digits always wins, two win with two threads.
"""

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.ring.kernels import float64, reference
from secformer.ring.limbs import Plan, Prepared, plan

# Below this many multiply-adds int64 is done before the digits are cut (each operation costs microseconds).
_SMALL = 1 << 15


class Speed(NamedTuple):
    """Seconds a multiply-add, and seconds an element for one pass over memory."""

    int32: float
    int64: float
    float64: float
    element: float


def matmul(a: Tensor, b: Prepared, width: int, a_bits: int) -> Tensor:
    """The fastest exact way."""
    right = b.tensor
    if a.numel() * right.shape[-1] <= _SMALL:
        return reference.matmul(a, b, width, a_bits)
    chosen = plan(a.shape[-1], width, a_bits, min(b.bits, width))
    speed = _speed(torch.get_num_threads())
    if _digits_win(a, b, chosen, speed, speed.int32 if width <= 32 else speed.int64):
        return float64.multiply(a, b, chosen)
    if width <= 32:
        return (_low_words(a) @ b.derive("int32", _low_words)).to(torch.int64)
    return reference.matmul(a, b, width, a_bits)


def _low_words(x: Tensor) -> Tensor:
    """The low 32 bits of every element, as int32: a view of the memory, not a conversion that may saturate."""
    words = x.contiguous().view(torch.int32).unflatten(-1, (-1, 2))
    return words[..., 0 if sys.byteorder == "little" else 1].contiguous()


def _digits_win(a: Tensor, b: Prepared, chosen: Plan, speed: Speed, integer: float) -> bool:
    """Compare with integers of `integer` seconds each: multiply-adds, and passes over the operands and the result."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.tensor.shape[-1]
    batch = prod(torch.broadcast_shapes(a.shape[:-2], b.tensor.shape[:-2]))
    work, result = batch * rows * inner * columns, batch * rows * columns
    missing = 0 if b.static else chosen.digits - len(chosen.columns)
    # Four passes cut a digit; three turn a product into int64 and add it; every product reads b once.
    passes = 4 * (len(chosen.columns) * a.numel() + missing * b.tensor.numel())
    passes += chosen.products * (3 * chosen.chunks * result + b.tensor.numel())
    digits = chosen.products * work * speed.float64 + passes * speed.element
    return digits < work * integer + b.tensor.numel() * speed.element


@lru_cache(maxsize=64)
def _speed(threads: int) -> Speed:
    """Time small products of both kinds; `threads` is the key, torch knows it already."""
    rows, inner = 64, 256
    whole = torch.ones(inner, inner, dtype=torch.int64)
    half, real = whole.to(torch.int32), whole.to(torch.float64)
    work = rows * inner * inner
    return Speed(
        _seconds(lambda: half[:rows] @ half) / work,
        _seconds(lambda: whole[:rows] @ whole) / work,
        _seconds(lambda: real[:rows] @ real) / work,
        _seconds(lambda: whole.bitwise_or_(0)) / whole.numel(),
    )


def _seconds(action: Callable[[], object]) -> float:
    """The best of a few runs: other programs only ever make it slower."""
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best

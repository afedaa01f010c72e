"""The steps on the CPU: OpenSSL draws, long integers open a few elements, and products take the faster of two ways.

**Products.** Integers on one core, or float64 digits through BLAS on all of them. Up to 32 bits the integers are int32,
twice as many to a register; wider rings take int64. Which way is faster depends on the processor (AVX-512 multiplies int64
in one instruction, others in a dozen) and on the threads torch may use, so both speeds are measured when first needed, in
a few milliseconds, and kept a thread count. Both ways are exact; the choice only moves time.
"""

import sys
import time
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from secformer.ring import small
from secformer.ring.kernels import float64, reference
from secformer.ring.kernels.steps import Closed, Closing
from secformer.ring.keystream import Keystream, element_bytes, native_bytes, native_elements, stream_bytes
from secformer.ring.limbs import Plan, Prepared, plan
from secformer.ring.packing import pack

# Below this many multiply-adds int64 is done before the digits are cut (each operation costs microseconds).
_SMALL = 1 << 15
# Beyond this many elements b leaves the cache between rows of a; blocks of columns stay in it.
_CACHED = 1 << 20
_BLOCK = 384


# -- drawing and opening ------------------------------------------------------------------------------------------------


def draw(
    keystream: Keystream, shape: tuple[int, ...], width: int, device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    if keystream.cipher is None:
        return reference.draw(keystream, shape, width, device, dtype)
    elements = native_elements(keystream, prod(shape), width, np.int16 if dtype == torch.int16 else np.int64)
    return torch.from_numpy(elements.reshape(shape))


def close(share: Tensor, closing: Closing, keystream: Keystream) -> Closed:
    count = share.numel()
    if closing.drop or count > small.LIMIT or keystream.cipher is None:
        return reference.close_with(share, closing, draw(keystream, tuple(share.shape), closing.width, share.device))
    form = small.layout(count, closing.width)
    mask = _fields(keystream, form)
    own = _combine(closing)(small.join(share.numpy(), form), mask, form)
    return Closed(small.squeeze(own, form), own, small.tensor(mask, form, share.shape))


def _fields(keystream: Keystream, form: small.Layout) -> int:
    """What `draw` draws, as one long integer."""
    size, drawn = _drawn(form.count, form.width)
    return small.spread(native_bytes(keystream, size), drawn) & form.every


@lru_cache(maxsize=4096)
def _drawn(count: int, width: int) -> tuple[int, small.Layout]:
    """Bytes of keystream, and how the elements lie in them."""
    bits = 1 if width == 1 else 8 * element_bytes(width)
    return stream_bytes(count, width), small.layout(count, bits)


def reveal(closed: Closed, received: Tensor, closing: Closing) -> Tensor:
    if not isinstance(closed.own, int):
        return reference.reveal(closed, received, closing)
    form = small.layout(closed.mask.numel(), closing.width)
    opened = _combine(closing)(closed.own, small.spread(received.numpy().tobytes(), form), form)
    return small.tensor(opened, form, closed.mask.shape)


def _combine(closing: Closing) -> Callable[[int, int, small.Layout], int]:
    return small.xor if closing.boolean else small.add


def correct(value: Tensor, width: int, boolean: bool, keystream: Keystream) -> Tensor:
    pad = draw(keystream, tuple(value.shape), width, value.device)
    # The pad is nobody else's: the correction takes its memory.
    return pack(pad.bitwise_xor_(value) if boolean else torch.sub(value, pad, out=pad), width)


# -- products -----------------------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """Seconds a multiply-add, and seconds an element for one pass over memory."""

    int32: float
    int64: float
    float64: float
    element: float


def matmul(a: Tensor, right: Prepared, width: int, a_bits: int) -> Tensor:
    """The fastest exact way."""
    if a.numel() * right.tensor.shape[-1] <= _SMALL:
        return reference.matmul(a, right, width, a_bits)
    chosen = plan(a.shape[-1], width, a_bits, min(right.bits, width))
    speed = _speed(torch.get_num_threads())
    if _digits_win(a, right, chosen, speed, speed.int32 if width <= 32 else speed.int64):
        return float64.multiply(a, right, chosen)
    if width <= 32:
        return (_low_words(a) @ right.derive("int32", _low_words)).to(torch.int64)
    return _by_columns(a, right.tensor)


def _by_columns(a: Tensor, right: Tensor) -> Tensor:
    """a @ right in int64, a large matrix in blocks of columns."""
    if right.dim() > 2 or right.numel() <= _CACHED or right.shape[1] <= _BLOCK:
        return a @ right
    rows = a.reshape(-1, a.shape[-1])
    out = torch.empty(rows.shape[0], right.shape[1], dtype=a.dtype)
    for start in range(0, right.shape[1], _BLOCK):
        torch.mm(rows, right[:, start : start + _BLOCK], out=out[:, start : start + _BLOCK])
    return out.view(*a.shape[:-1], right.shape[1])


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

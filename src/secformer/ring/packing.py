"""Residues of w bits, packed without a wasted bit: `count` of them take exactly ceil(count * w / 8) bytes.

The layout is chosen for speed, not for reading by eye. Write w = 8q + r. A little-endian int64 *is* eight
bytes, so the low q bytes of every element need no arithmetic, only copies of strided views:

    planes   bytes [0, 4), [4, 6), [6, 7) of all elements, for the bits set in q (4, 2 and 1 bytes wide)
    lanes    the r bits that remain of eight elements: eight bytes, read as one int64, squeezed together in
             three steps (8 -> 16 -> 32 -> 64 bit fields) into 8r bits = r bytes; stored as planes again
    tail     the last count % 8 elements: the first bytes of one more lane

Up to 256 elements, where the number of calls is all that counts, the layout is the plain little-endian
stream of bits instead, made with one long integer (small.py) or by expanding to one byte a bit and back.

Planes are ordered by their width (of elements and lanes alike) so that each starts aligned; the tail ends.

The same lines serve NumPy arrays and tensors of any device, because both know views, strided assignment
with truncating conversion, and in-place integer arithmetic. NumPy costs a third a call and serves small
tensors on the CPU; torch uses all threads and serves the others. A device may bring kernels of its own.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from secformer.errors import DtypeError, FrameError
from secformer.ring import kernels, small
from secformer.ring.fixed_point import check_width

Array = Any  # a NumPy array or a tensor

# Up to here a stream of bits; part of the format, so it must be the same on both sides.
TINY = 256
# From here on threads pay off; below, NumPy's cheaper calls do (measured on two cores), and a busy machine
# cannot stall them at the barrier that ends every threaded operation.
_LARGE = 1 << 19


class _Backend(NamedTuple):
    """What the two array libraries call the unsigned types (lanes stay below 2^63, so int64 serves)."""

    types: dict[int, Any]
    empty: Any


class _Plane(NamedTuple):
    """`size` bytes from byte `offset` of every element (or lane), stored from byte `start` on."""

    of_lanes: bool
    offset: int
    size: int
    start: int
    stop: int


_NUMPY = _Backend({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.int64}, np.empty)


def packed_bytes(count: int, width: int) -> int:
    """ceil(count * width / 8)."""
    check_width(width)
    return (count * width + 7) >> 3


def pack(x: Tensor, width: int) -> Tensor:
    """The low `width` bits of every element, as uint8 of exactly `packed_bytes` length.

    For width 64 the result shares memory with a contiguous x.
    """
    check_width(width)
    if x.dtype != torch.int64:
        raise DtypeError(f"only int64 residues can be packed, not {x.dtype}; convert first")
    x = x.reshape(-1).contiguous()
    if width == 64:
        return x.view(torch.uint8)
    own = None if x.is_cpu else kernels.find("pack", x.device.type)
    return packed(x, width) if own is None else own(x, width)


def packed(x: Tensor, width: int) -> Tensor:
    """Contiguous residues of less than 64 bits, on any device, without its own kernels."""
    if x.numel() <= TINY and not x.is_meta:
        return torch.from_numpy(_bit_stream(x.cpu().numpy(), width)).to(x.device)
    return by_planes(x, width)


def by_planes(x: Tensor, width: int) -> Tensor:
    """More than 256 residues of less than 64 bits, contiguous, on any device."""
    out = torch.empty(packed_bytes(x.numel(), width), dtype=torch.uint8, device=x.device)
    if _small(x):
        _pack(_NUMPY, x.numpy(), out.numpy(), width)
    elif not x.is_meta:
        _pack(_torch_backend(x.device), x, out, width)
    return out


def unpack(
    buffer: Tensor, count: int, width: int, dtype: torch.dtype = torch.int64, out: Tensor | None = None
) -> Tensor:
    """The `count` residues in [0, 2^width) that `pack` put into this buffer, of a type that holds them; or in a place for them.

    For width 64 the result shares memory with an aligned buffer.
    """
    expected = packed_bytes(count, width)
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or buffer.numel() != expected:
        raise FrameError(
            f"{count} residues of {width} bits take {expected} bytes in one dimension, not "
            f"{buffer.dtype} of shape {tuple(buffer.shape)}; the two sides disagree about what is sent"
        )
    buffer = buffer.contiguous()
    if width == 64:
        return _into_place(_aligned(buffer).view(torch.int64), out)
    own = None if buffer.is_cpu else kernels.find("unpack", buffer.device.type)
    return (own or unpacked)(buffer, count, width, dtype, out)


def unpacked(
    buffer: Tensor, count: int, width: int, dtype: torch.dtype = torch.int64, out: Tensor | None = None
) -> Tensor:
    """The inverse of `packed`."""
    if count <= TINY and not buffer.is_meta:
        stream = torch.from_numpy(_from_bit_stream(buffer.cpu().numpy(), count, width))
        return _into_place(stream.to(buffer.device, dtype), out)
    return _into_place(from_planes(buffer, count, width, dtype), out)


def _into_place(residues: Tensor, out: Tensor | None) -> Tensor:
    return residues if out is None else out.copy_(residues.view(out.shape))


def from_planes(buffer: Tensor, count: int, width: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """The inverse of `by_planes`."""
    out = torch.empty(count, dtype=dtype, device=buffer.device)
    if _small(out):
        _unpack(_NUMPY, buffer.numpy(), out.numpy(), width)
    elif not out.is_meta:
        _unpack(_torch_backend(buffer.device), _aligned(buffer), out, width)
    return out


def _bit_stream(x: np.ndarray, width: int) -> np.ndarray:
    if x.size <= small.LIMIT:
        form = small.layout(x.size, width)
        return np.frombuffer(bytearray(small.squeeze(small.join(x, form), form)), np.uint8)
    bits = np.unpackbits(x.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")  # (count, 64)
    return np.packbits(bits[:, :width], bitorder="little")


def _from_bit_stream(buffer: np.ndarray, count: int, width: int) -> np.ndarray:
    if count <= small.LIMIT:
        form = small.layout(count, width)
        return small.split(small.spread(buffer.tobytes(), form), form)
    bits = np.zeros((count, 64), dtype=np.uint8)
    stream = np.unpackbits(buffer, count=count * width, bitorder="little")
    bits[:, :width] = stream.reshape(count, width)
    return np.packbits(bits, bitorder="little").view(np.int64)


def _small(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.numel() < _LARGE


def _aligned(buffer: Tensor) -> Tensor:
    """Torch reads wider types only at multiples of their size from the storage's start."""
    return buffer if buffer.storage_offset() % 8 == 0 else buffer.clone()


def _torch_backend(device: torch.device) -> _Backend:
    types = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.int64}
    return _Backend(types, lambda count, dtype: torch.empty(count, dtype=dtype, device=device))


@lru_cache(maxsize=1024)
def _planes(count: int, width: int) -> tuple[_Plane, ...]:
    """Where every plane of `count` elements lies; widest first, elements before lanes."""
    whole, rest = width >> 3, width & 7
    planes, start = [], 0
    for size in (4, 2, 1):
        for of_lanes, length, total in ((False, whole, count), (True, rest, count >> 3)):
            if length & size:
                stop = start + size * total
                planes.append(_Plane(of_lanes, length & -(2 * size), size, start, stop))
                start = stop
    return tuple(planes)


def _column(backend: _Backend, words: Array, offset: int, size: int) -> Array:
    """Bytes [offset, offset + size) of every element of `words`, as a strided view."""
    return words.view(backend.types[size])[offset // size :: words.itemsize // size]


def _pack(backend: _Backend, x: Array, out: Array, width: int) -> None:
    count, rest = len(x), width & 7
    lanes = _squeezed(backend, x, width) if rest else None
    planes = _planes(count, width)
    for plane in planes:
        target = out[plane.start : plane.stop].view(backend.types[plane.size])
        source = lanes[: count >> 3] if plane.of_lanes else x  # type: ignore[index]
        # The lowest bytes are a truncating conversion, twice as fast as a strided copy.
        target[:] = source if plane.offset == 0 else _column(backend, source, plane.offset, plane.size)
    if lanes is not None and count & 7:
        tail = planes[-1].stop if planes else 0
        out[tail:] = lanes[-1:].view(backend.types[1])[: len(out) - tail]


def _unpack(backend: _Backend, buffer: Array, out: Array, width: int) -> None:
    count, whole, rest = len(out), width >> 3, width & 7
    planes = _planes(count, width)
    lanes = backend.empty((count + 7) >> 3, dtype=backend.types[8]) if rest else None
    if lanes is not None:
        lanes[:] = 0
        tail = planes[-1].stop if planes else 0
        if count & 7:
            lanes[-1:].view(backend.types[1])[: len(buffer) - tail] = buffer[tail:]
    for plane in planes:
        source = buffer[plane.start : plane.stop].view(backend.types[plane.size])
        target = lanes[: count >> 3] if plane.of_lanes else out  # type: ignore[index]
        if plane.offset == 0 and not plane.of_lanes:
            target[:] = source  # zero-extends, so later planes find zeros above
        else:
            _column(backend, target, plane.offset, plane.size)[:] = source
    if lanes is not None:
        _spread(lanes, rest)
        byte = lanes.view(backend.types[1])[:count]
        if whole:
            _column(backend, out, whole, 1)[:] = byte
        else:
            out[:] = byte


def _squeezed(backend: _Backend, x: Array, width: int) -> Array:
    """Lanes that hold the top r = width % 8 bits of eight elements each, 8r bits together."""
    count, whole, rest = len(x), width >> 3, width & 7
    lanes = backend.empty((count + 7) >> 3, dtype=backend.types[8])
    lanes[-1:] = 0
    byte = lanes.view(backend.types[1])[:count]
    byte[:] = _column(backend, x, whole, 1) if whole else x
    lanes &= _repeated(rest, 8)
    for field, _, mask, factor in _squeezes(rest):
        high = lanes >> field
        high &= mask
        high *= factor
        lanes -= high
    return lanes


def _spread(lanes: Array, rest: int) -> None:
    """The inverse of squeezing, in place."""
    for _, used, mask, factor in reversed(_squeezes(rest)):
        high = lanes >> used
        high &= mask
        high *= factor
        lanes += high


@lru_cache(maxsize=8)
def _squeezes(rest: int) -> tuple[tuple[int, int, int, int], ...]:
    """The three steps: every pair of fields low + high * 2^field becomes low + high * 2^used."""
    steps = []
    for field in (8, 16, 32):
        used = rest * field >> 3
        steps.append((field, used, _repeated(used, 2 * field), (1 << field) - (1 << used)))
    return tuple(steps)


@lru_cache(maxsize=64)
def _repeated(bits: int, period: int) -> int:
    """A 64-bit mask: the low `bits` of every `period` bits."""
    return sum(((1 << bits) - 1) << start for start in range(0, 64, period))

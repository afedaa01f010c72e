"""Frames: what one party says to another, as a fixed header of 76 bytes and a payload.

    magic       4 bytes   b"SECF": anything else is not this protocol
    version     u16       PROTOCOL_VERSION
    kind        u8        FrameType
    width       u8        bits of an element, 1..64; 8 for plain bytes
    session     16 bytes  every run has its own
    sequence    u64       1, 2, 3, ... in each direction: a replayed or reordered frame stands out
    length      u64       payload bytes
    dimensions  u32       0..8
    shape       8 × u32   unused places are zero

All integers are little-endian. `length` says nothing that shape and width do not say: it must equal
⌈elements · width / 8⌉, so a forged length is noticed, and one beyond the limit is refused, before a byte is
allocated for it. Records and aborts are small, whatever the limit for tensors. Nothing here is ever unpickled.

ALIVE says nothing but that its sender is there; it has no payload and no place in the sequence.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from math import prod
from typing import NamedTuple

from torch import Tensor

from secformer.errors import FrameError, ShapeError
from secformer.version import PROTOCOL_VERSION

MAGIC = b"SECF"
SESSION_BYTES = 16
MAX_DIMENSIONS = 8
MAX_WIDTH = 64
MESSAGE_LIMIT = 1 << 32

Shape = tuple[int, ...]

_LAYOUT = struct.Struct(f"<{len(MAGIC)}sHBB{SESSION_BYTES}sQQI{MAX_DIMENSIONS}I")
_NO_DIMENSIONS = (0,) * MAX_DIMENSIONS
HEADER_BYTES = _LAYOUT.size


class FrameType(IntEnum):
    HELLO = 1
    OPENING = 2
    MATERIAL = 3
    INPUT = 4
    OUTPUT = 5
    CONTROL = 6
    ABORT = 7
    ALIVE = 8


CONTROL_LIMIT = 1 << 20
"""Bytes of the largest record. A job carries an architecture and its calibration, some tens of kB."""

_KINDS = {int(kind): kind for kind in FrameType}
_KIND_LIMITS = {
    FrameType.HELLO: 1 << 10,
    FrameType.CONTROL: CONTROL_LIMIT,
    FrameType.ABORT: 1 << 10,
    FrameType.ALIVE: 0,
}


class Header(NamedTuple):
    kind: FrameType
    sequence: int
    shape: Shape
    width: int
    length: int


class Frame(NamedTuple):
    """A frame in memory. `arrived` is when the receiving side saw its first byte (time.monotonic)."""

    kind: FrameType
    sequence: int
    shape: Shape
    width: int
    payload: Tensor
    arrived: float

    def __repr__(self) -> str:  # the payload may be a share
        return f"Frame({self.kind.name}, sequence={self.sequence}, shape={self.shape}, width={self.width})"


def payload_bytes(shape: Shape, width: int) -> int:
    """⌈elements · width / 8⌉; a 0-d shape has one element."""
    return (prod(shape) * width + 7) >> 3


def encode(kind: FrameType, sequence: int, shape: Shape, width: int, length: int, session: bytes) -> bytes:
    dimensions = len(shape)
    unused = _NO_DIMENSIONS[dimensions:]
    try:
        return _LAYOUT.pack(
            MAGIC, PROTOCOL_VERSION, kind, width, session, sequence, length, dimensions, *shape, *unused
        )
    except struct.error:
        raise ShapeError(
            f"shape {shape} of {width}-bit elements does not fit a frame: "
            f"at most {MAX_DIMENSIONS} dimensions below 2^32, 1..{MAX_WIDTH} bits"
        ) from None


def decode(data: bytes | bytearray | memoryview, session: bytes | None, limit: int) -> Header:
    """Read and check a header; `session` None takes any (the hello, which says which session it wants)."""
    if len(data) != HEADER_BYTES:
        raise FrameError(f"header: {len(data)} bytes instead of {HEADER_BYTES}, the frame is truncated")
    magic, version, number, width, its_session, sequence, length, dimensions, *sizes = _LAYOUT.unpack(data)
    if magic != MAGIC:
        raise FrameError("magic: this is not a SecFormer frame, check which program the address leads to")
    if version != PROTOCOL_VERSION:
        raise FrameError(
            f"version: the peer speaks protocol {version}, this side {PROTOCOL_VERSION}; install the same release"
        )
    if session is not None and its_session != session:
        raise FrameError("session: the frame belongs to another session; start all parties anew")
    kind = _KINDS.get(number)
    if kind is None:
        raise FrameError(f"kind: {number} is not a frame type")
    shape = _checked_shape(dimensions, sizes)
    _check_length(shape, width, length, min(limit, _KIND_LIMITS.get(kind, limit)))
    return Header(kind, sequence, shape, width, length)


def session_of(data: bytes | bytearray | memoryview) -> bytes:
    """The session a header names; call `decode` first."""
    return _LAYOUT.unpack(data)[4]


def _checked_shape(dimensions: int, sizes: list[int]) -> Shape:
    if dimensions > MAX_DIMENSIONS:
        raise FrameError(f"dimensions: {dimensions}, at most {MAX_DIMENSIONS} are allowed")
    if any(sizes[dimensions:]):
        raise FrameError("shape: a dimension beyond the last is not zero")
    return tuple(sizes[:dimensions])


def _check_length(shape: Shape, width: int, length: int, limit: int) -> None:
    if not 1 <= width <= MAX_WIDTH:
        raise FrameError(f"width: {width} bits, it must lie in 1..{MAX_WIDTH}")
    if length > limit:
        raise FrameError(f"length: {length} bytes exceed the limit of {limit}; raise message_limit if they are meant")
    if length != payload_bytes(shape, width):
        raise FrameError(f"length: {length} bytes do not hold shape {shape} of {width}-bit elements")

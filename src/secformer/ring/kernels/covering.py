"""Openings and corrections, one Triton kernel each way: a mask is drawn where it is added, and the sum leaves packed.

    cover      drop, draw, combine, pack     an opening's first half; T's corrections; packing alone
    uncover    unpack, combine               its second half; unpacking alone

The layout is packing.py's: up to 256 elements a stream of bits, which one program writes; for more, planes of 4, 2 and 1
bytes of every element, and lanes, the `width % 8` bits that remain of eight elements side by side. The kernels read width and
drop as they run, so one compilation serves all of a size of keystream.

Nothing is masked after a drop: bits [drop, drop + width) of a share are what `width` ≤ source width − drop leaves of it,
and only the low `width` bits of the sum are sent or used.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.cipher import NONCE, blocks_of, drawn, key_and_nonce, low_bits, programs_of, size_of
from secformer.ring.kernels.launching import launch
from secformer.ring.kernels.steps import Closed, Closing
from secformer.ring.keystream import Keystream
from secformer.ring.packing import TINY, packed_bytes

_ADD, _XOR, _SUBTRACT = 0, 1, 2
_PIECE = 1024
"""Elements a program unpacks, or packs without drawing."""
_TINY_BYTES = 8 * TINY
"""The longest stream of bits."""


# -- covering -------------------------------------------------------------------------------------------------------------


@triton.jit
def _store_packed(packed, value, program, count, width, LENGTH: tl.constexpr):
    """The low `width` bits of int64 (LENGTH,), zero beyond `count`, into their planes and lanes."""
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    if width == 64:
        tl.store(packed.to(tl.pointer_type(tl.int64)) + place, value, mask=inside)
    else:
        whole, rest = width >> 3, width & 7
        lanes: tl.constexpr = LENGTH // 8
        field = tl.arange(0, 8)[None, :]
        fields = tl.reshape((value >> (8 * whole)) & ((1 << rest) - 1), (lanes, 8))
        lane = tl.sum(fields << (rest * field), axis=1)
        number = program.to(tl.int64) * lanes + tl.arange(0, lanes)
        full = count >> 3
        complete = number < full
        start = count * 0
        if (whole & 4) != 0:
            tl.store(packed.to(tl.pointer_type(tl.int32)) + place, value.to(tl.int32), mask=inside)
            start += 4 * count
        if (rest & 4) != 0:
            tl.store((packed + start).to(tl.pointer_type(tl.int32)) + number, lane.to(tl.int32), mask=complete)
            start += 4 * full
        if (whole & 2) != 0:
            part = (value >> (8 * (whole & 4))).to(tl.int16)
            tl.store((packed + start).to(tl.pointer_type(tl.int16)) + place, part, mask=inside)
            start += 2 * count
        if (rest & 2) != 0:
            part = (lane >> (8 * (rest & 4))).to(tl.int16)
            tl.store((packed + start).to(tl.pointer_type(tl.int16)) + number, part, mask=complete)
            start += 2 * full
        if (whole & 1) != 0:
            tl.store(packed + start + place, (value >> (8 * (whole & 6))).to(tl.uint8), mask=inside)
            start += count
        if (rest & 1) != 0:
            tl.store(packed + start + number, (lane >> (8 * (rest & 6))).to(tl.uint8), mask=complete)
            start += full
        if (count & 7) != 0:
            last = packed + start + (number - full)
            tail = ((count & 7) * rest + 7) >> 3
            for byte in tl.static_range(8):
                tl.store(last + byte, (lane >> (8 * byte)).to(tl.uint8), mask=(number == full) & (byte < tail))


@triton.jit
def _store_stream(packed, value, count, width, BYTES: tl.constexpr):
    """Residues that lie at `value` as one stream of bits."""
    byte = tl.arange(0, BYTES)
    total = tl.zeros((BYTES,), tl.int64)
    for place in tl.static_range(8):
        position = byte * 8 + place
        element = position // width
        word = tl.load(value + element, mask=element < count, other=0)
        total |= ((word >> (position - element * width)) & 1) << place
    tl.store(packed + byte, total.to(tl.uint8), mask=byte * 8 < count * width)


@triton.jit(do_not_specialize=("count", "width", "drop", "plus", "mode", "keep", *NONCE))
def _cover(
    value, mask_out, own_out, packed, key, count, width, drop, plus, mode, keep, nonce0, nonce1, nonce2,
    BLOCKS: tl.constexpr, SIZE: tl.constexpr, TINY_BYTES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    length: tl.constexpr = BLOCKS * 512 // SIZE
    place = program.to(tl.int64) * length + tl.arange(0, length)
    inside = place < count
    mask = drawn(program, width, key, nonce0, nonce1, nonce2, BLOCKS, SIZE)
    own = tl.load(value + place, mask=inside, other=0)
    own = (own + plus * ((tl.full((), 1, tl.int64) << drop) - 1)) >> drop  # S1 rounds up (Runtime.drop)
    if mode == 1:
        own = own ^ mask
    elif mode == 2:
        own = own - mask
    else:
        own = own + mask
    own = tl.where(inside, own & low_bits(width), 0)
    if keep != 0:
        tl.store(mask_out + place, mask, mask=inside)
        tl.store(own_out + place, own, mask=inside)
    if TINY_BYTES > 0:  # one program: what it has stored, all of it can read
        tl.debug_barrier()
        _store_stream(packed, own_out, count, width, TINY_BYTES)
    else:
        _store_packed(packed, own, program, count.to(tl.int64), width, length)


@triton.jit(do_not_specialize=("count", "width"))
def _pack_stream(value, packed, count, width, BYTES: tl.constexpr):
    _store_stream(packed, value, count, width, BYTES)


@triton.jit(do_not_specialize=("count", "width"))
def _pack(value, packed, count, width, LENGTH: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    own = tl.load(value + place, mask=place < count, other=0)
    _store_packed(packed, own, program, count.to(tl.int64), width, LENGTH)


def close(share: Tensor, closing: Closing, keystream: Keystream) -> Closed:
    """Drop, mask and pack a share."""
    share = share.contiguous()
    mask, own = torch.empty_like(share), torch.empty_like(share)
    plus = 1 if closing.party == 1 else 0
    mode = _XOR if closing.boolean else _ADD
    packed = _covered(share, closing.width, mode, keystream, (mask, own), closing.drop, plus)
    return Closed(packed, own, mask)


def correct(value: Tensor, width: int, boolean: bool, keystream: Keystream) -> Tensor:
    """What is left of a value when the pad is taken away, packed."""
    value = value.contiguous()
    kept = (torch.empty_like(value), torch.empty_like(value)) if value.numel() <= TINY else None
    return _covered(value, width, _XOR if boolean else _SUBTRACT, keystream, kept)


def _covered(
    value: Tensor,
    width: int,
    mode: int,
    keystream: Keystream,
    kept: tuple[Tensor, Tensor] | None = None,
    drop: int = 0,
    plus: int = 0,
) -> Tensor:
    count, size = value.numel(), size_of(width)
    packed = torch.empty(packed_bytes(count, width), dtype=torch.uint8, device=value.device)
    mask, own = kept or (value, value)
    key, *nonce = key_and_nonce(keystream, value.device)
    tiny = count <= TINY  # all of it by one program
    blocks, programs = (blocks_of(size, 1 << 20), 1) if tiny else (blocks_of(size, count), programs_of(size, count))
    launch(
        _cover, programs, value, mask, own, packed, key, count, width, min(drop, 63), plus, mode, int(kept is not None),
        *nonce, BLOCKS=blocks, SIZE=size, TINY_BYTES=_TINY_BYTES if tiny else 0,
    )  # fmt: skip
    return packed


def pack(x: Tensor, width: int) -> Tensor:
    packed = torch.empty(packed_bytes(x.numel(), width), dtype=torch.uint8, device=x.device)
    if x.numel() <= TINY:
        launch(_pack_stream, 1, x, packed, x.numel(), width, BYTES=_TINY_BYTES)
    else:
        launch(_pack, triton.cdiv(x.numel(), _PIECE), x, packed, x.numel(), width, LENGTH=_PIECE)
    return packed


# -- uncovering -----------------------------------------------------------------------------------------------------------


@triton.jit
def _load_packed(packed, program, count, width, LENGTH: tl.constexpr):
    """The elements of one piece, int64 (LENGTH,) in [0, 2^width)."""
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    value = tl.zeros((LENGTH,), tl.int64)
    if width == 64:
        value = tl.load(packed.to(tl.pointer_type(tl.int64)) + place, mask=inside, other=0)
    else:
        whole, rest = width >> 3, width & 7
        lanes: tl.constexpr = LENGTH // 8
        number = program.to(tl.int64) * lanes + tl.arange(0, lanes)
        full = count >> 3
        complete = number < full
        lane = tl.zeros((lanes,), tl.int64)
        start = count * 0
        if (whole & 4) != 0:
            value = tl.load(packed.to(tl.pointer_type(tl.uint32)) + place, mask=inside, other=0).to(tl.int64)
            start += 4 * count
        if (rest & 4) != 0:
            part = tl.load((packed + start).to(tl.pointer_type(tl.uint32)) + number, mask=complete, other=0)
            lane = part.to(tl.int64)
            start += 4 * full
        if (whole & 2) != 0:
            part = tl.load((packed + start).to(tl.pointer_type(tl.uint16)) + place, mask=inside, other=0)
            value |= part.to(tl.int64) << (8 * (whole & 4))
            start += 2 * count
        if (rest & 2) != 0:
            part = tl.load((packed + start).to(tl.pointer_type(tl.uint16)) + number, mask=complete, other=0)
            lane |= part.to(tl.int64) << (8 * (rest & 4))
            start += 2 * full
        if (whole & 1) != 0:
            part = tl.load(packed + start + place, mask=inside, other=0)
            value |= part.to(tl.int64) << (8 * (whole & 6))
            start += count
        if (rest & 1) != 0:
            part = tl.load(packed + start + number, mask=complete, other=0)
            lane |= part.to(tl.int64) << (8 * (rest & 6))
            start += full
        if (count & 7) != 0:
            last = packed + start + (number - full)
            tail = ((count & 7) * rest + 7) >> 3
            for byte in tl.static_range(8):
                part = tl.load(last + byte, mask=(number == full) & (byte < tail), other=0)
                lane |= part.to(tl.int64) << (8 * byte)
        field = tl.arange(0, 8)[None, :]
        fields = (lane[:, None] >> (rest * field)) & ((1 << rest) - 1)
        value |= tl.reshape(fields, (LENGTH,)) << (8 * whole)
    return value


@triton.jit
def _load_stream(packed, count, width, LENGTH: tl.constexpr):
    """The elements of a stream of bits."""
    element = tl.arange(0, LENGTH)
    value = tl.zeros((LENGTH,), tl.int64)
    for place in range(width):
        position = element * width + place
        byte = tl.load(packed + position // 8, mask=element < count, other=0).to(tl.int64)
        value |= ((byte >> (position % 8)) & 1) << place
    return value


@triton.jit(do_not_specialize=("count", "width", "mode"))
def _uncover(packed, own, out, count, width, mode, LENGTH: tl.constexpr, STREAM: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    if STREAM:
        value = _load_stream(packed, count, width, LENGTH)
    else:
        value = _load_packed(packed, program, count.to(tl.int64), width, LENGTH)
    if mode == 0:
        value = (tl.load(own + place, mask=inside, other=0) + value) & low_bits(width)
    elif mode == 1:
        value = tl.load(own + place, mask=inside, other=0) ^ value
    tl.store(out + place, value, mask=inside)


def reveal(closed: Closed, received: Tensor, closing: Closing) -> Tensor:
    """The opened values, from this server's half and the other's, packed and on the device."""
    mode = _XOR if closing.boolean else _ADD
    return _uncovered(received, closed.own, torch.empty_like(closed.own), closing.width, mode)


def unpack(
    buffer: Tensor, count: int, width: int, dtype: torch.dtype = torch.int64, out: Tensor | None = None
) -> Tensor:
    out = torch.empty(count, dtype=dtype, device=buffer.device) if out is None else out
    return _uncovered(buffer, out, out, width, -1)


def _uncovered(packed: Tensor, own: Tensor, out: Tensor, width: int, mode: int) -> Tensor:
    count = out.numel()
    if count <= TINY:
        launch(_uncover, 1, packed, own, out, count, width, mode, LENGTH=TINY, STREAM=True)
        return out
    packed = packed if packed.data_ptr() % 16 == 0 else packed.clone()  # planes start where their words are aligned
    launch(_uncover, triton.cdiv(count, _PIECE), packed, own, out, count, width, mode, LENGTH=_PIECE, STREAM=False)
    return out

"""Openings and corrections, one Triton kernel each way: a mask is drawn where it is added, and the sum leaves packed.

    cover      drop, draw, combine, pack     an opening's first half; T's corrections; packing alone
    uncover    unpack, combine               its second half; unpacking alone

The layout is packing.py's for more than 256 elements: planes of 4, 2 and 1 bytes of every element, and lanes, the
`width % 8` bits that remain of eight elements side by side. The kernels read width and drop as they run, so one
compilation serves all of a size of keystream.

Nothing is masked after a drop: bits [drop, drop + width) of a share are what `width` ≤ source width − drop leaves of it,
and only the low `width` bits of the sum are sent or used.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.cipher import KEY_WORDS, blocks_of, drawn, elements_of, key_words, low_bits, size_of
from secformer.ring.kernels.launching import launch
from secformer.ring.kernels.steps import Closed, Closing
from secformer.ring.keystream import Keystream
from secformer.ring.packing import packed_bytes

_ADD, _XOR, _SUBTRACT = 0, 1, 2
_PIECE = 1024
"""Elements a program unpacks, or packs without drawing."""


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


@triton.jit(do_not_specialize=("count", "width", "drop", "plus", "mode", "keep", *KEY_WORDS))
def _cover(
    value, mask_out, own_out, packed, count, width, drop, plus, mode, keep,
    word0, word1, word2, word3, word4, word5, word6, word7, word8, word9, word10,
    BLOCKS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    length: tl.constexpr = BLOCKS * 512 // SIZE
    place = program.to(tl.int64) * length + tl.arange(0, length)
    inside = place < count
    mask = drawn(
        program, width, word0, word1, word2, word3, word4, word5, word6, word7, word8, word9, word10, BLOCKS, SIZE
    )
    own = tl.load(value + place, mask=inside, other=0)
    own = (own >> drop) + plus
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
    _store_packed(packed, own, program, count.to(tl.int64), width, length)


@triton.jit(do_not_specialize=("count", "width"))
def _pack(value, packed, count, width, LENGTH: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    own = tl.load(value + place, mask=place < count, other=0)
    _store_packed(packed, own, program, count.to(tl.int64), width, LENGTH)


def close(share: Tensor, closing: Closing, keystream: Keystream) -> Closed:
    """Drop, mask and pack a share of more than 256 elements."""
    share = share.contiguous()
    mask, own = torch.empty_like(share), torch.empty_like(share)
    plus = 1 if closing.drop and closing.party == 1 else 0
    mode = _XOR if closing.boolean else _ADD
    packed = _covered(share, closing.width, mode, keystream, (mask, own), closing.drop, plus)
    return Closed(packed, own, mask)


def correct(value: Tensor, width: int, boolean: bool, keystream: Keystream) -> Tensor:
    """What is left of a value of more than 256 elements when the pad is taken away, packed."""
    return _covered(value.contiguous(), width, _XOR if boolean else _SUBTRACT, keystream)


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
    launch(
        _cover, triton.cdiv(count, elements_of(size)), value, mask, own, packed, count, width, min(drop, 63), plus,
        mode, int(kept is not None), *key_words(keystream), BLOCKS=blocks_of(size), SIZE=size,
    )  # fmt: skip
    return packed


def pack(x: Tensor, width: int) -> Tensor:
    packed = torch.empty(packed_bytes(x.numel(), width), dtype=torch.uint8, device=x.device)
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


@triton.jit(do_not_specialize=("count", "width", "mode"))
def _uncover(packed, own, out, count, width, mode, LENGTH: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
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


def unpack(buffer: Tensor, count: int, width: int) -> Tensor:
    out = torch.empty(count, dtype=torch.int64, device=buffer.device)
    return _uncovered(buffer, out, out, width, -1)


def _uncovered(packed: Tensor, own: Tensor, out: Tensor, width: int, mode: int) -> Tensor:
    packed = packed if packed.data_ptr() % 16 == 0 else packed.clone()  # planes start where their words are aligned
    launch(_uncover, triton.cdiv(out.numel(), _PIECE), packed, own, out, out.numel(), width, mode, LENGTH=_PIECE)
    return out

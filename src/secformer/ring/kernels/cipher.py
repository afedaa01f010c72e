"""ChaCha20 inside a Triton kernel: keystream that is used where it is made, and never lies in memory as such.

A lane of the vector unit makes one block of sixteen words (ring/chacha.py has the cipher). A program makes `BLOCKS` blocks
and turns them into the elements that ring/keystream.py's layout gives them:

    SIZE 64         two words an element      8 elements a block
    SIZE 32, 16, 8  a word or a part of one   16, 32, 64
    SIZE 1          a bit each                512

Words of a block are joined pairwise into a tensor (BLOCKS, 16), so that the compiler can store neighbours together.
The key is read from the device's memory, where its stream put it; the nonce travels as three 32-bit arguments.
"""

from __future__ import annotations

import struct
from math import prod

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring import chacha
from secformer.ring.kernels.launching import launch
from secformer.ring.keystream import Keystream, element_bytes

_BLOCKS = {64: 128, 32: 128, 16: 64, 8: 32, 1: 8}
"""ChaCha20 blocks a program makes: a thousand to four thousand elements."""

_FEW, _FEW_BLOCKS = 4096, 8
"""Up to so many elements a program makes so few: one that made all of them would work while the device idles."""

NONCE = ("nonce0", "nonce1", "nonce2")
"""The names of the arguments that carry it."""


def size_of(width: int) -> int:
    """Bits of keystream an element of `width` bits takes."""
    return 1 if width == 1 else 8 * element_bytes(width)


def blocks_of(size: int, count: int) -> int:
    """Blocks that a program makes of `count` elements in all."""
    return min(_BLOCKS[size], _FEW_BLOCKS) if count <= _FEW else _BLOCKS[size]


def programs_of(size: int, count: int) -> int:
    """Programs that draw `count` elements."""
    return triton.cdiv(count, blocks_of(size, count) * 512 // size)


def key_and_nonce(keystream: Keystream, device: torch.device) -> tuple[Tensor, int, int, int]:
    """The key's place, and the nonce as signed words, so that each is a 32-bit argument whatever its value."""
    key = chacha.words(keystream.key, device) if keystream.words is None else keystream.words
    first, second, third = struct.unpack("<3i", keystream.nonce)
    return key, first, second, third


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _word(value, like):
    """A 32-bit argument as an unsigned word of every block."""
    return like * 0 + value.to(tl.uint32, bitcast=True)


@triton.jit
def _key_word(place, like):
    return _word(tl.load(place), like)


@triton.jit
def _block_words(n, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, n2):
    """The sixteen words of blocks `n` (uint32): RFC 8439, section 2.3."""
    x0, x1, x2, x3 = n * 0 + 0x61707865, n * 0 + 0x3320646E, n * 0 + 0x79622D32, n * 0 + 0x6B206574
    x4, x5, x6, x7 = k0, k1, k2, k3
    x8, x9, x10, x11 = k4, k5, k6, k7
    x12, x13, x14, x15 = n, n0, n1, n2
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574
    x4, x5, x6, x7 = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    x8, x9, x10, x11 = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    x12, x13, x14, x15 = x12 + n, x13 + n0, x14 + n1, x15 + n2
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def _eight(e0, e1, e2, e3, e4, e5, e6, e7):
    """(B,) each → (B, 2, 2, 2), in order: what is joined last counts least."""
    even = tl.join(tl.join(e0, e4), tl.join(e2, e6))
    odd = tl.join(tl.join(e1, e5), tl.join(e3, e7))
    return tl.join(even, odd)


@triton.jit
def _pair(low, high):
    return low.to(tl.int64) | (high.to(tl.int64) << 32)


@triton.jit
def drawn(
    program, width, key, nonce0, nonce1, nonce2, BLOCKS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """The elements that program number `program` draws, as int64 (BLOCKS * 512 / SIZE,) in [0, 2^width)."""
    n = (program * BLOCKS + tl.arange(0, BLOCKS)).to(tl.uint32)
    k0, k1, k2, k3 = _key_word(key, n), _key_word(key + 1, n), _key_word(key + 2, n), _key_word(key + 3, n)
    k4, k5, k6, k7 = _key_word(key + 4, n), _key_word(key + 5, n), _key_word(key + 6, n), _key_word(key + 7, n)
    n0, n1, n2 = _word(nonce0, n), _word(nonce1, n), _word(nonce2, n)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block_words(
        n, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, n2
    )
    if SIZE == 64:
        joined = _eight(
            _pair(w0, w1), _pair(w2, w3), _pair(w4, w5), _pair(w6, w7),
            _pair(w8, w9), _pair(w10, w11), _pair(w12, w13), _pair(w14, w15),
        )  # fmt: skip
        elements = tl.reshape(joined, (BLOCKS * 8,))
    else:
        even = _eight(w0, w2, w4, w6, w8, w10, w12, w14)
        odd = _eight(w1, w3, w5, w7, w9, w11, w13, w15)
        words = tl.reshape(tl.join(even, odd), (BLOCKS * 16,))
        if SIZE == 32:
            elements = words.to(tl.int64)
        else:
            places = tl.arange(0, 32 // SIZE) * SIZE
            parts = words[:, None] >> places[None, :].to(tl.uint32)
            elements = tl.reshape(parts, (BLOCKS * 512 // SIZE,)).to(tl.int64)
    return elements & low_bits(width)


@triton.jit
def low_bits(width):
    """2^width − 1, for 64 bits as well."""
    one = tl.full((), 1, tl.int64)
    return (((one << (width - 1)) - 1) << 1) | 1


@triton.jit(do_not_specialize=("count", "width", *NONCE))
def _draw(
    out, key, count, width, nonce0, nonce1, nonce2, BLOCKS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    elements = drawn(program, width, key, nonce0, nonce1, nonce2, BLOCKS, SIZE)
    length: tl.constexpr = BLOCKS * 512 // SIZE
    place = program.to(tl.int64) * length + tl.arange(0, length)
    tl.store(out + place, elements, mask=place < count)


def draw(
    keystream: Keystream,
    shape: tuple[int, ...],
    width: int,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
    out: Tensor | None = None,
) -> Tensor:
    count, size = prod(shape), size_of(width)
    out = torch.empty(shape, dtype=dtype, device=device) if out is None else out
    key, *nonce = key_and_nonce(keystream, out.device)
    launch(_draw, programs_of(size, count), out, key, count, width, *nonce, BLOCKS=blocks_of(size, count), SIZE=size)
    return out

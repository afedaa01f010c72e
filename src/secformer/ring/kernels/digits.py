"""Words cut into digits for int8 tensor cores.

Adding 0x80 to every byte of x (one addition of 0x8080…80, carries included) and flipping its top bit turns the bytes of x into
balanced digits: x = Σ d_i 2^(8i) modulo 2^64 with −128 ≤ d_i ≤ 127. So cutting costs an addition, an xor, and writing the bytes
where the tensor cores want them: (batch, digit, chunk, row, 16), sixteen terms of the inner dimension side by side, the rows
beside each other. A tile of any number of rows is then a few long pieces of memory, and lies in shared memory as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.launching import launch

CHUNK = 16
"""Terms that lie side by side: what a thread loads at once."""

STEP = 32
"""Operands are padded to a multiple of so many terms, with zeros."""

EXACT = (1 << 17) - 1
"""Products of two digits are at most 2^14: so many of them stay below 2^31."""


_ROWS, _TERMS = 16, 64
"""What a program cuts: of seven tiles the fastest on an H200, where rows lie in one piece, and else nearly so."""


class Combination(NamedTuple):
    """c·first + d·second: one part of the inner dimension."""

    first: int
    second: int


ALONE = (Combination(1, 0),)


@triton.jit(do_not_specialize=("rows", "chunks", "limbs", "c0", "d0", "c1", "d1", "cleared", "share"))
def _cut(
    first, second, out, clear, rows, inner, chunks, limbs, first_batch, first_row, first_inner, second_batch, second_row,
    second_inner, c0, d0, c1, d1, cleared, share,
    PARTS: tl.constexpr, BOTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    place = tl.program_id(0) * STEP + tl.arange(0, STEP)[None, :]
    part = tl.where(place < inner, 0, 1)
    column = (place - part * inner).to(tl.int64)
    inside = (row < rows) & (place < PARTS * inner)
    wide = row.to(tl.int64)
    x = tl.load(first + batch * first_batch + wide * first_row + column * first_inner, mask=inside, other=0)
    x = x * tl.where(part == 0, c0, c1)
    if BOTH:
        y = tl.load(second + batch * second_batch + wide * second_row + column * second_inner, mask=inside, other=0)
        x += y * tl.where(part == 0, d0, d1)
    eighties = tl.full((), -0x7F7F7F7F7F7F7F80, tl.int64)  # 0x8080…80
    x = (x + eighties) ^ eighties
    target = out + ((batch * limbs * chunks + place // CHUNK) * rows + wide) * CHUNK + place % CHUNK
    for limb in range(limbs):
        tl.store(target, (x >> (8 * limb)).to(tl.int8), mask=(row < rows) & (place < chunks * CHUNK))
        target += (chunks * rows).to(tl.int64) * CHUNK
    if cleared > 0:
        program = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
        start = program.to(tl.int64) * share
        for offset in range(0, share, 1024):
            each = start + offset + tl.arange(0, 1024)
            tl.store(
                clear + each, tl.zeros((1024,), tl.int64), mask=(offset + tl.arange(0, 1024) < share) & (each < cleared)
            )


def cut(
    first: Tensor,
    limbs: int,
    second: Tensor | None = None,
    parts: Sequence[Combination] = ALONE,
    clear: Tensor | None = None,
    early: bool = False,
) -> Tensor:
    """The digits of (batch, rows, inner) int64, any strides: int8 (batch, limbs, chunks of parts·inner, rows, CHUNK).

    `clear`: what to fill with zeros on the way. `early`: the next kernel may begin, and waits by itself for the end of this one
    (compiled.py).
    """
    batch, rows, inner = first.shape
    chunks = -(-len(parts) * inner // STEP) * (STEP // CHUNK)
    out = torch.empty((batch, limbs, chunks, rows, CHUNK), dtype=torch.int8, device=first.device)
    other = first if second is None else second
    numbers = [number for part in (*parts, *parts)[:2] for number in part]
    programs = (triton.cdiv(chunks * CHUNK, _TERMS), triton.cdiv(rows, _ROWS), batch)
    cleared = 0 if clear is None else clear.numel()
    launch(
        _cut, programs, first, other, out, first if clear is None else clear, rows, inner, chunks, limbs,
        *first.stride(), *other.stride(), *numbers, cleared, triton.cdiv(cleared, prod(programs)),
        PARTS=len(parts), BOTH=second is not None, ROWS=_ROWS, STEP=_TERMS, CHUNK=CHUNK, EARLY=early and first.is_cuda,
    )  # fmt: skip
    return out

"""Matrix products modulo 2^w on int8 tensor cores.

**Digits.** Adding 0x80 to every byte of x (one addition of 0x8080…80, carries included) and flipping its top bit turns the
bytes of x into balanced digits: x = Σ d_i 2^(8i) modulo 2^64 with −128 ≤ d_i ≤ 127. So cutting costs an addition, an xor,
and writing the bytes where the tensor cores want them: (limbs, batch, rows, inner), the inner dimension contiguous.

**Products.** Modulo 2^w only pairs i + j < ⌈w/8⌉ =: L count, L(L+1)/2 of them: 36 at 64 bits, 15 at 40. All pairs of one sum s
lie at the same place and share an int32 accumulator: for each s one long product over (s + 1)·inner terms, whose sum is
then shifted into an int64. It is exact while L·inner·2^14 < 2^31; longer dimensions are cut between programs.

**Two products at once.** A gate's (j·x̂ − [r]) @ ŷ − x̂ @ [s] + [rs] is one product over twice the inner dimension, whose
left half comes from one pass over (x̂, [r]) and whose right half, for a weight, is kept; [rs] is added as the sum is stored.

All strides of digits are multiples of `STEP`, and the kernels must be told (Triton looks): a load of sixteen bytes at once is
what everything rests on.

Few tiles are spread over the processors by cutting the inner dimension: partial sums are added in memory, where int64
addition wraps and its order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.launching import launch
from secformer.ring.limbs import Prepared

CHUNK = 16
"""Terms that lie side by side: what a thread loads at once."""

STEP = 32
"""Operands are padded to a multiple of so many terms, with zeros."""

SPAN = 128
"""Terms a tile advances by."""

_EXACT = (1 << 17) - 1
"""Products of two digits are at most 2^14: so many of them stay below 2^31."""


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int


_PROCESSORS = 132
"""Of an H100 or H200; nothing but speed depends on it."""

TILES = ((Tile(128, 128, 8, 3), 50), (Tile(128, 64, 8, 4), 20), (Tile(64, 64, 4, 4), 0))
"""From the one that reads least to the one that spreads best, and the steps a processor must have left to do for it to win
(measured on an H200 with the shapes of BERT)."""


class Combination(NamedTuple):
    """c·first + d·second: one part of the inner dimension."""

    first: int
    second: int


_ALONE = (Combination(1, 0),)


# -- digits ---------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=("rows", "inner", "chunks", "limbs", "c0", "d0", "c1", "d1", "cleared", "share"))
def _cut(
    first, second, out, clear, rows, inner, chunks, limbs, first_batch, first_row, first_inner, second_batch, second_row,
    second_inner, c0, d0, c1, d1, cleared, share,
    PARTS: tl.constexpr, BOTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    place = tl.program_id(0) * STEP + tl.arange(0, STEP)[None, :]
    part = place // inner
    column = (place - part * inner).to(tl.int64)
    inside = (row < rows) & (part < PARTS)
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
            tl.store(clear + each, tl.zeros((1024,), tl.int64), mask=(offset + tl.arange(0, 1024) < share) & (each < cleared))


def cut(
    first: Tensor,
    limbs: int,
    second: Tensor | None = None,
    parts: Sequence[Combination] = _ALONE,
    clear: Tensor | None = None,
) -> Tensor:
    """The digits of (batch, rows, inner) int64, any strides: int8 (batch, limbs, chunks of parts·inner, rows, CHUNK).

    `clear`: what to fill with zeros on the way.
    """
    batch, rows, inner = first.shape
    chunks = -(-len(parts) * inner // STEP) * (STEP // CHUNK)
    out = torch.empty((batch, limbs, chunks, rows, CHUNK), dtype=torch.int8, device=first.device)
    other = first if second is None else second
    numbers = [number for part in (*parts, *parts)[:2] for number in part]
    programs = (triton.cdiv(chunks * CHUNK, 64), triton.cdiv(rows, 32), batch)
    cleared = 0 if clear is None else clear.numel()
    launch(
        _cut, programs, first, other, out, first if clear is None else clear, rows, inner, chunks, limbs,
        *first.stride(), *other.stride(), *numbers, cleared, triton.cdiv(cleared, prod(programs)),
        PARTS=len(parts), BOTH=second is not None, ROWS=32, STEP=64, CHUNK=CHUNK,
    )  # fmt: skip
    return out


# -- products -------------------------------------------------------------------------------------------------------------


@triton.jit(
    do_not_specialize=(
        "rows", "columns", "left", "right", "limbs", "span", "added",
    )
)  # fmt: skip
def _multiply(
    a, b, extra, out, rows, columns, chunks, left_batch, left_limb, right_batch, right_limb, left, right, limbs, span,
    added, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    across = tl.cdiv(columns, COLUMNS)
    tile_row, tile_column = tl.program_id(0) // across, tl.program_id(0) % across
    row = tile_row * ROWS + tl.arange(0, ROWS)
    column = tile_column * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * span
    steps = tl.minimum(span, tl.cdiv(chunks * CHUNK, STEP) - start)
    step = start * STEP + tl.arange(0, STEP)
    chunk, term = step // CHUNK, step % CHUNK
    # Rows and columns beyond the end repeat others: they are read in vain and never stored.
    a_tile = a + batch * left_batch + (chunk[None, :] * rows + (row % rows)[:, None]).to(tl.int64) * CHUNK + term[None, :]
    b_tile = b + batch * right_batch + (chunk[:, None] * columns + (column % columns)[None, :]).to(tl.int64) * CHUNK + term[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.int64)
    for place in range(limbs):
        lowest = tl.maximum(place - right + 1, 0)
        highest = tl.minimum(place, left - 1)
        partial = tl.zeros((ROWS, COLUMNS), tl.int32)
        for number in range((highest - lowest + 1) * steps):
            limb = lowest + number // steps
            step = number % steps * STEP
            inside = chunk < chunks - step // CHUNK
            x = tl.load(a_tile + (limb.to(tl.int64) * left_limb + step * rows), mask=inside[None, :], other=0)
            y = tl.load(b_tile + ((place - limb).to(tl.int64) * right_limb + step * columns), mask=inside[:, None], other=0)
            partial = tl.dot(x, y, partial, out_dtype=tl.int32)
        total += partial.to(tl.int64) << (8 * place)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    target = (batch * rows + row.to(tl.int64)[:, None]) * columns + column[None, :]
    if CUT:
        if (added != 0) & (tl.program_id(1) == 0):
            total += tl.load(extra + target, mask=inside, other=0)
        tl.atomic_add(out + target, total, mask=inside, sem="relaxed")
    else:
        if added != 0:
            total += tl.load(extra + target, mask=inside, other=0)
        tl.store(out + target, total, mask=inside)


def multiply(a: Tensor, b: Tensor, limbs: int, extra: Tensor | None = None, tile: Tile | None = None) -> Tensor:
    """Σ a_i b_j 2^(8(i+j)) over i + j < limbs, plus `extra`: digits of (batch, rows, inner) and (batch or 1, columns, inner)."""
    (batch, left, chunks, rows, _), (_, right, _, columns, _) = a.shape, b.shape
    steps = triton.cdiv(chunks * CHUNK, SPAN)
    tile = tile or choose(batch, rows, columns, limbs * (limbs + 1) // 2 * steps)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
    pieces = min(steps, max(1, _PROCESSORS // (tiles * batch)))
    span = min(-(-steps // pieces), longest_span(limbs))
    pieces = -(-steps // span)
    new = torch.zeros if pieces > 1 else torch.empty
    out = new((batch, rows, columns), dtype=torch.int64, device=a.device)
    added = out if extra is None else extra.contiguous()
    launch(
        _multiply, (tiles, pieces, batch), a, b, added, out, rows, columns, chunks, _batch_stride(a), a.stride(1),
        _batch_stride(b), b.stride(1), left, right, limbs, span, int(extra is not None),
        ROWS=tile.rows, COLUMNS=tile.columns, STEP=SPAN, CHUNK=CHUNK, CUT=pieces > 1,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def longest_span(limbs: int) -> int:
    """Steps that a program may take with one accumulator: limbs · terms · 2^14 < 2^31."""
    return _EXACT // (limbs * SPAN)


def _batch_stride(limbs: Tensor) -> int:
    return limbs.stride(0) if limbs.shape[0] > 1 else 0


def choose(batch: int, rows: int, columns: int, steps: int) -> Tile:
    """The tile for matrices that take `steps` steps of the inner dimension, all pairs of digits counted."""
    for tile, least in TILES[:-1]:
        tiles = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        if 2 * rows > tile.rows and tiles * steps >= least * _PROCESSORS:
            return tile
    return TILES[-1][0]


# -- the steps ------------------------------------------------------------------------------------------------------------


def matmul(a: Tensor, right: Prepared, width: int, a_bits: int) -> Tensor:
    """a @ right modulo 2^width, for any shapes that torch.matmul takes."""
    shape, left, columns = _folded(a, right.tensor)
    if 0 in (*shape, a.shape[-1]):
        return torch.zeros(shape, dtype=torch.int64, device=a.device)
    limbs = -(-width // 8)
    stored = right.derive("int8", lambda b: cut(_columns(b, columns), _digits(right.width, right.bits)))
    return multiply(cut(left, _digits(width, a_bits)), stored, limbs).view(shape)


def _digits(width: int, bits: int) -> int:
    """Digits of an operand: those of the ring, or those of its content. 8 bits of content may carry into a second digit."""
    return min(-(-width // 8), bits // 8 + 1)


def _folded(a: Tensor, b: Tensor) -> tuple[tuple[int, ...], Tensor, tuple[int, ...]]:
    """The result's shape, a as (batch, rows, inner), and b's batch; one matrix on the right takes all rows at once."""
    if b.dim() == 2:
        return (*a.shape[:-1], b.shape[1]), a.reshape(1, prod(a.shape[:-1]), a.shape[-1]), ()
    batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    left = a.expand(*batch, *a.shape[-2:]).reshape(prod(batch), *a.shape[-2:])
    return (*batch, a.shape[-2], b.shape[-1]), left, batch


def _columns(b: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(batch, columns, inner): a view where there is one."""
    wide = b.expand(*batch, *b.shape[-2:]).reshape(prod(batch), *b.shape[-2:])
    return wide.transpose(-1, -2)


def evaluate_matmul(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    """(j·x̂ − [r]) @ ŷ − x̂ @ [s] + [rs] as one product."""
    x, y = wires
    limbs = -(-min(x.width, y.width) // 8)
    shape, public, columns = _folded(x.public, y.public)
    _, mask, _ = _folded(x.mask, y.mask)
    left = cut(public, limbs, mask, (Combination(party, -1), Combination(-1, 0)))

    def halves() -> Tensor:
        parts = (Combination(1, 0), Combination(0, 1))
        return cut(_columns(y.public, columns), limbs, _columns(y.mask, columns), parts)

    right = y.cached(f"limbs {limbs}", halves)
    return multiply(left, right, limbs, dealt[0]).view(shape)

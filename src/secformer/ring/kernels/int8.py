"""Products of digits on int8 tensor cores, by Triton: for any GPU that has them, and for its interpreter.

For each s one long product over all pairs i + j = s of digits (digits.py) and all terms, whose int32 sum is then shifted into an
int64. Few tiles are spread over the processors by cutting the inner dimension: partial sums are added in memory, where int64
addition wraps and its order does not matter.

The kernel must be told that the strides of digits are multiples of sixteen (Triton looks): a load of sixteen bytes at once is
what everything rests on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.digits import CHUNK, EXACT
from secformer.ring.kernels.launching import launch

SPAN = 128
"""Terms a tile advances by."""


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
    a_tile = (
        a + batch * left_batch + (chunk[None, :] * rows + (row % rows)[:, None]).to(tl.int64) * CHUNK + term[None, :]
    )
    b_tile = (
        b
        + batch * right_batch
        + (chunk[:, None] * columns + (column % columns)[None, :]).to(tl.int64) * CHUNK
        + term[:, None]
    )
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
            y = tl.load(
                b_tile + ((place - limb).to(tl.int64) * right_limb + step * columns), mask=inside[:, None], other=0
            )
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
    added = out if extra is None else extra
    launch(
        _multiply, (tiles, pieces, batch), a, b, added, out, rows, columns, chunks, _batch_stride(a), a.stride(1),
        _batch_stride(b), b.stride(1), left, right, limbs, span, int(extra is not None),
        ROWS=tile.rows, COLUMNS=tile.columns, STEP=SPAN, CHUNK=CHUNK, CUT=pieces > 1,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def longest_span(limbs: int) -> int:
    """Steps that a program may take with one accumulator: limbs · terms · 2^14 < 2^31."""
    return EXACT // (limbs * SPAN)


def _batch_stride(limbs: Tensor) -> int:
    return limbs.stride(0) if limbs.shape[0] > 1 else 0


def choose(batch: int, rows: int, columns: int, steps: int) -> Tile:
    """The tile for matrices that take `steps` steps of the inner dimension, all pairs of digits counted."""
    for tile, least in TILES[:-1]:
        tiles = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        if 2 * rows > tile.rows and tiles * steps >= least * _PROCESSORS:
            return tile
    return TILES[-1][0]

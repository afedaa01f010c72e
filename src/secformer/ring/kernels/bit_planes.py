"""Matrix products over GF(2) in one Triton kernel: rows of a table, selected by bits and added by xor.

A program holds a tile of the result and walks down the table, a byte of selectors at a time. Few tiles are spread over the
processors by cutting the table; partial sums are combined in memory, where the order of xor does not matter.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.launching import launch

_ROWS, _WORDS, _PROGRAMS = 32, 64, 1056


@triton.jit(do_not_specialize=("rows", "size", "words", "height", "span"))
def _select(bits, table, out, rows, size, words, height, span, ROWS: tl.constexpr, WORDS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = row < rows
    known = word < words
    first = tl.program_id(2) * span
    total = tl.zeros((ROWS, WORDS), tl.int64)
    for byte in range(first, tl.minimum(first + span, size)):
        selector = tl.load(bits + row.to(tl.int64) * size + byte, mask=inside, other=0).to(tl.int64)
        for place in tl.static_range(8):
            line = byte * 8 + place
            entry = tl.load(table + line.to(tl.int64) * words + word, mask=known & (line < height), other=0)
            total ^= entry[None, :] & -((selector >> place) & 1)[:, None]
    target = out + row.to(tl.int64)[:, None] * words + word[None, :]
    tl.atomic_xor(target, total, mask=inside[:, None] & known[None, :], sem="relaxed")


def gf2_matmul(rows: Tensor, table: Tensor) -> Tensor:
    """(n, ceil(k/8)) bytes times (k, words) int64 → (n, words) int64."""
    (count, size), (height, words) = rows.shape, table.shape
    out = torch.zeros((count, words), dtype=torch.int64, device=table.device)
    if not out.numel() or not height:
        return out
    down, across = triton.cdiv(count, _ROWS), triton.cdiv(words, _WORDS)
    span = max(16, triton.cdiv(size, max(1, _PROGRAMS // (down * across))))
    launch(
        _select, (down, across, triton.cdiv(size, span)), rows.contiguous(), table.contiguous(), out, count, size,
        words, height, span, ROWS=_ROWS, WORDS=_WORDS,
    )  # fmt: skip
    return out

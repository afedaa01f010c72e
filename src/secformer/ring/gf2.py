"""Matrix products over GF(2) on packed bits.

a holds n rows of k bits (packed into bytes, least significant first), b holds k rows of 64-bit words; the result's row
i is the XOR of those rows of b whose bit is set in a's row i. A few rows of b at a time are combined into a table of all
their XORs (the method of the four Russians), so each digit of a costs one table row. Digits have 4 bits, or 8 when a has
many rows: a table of 2^g rows is made once for n look-ups, and (2^g + n)/g is what a row of b costs. Many digits are
handled together, in blocks that stay in the cache, and their XORs taken as a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secformer.errors import ShapeError
from secformer.ring import kernels

MANY_ROWS = 224
"""From here on (2^8 + n)/8 < (2^4 + n)/4."""

BLOCK_WORDS = 1 << 18
"""Words of the tables and the selected rows of one block: two megabytes."""


def gf2_matmul(rows: Tensor, table: Tensor) -> Tensor:
    """(n, ceil(k/8)) bytes times (k, words) int64 → (n, words) int64."""
    if rows.shape[-1] != (table.shape[0] + 7) // 8:
        raise ShapeError(f"{rows.shape[-1]} bytes of bits do not fit a table of {table.shape[0]} rows")
    return kernels.step("gf2_matmul", table.device)(rows, table)


def combined_words(rows: int, length: int, words: int) -> int:
    """About how many words a product of so many rows with a table (length, words) reads or makes, by tables."""
    bits = 8 if rows >= MANY_ROWS else 4
    return length * words * ((1 << bits) + rows) // bits


def four_russians(rows: Tensor, table: Tensor) -> Tensor:
    """The product by tables, in torch operations."""
    words = table.shape[1]
    bits = 8 if rows.shape[0] >= MANY_ROWS else 4
    digits = _digits(rows, bits)  # (digits, n)
    size = max(1, BLOCK_WORDS // (words * ((1 << bits) + rows.shape[0])))
    result = torch.zeros(rows.shape[0], words, dtype=torch.int64, device=table.device)
    for start in range(0, len(digits), size):
        block = digits[start : start + size]
        result ^= _selected(block, table[start * bits : (start + len(block)) * bits], bits)
    return result


def _digits(rows: Tensor, bits: int) -> Tensor:
    """Digits of `bits` bits of each row, as indices: (digits, n)."""
    if bits == 4:
        rows = torch.stack((rows & 15, rows >> 4), -1).flatten(-2)
    return rows.to(torch.int64).t().contiguous()


def _selected(digits: Tensor, part: Tensor, bits: int) -> Tensor:
    """XOR over the digits of the rows they select: (G, n) indices, up to G·bits rows of b → (n, words)."""
    groups, words = len(digits), part.shape[1]
    missing = groups * bits - len(part)
    if missing:
        part = torch.nn.functional.pad(part, (0, 0, 0, missing))
    part = part.reshape(groups, bits, words)
    sums = torch.zeros(groups, 1, words, dtype=torch.int64, device=part.device)
    for place in range(bits):
        sums = torch.cat((sums, sums ^ part[:, place : place + 1]), 1)
    first = torch.arange(groups, device=digits.device)[:, None] << bits
    chosen = sums.reshape(-1, words).index_select(0, (digits + first).reshape(-1)).reshape(groups, -1, words)
    while len(chosen) > 1:
        half = len(chosen) // 2
        rest = chosen[2 * half :]
        chosen = torch.cat((chosen[:half] ^ chosen[half : 2 * half], rest))
    return chosen[0]

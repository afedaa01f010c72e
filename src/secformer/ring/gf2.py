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


def pack_bits(bits: Tensor) -> Tensor:
    """0/1 values (..., k) to uint8 (..., ceil(k/8)), least significant bit first."""
    length = bits.shape[-1]
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -length % 8)).unflatten(-1, (-1, 8))
    weights = torch.tensor([1 << place for place in range(8)], dtype=torch.uint8, device=bits.device)
    return (padded * weights).sum(-1, dtype=torch.int64).to(torch.uint8)


def unpack_bits(packed: Tensor, length: int) -> Tensor:
    """The inverse: uint8 (..., bytes) to int64 0/1 values (..., length)."""
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> places) & 1).flatten(-2)[..., :length].to(torch.int64)


MANY_ROWS = 224
"""From here on (2^8 + n)/8 < (2^4 + n)/4."""

BLOCK_WORDS = 1 << 18
"""Words of the tables and the selected rows of one block: two megabytes."""


def gf2_matmul(rows: Tensor, table: Tensor) -> Tensor:
    """(n, ceil(k/8)) bytes times (k, words) int64 → (n, words) int64."""
    count, words = table.shape
    if rows.shape[-1] != (count + 7) // 8:
        raise ShapeError(f"{rows.shape[-1]} bytes of bits do not fit a table of {count} rows")
    if rows.device.type == "meta":
        return torch.empty(rows.shape[0], words, dtype=torch.int64, device="meta")
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

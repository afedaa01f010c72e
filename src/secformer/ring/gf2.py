"""Matrix products over GF(2) on packed bits.

a holds n rows of k bits (packed into bytes, least significant first), b holds k rows of 64-bit words; the result's row
i is the XOR of those rows of b whose bit is set in a's row i. Eight rows of b at a time are combined into a table of
their 256 XORs (the method of the four Russians), so each byte of a costs one table row instead of eight.
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


def gf2_matmul(rows: Tensor, table: Tensor) -> Tensor:
    """(n, ceil(k/8)) bytes times (k, words) int64 → (n, words) int64."""
    count = table.shape[0]
    if rows.shape[-1] != (count + 7) // 8:
        raise ShapeError(f"{rows.shape[-1]} bytes of bits do not fit a table of {count} rows")
    result = torch.zeros(rows.shape[0], table.shape[1], dtype=torch.int64, device=table.device)
    if rows.device.type == "meta":
        return result.to("meta")
    index = rows.to(torch.int64).t().contiguous()
    for group in range(rows.shape[-1]):
        part = table[8 * group : 8 * group + 8]
        result ^= _sums(part).index_select(0, index[group])
    return result


def _sums(part: Tensor) -> Tensor:
    """All XORs of up to eight rows: entry v combines the rows whose bit is set in v (256 rows, absent ones zero)."""
    sums = torch.zeros(1, part.shape[1], dtype=torch.int64, device=part.device)
    for row in part:
        sums = torch.cat((sums, sums ^ row))
    missing = 256 // sums.shape[0]
    return sums if missing == 1 else sums.repeat(missing, 1)

"""Matrix products modulo 2^w as float64 products of digits; `secformer.ring.limbs` proves them exact."""

import torch
from torch import Tensor

from secformer.ring.limbs import Column, Plan, Prepared, plan

# On an H200 a pass over memory costs as much as hundreds of float64 multiply-adds, so chunks rarely pay.
ACCELERATOR_RECOMBINATION = 512


def matmul(a: Tensor, b: Prepared, width: int, a_bits: int) -> Tensor:
    """Sum of (digit of a) @ (digit of b) * 2^(sum of their places), modulo 2^64."""
    inner = a.shape[-1]
    if inner == 0:
        batch = torch.broadcast_shapes(a.shape[:-2], b.tensor.shape[:-2])
        return torch.zeros(*batch, a.shape[-2], b.tensor.shape[-1], dtype=a.dtype, device=a.device)
    return multiply(a, b, plan(inner, width, a_bits, min(b.bits, width), ACCELERATOR_RECOMBINATION))


def multiply(a: Tensor, b: Prepared, chosen: Plan) -> Tensor:
    """Carry out a plan."""
    out = None
    for column in chosen.columns:
        out = _add_column(out, a, b, column, -(-a.shape[-1] // chosen.chunks))
    assert out is not None  # a plan has at least one column
    return out


def _add_column(out: Tensor | None, a: Tensor, b: Prepared, column: Column, length: int) -> Tensor | None:
    left = column.left.of(a)
    for digit in column.right:
        right = b.derive(digit, digit.of)
        place = column.left.start + digit.start
        for start in range(0, a.shape[-1], length):
            # Magnitude <= 2^53: exact in float64, and in the conversion.
            part = left[..., start : start + length] @ right[..., start : start + length, :]
            out = _add_shifted(out, part.to(torch.int64), place)
    return out


def _add_shifted(out: Tensor | None, part: Tensor, place: int) -> Tensor:
    """out + part * 2^place modulo 2^64, in place; the first part starts the sum."""
    if out is None:
        return part << place if place else part
    # 2^63 and -2^63 are the same residue; only the latter is an int64.
    return out.add_(part, alpha=1 << place if place < 63 else -(1 << 63))

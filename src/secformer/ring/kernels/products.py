"""Matrix products modulo 2^w on tensor cores of an NVIDIA GPU, from int64 to int64.

**Products.** Modulo 2^w only pairs i + j < ⌈w/8⌉ =: L of digits (digits.py) count, L(L+1)/2 of them: 36 at 64 bits, 15 at 40. All
pairs of one sum s lie at the same place and share an int32. It is exact while L·inner·2^14 < 2^31; longer dimensions are cut.

**Two products at once.** A gate's (j·x̂ − [r]) @ ŷ − x̂ @ [s] + [rs] is one product over twice the inner dimension, whose
left half comes from one pass over (x̂, [r]) and whose right half, for a weight, is kept; [rs] is added as the sum is stored.

Hopper has a kernel of its own (hopper.py), tried before its first use; every other GPU takes the one in Triton (int8.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.ring.kernels import hopper, int8
from secformer.ring.kernels.digits import ALONE, Combination, cut
from secformer.ring.limbs import Prepared


class Uncut(NamedTuple):
    """An operand (batch, rows, inner), or two that are combined as they are cut."""

    first: Tensor
    second: Tensor | None = None
    parts: Sequence[Combination] = ALONE

    def cut(self, limbs: int, clear: Tensor | None = None, early: bool = False) -> Tensor:
        return cut(self.first, limbs, self.second, self.parts, clear, early)


def multiply(left: Uncut, count: int, right: Tensor, limbs: int, extra: Tensor | None = None) -> Tensor:
    """left @ rightᵀ, modulo 2^(8·limbs), plus `extra`; of `left` are cut `count` digits, `right` is cut already."""
    added, device = None if extra is None else extra.contiguous(), left.first.device
    (batch, rows, _), (_, stored, chunks, columns, _) = left.first.shape, right.shape
    if hopper.present(device):
        digits = hopper.needed(count, stored, limbs)
        plan = hopper.plan(digits, batch, rows, columns, chunks, hopper.processors(device))
        if hopper.trusted(digits, plan.tile, device):
            out = torch.empty((batch, rows, columns), dtype=torch.int64, device=device)
            cleared = out if plan.pieces > 1 else None
            hopper.multiply(left.cut(count, cleared, early=True), right, limbs, out, added, plan)
            return out
    return int8.multiply(left.cut(count), right, limbs, added)


def matmul(a: Tensor, right: Prepared, width: int, a_bits: int) -> Tensor:
    """a @ right modulo 2^width, for any shapes that torch.matmul takes."""
    shape, left, columns = _folded(a, right.tensor)
    if 0 in (*shape, a.shape[-1]):
        return torch.zeros(shape, dtype=torch.int64, device=a.device)
    limbs = -(-width // 8)
    stored = right.derive("int8", lambda b: Uncut(_columns(b, columns)).cut(_digits(right.width, right.bits)))
    return multiply(Uncut(left), _digits(width, a_bits), stored, limbs).view(shape)


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
    left = Uncut(public, mask, (Combination(party, -1), Combination(-1, 0)))

    def halves() -> Tensor:
        parts = (Combination(1, 0), Combination(0, 1))
        return Uncut(_columns(y.public, columns), _columns(y.mask, columns), parts).cut(limbs)

    right = y.cached(f"limbs {limbs}", halves)
    return multiply(left, limbs, right, limbs, dealt[0]).view(shape)

"""Products of wires, elementwise, a Triton kernel each: what protocols/multiply.py says in half a dozen passes over tensors.

Multiply    out = x̂(j·ŷ − [s]) − [r]ŷ + [rs]            y of x's shape, or one value for each column
Square      out = x̂(j·x̂ − 2[r]) + [r²], or its sum over a row with [Σ r²]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.launching import launch

_PIECE = 1024


@triton.jit(do_not_specialize=("count", "columns", "party"))
def _multiply(x_public, x_mask, y_public, y_mask, both, out, count, columns, party, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    other = place % columns
    y = tl.load(y_public + other, mask=inside, other=0)
    own = party * y - tl.load(y_mask + other, mask=inside, other=0)
    total = tl.load(x_public + place, mask=inside, other=0) * own - tl.load(x_mask + place, mask=inside, other=0) * y
    tl.store(out + place, total + tl.load(both + place, mask=inside, other=0), mask=inside)


def evaluate_multiply(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    """Other shapes by the gate's own method."""
    x, y = wires
    count, columns = x.public.numel(), y.public.numel()
    last = tuple(y.shape[-1:])
    by_columns = last == tuple(x.shape[-1:]) and columns == prod(last)
    if tuple(dealt[0].shape) != tuple(x.shape) or not (by_columns or tuple(y.shape) == tuple(x.shape)):
        return gate.evaluate(party, wires, dealt)
    given = [tensor.contiguous() for tensor in (x.public, x.mask, y.public, y.mask, dealt[0])]
    out = torch.empty_like(given[0])
    launch(_multiply, triton.cdiv(count, _PIECE), *given, out, count, columns, party, LENGTH=_PIECE)
    return out


@triton.jit
def _terms(public, mask, place, inside, party):
    """x̂(j·x̂ − 2[r])."""
    x = tl.load(public + place, mask=inside, other=0)
    return x * (party * x - 2 * tl.load(mask + place, mask=inside, other=0))


@triton.jit(do_not_specialize=("count", "party"))
def _square(public, mask, squared, out, count, party, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    terms = _terms(public, mask, place, inside, party)
    tl.store(out + place, terms + tl.load(squared + place, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=("length", "party"))
def _square_rows(public, mask, squared, out, length, party, LENGTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((LENGTH,), tl.int64)
    for start in range(0, length, LENGTH):
        column = start + tl.arange(0, LENGTH)
        total += _terms(public, mask, row * length + column, column < length, party)
    tl.store(out + row, tl.sum(total, axis=0) + tl.load(squared + row))


def evaluate_square(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    given = [tensor.contiguous() for tensor in (x.public, x.mask, dealt[0])]
    if gate.rows:
        length = x.shape[-1]
        out = torch.empty((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
        piece = min(_PIECE, triton.next_power_of_2(length))
        launch(_square_rows, out.numel(), *given, out, length, party, LENGTH=piece)
    else:
        out = torch.empty_like(given[0])
        launch(_square, triton.cdiv(out.numel(), _PIECE), *given, out, out.numel(), party, LENGTH=_PIECE)
    return out

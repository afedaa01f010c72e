"""Gates of lifted wires, a Triton kernel each: what protocols/lift.py says in a dozen operations on whole tensors.

With X̂ the public part, R = [r] − 2^w [κ] the integer mask and m the public wrap bit of an element, X̂ < 2^(w−2):

    Carry            out = [κ_m]
    UnmaskLifted     out = j·X̂ − R
    SquareLifted     out = X̂(j·X̂ − 2R) + m·[q]·2^(w+1) + [r²], or its sum over a row with [Σ r²]
    MultiplyLifted   out = X̂(j·Ŷ − R_y) − R_x Ŷ + [r_x r_y] − m_x[b_x r_y]2^w_x − m_y[r_x b_y]2^w_y + m_x m_y[b_x b_y]2^(w_x+w_y)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from secformer.ring.kernels.cipher import low_bits
from secformer.ring.kernels.launching import launch

_PIECE = 1024


@triton.jit(do_not_specialize=("count", "width"))
def _carry(public, without, with_one, out, count, width, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    quarter = tl.full((), 1, tl.int64) << (width - 2)
    centred = (tl.load(public + place, mask=inside, other=0) + quarter) & low_bits(width)
    wraps = centred < 2 * quarter
    zero = tl.load(without + place, mask=inside, other=0)
    one = tl.load(with_one + place, mask=inside, other=0)
    tl.store(out + place, tl.where(wraps, one, zero), mask=inside)


def evaluate_carry(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    public, without, with_one = (tensor.contiguous() for tensor in (x.public, *dealt))
    out = torch.empty_like(public)
    launch(
        _carry, triton.cdiv(out.numel(), _PIECE), public, without, with_one, out, out.numel(), x.width, LENGTH=_PIECE
    )
    return out


@triton.jit(do_not_specialize=("count", "width"))
def _lower(public, out, count, width, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    quarter = tl.full((), 1, tl.int64) << (width - 2)
    centred = (tl.load(public + place, mask=inside, other=0) + quarter) & low_bits(width)
    tl.store(out + place, centred - quarter, mask=inside)


def lifted_public(public: Tensor, width: int) -> Tensor:
    """X̂ of a wire of `width` bits, from its public part."""
    public = public.contiguous()
    out = torch.empty_like(public)
    launch(_lower, triton.cdiv(out.numel(), _PIECE), public, out, out.numel(), width, LENGTH=_PIECE)
    return out


@triton.jit
def _integer_mask(mask, carry, place, inside, narrow):
    return tl.load(mask + place, mask=inside, other=0) - (tl.load(carry + place, mask=inside, other=0) << narrow)


@triton.jit(do_not_specialize=("count", "narrow", "party"))
def _unmask(public, mask, carry, out, count, narrow, party, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    own = party * tl.load(public + place, mask=inside, other=0)
    tl.store(out + place, own - _integer_mask(mask, carry, place, inside, narrow), mask=inside)


def evaluate_unmask(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    given = [tensor.contiguous() for tensor in (x.public, x.mask, x.carry)]
    out = torch.empty_like(given[0])
    programs = triton.cdiv(out.numel(), _PIECE)
    launch(_unmask, programs, *given, out, out.numel(), x.narrow_width, party, LENGTH=_PIECE)
    return out


@triton.jit
def _wrap_flag(public, narrow):
    return (public < tl.full((), 1, tl.int64) << (narrow - 2)).to(tl.int64)


@triton.jit
def _squares(public, mask, carry, crossed, place, inside, narrow, party):
    """X̂(j·X̂ − 2R) + m·[q]·2^(w+1)."""
    x = tl.load(public + place, mask=inside, other=0)
    terms = x * (party * x - 2 * _integer_mask(mask, carry, place, inside, narrow))
    return terms + ((_wrap_flag(x, narrow) * tl.load(crossed + place, mask=inside, other=0)) << (narrow + 1))


@triton.jit(do_not_specialize=("count", "narrow", "party"))
def _square(public, mask, carry, squared, crossed, out, count, narrow, party, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    terms = _squares(public, mask, carry, crossed, place, inside, narrow, party)
    tl.store(out + place, terms + tl.load(squared + place, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=("length", "narrow", "party"))
def _square_rows(public, mask, carry, squared, crossed, out, length, narrow, party, LENGTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((LENGTH,), tl.int64)
    for start in range(0, length, LENGTH):
        column = start + tl.arange(0, LENGTH)
        total += _squares(public, mask, carry, crossed, row * length + column, column < length, narrow, party)
    tl.store(out + row, tl.sum(total, axis=0) + tl.load(squared + row))


def evaluate_square(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    given = [tensor.contiguous() for tensor in (x.public, x.mask, x.carry, *dealt)]
    if gate.rows:
        length = x.shape[-1]
        out = torch.empty((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
        piece = min(_PIECE, triton.next_power_of_2(length))
        launch(_square_rows, out.numel(), *given, out, length, x.narrow_width, party, LENGTH=piece)
    else:
        out = torch.empty_like(given[0])
        programs = triton.cdiv(out.numel(), _PIECE)
        launch(_square, programs, *given, out, out.numel(), x.narrow_width, party, LENGTH=_PIECE)
    return out


@triton.jit(do_not_specialize=("count", "repeat", "x_narrow", "y_narrow", "party"))
def _multiply(
    x_public, x_mask, x_carry, y_public, y_mask, y_carry, both, right, left, bits, out,
    count, repeat, x_narrow, y_narrow, party, FOUR: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    other = place // repeat
    x = tl.load(x_public + place, mask=inside, other=0)
    y = tl.load(y_public + other, mask=inside, other=0)
    own = party * y - _integer_mask(y_mask, y_carry, other, inside, y_narrow)
    total = x * own - _integer_mask(x_mask, x_carry, place, inside, x_narrow) * y
    x_bit, y_bit = _wrap_flag(x, x_narrow), _wrap_flag(y, y_narrow)
    total += tl.load(both + place, mask=inside, other=0)
    total -= (x_bit * tl.load(right + place, mask=inside, other=0)) << x_narrow
    total -= (y_bit * tl.load(left + place, mask=inside, other=0)) << y_narrow
    if FOUR:
        total += (x_bit * y_bit * tl.load(bits + place, mask=inside, other=0)) << (x_narrow + y_narrow)
    tl.store(out + place, total, mask=inside)


def evaluate_multiply(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    """x of the result's shape; y of the same, or one value a row. Other shapes by the gate's own method."""
    x, y = wires
    row = (*x.shape[:-1], 1)
    if tuple(y.shape) not in (tuple(x.shape), row) or len(dealt) < 3:
        return gate.evaluate(party, wires, dealt)
    given = [tensor.contiguous() for each in wires for tensor in (each.public, each.mask, each.carry)]
    shared = [tensor.contiguous() for tensor in (dealt if len(dealt) == 4 else (*dealt, dealt[0]))]
    out = torch.empty_like(given[0])
    repeat = x.shape[-1] if tuple(y.shape) == row else 1
    launch(
        _multiply, triton.cdiv(out.numel(), _PIECE), *given, *shared, out, out.numel(), repeat, x.narrow_width,
        y.narrow_width, party, FOUR=len(dealt) == 4, LENGTH=_PIECE,
    )  # fmt: skip
    return out

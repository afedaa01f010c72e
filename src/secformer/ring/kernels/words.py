"""Gates that look bits up in dealt words, a Triton kernel each.

Outside        out[row] = xor of h_j over the elements j whose dealt bit at the public cell is set; or that bit itself
DigitTables    bit t of out = bit δ_t of the t-th dealt word, δ_t the public digit of that table
SignedWords    out = Σ 2^i (j·δ_i + (1 − 2δ_i)[r_i]), the last term negative, δ_i the public bits of a number, [r_i] dealt
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
_FEW = 8192
"""Elements up to which more programs take a smaller piece each."""
_TABLES = 8
"""Dealt words of an element that a kernel takes: four digits, equal and below."""


@triton.jit
def _flags(public, dealt, place, inside, width, cell_bits, shift):
    cell = ((tl.load(public + place, mask=inside, other=0) + shift) & low_bits(width)) >> (width - cell_bits)
    return (tl.load(dealt + place, mask=inside, other=0) >> cell) & 1


@triton.jit(do_not_specialize=("length", "width", "cell_bits", "shift"))
def _outside_rows(public, dealt, hashes, out, length, width, cell_bits, shift, LENGTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    words = tl.zeros((LENGTH,), tl.int64)
    for start in range(0, length, LENGTH):
        column = start + tl.arange(0, LENGTH)
        inside = column < length
        flags = _flags(public, dealt, row * length + column, inside, width, cell_bits, shift)
        words ^= -flags & tl.load(hashes + column, mask=inside, other=0)
    tl.store(out + row, tl.xor_sum(words, axis=0))


@triton.jit(do_not_specialize=("count", "width", "cell_bits", "shift"))
def _outside_bits(public, dealt, out, count, width, cell_bits, shift, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    tl.store(out + place, _flags(public, dealt, place, inside, width, cell_bits, shift), mask=inside)


def evaluate_outside(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    public, words = x.public.contiguous(), dealt[0].contiguous()
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=public.device)
    numbers = (x.width, gate.cell_bits, gate.shift)
    if gate.single:
        launch(
            _outside_bits, triton.cdiv(out.numel(), _PIECE), public, words, out, out.numel(), *numbers, LENGTH=_PIECE
        )
    else:
        length = x.shape[-1]
        piece = min(_PIECE, triton.next_power_of_2(length))
        hashes = gate.hashes(length, public.device)
        launch(_outside_rows, out.numel(), public, words, hashes, out, length, *numbers, LENGTH=piece)
    return out


@triton.jit(
    do_not_specialize=("count", "low0", "low1", "low2", "low3", "size0", "size1", "size2", "size3"),
)
def _digits(
    public, table0, table1, table2, table3, table4, table5, table6, table7, out, count,
    low0, low1, low2, low3, size0, size1, size2, size3,
    DIGITS: tl.constexpr, TABLES: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    number = tl.load(public + place, mask=inside, other=0)
    tables = (table0, table1, table2, table3, table4, table5, table6, table7)
    lows, sizes = (low0, low1, low2, low3), (size0, size1, size2, size3)
    word = tl.zeros((LENGTH,), tl.int64)
    for table in tl.static_range(TABLES):
        digit = (number >> lows[table % DIGITS]) & ((1 << sizes[table % DIGITS]) - 1)
        word |= ((tl.load(tables[table] + place, mask=inside, other=0) >> digit) & 1) << table
    tl.store(out + place, word, mask=inside)


def evaluate_digits(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    if len(dealt) > _TABLES or len(gate.digits) > _TABLES // 2:
        return gate.evaluate(party, wires, dealt)
    public = wires[0].public.contiguous()
    words = [table.contiguous() for table in dealt]
    padded = (*gate.digits, *gate.digits, *gate.digits, *gate.digits)[: _TABLES // 2]
    lows, sizes = zip(*padded, strict=True)
    out = torch.empty_like(public)
    piece = _PIECE if out.numel() > _FEW else _PIECE // 8
    launch(
        _digits, triton.cdiv(out.numel(), piece), public, *words, *[public] * (_TABLES - len(words)), out,
        out.numel(), *lows, *sizes, DIGITS=len(gate.digits), TABLES=len(words), LENGTH=piece,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=("count", "words", "columns", "bits", "party"))
def _signed(public, dealt, out, count, words, columns, bits, party, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    row = public + place // columns * words
    first = place % columns * bits
    total = tl.zeros((LENGTH,), tl.int64)
    for number in range(0, bits):
        word = tl.load(row + (first + number) // 64, mask=inside, other=0)
        bit = (word >> ((first + number) % 64)) & 1
        term = party * bit + (1 - 2 * bit) * tl.load(dealt + place * bits + number, mask=inside, other=0)
        total += tl.where(number == bits - 1, -term, term) << number
    tl.store(out + place, total, mask=inside)


def evaluate_signed(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    public, masks = wires[0].public.contiguous(), dealt[0].contiguous()
    rows, words = public.shape
    out = torch.empty((rows, gate.columns), dtype=torch.int64, device=public.device)
    programs = triton.cdiv(out.numel(), _PIECE // 4)  # few numbers of many bits: spread over the processors
    launch(
        _signed, programs, public, masks, out, out.numel(), words, gate.columns, gate.bits, party, LENGTH=_PIECE // 4
    )
    return out

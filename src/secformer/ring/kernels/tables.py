"""Gates that are tables of a public number or of a mask, one Triton kernel each.

A gate's formulas stay where they are: what a kernel needs is asked of the gate itself. `evaluate` is linear in the dealt
values, so its answers to unit vectors, for every public number, are its table of factors; `deal` on every mask is its table
of dealt rows. Both are asked for once, on the device, and kept.

    rows times factors    out[i] = j·c(δ_i) + Σ_k t(δ_i, k)·[dealt]_ik      Fourier (narrow), DisjointSum, SignedSum
    rows                  dealt[i] = d(r_i)                                 Fourier (narrow), DisjointSum, BitPolynomials
    a rotated row         dealt[i, h] = e((r_i − h·2^l) mod 2^w)            BlockPower
    one entry             out[i] = [dealt]_(i, δ_i >> l) · f(δ_i mod 2^l)   BlockPower, δ_i = x̂_i − a row's t̂
    a histogram           out[v] = Σ_i [dealt]_(i, c_i − v)                 Histogram
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
from secformer.ring.resident import resident

LARGEST = 18
"""Bits of a number up to which a table of all of them is made."""

_TILE = 2048
"""Values a program handles."""


# -- asking the gate ------------------------------------------------------------------------------------------------------


# A wire is made of a public part, a mask and a width; a gate's answer depends on those alone.


@resident
def _factors(gate: Any, kind: Any, width: int, terms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """t (2^w, terms) and c (2^w,), by evaluating unit vectors."""
    numbers = torch.arange(1 << width, device=device)
    wires = [kind(numbers, numbers, width)] * len(gate.takes)
    units = torch.eye(terms, dtype=torch.int64, device=device)
    table = torch.stack([gate.evaluate(0, wires, (unit.expand(len(numbers), terms),)) for unit in units], -1)
    constant = gate.evaluate(1, wires, (units.new_zeros(len(numbers), terms),))
    return _narrow(table), constant


@resident
def _dealt_rows(gate: Any, kind: Any, width: int, device: torch.device) -> Tensor:
    """d (2^w, terms)."""
    numbers = torch.arange(1 << width, device=device)
    (rows,) = gate.deal(kind(numbers, numbers, width))
    return _narrow(rows.reshape(len(rows), -1))


def _narrow(table: Tensor) -> Tensor:
    """int32 where it fits: half the traffic."""
    low, high = torch.aminmax(table)
    return table.to(torch.int32) if int(low) >= -(1 << 31) and int(high) < 1 << 31 else table.contiguous()


# -- rows -----------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=("count", "last", "party"))
def _row_sums(
    public, dealt, table, constant, out, count, last, party, terms: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    # Places inside a program's part, and in tables, are below 2^31: int64 arithmetic on each of them took most of the time.
    # `terms` is known when this is compiled: then the compiler sees which of a row's values can be loaded together.
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    term = tl.arange(0, TERMS)[None, :]
    inside = row < count - first
    both = inside[:, None] & (term < terms)
    number = (tl.load(public + first + row, mask=inside, other=0) & last).to(tl.int32)
    factor = tl.load(table + (number[:, None] * terms + term), mask=both, other=0).to(tl.int64)
    values = tl.load(dealt + first * terms + (row[:, None] * terms + term), mask=both, other=0)
    total = tl.sum(factor * values, axis=1)
    if party != 0:
        total += tl.load(constant + number, mask=inside, other=0)
    tl.store(out + first + row, total, mask=inside)


@triton.jit(do_not_specialize=("count", "last"))
def _rows(mask, table, out, count, last, terms: tl.constexpr, ROWS: tl.constexpr, TERMS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    term = tl.arange(0, TERMS)[None, :]
    inside = row < count
    both = inside[:, None] & (term < terms)
    number = tl.load(mask + row, mask=inside, other=0) & last
    entry = tl.load(table + number[:, None] * terms + term, mask=both, other=0).to(tl.int64)
    tl.store(out + row[:, None] * terms + term, entry, mask=both)


def evaluate_rows(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    """A gate whose share is a sum of dealt values, each times what the first wire's public number says."""
    x = wires[0]
    terms = dealt[0].shape[-1]
    if x.width > LARGEST:
        return gate.evaluate(party, wires, dealt)
    table, constant = _factors(gate, type(x), x.width, terms, x.public.device)
    public, values = x.public.contiguous(), dealt[0].contiguous()
    out = torch.empty_like(public)
    size = triton.next_power_of_2(terms)
    rows = max(1, _TILE // size)
    launch(
        _row_sums, triton.cdiv(out.numel(), rows), public, values, table, constant, out, out.numel(),
        (1 << x.width) - 1, party, terms=terms, ROWS=rows, TERMS=size,
    )  # fmt: skip
    return out


def deal_rows(gate: Any, *wires: Any) -> Sequence[Tensor]:
    """A gate that deals a row for every mask."""
    x = wires[0]
    if x.width > LARGEST:
        return gate.deal(*wires)
    (form,) = gate.materials(*wires)
    terms = prod(form.shape) // x.mask.numel()
    table = _dealt_rows(gate, type(x), x.width, x.mask.device)
    mask = x.mask.contiguous()
    out = torch.empty(form.shape, dtype=torch.int64, device=mask.device)
    size = triton.next_power_of_2(terms)
    rows = max(1, _TILE // size)
    launch(
        _rows, triton.cdiv(mask.numel(), rows), mask, table, out, mask.numel(), (1 << x.width) - 1,
        terms=terms, ROWS=rows, TERMS=size,
    )  # fmt: skip
    return (out,)


# -- powers ---------------------------------------------------------------------------------------------------------------


@resident
def _power_factors(gate: Any, kind: Any, width: int, blocks: int, device: torch.device) -> Tensor:
    """f (2^l,): the public factor of every number of a block."""
    numbers = torch.arange((1 << width) // blocks, device=device)
    ones = torch.ones((len(numbers), blocks), dtype=torch.int64, device=device)
    return gate.evaluate(0, _below_zero(kind, numbers, width), (ones,))


@resident
def _power_entries(gate: Any, kind: Any, width: int, device: torch.device) -> Tensor:
    """e (2^w,): the first block's entry for every mask. The others are the same, rotated."""
    parts = torch.arange(1 << width, device=device).split(1 << 18)
    return torch.cat([gate.deal(*_below_zero(kind, part, width))[0][:, 0] for part in parts])


def _below_zero(kind: Any, numbers: Tensor, width: int) -> tuple[Any, Any]:
    """These numbers, and a top of nothing."""
    nothing = numbers.new_zeros(1)
    return kind(numbers, numbers, width), kind(nothing, nothing, width)


@triton.jit(do_not_specialize=("count", "length", "blocks", "last", "low", "step"))
def _pick(public, top, dealt, factors, out, count, length, blocks, last, low, step, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    inside = place < count
    ceiling = tl.load(top + place // length, mask=inside, other=0)
    number = (tl.load(public + place, mask=inside, other=0) - ceiling) & last
    entry = tl.load(dealt + place * blocks + (number >> low), mask=inside, other=0)
    tl.store(out + place, entry * tl.load(factors + (number & step), mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=("count", "blocks", "last", "low"))
def _rotate(mask, entries, out, count, blocks, last, low, LENGTH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * LENGTH + tl.arange(0, LENGTH)
    row = place // blocks
    inside = row < count
    number = tl.load(mask + row, mask=inside, other=0) - ((place - row * blocks) << low)
    tl.store(out + place, tl.load(entries + (number & last), mask=inside, other=0), mask=inside)


def evaluate_power(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x, top), blocks = wires, dealt[0].shape[-1]
    low = x.width - blocks.bit_length() + 1
    factors = _power_factors(gate, type(x), x.width, blocks, x.public.device)
    public, ceiling, values = x.public.contiguous(), top.public.contiguous(), dealt[0].contiguous()
    out = torch.empty_like(public)
    launch(
        _pick, triton.cdiv(out.numel(), 1024), public, ceiling, values, factors, out, out.numel(), x.shape[-1], blocks,
        (1 << x.width) - 1, low, (1 << low) - 1, LENGTH=1024,
    )  # fmt: skip
    return out


def deal_power(gate: Any, x: Any, top: Any) -> Sequence[Tensor]:
    (form,) = gate.materials(x, top)
    blocks = form.shape[-1]
    entries = _power_entries(gate, type(x), x.width, x.mask.device)
    mask = (x.mask - top.mask).contiguous()
    out = torch.empty(form.shape, dtype=torch.int64, device=mask.device)
    low = x.width - blocks.bit_length() + 1
    launch(
        _rotate, triton.cdiv(out.numel(), 1024), mask, entries, out, mask.numel(), blocks, (1 << x.width) - 1, low,
        LENGTH=1024,
    )  # fmt: skip
    return (out,)


# -- histograms -----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=("length", "last", "low"))
def _count(public, dealt, out, length, last, low, CELLS: tl.constexpr, LENGTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    numbers, values = public + row * length, dealt + row * length * CELLS  # places in a row are below 2^31
    cell = tl.arange(0, CELLS)[:, None]  # cells lie side by side in memory: so must the threads that read them
    counts = tl.zeros((CELLS, LENGTH), tl.int64)
    for start in range(0, length, LENGTH):
        place = start + tl.arange(0, LENGTH)
        inside = place < length
        coarse = ((tl.load(numbers + place, mask=inside, other=0) & last) >> low).to(tl.int32)
        turned = place[None, :] * CELLS + ((coarse[None, :] - cell) & (CELLS - 1))
        counts += tl.load(values + turned, mask=inside[None, :], other=0)
    tl.store(out + row * CELLS + tl.arange(0, CELLS), tl.sum(counts, axis=1))


@triton.jit(do_not_specialize=("count", "last", "low"))
def _one_hot(mask, out, count, last, low, CELLS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    coarse = (tl.load(mask + row, mask=inside, other=0) & last) >> low
    cell = tl.arange(0, CELLS)[None, :]
    tl.store(out + row[:, None] * CELLS + cell, (coarse[:, None] == cell).to(tl.int64), mask=inside[:, None])


def evaluate_histogram(gate: Any, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
    (x,) = wires
    cells, length = 1 << gate.cell_bits, x.shape[-1]
    public, values = x.public.contiguous(), dealt[0].contiguous()
    out = torch.empty((*x.shape[:-1], cells), dtype=torch.int64, device=public.device)
    piece = min(max(1, _TILE // cells), triton.next_power_of_2(length))
    launch(
        _count, out.numel() // cells, public, values, out, length, (1 << x.width) - 1, x.width - gate.cell_bits,
        CELLS=cells, LENGTH=piece,
    )  # fmt: skip
    return out


def deal_histogram(gate: Any, x: Any) -> Sequence[Tensor]:
    cells = 1 << gate.cell_bits
    mask = x.mask.contiguous()
    out = torch.empty((*x.shape, cells), dtype=torch.int64, device=mask.device)
    rows = max(1, _TILE // cells)
    launch(
        _one_hot, triton.cdiv(mask.numel(), rows), mask, out, mask.numel(), (1 << x.width) - 1,
        x.width - gate.cell_bits, CELLS=cells, ROWS=rows,
    )  # fmt: skip
    return (out,)

"""The maximum of a row to the nearest cell, by histogram instead of a tournament. Three rounds for any row length.

x lies in a window [0, 2^w) that is cut into 2^c cells. It is opened once, x̂ = x + r. T dealt the one-hot of the
*coarse* part of r (its top c bits) for every element, with entries modulo 2^h, 2^h > n. Rotating it by the public
coarse part of x̂ gives the one-hot of a cell of x: the right one or the one above, since the borrow of the low parts is
not known. The sum over the row gives shares of a histogram. Cumulated from the top it gives C_v = #{elements in cell v or
above}. The top cell is M = Σ_{v≥1} [C_v ≠ 0]: open the C_v (h bits), test for zero (one bit per digit), add up.

    rounds: the opening of x, then 2 (counts; test bits).
    each way per row: 2^c·(h + digits) bits.  Dealer: 2^c·h bits per element; per row 2^c·(tables + monomials).

M is exact or one cell too high: max ≤ (M+1)·cell, and max ≥ (M−1)·cell. The row maximum must stay below the last
cell, so that "one above" does not wrap to zero.
Safe: the rotation is by a public amount; counts and bits are opened under fresh masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.form import Form, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Public, Shared
from secformer.protocols.blocks import blockwise, in_cache
from secformer.protocols.compare import are_zero
from secformer.ring.fixed_point import reduce

EXACT = 1 << 24
"""Sums of integers up to this are exact in float32."""

SMALLER = 4
"""Dealt counts per 64-bit value that `in_cache` assumes: a count has two bytes, and four in the sum. (Short rows are rotated
one by one with an index of eight bytes per count, and need more room.)"""


@dataclass(frozen=True)
class Histogram(Gate[Shared]):
    """Counts of a row's elements in each of 2^cell_bits cells, modulo 2^width: (..., n) → (..., cells)."""

    cell_bits: int
    width: int

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return shared((*x.shape[:-1], 1 << self.cell_bits), self.width)

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, 1 << self.cell_bits), self.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        coarse = self._coarse(x.mask, x.width).unsqueeze(-1)
        return (coarse.new_zeros(*x.shape, 1 << self.cell_bits).scatter_(-1, coarse, 1),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j. The dealt values must be residues of `width` bits."""
        (x,) = wires
        length, cells = x.shape[-1], 1 << self.cell_bits
        # torch adds rows of float32 much faster than rows of integers
        kind = torch.float32 if length << self.width <= EXACT else torch.int64

        def one_by_one(public: Tensor, one_hots: Tensor) -> Tensor:
            return _turned(one_hots, self._coarse(public, x.width)).sum(-2)

        def by_cell(public: Tensor, one_hots: Tensor) -> Tensor:
            """Add up elements of one public cell first: they are rotated alike."""
            starts = torch.arange(0, cells * len(public), cells, device=x.device).unsqueeze(-1)
            place = (self._coarse(public, x.width) + starts).reshape(-1, 1).expand(-1, cells)
            sums = torch.zeros((cells * len(public), cells), dtype=kind, device=x.device)
            sums.scatter_add_(0, place, one_hots.reshape(-1, cells).to(kind))
            turns = torch.arange(cells, device=x.device).expand(len(public), -1)
            return _turned(sums.view(len(public), cells, cells), turns).sum(-2).to(torch.int64)

        count = by_cell if length >= 2 * cells else one_by_one
        public, one_hots = x.public.reshape(-1, length), dealt[0].reshape(-1, length, cells)
        size = max(1, length * cells // SMALLER)
        return in_cache(count, size, public, one_hots).reshape(*x.shape[:-1], cells)

    def plain(self, x: Masked) -> Tensor:
        """Compute the result as if the borrow always occurred: of a secure run's two outcomes, the usual one for a long row."""
        cells = (self._coarse(x.public, x.width) + 1) & ((1 << self.cell_bits) - 1)
        counts = torch.zeros(*x.shape[:-1], 1 << self.cell_bits, dtype=torch.int64, device=x.device)
        return counts.scatter_add_(-1, cells, torch.ones_like(cells))

    def _coarse(self, tensor: Tensor, width: int) -> Tensor:
        return reduce(tensor, width) >> (width - self.cell_bits)


def _turned(rows: Tensor, turns: Tensor) -> Tensor:
    """Read every row (..., cells) backwards, starting at the entry `turns` (...)."""
    cells = torch.arange(rows.shape[-1], device=rows.device)
    return rows.gather(-1, (turns.unsqueeze(-1) - cells) & (len(cells) - 1))


def histogram(runtime: Runtime, x: Masked, cell_bits: int) -> Shared:
    """Return row histograms (..., n) → (..., cells)."""
    length = x.shape[-1]
    rows = x.map(lambda tensor: tensor.reshape(-1, length))
    counts = blockwise(runtime, Histogram(cell_bits, length.bit_length()), length << cell_bits, rows)
    return counts.map(lambda tensor: tensor.reshape(*x.shape[:-1], 1 << cell_bits))


def empty_from(runtime: Runtime, rows: Sequence[tuple[Masked, int, int]]) -> list[Shared]:
    """Return [no element in cell v or above] for v = 1 .. cells − 1, for each (wire, cell_bits, width).

    Shapes (..., n) → (..., cells − 1). All entries of `rows` share the two rounds.
    """
    counts = [histogram(runtime, wire, cell_bits) for wire, cell_bits, _ in rows]
    above = [part.map(lambda tensor: tensor.flip(-1).cumsum(-1).flip(-1)[..., 1:].contiguous()) for part in counts]
    opened = runtime.open(*above)
    return are_zero(runtime, [(wire, width) for wire, (_, _, width) in zip(opened, rows, strict=True)])


def top_cell(runtime: Runtime, empty: Shared) -> Shared:
    """Return the highest cell a row reaches (or one more), (..., 1): the cells above the lowest, less the empty ones."""
    cells = torch.full((1,), empty.shape[-1], dtype=torch.int64)
    return runtime.constant(Public(cells), empty.width) - empty.map(lambda tensor: tensor.sum(-1, keepdim=True))

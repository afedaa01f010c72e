"""Our attention, from scores to output: true Softmax (`exact`) or 2Quad (`fast`), on wires, with secret padding.

Both normalise after the product with V: O = (P·V)·(1/D) with D the row sum of P, so that the n × n matrix is opened once.

**Exact.** Scores come in octaves (log2 e folded into Q), in a window of 2^lp octaves calibrated by head.
    1  open S modulo the window
    2–3  the row maximum to the nearest cell of two octaves, by histogram (maximum.py)
    4  open it; a = S − (M + 1)·cell ≤ 0 is then a wire for free
    5  2^a from T's table: the public part of a is 8h + ρ octaves, T dealt a share of 2^(8h − r) for every h, so
       [P] = 2^ρ·[G_h]. Open P, and D modulo its window
    6  N = P·V; y = 1/D by a Fourier series; open both, lift
    7  O = N·y, opened by the next layer
Padded keys have zero scores moved to the foot of the window: at least 20 octaves below the lowest row maximum, so they
neither win nor count.

*Window.* Placed scores lie in [0, 2^lp − 12]. (M + 1)·cell is above the maximum by at most two cells, so
−(2^lp − 8) ≤ a < 0 for every key of a row. The block starts at 8h − r = a − ρ modulo 2^lp, 0 ≤ ρ < 8, in (−2^lp, 0]:
T takes that representative, and is right. A lower a would come back as a power of up to 2^8.

*Denominator.* The largest weight is above 2^-4, so D is. If a score in the maximum's cell carries (maximum.py), every a is
below −2 and D < n/4. If none does, scores in lower cells still have weights below 1/4, and one at the fraction f of the
top cell has 4^f/4; it fails to carry with probability 1 − f. Since (4^f − 1)/4 ≤ −0.252·log2(1 − f), an excess of 10
over n/4 has a probability below 2^-39 a row, whatever the scores.

*Error of a probability.* 2^-15/D from rounding N and 2^-16/D from P, with D > 2^-4; 2^-12 octaves from S; relative, the
fit's 5e-4, 2^-13 from 2^ρ and 2^-13 from the period's factor. At most 1.5e-3. (D is the sum of P before it is rounded: at
24 bits T's table alone would add 5e-4 to D = 2^-4 of 512 keys, one deviation.)

**2Quad.** P = (S + c·m)² with padded keys zero in S; then 5 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.form import Form, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Public, Rounded, Shared
from secformer.protocols.blocks import blockwise, joined
from secformer.protocols.fit import FourierFit, scaled
from secformer.protocols.fourier import fourier, to_period
from secformer.protocols.lift import lift_wire, multiply_lifted, square_lifted
from secformer.protocols.maximum import top_cells
from secformer.protocols.multiply import matmul
from secformer.ring.fixed_point import encode, reduce
from secformer.ring.powers import powers_of_two

BLOCK_BITS = 3  # T's table has an entry for every 8 octaves
CELL_BITS = 1  # the maximum is found to the nearest 2 octaves
WINDOW_FOOT = 2.0  # octaves between the bottom of the window and the lowest score
TABLE_SCALE = 27  # fraction bits of T's table: 2^-20 after 2^ρ, and 512 roundings add up to less than 2^-16 in D
FACTOR_SCALE = 12  # fraction bits of the public 2^ρ
WINDOW_TOP = 2.0**BLOCK_BITS + 2 * 2.0**CELL_BITS
"""Octaves a score keeps from the top of the window: a block of T's table, and the two cells up to (M + 1)·cell."""

SMALLEST_DENOMINATOR = 0.062
"""D is above 2^-4, less a little for rounding."""

DENOMINATOR_EXCESS = 10.0
"""By how much D may exceed a quarter of the keys, but for a chance of 2^-39 a row."""

FACTOR_BITS = 12
"""Bits of the public factor that scales a denominator to its period: its rounding error is below 2^-13."""


@dataclass(frozen=True)
class BlockPower(Gate[Shared]):
    """2^a for a wire a ≤ 0 in units of 2^-step_bits octaves, modulo its window; scale TABLE_SCALE + FACTOR_SCALE."""

    step_bits: int
    width: int

    def blocks(self, x: Masked) -> int:
        """Entries of T's table."""
        return 1 << (x.width - self.step_bits - BLOCK_BITS)

    def result(self, x: Masked) -> Form:
        return shared(tuple(x.shape), self.width, TABLE_SCALE + FACTOR_SCALE)

    def materials(self, x: Masked) -> tuple[Form, ...]:
        return (shared((*x.shape, self.blocks(x)), self.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        window = 2.0 ** (x.width - self.step_bits)
        mask = reduce(x.mask, x.width).to(torch.float64) * 2.0**-self.step_bits
        starts = torch.arange(self.blocks(x), device=mask.device, dtype=torch.float64) * 2.0**BLOCK_BITS
        start = starts - mask.unsqueeze(-1)
        start = torch.where(start > 0, start - window, start)
        entry = torch.round(torch.exp2(start + TABLE_SCALE))
        entry = torch.where(start + 2.0**BLOCK_BITS < -TABLE_SCALE, torch.zeros_like(entry), entry)
        return (entry.to(torch.int64),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        (x,) = wires
        public = reduce(x.public, x.width)
        low_bits = self.step_bits + BLOCK_BITS
        entry = dealt[0].gather(-1, (public >> low_bits).unsqueeze(-1)).squeeze(-1)
        factors = powers_of_two(1 << BLOCK_BITS, self.step_bits, FACTOR_SCALE).to(public.device)
        return entry * factors[public & ((1 << low_bits) - 1)]

    def plain(self, x: Masked) -> Tensor:
        octaves = x.public.to(torch.float64) * 2.0**-self.step_bits
        return encode(torch.exp2(octaves.clamp(max=0.0)), TABLE_SCALE + FACTOR_SCALE)


@dataclass(frozen=True)
class HeadGroup:
    """Neighbouring heads with the same window: 2^window_bits octaves, the lowest score of each head in octaves."""

    count: int
    window_bits: int
    lowest: tuple[float, ...]


@dataclass(frozen=True)
class RowSetting:
    """How N = P·V and 1/D are opened and multiplied; `fit` is 1/D on the calibrated window of D."""

    fit: FourierFit
    denominator_bits: int = 30
    numerator_scale: int = 15
    numerator_width: int = 24
    reciprocal_scale: int = 18
    reciprocal_width: int = 26
    width: int = 53
    dealt_scale: int = 24
    public_scale: int = 18


@dataclass(frozen=True)
class ExactSetting:
    groups: tuple[HeadGroup, ...]
    rows: RowSetting
    score_scale: int = 12
    weight_scale: int = 16
    weight_width: int = 35

    @property
    def power_width(self) -> int:
        return TABLE_SCALE + FACTOR_SCALE + _whole_bits(self.rows, self.weight_width - self.weight_scale)


@dataclass(frozen=True)
class QuadSetting:
    """Scores are opened narrow and lifted; the squares are needed modulo 2^(weight_width + what is dropped)."""

    rows: RowSetting
    shift: float = 5.0
    score_scale: int = 10
    score_width: int = 21
    weight_scale: int = 6
    weight_width: int = 35

    @property
    def square_width(self) -> int:
        return min(64, 2 * self.score_scale + _whole_bits(self.rows, self.weight_width - self.weight_scale))


def _whole_bits(rows: RowSetting, weight_bits: int) -> int:
    """Bits above the point that P has to be known with: for its own wire, and for D times its period's factor."""
    return max(weight_bits, math.ceil(math.log2(rows.fit.period)) + FACTOR_BITS)


def exact_attention(
    runtime: Runtime,
    scores: Shared,
    value: Masked,
    key_mask: Shared,
    setting: ExactSetting,
    where: Shared | None = None,
) -> Shared:
    """Softmax(S)·V for scores in octaves (batch, heads, n, n), V (batch, heads, n, d), key_mask (batch, 1, 1, n) at scale 0.

    Heads are ordered by group. `where` (batch, 1, n, 1) tells simulation which query rows count.
    """
    windows = _place_in_windows(runtime, scores, key_mask, setting, where)
    wires = runtime.open(*windows)
    tops = _row_maxima(runtime, wires, setting)
    powers = [_powers(runtime, wire, top, setting) for wire, top in zip(wires, tops, strict=True)]
    weights = joined(powers, 1)  # (batch, heads, n, n), scale 39
    denominator = weights.map(lambda tensor: tensor.sum(-1, keepdim=True))
    if setting.rows.fit.high < largest_denominator(scores.shape[-1]):  # simulation assumes a carry; without it D is
        runtime.expect(denominator * 4, 0.0, setting.rows.fit.high, where)  # four times as large
    return _normalised_product(
        runtime, weights, denominator, value, setting.rows, setting.weight_scale, setting.weight_width, where
    )


def _place_in_windows(
    runtime: Runtime, scores: Shared, key_mask: Shared, setting: ExactSetting, where: Shared | None
) -> list[Rounded]:
    """S − lowest + foot for real keys, foot for padded ones, to be opened modulo each group's window."""
    placed, start = [], 0
    for group in setting.groups:
        part = scores[:, start : start + group.count]
        lift_by = encode(-torch.tensor(group.lowest, dtype=torch.float64), part.scale).reshape(1, -1, 1, 1)
        shift = Shared(key_mask.share * lift_by.to(key_mask.device), part.width, part.scale)
        part = runtime.add(part + shift.narrow(part.width), WINDOW_FOOT)
        runtime.expect(part, 0.0, highest_score(group), where)
        placed.append(part.at(setting.score_scale, setting.score_scale + group.window_bits))
        start += group.count
    return placed


def highest_score(group: HeadGroup) -> float:
    """The highest placed score for which every other of its row, down to zero, has its power: see the module's text."""
    return 2.0**group.window_bits - WINDOW_TOP


def largest_denominator(keys: int) -> float:
    """A bound of D for rows of `keys` scores, whatever they are: see the module's text."""
    return min(float(keys), keys / 4 + DENOMINATOR_EXCESS)


def _row_maxima(runtime: Runtime, wires: Sequence[Masked], setting: ExactSetting) -> Sequence[Masked]:
    """Wires of (M + 1)·cell for every row, modulo the window. Three rounds for all groups together."""
    cell = 1 << (setting.score_scale + CELL_BITS)
    tops = top_cells(runtime, [(wire, wire.width - setting.score_scale - CELL_BITS, wire.width) for wire in wires])
    ceilings = []
    for wire, top in zip(wires, tops, strict=True):
        one = runtime.constant(Public(torch.ones(1, dtype=torch.int64)), wire.width)
        ceilings.append(Shared((top + one).share * cell, wire.width, wire.scale))
    return runtime.open(*ceilings)


def _powers(runtime: Runtime, wire: Masked, top: Masked, setting: ExactSetting) -> Shared:
    """2^(S − top)."""
    below = wire - top.map(lambda tensor: tensor.expand(wire.shape))
    gate = BlockPower(setting.score_scale, setting.power_width)
    length = wire.shape[-1]
    rows = below.map(lambda tensor: tensor.reshape(-1, length))  # (batch · heads · n, n)
    powers = blockwise(runtime, gate, rows, length * gate.blocks(rows))
    return powers.map(lambda tensor: tensor.reshape(wire.shape))


def quad_attention(
    runtime: Runtime, scores: Shared, value: Masked, key_mask: Shared, setting: QuadSetting, where: Shared | None = None
) -> Shared:
    """(S + c)²·V / Σ(S + c)² for natural scores whose padded keys are zero, with the shift c times the key's mask."""
    shift = round(setting.shift * 2.0**scores.scale)
    shifted = scores + Shared(key_mask.share * shift, scores.width, scores.scale)
    (wire,) = runtime.open(shifted.at(setting.score_scale, setting.score_width))
    weights = square_lifted(runtime, lift_wire(runtime, wire, setting.square_width, where=where), setting.square_width)
    denominator = weights.map(lambda tensor: tensor.sum(-1, keepdim=True))
    return _normalised_product(
        runtime, weights, denominator, value, setting.rows, setting.weight_scale, setting.weight_width, where
    )


def _normalised_product(
    runtime: Runtime,
    weights: Shared,
    denominator: Shared,
    value: Masked,
    rows: RowSetting,
    weight_scale: int,
    weight_width: int,
    where: Shared | None,
) -> Shared:
    """(P·V)·(1/D): two rounds, the result unopened."""
    opened, divisor = runtime.open(
        weights.at(weight_scale, weight_width),
        to_period(runtime, denominator, rows.fit, rows.denominator_bits, where),
    )
    product = matmul(runtime, opened, value)
    reciprocal = row_reciprocal(runtime, divisor, rows)
    numerator, factor = runtime.open(
        product.at(rows.numerator_scale, rows.numerator_width),
        reciprocal.at(rows.reciprocal_scale, rows.reciprocal_width),
    )
    lifted_numerator = lift_wire(runtime, numerator, rows.width, where=where)
    lifted_factor = lift_wire(runtime, factor, rows.width, where=where)
    return multiply_lifted(runtime, lifted_numerator, lifted_factor, rows.width)


def row_reciprocal(runtime: Runtime, divisor: Masked, rows: RowSetting) -> Shared:
    """1/D, computed as 2^k/D with 2^k near the largest D: a series rounded to 2^-18 would leave 1/D of a large D,
    such as 2Quad's 2^19, no digit."""
    octaves = math.floor(math.log2(rows.fit.high))
    dropped = rows.dealt_scale + rows.public_scale + octaves - rows.reciprocal_scale
    width = min(64, rows.reciprocal_width + dropped)
    raised = fourier(runtime, divisor, scaled(rows.fit, 1.0, 2.0**octaves), rows.dealt_scale, rows.public_scale, width)
    return raised.rescaled(raised.scale + octaves)

"""Our attention, from scores to output: true Softmax (`exact`) or 2Quad (`fast`), on wires, with secret padding.

Both normalise after the product with V: O = (P·V)·(1/D) with D the row sum of P, so that the n × n matrix is opened once.

**Exact.** Scores come in octaves (log2 e folded into Q), in a window of 2^lp octaves chosen by head.
    1  open S modulo two windows
    2–3  find the row maximum to the nearest cell of two octaves, by histogram (maximum.py)
    4  open it; a = S − (M + 1)·cell ≤ 0 is then a wire at no cost
    5  2^a from T's table: the public part of a is 16h + ρ octaves, T dealt a share of 2^(16h − r) for every h, so
       [P] = 2^ρ·[G_h]. Open P, and D modulo its window
    6  N = P·V; y = 1/D by a Fourier series; open both, lift
    7  O = N·y, opened by the next layer
Padded keys have zero scores moved to the foot of the window: 19 octaves or more below every row maximum. So they are never
the maximum, and their weight is negligible.

*Window.* A score s is placed at s + centre (calibration centres a head's scores about zero: a shift of all keys by one
secret vector does not change the Softmax). Placed scores lie in [0, 2^lp − guard). (M + 1)·cell is above the maximum by at
most two cells, so −(2^lp − 16) ≤ a < 0 for every key of a row. The block starts at 16h − r = a − ρ modulo 2^lp, 0 ≤ ρ < 16,
in (−2^lp, 0]: T takes that representative, and it is the right one.

*Evidence.* The histogram already shows if a cell of the guard at the top is occupied, and if the row maximum is too low
above the foot. A score below zero by less than the guard shows at the top as well. A score further out shows in the
bit above the window: the half of the two windows that it lies in, by cells no larger than the guard (evidence.py). So a row is
missed only if it leaves its window by more than a whole window and then all its keys land in admitted places.

*Denominator.* The largest weight is above 2^-4, so D is. If a score in the maximum's cell carries (maximum.py), every a is
below −2 and D < n/4. If none does, scores in lower cells still have weights below 1/4, and one at the fraction f of the
top cell has 4^f/4; it fails to carry with probability 1 − f. Since (4^f − 1)/4 ≤ −0.252·log2(1 − f), an excess of 10
over n/4 has a probability below 2^-39 per row, for any scores. So D's window follows from the length.

*Numerator.* |N| ≤ D·max ‖V_j‖. Heads are scaled by secret factors so that ‖V_j‖ ≤ LARGEST_VALUE. This is checked for each
row of V, and N's width follows from it.

*Error of a probability.* 2^-15/D from rounding P, with D > 2^-4; 2^-12 octaves from S; relative, the
fit's 5e-4, 2^-12 from 2^ρ and 2^-13 from the period's factor. At most 1.7e-3. (D is the sum of P before it is rounded: T's
table adds a random 2^-19 per key.)

**2Quad.** P = (S + c·m)² with padded keys zero in S; then 5 to 7. A score beyond its limit L by up to L/2 may be misread as
one of 5L/2 or more. L is chosen so that this shows in D, which is opened a second time, coarsely and wide. A score further
out, up to 13L/2, shows in the cells of the bits above.
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
from secformer.engine.values import Masked, MaskedBits, Public, Rounded, Shared, joined
from secformer.errors import ShapeError, WidthError
from secformer.protocols.blocks import blockwise, in_cache
from secformer.protocols.evidence import (
    INTERVAL_BITS,
    LARGEST_TABLE,
    SCOPE,
    Evidence,
    Outside,
    coarse_scale,
    complement,
    interval_steps,
    outside_steps,
)
from secformer.protocols.fit import FourierFit, scaled
from secformer.protocols.fourier import fourier, gated_fourier, to_period
from secformer.protocols.lift import lift_wire, multiply_lifted, square_lifted
from secformer.protocols.maximum import empty_from, top_cell
from secformer.protocols.multiply import matmul, row_squares
from secformer.ring.fixed_point import encode, reduce
from secformer.ring.powers import powers_of_two
from secformer.ring.resident import entries, resident

BLOCK_BITS = 4  # T's table has an entry for every 16 octaves
CELL_BITS = 1  # the maximum is found to the nearest 2 octaves
FOOT = 0.25  # octaves between the bottom of the window and the padded keys
TABLE_SCALE = 31  # fraction bits of T's table: 2^-15 after 2^ρ
FACTOR_SCALE = 11  # fraction bits of the public 2^ρ
LOWEST_MAXIMUM = 22.0
"""Lower bound of a placed row maximum. It makes the weight of a padded key at most 2^-19.75."""

LARGEST_VALUE = 7.4
"""Largest ‖V_j‖ of a scaled head: times the largest D of 512 keys it is just below 2^10."""

FAR_CELL_BITS = 4
"""log2 of the octaves per cell of the table that shows scores beyond the window."""

SMALLEST_DENOMINATOR = 0.062
"""Lower bound of D: 2^-4, less a little for rounding."""

DENOMINATOR_EXCESS = 10.0
"""Largest excess of D over a quarter of the keys, except with a probability of 2^-39 per row."""

VALUE_NORM_SCALE = 9  # ‖V_j‖² is compared at this many fraction bits

FACTOR_BITS = 12
"""Bits of the public factor that scales a denominator to its period: its rounding error is below 2^-13."""


@dataclass(frozen=True)
class BlockPower(Gate[Shared]):
    """2^a for a = x − top ≤ 0 in units of 2^-step_bits octaves, modulo the window of both wires.

    `top` is one value per row. The result has scale TABLE_SCALE + FACTOR_SCALE.
    """

    takes = (Masked, Masked)
    step_bits: int
    width: int

    def blocks(self, x: Masked) -> int:
        """Return the number of entries of T's table."""
        return 1 << (x.width - self.step_bits - BLOCK_BITS)

    def result(self, x: Masked, top: Masked) -> Form:
        """Return the form of the result."""
        if top.shape != (*x.shape[:-1], 1):
            raise ShapeError(f"rows of {tuple(x.shape)} need one top each, not {tuple(top.shape)}")
        if (top.width, top.scale) != (x.width, x.scale):
            raise WidthError(
                f"a top of {top.width} bits at scale {top.scale} is in another window than {x.width} bits at scale {x.scale}"
            )
        return shared(tuple(x.shape), self.width, TABLE_SCALE + FACTOR_SCALE)

    def materials(self, x: Masked, top: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared((*x.shape, self.blocks(x)), self.width),)

    def deal(self, x: Masked, top: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        x = x - top
        blocks, window = self.blocks(x), 2.0 ** (x.width - self.step_bits)
        starts = torch.arange(blocks, device=x.mask.device, dtype=torch.float64) * 2.0**BLOCK_BITS

        def table(mask: Tensor) -> Tensor:
            octaves = reduce(mask, x.width).to(torch.float64) * 2.0**-self.step_bits
            start = starts - octaves.unsqueeze(-1)
            start = torch.where(start > 0, start - window, start)
            entry = torch.round(torch.exp2(start + TABLE_SCALE))
            entry = torch.where(start + 2.0**BLOCK_BITS < -TABLE_SCALE, torch.zeros_like(entry), entry)
            return entry.to(torch.int64)

        return (in_cache(table, blocks, x.mask.reshape(-1)).reshape(*x.shape, blocks),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, top = wires
        length, blocks, low_bits = x.shape[-1], dealt[0].shape[-1], self.step_bits + BLOCK_BITS
        factors = _factors(self.step_bits, x.device)

        def pick(public: Tensor, ceiling: Tensor, tables: Tensor) -> Tensor:
            public = reduce(public - ceiling, x.width)
            entry = tables.gather(-1, (public >> low_bits).unsqueeze(-1)).squeeze(-1)
            return entry * entries(factors, public & ((1 << low_bits) - 1))

        rows = (x.public.reshape(-1, length), top.public.reshape(-1, 1), dealt[0].reshape(-1, length, blocks))
        return in_cache(pick, length * blocks, *rows).reshape(x.shape)

    def plain(self, x: Masked, top: Masked) -> Tensor:
        """Compute 2^a for the representative of a in (−window, 0], as T does."""
        octaves = -reduce(top.public - x.public, x.width).to(torch.float64) * 2.0**-self.step_bits
        return encode(torch.exp2(octaves), TABLE_SCALE + FACTOR_SCALE)


@resident
def _factors(step_bits: int, device: torch.device) -> Tensor:
    """Return 2^ρ for every ρ within a block."""
    return powers_of_two(1 << BLOCK_BITS, step_bits, FACTOR_SCALE).to(device)


@dataclass(frozen=True)
class HeadGroup:
    """`count` neighbouring heads with a window of 2^window_bits octaves."""

    count: int
    window_bits: int

    @property
    def far_bits(self) -> int:
        """Top bits of two windows that show on which side a score is: cells of 16 octaves, or larger if 64 cells are too few."""
        return min(self.window_bits + 1 - FAR_CELL_BITS, LARGEST_TABLE)

    @property
    def guard(self) -> float:
        """Octaves between a placed score and the top of the window.

        A block of T's table, or a cell of the far table if that is larger, and the two cells up to (M + 1)·cell.
        """
        far = 2.0 ** (self.window_bits + 1 - self.far_bits)
        return max(2.0**BLOCK_BITS, far) + 2 * 2.0**CELL_BITS

    @property
    def highest(self) -> float:
        """Upper bound of placed scores, in octaves."""
        return 2.0**self.window_bits - self.guard

    @property
    def centre(self) -> float:
        """Place of a zero score, in octaves: the middle, but high enough for maxima just below it."""
        return max(LOWEST_MAXIMUM + 3.0, self.highest / 2)


@dataclass(frozen=True)
class RowSetting:
    """Scales and widths at which N = P·V and 1/D are opened and multiplied; `fit` is 1/D on the calibrated window of D."""

    fit: FourierFit
    denominator_bits: int = 30
    numerator_scale: int = 15
    numerator_width: int = 24
    reciprocal_scale: int = 18
    reciprocal_width: int = 26
    width: int = 53
    dealt_scale: int = 20
    public_scale: int = 18


@dataclass(frozen=True)
class ExactSetting:
    """Head groups, scales and widths of true Softmax attention."""

    groups: tuple[HeadGroup, ...]
    rows: RowSetting
    score_scale: int = 12
    weight_scale: int = 16
    weight_width: int = 35

    @property
    def power_width(self) -> int:
        """Bits at which 2^a is needed."""
        return TABLE_SCALE + FACTOR_SCALE + _whole_bits(self.rows, self.weight_width - self.weight_scale)


@dataclass(frozen=True)
class QuadSetting:
    """Scales and widths of 2Quad attention.

    Scores are opened narrow and lifted; the squares are needed modulo 2^(weight_width + the bits dropped).
    """

    rows: RowSetting
    shift: float = 5.0
    score_scale: int = 10
    score_width: int = 21
    weight_scale: int = 6
    weight_width: int = 35

    @property
    def square_width(self) -> int:
        """Bits at which the squares are needed."""
        return min(64, 2 * self.score_scale + _whole_bits(self.rows, self.weight_width - self.weight_scale))


def _whole_bits(rows: RowSetting, weight_bits: int) -> int:
    """Return the bits above the point at which P must be known: for its own wire, and for D times its period's factor."""
    return max(weight_bits, math.ceil(math.log2(rows.fit.period)) + FACTOR_BITS)


def exact_attention(
    runtime: Runtime,
    scores: Shared,
    value: Masked,
    key_mask: Shared,
    setting: ExactSetting,
    evidence: Evidence | None = None,
    where: Shared | None = None,
    gate: MaskedBits | None = None,
) -> Shared:
    """Return Softmax(S)·V for scores in octaves.

    Shapes: S (batch, heads, n, n), V (batch, heads, n, d), key_mask (batch, 1, 1 or n, n) at scale 0. Scores of masked keys
    must be zero. Heads are ordered by group. `where` (batch, 1, n, 1) marks the query rows that simulation checks. Rows whose bit
    in `gate` (batch, heads, n, 1) is 0 come out as exactly 0.
    """
    more = int(evidence is not None)  # the bit above the window
    wires = runtime.open(*_place_in_windows(runtime, scores, key_mask, setting, more, where))
    windows = [wire.narrow(wire.width - more) for wire in wires]
    if evidence is not None:
        far = [[(_far(group), wire)] for group, wire in zip(setting.groups, wires, strict=True)]
        runtime.ride(outside_steps(runtime, evidence, "scores", far), SCOPE)
    tops = _row_maxima(runtime, windows, setting, evidence)
    powers = [_powers(runtime, wire, top, setting) for wire, top in zip(windows, tops, strict=True)]
    weights = joined(powers, 1)  # (batch, heads, n, n), scale 42
    denominator = weights.map(lambda tensor: tensor.sum(-1, keepdim=True))
    return _normalised_product(
        runtime, weights, denominator, value, setting.rows, setting.weight_scale, setting.weight_width, where, gate
    )


def _place_in_windows(
    runtime: Runtime, scores: Shared, key_mask: Shared, setting: ExactSetting, more: int, where: Shared | None
) -> list[Rounded]:
    """Return S + centre for real keys and the foot for padded ones, each group modulo its window and `more` bits above."""
    placed, start = [], 0
    for group in setting.groups:
        part = scores[:, start : start + group.count]
        rise = round((group.centre - FOOT) * 2.0**part.scale)
        part = part + runtime.add(Shared(key_mask.share * rise, part.width, part.scale), FOOT)
        runtime.expect(part, 0.0, group.highest, where)
        placed.append(part.at(setting.score_scale, setting.score_scale + group.window_bits + more))
        start += group.count
    return placed


def _far(group: HeadGroup) -> Outside:
    """Return the test for scores beyond the window: the upper half of the two, except its last cell.

    The guard shows that cell, and what is just below the second window.
    """
    return Outside(group.far_bits, 0, (1 << group.far_bits) // 2 - 1)


def largest_denominator(keys: int) -> float:
    """Return the bound of D for rows of `keys` scores (see "Denominator" above)."""
    return min(float(keys), keys / 4 + DENOMINATOR_EXCESS)


def _row_maxima(
    runtime: Runtime, wires: Sequence[Masked], setting: ExactSetting, evidence: Evidence | None
) -> Sequence[Masked]:
    """Return wires of (M + 1)·cell for every row, modulo the window. Three rounds for all groups together."""
    cell = 1 << (setting.score_scale + CELL_BITS)
    rows = [(wire, wire.width - setting.score_scale - CELL_BITS, wire.width) for wire in wires]
    ceilings = []
    for wire, group, empty in zip(wires, setting.groups, empty_from(runtime, rows), strict=True):
        if evidence is not None:
            _watch_maxima(runtime, empty, group, evidence)
        one = runtime.constant(Public(torch.ones(1, dtype=torch.int64)), wire.width)
        ceilings.append(Shared((top_cell(runtime, empty) + one).share * cell, wire.width, wire.scale))
    return runtime.open(*ceilings)


def _watch_maxima(runtime: Runtime, empty: Shared, group: HeadGroup, evidence: Evidence) -> None:
    """Count rows that reach the guard, and rows whose maximum is too low: `empty` has both bits.

    A score below the guard may appear one cell too high, in the guard's first cell. So only cells above that one count.
    """
    guard, lowest = (int(place / 2.0**CELL_BITS) for place in (group.highest, LOWEST_MAXIMUM))
    evidence.add(runtime, "scores", complement(runtime, empty[..., guard]))
    evidence.add(runtime, "scores", empty[..., lowest - 1])


def _powers(runtime: Runtime, wire: Masked, top: Masked, setting: ExactSetting) -> Shared:
    """Return 2^(S − top)."""
    gate = BlockPower(setting.score_scale, setting.power_width)
    length = wire.shape[-1]
    rows = [
        each.map(lambda tensor: tensor.reshape(-1, tensor.shape[-1])) for each in (wire, top)
    ]  # (batch · heads · n, n or 1)
    powers = blockwise(runtime, gate, length * gate.blocks(wire), *rows)
    return powers.map(lambda tensor: tensor.reshape(wire.shape))


def watch_values(runtime: Runtime, value: Masked, evidence: Evidence) -> None:
    """Check ‖V_j‖ of every row (batch, heads, n, d): its square joins the next opening."""
    norms = row_squares(runtime, value)
    runtime.expect(norms, 0.0, LARGEST_VALUE**2)
    coarse = norms.at(
        min(VALUE_NORM_SCALE, norms.scale), min(INTERVAL_BITS, norms.width - norms.scale + VALUE_NORM_SCALE)
    )
    runtime.ride(interval_steps(runtime, evidence, "values", coarse, None, LARGEST_VALUE**2), SCOPE)


def quad_attention(
    runtime: Runtime,
    scores: Shared,
    value: Masked,
    key_mask: Shared,
    setting: QuadSetting,
    evidence: Evidence | None = None,
    where: Shared | None = None,
    gate: MaskedBits | None = None,
) -> Shared:
    """Return (S + c)²·V / Σ(S + c)² for natural scores whose padded keys are zero; c is multiplied by the key's mask.

    A padded query row has D = c²·(real keys), which calibration keeps inside D's window.
    """
    shift = round(setting.shift * 2.0**scores.scale)
    shifted = scores + Shared(key_mask.share * shift, scores.width, scores.scale)
    (wire,) = runtime.open(shifted.at(setting.score_scale, setting.score_width + (evidence is not None)))
    if evidence is not None:
        runtime.ride(outside_steps(runtime, evidence, "scores", [[(_far_score(wire), wire)]]), SCOPE)
    narrow = wire.narrow(setting.score_width)
    weights = square_lifted(
        runtime, lift_wire(runtime, narrow, setting.square_width, where=where), setting.square_width
    )
    denominator = weights.map(lambda tensor: tensor.sum(-1, keepdim=True))
    if evidence is not None:
        _watch_row_sums(runtime, denominator, setting.rows.fit, evidence)
    return _normalised_product(
        runtime, weights, denominator, value, setting.rows, setting.weight_scale, setting.weight_width, where, gate
    )


def _far_score(wire: Masked) -> Outside:
    """Return the test for a wire that holds 8L: [−L, L) is cells 1 to 4 of 16, numbered from 0 and counted from −3L/2.

    Cell 5 passes too, because the test may see the cell above.
    """
    return Outside(4, 1, 5, shift=3 << (wire.width - 4))


def _watch_row_sums(runtime: Runtime, denominator: Shared, fit: FourierFit, evidence: Evidence) -> None:
    scale = min(denominator.scale, coarse_scale(fit.low))
    coarse = denominator.at(scale, min(INTERVAL_BITS, denominator.width - denominator.scale + scale))
    runtime.ride(interval_steps(runtime, evidence, "scores", coarse, fit.low, fit.high), SCOPE)


def _normalised_product(
    runtime: Runtime,
    weights: Shared,
    denominator: Shared,
    value: Masked,
    rows: RowSetting,
    weight_scale: int,
    weight_width: int,
    where: Shared | None,
    gate: MaskedBits | None,
) -> Shared:
    """Return (P·V)·(1/D), unopened. Two rounds."""
    opened, divisor = runtime.open(
        weights.at(weight_scale, weight_width),
        to_period(runtime, denominator, rows.fit, rows.denominator_bits, where),
    )
    product = matmul(runtime, opened, value)
    reciprocal = row_reciprocal(runtime, divisor, rows, gate)
    numerator, factor = runtime.open(
        product.at(rows.numerator_scale, rows.numerator_width),
        reciprocal.at(rows.reciprocal_scale, rows.reciprocal_width),
    )
    lifted_numerator = lift_wire(runtime, numerator, rows.width, where=where)
    lifted_factor = lift_wire(runtime, factor, rows.width, where=where)
    return multiply_lifted(runtime, lifted_numerator, lifted_factor, rows.width)


def row_reciprocal(runtime: Runtime, divisor: Masked, rows: RowSetting, gate: MaskedBits | None = None) -> Shared:
    """Return 1/D, computed as 2^k/D with 2^k near the largest D.

    A series rounded to 2^-18 would leave no digit of 1/D for a large D, such as 2Quad's 2^19.
    """
    octaves = math.floor(math.log2(rows.fit.high))
    dropped = rows.dealt_scale + rows.public_scale + octaves - rows.reciprocal_scale
    width = min(64, rows.reciprocal_width + dropped)
    fit, scales = scaled(rows.fit, 1.0, 2.0**octaves), (rows.dealt_scale, rows.public_scale)
    if gate is None:
        raised = fourier(runtime, divisor, fit, *scales, width)
    else:
        raised = gated_fourier(runtime, divisor, gate, fit, *scales, width)
    return raised.rescaled(raised.scale + octaves)

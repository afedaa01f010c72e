"""Range evidence: the number of rows that left a range, counted in shares, for the client alone.

A secure run cannot look at its values, so a value outside its range gives a wrong result. The servers therefore also
compute one count for every text, place and kind of range. Only words under fresh masks are opened, and every opening
is sent in a round that the program makes anyway (engine/runtime.py).

**Elements** (`Outside`). Comparing every element would be expensive. T deals, for each element, a truth table over the 2^c
coarse cells that its wire may show (2^c bits): is x outside, as far as the top c bits of x̂ and r tell? They tell its cell or
the one above, so the range keeps one cell free at each side. Each server looks up its bit, and the row's bits are combined to
a word of 16 bits: the XOR of a public h_j for every j that is outside. All h_j differ and none is zero, so one or two elements
are never missed, and any other set with probability 2^-16. Each row then has one test of its word for zero.

**Rows** (`interval_steps`). One value per row is opened once more, coarsely, over a range far wider than the window, and
compared with both ends: two signs, in the round after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secformer.engine.form import Form, bits
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime, Steps
from secformer.engine.values import Bits, Disclosed, Masked, Public, Rounded, Shared
from secformer.protocols.bits import bit_to_arithmetic
from secformer.protocols.blocks import in_cache
from secformer.protocols.compare import sign_steps, zero_steps
from secformer.ring.fixed_point import reduce
from secformer.ring.resident import numbers, resident

SCOPE = "evidence"
COUNT_WIDTH = 18
"""Bits of a count: those of the narrowest row maximum. A layer has at most 2^15 rows, each counted at most four times."""

WORD_BITS = 16
LARGEST_TABLE = 6  # bits that index a word of 64

Place = tuple[str, str]
"""The outermost scope ("layer 3") and the kind of range ("scores")."""


class Evidence:
    """The counts of a run: shares, one for each text, by place."""

    def __init__(self) -> None:
        self._counts: dict[Place, Shared] = {}

    def add(self, runtime: Runtime, kind: str, rows: Shared) -> None:
        """Count the rows (batch, ...) that are 1."""
        count = rows.narrow(COUNT_WIDTH).map(lambda tensor: tensor.flatten(1).sum(1))
        place = (runtime.where.split("/")[0], kind)
        self._counts[place] = self._counts[place] + count if place in self._counts else count

    def disclosed(self, runtime: Runtime, places: Sequence[Place]) -> Disclosed:
        """Disclose the counts of `places` to the client: (batch, places)."""
        counts = [self._counts[place] for place in places]
        return runtime.disclose(counts[0].map(lambda _: torch.stack([count.share for count in counts], 1)))


# -- elements -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outside(Gate[Bits]):
    """The XOR of h_j, for rows (..., n), over the elements j whose cell, counted from −shift, is not in [first, last].

    The cell is that of x or the one above it. A piece of a row that begins at `start` gives its part of the row's word.
    With `single`, an element (..., 1) gives its bit.
    """

    cell_bits: int
    first: int
    last: int
    shift: int = 0
    start: int = 0
    single: bool = False

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return bits(tuple(x.shape[:-1]), 1 if self.single else WORD_BITS)

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (bits(tuple(x.shape), 1 << self.cell_bits),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        tables = outside_tables(self.cell_bits, self.first, self.last, x.mask.device)
        return (tables[self._cell(x.mask, x.width)],)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires

        def words(public: Tensor, tables: Tensor) -> Tensor:
            return self._word(x, (tables >> self._cell(public + self.shift, x.width)).bitwise_and_(1))

        length = x.shape[-1]
        rows = in_cache(words, length, x.public.reshape(-1, length), dealt[0].reshape(-1, length))
        return rows.reshape(x.shape[:-1])

    def plain(self, x: Masked) -> Tensor:
        """Compute the result as if the borrow occurred wherever it can, as `Histogram.plain` does: the two must agree."""
        cell = self._cell(x.public + self.shift + (1 << (x.width - self.cell_bits)) - 1, x.width)
        return self._word(x, ((cell < self.first) | (cell > self.last)).to(torch.int64))

    def _word(self, x: Masked, flags: Tensor) -> Tensor:
        return flags[..., 0] if self.single else _folded(-flags & self.hashes(x.shape[-1], flags.device))

    def hashes(self, count: int, device: torch.device) -> Tensor:
        """Return h_j of a piece of `count` elements."""
        return hashes(self.start, count, device)

    def _cell(self, tensor: Tensor, width: int) -> Tensor:
        return reduce(tensor, width) >> (width - self.cell_bits)


@resident
def outside_tables(cell_bits: int, first: int, last: int, device: torch.device) -> Tensor:
    """Return (2^c,): for every cell of a mask, one bit per public cell that is 1 if x is outside."""
    cells = 1 << cell_bits
    words = []
    for mask in range(cells):
        word = sum(1 << public for public in range(cells) if not first <= (public - mask) % cells <= last)
        words.append(word - (1 << 64) if word >> 63 else word)
    return torch.tensor(words, device=device)


def _folded(words: Tensor) -> Tensor:
    """XOR the words of each row, half by half."""
    while (count := words.shape[-1]) > 1:
        half = count // 2
        both = words[..., :half] ^ words[..., half : 2 * half]
        words = torch.cat((both, words[..., 2 * half :]), -1) if count % 2 else both
    return words[..., 0]


@resident
def hashes(start: int, count: int, device: torch.device) -> Tensor:
    """Return h_j from j = start on: 16 bits, none zero, no two alike (a permutation of 1 .. 2^16 − 1)."""
    full = (1 << WORD_BITS) - 1
    words = torch.arange(start, start + count) % full + 1
    for shift, factor in ((7, 0x2C1B), (9, 0x297B), (8, 1)):
        words = ((words ^ (words >> shift)) * factor) & full
    return words.to(device)


Pieces = Sequence[tuple[Outside, Masked]]
"""Neighbouring parts of the same rows, each with its `Outside` test."""


def outside_steps(runtime: Runtime, evidence: Evidence, kind: str, groups: Sequence[Pieces]) -> Steps[None]:
    """Count the rows (batch, ...) of every group that have an element outside."""
    words = yield tuple(_row_word(runtime, pieces) for pieces in groups)
    for empty in (yield from zero_steps(runtime, [(word, COUNT_WIDTH) for word in words])):
        evidence.add(runtime, kind, complement(runtime, empty))


def _row_word(runtime: Runtime, pieces: Pieces) -> Bits:
    first, *others = (runtime.apply(gate, wire) for gate, wire in pieces)
    for word in others:
        first = first ^ word
    return first


def complement(runtime: Runtime, bit: Shared) -> Shared:
    """Return 1 − bit."""
    return runtime.constant(Public(torch.ones(1, dtype=torch.int64)), bit.width) - bit


# -- rows ---------------------------------------------------------------------------------------------------------------

INTERVAL_BITS = 25
"""Bits of a coarse wire: few enough to find its sign in one round."""


def coarse_scale(low: float) -> int:
    """Return the fraction bits of a unit that is at most a sixteenth of `low` and more than half of that."""
    return 4 - math.floor(math.log2(low))


def interval_steps(
    runtime: Runtime, evidence: Evidence, kind: str, value: Rounded, low: float | None, high: float
) -> Steps[None]:
    """Count the rows whose value is below `low` (if given) or above `high`. Values must not leave the wire's signed range.

    An opening can round up or down, so both ends are moved inwards by one unit: no value outside is missed.
    """
    (wire,) = yield (value,)
    unit = 2.0**wire.scale
    lowest = math.ceil(low * unit) + 1 if low is not None else None
    both = _distances(wire, lowest, math.floor(high * unit) - 1)
    negative = yield from sign_steps(runtime, both, COUNT_WIDTH)
    evidence.add(runtime, kind, negative)


def _distances(wire: Masked, low: int | None, high: int) -> Masked:
    """Return x − low and high − x side by side: negative where x is outside."""
    turned = wire.map(lambda tensor: -tensor if low is None else torch.cat((-tensor, tensor), -1))
    ends = numbers((high,) if low is None else (high, -low), wire.public.device)
    return replace(turned, public=turned.public + ends)


def bit_steps(runtime: Runtime, evidence: Evidence, kind: str, value: Rounded, gate: Outside) -> Steps[None]:
    """Count the rows (batch, ..., 1) whose single value is outside: one bit is opened, no test is needed."""
    (wire,) = yield (value,)
    (opened,) = yield (runtime.apply(gate, wire),)
    evidence.add(runtime, kind, bit_to_arithmetic(runtime, opened, COUNT_WIDTH))

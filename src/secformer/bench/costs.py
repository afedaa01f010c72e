"""What each protocol is declared to cost, written down from the formulas of docs/protocols.md and the docstrings.

Nothing here looks at a tape: tests compare these numbers with what tracing counts and with what the channels counted.
A cost is a list of (elements, bits) that are opened each way, one of what T deals, and a number of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

Item = tuple[int, int]
"""(elements, bits of each)."""


@dataclass(frozen=True)
class Declared:
    rounds: int
    opened: tuple[Item, ...] = ()
    dealt: tuple[Item, ...] = ()

    @property
    def opened_bits(self) -> int:
        """Each way."""
        return sum(elements * bits for elements, bits in self.opened)

    @property
    def dealer_bits(self) -> int:
        return sum(elements * bits for elements, bits in self.dealt)

    @property
    def opened_bytes(self) -> int:
        """Every item is packed on its own."""
        return sum(ceil(elements * bits / 8) for elements, bits in self.opened)

    @property
    def dealer_bytes(self) -> int:
        return sum(ceil(elements * bits / 8) for elements, bits in self.dealt)

    def __add__(self, other: Declared) -> Declared:
        """One after the other."""
        rounds = self.rounds + other.rounds
        return Declared(rounds, self.opened + other.opened, self.dealt + other.dealt)

    def times(self, count: int) -> Declared:
        return Declared(self.rounds * count, self.opened * count, self.dealt * count)


def opening(*opened: Item) -> Declared:
    """Any number of values opened together: one round."""
    return Declared(1, opened)


def dealing(*dealt: Item) -> Declared:
    return Declared(0, (), dealt)


def carry(elements: int, narrow: int, wide: int) -> Declared:
    """Lift: two corrections of wide − narrow bits."""
    return dealing((elements, wide - narrow), (elements, wide - narrow))


def fourier(elements: int, bits: int, terms: int, width: int = 64) -> Declared:
    """One opening modulo the period; 2K values an element."""
    return opening((elements, bits)) + dealing((elements * 2 * terms, width))


def digit_bits(bits: int) -> list[int]:
    """Digits of a comparison of `bits` bits: 4^L of them, L the fewest levels with digits of at most 6 bits."""
    count = 1
    while 6 * count < bits:
        count *= 4
    count = min(count, bits)
    return [bits // count + (number < bits % count) for number in range(count)]


def _monomials(equal: int, below_from: int, below_to: int) -> int:
    """Products T must share for a group: subsets of the `equal` bits, and of the first i of them with below_i."""
    return 2**equal - 1 + sum(2**number for number in range(below_from, below_to))


def comparison(elements: int, width: int, result_width: int = 64) -> Declared:
    """The sign of an opened wire of `width` bits.

    Two tables of 2^d bits a digit. A level takes groups of four digits: 7 opened bits and 29 monomials, 6 and 21 in the
    least significant group. The last level opens 2n − 1 bits for n ≤ 4 digits and deals 2^(n−1) − 1 + 2^n − 1 monomials
    and the sign's own two values as ring elements.
    """
    digits = digit_bits(width - 1)
    tables = tuple((elements, 1 << bits) for bits in digits)
    cost = dealing(*tables, *tables)
    count = len(digits)
    while count > 4:
        sizes = [min(4, count - start) for start in range(0, count, 4)]
        equal = [*sizes[:-1], sizes[-1] - 1]
        cost += opening(*((elements, e + n - 1) for e, n in zip(equal, sizes, strict=True)))
        cost += dealing(*((elements, _monomials(e, 1, n)) for e, n in zip(equal, sizes, strict=True)))
        count = len(sizes)
    values = _monomials(count - 1, 0, count) + 2
    return cost + opening((elements, 2 * count - 1)) + dealing((elements * values, result_width))


def zero_test(elements: int, width: int, result_width: int) -> Declared:
    """One bit for every digit of at most six bits; all subsets of them as ring elements."""
    count = ceil(width / 6)
    digits = [width // count + (number < width % count) for number in range(count)]
    tables = dealing(*((elements, 1 << bits) for bits in digits))
    return tables + opening((elements, count)) + dealing((elements * (2**count - 1), result_width))


def row_maximum(rows: int, length: int, window: int, cells: int, result_width: int) -> Declared:
    """Open x; deal one-hots of the coarse masks; open cells − 1 counts a row; test each for zero."""
    count_bits = length.bit_length()
    onehots = dealing((rows * length * cells, count_bits))
    counts = opening((rows * (cells - 1), count_bits))
    tests = zero_test(rows * (cells - 1), count_bits, result_width)
    return opening((rows * length, window)) + onehots + counts + tests


def lookup(tokens: int, domain: int, columns: int, bits: int, width: int = 64) -> Declared:
    """A bit a word of the vocabulary, then the bits of the rows, both padded to whole bytes and words."""
    words = ceil(columns * bits / 64)
    selector = opening((tokens * ceil(domain / 8), 8)) + dealing((tokens * words, 64))
    return selector + opening((tokens * words, 64)) + dealing((tokens * columns * bits, width))


def adder(elements: int) -> Declared:
    """Π_LT: 1 + 6 rounds of ANDs with 2 and 4 openings, 1 round for the sign; 64 bits each."""
    word = (elements, 64)
    products = opening(word, word) + dealing(word)
    prefix = (opening(word, word, word, word) + dealing(word, word)).times(6)
    return products + prefix + opening(word) + dealing(word)

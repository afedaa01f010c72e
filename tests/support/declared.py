"""What each protocol is declared to cost, written down from the formulas of docs/protocols.md and the docstrings.

Nothing here looks at a tape: tests compare these numbers with what tracing counts and with what the channels counted,
for every case of bench/cases.py.
A cost is a list of (elements, bits) that are opened each way, one of what T deals, and a number of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from wire_cases import fourier_cases

from secformer.engine.tracing import trace

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


def products(elements: int, operands: int) -> Declared:
    """Π_Mul (and Π_MatMul) opens two values and has one dealt, Π_Square one."""
    return opening(*[(elements, 64)] * operands) + dealing((elements, 64))


def bilinear(left: int, right: int, elements: int, inner: int) -> Declared:
    width = 40 + ceil(log2(inner))
    return opening((left, width), (right, width)) + dealing((elements, width))


def of_one_wire(opened: int, dealt: int, inner: int) -> Declared:
    width = 40 + ceil(log2(inner))
    return opening((opened, width)) + dealing((dealt, width))


def series(protocol: str, elements: int, bits: int) -> Declared:
    """The number of terms is the fit's own matter."""
    (case,) = [case for case in fourier_cases(1, 1) if case.protocol == protocol]
    (dealt,) = trace(case.program).tape.dealt
    return fourier(elements, bits, dealt.form.elements // 2)


def declared(flavour: str, protocol: str, rows: int, columns: int) -> Declared:
    """What a case on matrices of this size costs, by its formulas."""
    n, domain = rows * columns, 37 * rows + 1
    mul, square = products(n, 2), products(n, 1)
    table = {
        ("wire", "add"): lambda: dealing(),
        ("wire", "drop"): lambda: dealing(),
        ("wire", "multiply"): lambda: bilinear(n, n, n, columns),
        ("wire", "multiply broadcast"): lambda: bilinear(n, columns, n, columns),
        ("wire", "matmul"): lambda: bilinear(n, n, rows * rows, columns),
        ("wire", "matmul batched"): lambda: bilinear(2 * n, 2 * n, 2 * rows * rows, columns),
        ("wire", "square"): lambda: of_one_wire(n, n, columns),
        ("wire", "row_squares"): lambda: of_one_wire(n, rows, columns),
        ("wire", "lift"): lambda: opening((n, 19)) + carry(n, 19, 64),
        ("wire", "multiply lifted"): lambda: (
            opening((n, 19), (n, 18))
            + carry(n, 19, 64)
            + carry(n, 18, 58)
            + dealing((n, 58), (n, 58 - 19), (n, 58 - 18), (n, 58 - 37))
        ),
        ("wire", "row_squares lifted"): lambda: (
            opening((n, 19)) + carry(n, 19, 64) + dealing((rows, 64), (n, 64 - 19 - 1))
        ),
        ("wire", "gelu"): lambda: series("gelu", n, 17),
        ("wire", "sin"): lambda: fourier(n, 21, 1),
        ("wire", "exp"): lambda: series("exp", n, 22),
        ("wire", "reciprocal"): lambda: series("reciprocal", rows, 28),
        ("wire", "inverse_sqrt"): lambda: series("inverse_sqrt", rows, 28),
        ("wire", "less_than 24"): lambda: opening((n, 24)) + comparison(n, 24),
        ("wire", "less_than 64"): lambda: opening((n, 64)) + comparison(n, 64),
        ("wire", "less_than secrets"): lambda: opening((n, 64)) + comparison(n, 64),
        ("wire", "row maximum"): lambda: row_maximum(rows, max(2, columns), 16, 64, 20),
        ("wire", "and"): lambda: opening((n, 32), (n, 32)) + dealing((n, 32)),
        ("wire", "bit_to_arithmetic"): lambda: opening((n, 1)) + dealing((n, 64)),
        ("wire", "lookup"): lambda: lookup(rows, domain, columns, 17),
        ("table1", "add"): lambda: dealing(),
        ("table1", "sin"): lambda: fourier(n, 21, 1),
        ("table1", "square"): lambda: square,
        ("table1", "mul"): lambda: mul,
        ("table1", "matmul"): lambda: products(rows * rows, 2),
        ("table1", "lt"): lambda: adder(n),
        ("table1", "exp"): lambda: square.times(8),
        ("table1", "rsqrt"): lambda: square.times(8) + (square + mul + mul).times(3),
        ("table1", "div"): lambda: square.times(8) + (square + mul).times(10),
    }
    return table[flavour, protocol]()

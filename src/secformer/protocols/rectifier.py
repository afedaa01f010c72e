"""ReLU(x) = x − x·[x < 0]: one opening of x, local lookups of its digits, then openings of bits.

    2 rounds for w ≤ 25: 2(w + 7) bits;  3 rounds for w ≤ 64: 2(w + 34) bits

compare.py ends with [x < 0] = c ⊕ v, where c is the public top bit of x̂ and v = Σ_k a_k·M_k is a sum of dealt values M_k
with public coefficients a_k. T also deals those values times the mask, so the product needs no opening:

    x·v = x̂·v − r·v,        r·v = Σ_k a_k·(r·M_k)        modulo 2^w

For a result in a wider ring (lift.py) x = X̂ − R with R = r − 2^w·m·t, t the mask's top bit and m public, and
T deals t·M_k too. Dealer for w ≤ 25: 24 values of W bits, 24 of W, and if W > w another 24 of W − w; plus the
digits' tables.

Range: −2^(w−1) ≤ x < 2^(w−1), half of that if the result is lifted. Exact there.
Safe: x and the bits are opened under fresh masks of their full width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from secformer.engine.form import Form, shared
from secformer.engine.gate import Gate
from secformer.engine.runtime import Runtime
from secformer.engine.values import Lifted, Masked, MaskedBits, Public, Shared
from secformer.protocols.bits import SignedSum
from secformer.protocols.compare import borrow_word
from secformer.protocols.lift import lift_wire, unmask_lifted
from secformer.protocols.multiply import unmask
from secformer.ring.fixed_point import reduce, shift_right

OPENED_BITS = 25


@dataclass(frozen=True)
class TimesSum(Gate[Shared]):
    """The product x·v of a wire x and the sum v of `terms` signed by x's mask: v times X̂, less R·v from dealt products."""

    takes = (MaskedBits, (Masked, Lifted))
    sum: SignedSum

    def result(self, word: MaskedBits, x: Masked | Lifted) -> Form:
        """Return the form of the result."""
        return shared(tuple(word.shape), self.sum.width, x.scale)

    def materials(self, word: MaskedBits, x: Masked | Lifted) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        (values,) = self.sum.materials(word, x)
        if not isinstance(x, Lifted):
            return (values, values)
        return (values, values, shared(values.shape, values.width - x.narrow_width))

    def deal(self, word: MaskedBits, x: Masked | Lifted) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        width = x.narrow_width if isinstance(x, Lifted) else x.width
        mask = reduce(x.mask, width)
        (values,) = self.sum.deal(word, x)
        products = [values, values * mask.unsqueeze(-1)]
        if isinstance(x, Lifted):
            products.append(values * (mask >> (width - 1)).unsqueeze(-1))
        return products

    def evaluate(self, party: int, wires: Sequence[Any], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x = wires[1]
        value, masked, *topped = (self.sum.evaluate(party, wires, [part]) for part in dealt)
        product = x.public * value - masked
        if isinstance(x, Lifted):
            product = product + ((x.wrapped * topped[0]) << x.narrow_width)
        return product

    def plain(self, word: MaskedBits, x: Masked | Lifted) -> Tensor:
        """Compute the result on plain numbers."""
        return self.sum.plain(word, x) * x.public


def relu(
    runtime: Runtime, x: Shared, bits: int = OPENED_BITS, scale: int | None = None, width: int | None = None
) -> Shared:
    """Return max(x, 0) modulo 2^width, for x dropped to `scale` (default: its own) and opened with `bits` bits.

    Without a `width` the result is known modulo 2^bits, which suffices if it is next opened with at most that many bits.
    """
    (opened,) = runtime.open(x.at(x.scale if scale is None else scale, bits))
    word, terms = borrow_word(runtime, opened)
    if width is None:
        wire, whole = opened, unmask(runtime, opened)
    else:
        wire = lift_wire(runtime, opened, width)
        whole = unmask_lifted(runtime, wire)
    product = runtime.apply(TimesSum(SignedSum(terms, wire.width)), word, wire)  # x·v
    top = Public(shift_right(opened.public, opened.width - 1, opened.width))
    negative_part = whole * top + product * Public(1 - 2 * top.value)  # x·(c ⊕ v), c public
    return whole - negative_part

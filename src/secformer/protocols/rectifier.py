"""ReLU(x) = x − x·[x < 0]: the paper's, and ours.

    relu_adder   Π_LT by an adder, then Π_Mul (adder.py)              9 rounds, 3,712 bits
    relu_ours    one opening of x, digits looked up, one of bits      2 rounds for w ≤ 25: 2(w + 7) bits
                                                                      3 rounds for w ≤ 64: 2(w + 34) bits

**Ours.** compare.py ends with [x < 0] = c ⊕ v, where c is the public top bit of x̂ and v = Σ_k a_k·M_k is a
sum of dealt values M_k with public coefficients a_k. So T deals those values times the mask as well, and the
product needs no opening:

    x·v = x̂·v − r·v,        r·v = Σ_k a_k·(r·M_k)        modulo 2^w

For a result in a wider ring (lift.py) x = X̂ − R with R = r − 2^w·m·t, t the mask's top bit and m public, and
T deals t·M_k too. Dealer for w ≤ 25: 24 values of W bits, 24 of W, and if W > w another 24 of W − w; and the
digits' tables.

Range: −2^(w−1) ≤ x < 2^(w−1), half of that if the result is lifted. Exact there.
Safe: x and the bits are opened under fresh masks of their full width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from secformer.engine.gate import Gate, Material
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, MaskedBits, Public, Shared
from secformer.protocols.adder import relu as relu_adder
from secformer.protocols.bits import DisjointSum
from secformer.protocols.compare import borrow_word
from secformer.protocols.lift import Lifted, UnmaskLifted, lift_wire
from secformer.protocols.multiply import unmask
from secformer.ring.fixed_point import reduce, shift_right

__all__ = ["relu_adder", "relu_ours"]

OPENED_BITS = 25


@dataclass(frozen=True)
class TimesSum(Gate):
    """x·v for a wire x and the sum v of `terms` signed by x's mask: v times X̂, less R·v from dealt products."""

    sum: DisjointSum

    def materials(self, word: MaskedBits, x: Masked) -> tuple[Material, ...]:
        (values,) = self.sum.materials(word, x)
        products = (values, values)
        if isinstance(x, Lifted):
            products = (*products, values._replace(width=values.width - x.narrow_width))
        return products

    def deal(self, word: MaskedBits, x: Masked) -> Sequence[Tensor]:
        width = x.narrow_width if isinstance(x, Lifted) else x.width
        mask = reduce(x.mask, width)
        (values,) = self.sum.deal(word, Masked(x.public, x.mask, width))
        products = [values, values * mask.unsqueeze(-1)]
        if isinstance(x, Lifted):
            products.append(values * (mask >> (width - 1)).unsqueeze(-1))
        return products

    def evaluate(self, party: int, wires: Sequence[MaskedBits | Masked], dealt: Sequence[Tensor]) -> Shared:
        x = wires[1]
        assert isinstance(x, Masked)
        value, masked, *topped = (self.sum.evaluate(party, wires, [part]).share for part in dealt)
        product = x.public * value - masked
        if isinstance(x, Lifted):
            product = product + ((x.wrapped * topped[0]) << x.narrow_width)
        return Shared(product, self.sum.width, x.scale)

    def plain(self, word: MaskedBits, x: Masked) -> Shared:
        return Shared(self.sum.plain(word, x).share * x.public, self.sum.width, x.scale)


def relu_ours(
    runtime: Runtime, x: Shared, bits: int = OPENED_BITS, scale: int | None = None, width: int | None = None
) -> Shared:
    """max(x, 0) of x dropped to `scale` (its own if none is given) and opened with `bits` bits, modulo 2^width.

    Without a `width` the result is known modulo 2^bits, enough for whoever opens it next at no more than that.
    """
    scale = x.scale if scale is None else scale
    (opened,) = runtime.open(runtime.drop_to(x, scale, bits))
    word, terms = borrow_word(runtime, opened)
    wire = opened if width is None else lift_wire(runtime, opened, width)
    product = runtime.shared(TimesSum(DisjointSum(terms, wire.width)), word, wire)  # x·v
    top = Public(shift_right(opened.public, opened.width - 1, opened.width))
    whole = _as_share(runtime, wire)
    negative_part = whole * top + product * Public(1 - 2 * top.value)  # x·(c ⊕ v), c public
    return whole - negative_part


def _as_share(runtime: Runtime, wire: Masked) -> Shared:
    if isinstance(wire, Lifted):
        return runtime.shared(UnmaskLifted(), wire)
    return unmask(runtime, wire)

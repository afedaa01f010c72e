"""Lift: read a narrow wire over the integers, so that it can be used in a wider ring.

Let −2^(w−2) ≤ x < 2^(w−2). Put x̂ = x + 2^(w−2) + r mod 2^w (adding the constant to the public part is free),
b = msb(r), m = 1 − msb(x̂). The sum x + 2^(w−2) + r wraps exactly when m·b = 1:
    a wrap leaves x̂ < 2^(w−1) and needs r > 2^(w−1);  without one, b = 1 gives x̂ ≥ r ≥ 2^(w−1), so m = 0.
Hence, over the integers, x = x̂ − 2^(w−2) − r + 2^w·m·b.

The servers' halves of r come from seeds, and their integer sum is r_0 + r_1 = r + 2^w·κ. So T shares only
κ_0 = κ and κ_1 = κ + b modulo 2^(W−w), and each server picks [κ_m]: two corrections of W−w bits, no new mask.

A `Lifted` wire is X̂ = x̂ − 2^(w−2) with the integer mask R = r − 2^w·m·b. Products and squares of lifted wires need
the cross terms of wrap bits and masks. T shares them, so there is no second opening. The gates for plain wires refuse a
lifted wire, because their result would be wrong by multiples of 2^w.

Rounds 0. Outside its range a lift silently gives a wrong number. The range is therefore calibrated, the tracer compares it
with the width, and simulation checks every value.
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
from secformer.engine.values import Lifted, Masked, Shared, wrap_flag
from secformer.errors import WidthError
from secformer.protocols.blocks import elementwise
from secformer.ring import kernels
from secformer.ring.fixed_point import reduce


@dataclass(frozen=True)
class Carry(Gate[Shared]):
    """[κ_m] modulo 2^(width − w), selected by the public bit m."""

    width: int

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), self.width - x.width)

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (self.result(x), self.result(x))

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        mask = reduce(x.mask, x.width)
        carry = (x.mask - mask) >> x.width
        return carry, carry + (mask >> (x.width - 1))

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        quarter = 1 << (x.width - 2)

        def pick(public: Tensor, without: Tensor, with_wrap: Tensor) -> Tensor:
            """Select by the top bit of x̂, which X̂ no longer has."""
            return torch.where((public + quarter).bitwise_and_(2 * quarter) == 0, with_wrap, without)

        return elementwise(pick, x.public, *dealt)

    def plain(self, x: Masked) -> Tensor:
        """Compute the result on plain numbers."""
        return torch.zeros_like(x.public)


def lifted_public(x: Masked) -> Tensor:
    """Return X̂ = x̂ − 2^(w−2); m = 1 where X̂ < 2^(w−2)."""
    own = kernels.find("lifted_public", x.device.type)
    if own is not None:
        return own(x.public, x.width)
    quarter, last = 1 << (x.width - 2), (1 << x.width) - 1
    return elementwise(lambda public: (public + quarter).bitwise_and_(last).sub_(quarter), x.public)


def lift_wire(
    runtime: Runtime, x: Masked, width: int = 64, bound: float | None = None, where: Shared | None = None
) -> Lifted:
    """Read the wire over the integers, usable modulo 2^width. `bound` is the largest |x| that the caller promises.

    Raises WidthError if the widths do not allow it or the wire is too narrow for `bound`.
    """
    check_lift(x, width, bound)
    limit = 2.0 ** (x.width - 2 - x.scale)
    runtime.expect(x, -limit, limit - 2.0**-x.scale, where)
    carry = runtime.apply(Carry(width), x)
    return Lifted(
        public=lifted_public(x),
        mask=x.mask,
        carry=carry.share,
        width=width,
        scale=x.scale,
        narrow_width=x.width,
    )


def check_lift(x: Masked, width: int, bound: float | None) -> None:
    """Raise WidthError unless 3 ≤ w < width ≤ 64 and the wire's range includes `bound`."""
    if not 3 <= x.width < width <= 64:
        raise WidthError(f"cannot lift a wire of {x.width} bits to {width} bits")
    if bound is not None and x.scale + math.ceil(math.log2(bound)) + 2 > x.width:
        raise WidthError(
            f"a wire of {x.width} bits at scale {x.scale} holds |x| < {2.0 ** (x.width - 2 - x.scale):g}, "
            f"less than the declared {bound:g}: open it wider"
        )


def lift(runtime: Runtime, x: Masked, width: int = 64, bound: float | None = None) -> Shared:
    """Return [x] modulo 2^width from a narrow wire."""
    return unmask_lifted(runtime, lift_wire(runtime, x, width, bound))


def dealt_mask(x: Lifted) -> tuple[Tensor, Tensor]:
    """Return r modulo 2^w and b = msb(r), as T knows them."""
    mask = reduce(x.mask, x.narrow_width)
    return mask, mask >> (x.narrow_width - 1)


@dataclass(frozen=True)
class UnmaskLifted(Gate[Shared]):
    """A lifted wire turned back into a share, [x]_j = j·X̂ − [R]_j."""

    takes = (Lifted,)

    def result(self, x: Lifted) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), x.width, x.scale)

    def evaluate(self, party: int, wires: Sequence[Lifted], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        return party * x.public - x.integer_mask()

    def plain(self, x: Lifted) -> Tensor:
        """Compute the result on plain numbers."""
        return x.public


@dataclass(frozen=True)
class MultiplyLifted(Gate[Shared]):
    """The product xy modulo 2^W of two lifted wires, elementwise with broadcasting.

    R_x R_y = r_x r_y − 2^w_x m_x·b_x r_y − 2^w_y m_y·r_x b_y + 2^(w_x+w_y) m_x m_y·b_x b_y. T shares the four products
    modulo 2^`width`, the width at which the result is needed.
    """

    takes = (Lifted, Lifted)
    width: int = 64

    def result(self, x: Lifted, y: Lifted) -> Form:
        """Return the form of the result."""
        shape = tuple(torch.broadcast_shapes(x.shape, y.shape))
        return shared(shape, min(x.width, y.width, self.width), x.scale + y.scale)

    def materials(self, x: Lifted, y: Lifted) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        form, lost = self.result(x, y), (0, x.narrow_width, y.narrow_width, x.narrow_width + y.narrow_width)
        return tuple(shared(form.shape, form.width - bits) for bits in lost if form.width > bits)

    def deal(self, x: Lifted, y: Lifted) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        (r_x, b_x), (r_y, b_y) = dealt_mask(x), dealt_mask(y)
        products = (r_x * r_y, b_x * r_y, r_x * b_y, b_x * b_y)
        return products[: len(self.materials(x, y))]

    def evaluate(self, party: int, wires: Sequence[Lifted], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, y = wires
        share = x.public * (party * y.public - y.integer_mask()) - x.integer_mask() * y.public + dealt[0]
        share -= (x.wrapped * dealt[1]) << x.narrow_width
        share -= (y.wrapped * dealt[2]) << y.narrow_width
        if len(dealt) == 4:
            share += (x.wrapped * y.wrapped * dealt[3]) << (x.narrow_width + y.narrow_width)
        return share

    def plain(self, x: Lifted, y: Lifted) -> Tensor:
        """Compute the result on plain numbers."""
        return x.public * y.public


@dataclass(frozen=True)
class SquareLifted(Gate[Shared]):
    """The square x² modulo 2^width of a lifted wire.

    R² = r² + 2^(w+1) m·q with q = b(2^(w−1) − r), since m² = m and b² = b; T shares r² and q (width − w − 1 bits).
    With `rows` the squares are summed over the last dimension, and T shares Σ r² instead of r²: one value per row.
    """

    takes = (Lifted,)
    width: int = 64
    rows: bool = False

    def _sum(self, terms: Tensor) -> Tensor:
        return terms.sum(-1, keepdim=True) if self.rows else terms

    def result(self, x: Lifted) -> Form:
        """Return the form of the result."""
        shape = (*x.shape[:-1], 1) if self.rows else tuple(x.shape)
        return shared(shape, min(self.width, x.width), 2 * x.scale)

    def materials(self, x: Lifted) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        form = self.result(x)
        return shared(form.shape, form.width), shared(tuple(x.shape), form.width - x.narrow_width - 1)

    def deal(self, x: Lifted) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        mask, top = dealt_mask(x)
        return self._sum(mask * mask), top * ((1 << (x.narrow_width - 1)) - mask)

    def evaluate(self, party: int, wires: Sequence[Lifted], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        width = x.narrow_width

        def terms(public: Tensor, mask: Tensor, carry: Tensor, lost: Tensor) -> Tensor:
            found = (carry << width).sub_(mask).mul_(2)
            if party:
                found += public
            return found.mul_(public).add_((wrap_flag(public, width) * lost).bitwise_left_shift_(width + 1))

        return self._sum(elementwise(terms, x.public, x.mask, x.carry, dealt[1])).add_(dealt[0])

    def plain(self, x: Lifted) -> Tensor:
        """Compute the result on plain numbers."""
        return self._sum(x.public * x.public)


def unmask_lifted(runtime: Runtime, x: Lifted) -> Shared:
    """Return the lifted wire as a share modulo 2^W."""
    return runtime.apply(UnmaskLifted(), x)


def multiply_lifted(runtime: Runtime, x: Lifted, y: Lifted, width: int = 64) -> Shared:
    """Return x·y modulo 2^width, elementwise with broadcasting."""
    return runtime.apply(MultiplyLifted(width), x, y)


def square_lifted(runtime: Runtime, x: Lifted, width: int = 64) -> Shared:
    """Return x² modulo 2^width, elementwise."""
    return runtime.apply(SquareLifted(width), x)


def row_squares_lifted(runtime: Runtime, x: Lifted) -> Shared:
    """Return Σ x² over the last dimension."""
    return runtime.apply(SquareLifted(rows=True), x)

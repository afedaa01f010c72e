"""Products of wires. They are local, because T shares the product of the masks.

With x̂ = x + r and ŷ = y + s public,

    [xy]_j = j·x̂ŷ − x̂[s]_j − [r]_j ŷ + [rs]_j        modulo 2^min(w_x, w_y)

since xy = (x̂ − r)(ŷ − s). The same holds for every bilinear map. A matmul is computed as
(j·x̂ − [r]_j) @ ŷ − x̂ @ [s]_j + [rs]_j: two ring matmuls per server, one at T. For a weight (a static wire), whatever the
ring's kernels derive from ŷ and [s]_j is kept from query to query.

Rounds 0; dealer bits: one value of the output's width for each output element.
Safe: nothing is sent; each server's dealt share alone is uniform.
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
from secformer.engine.values import Masked, Shared
from secformer.errors import ShapeError
from secformer.ring import matmul as ring
from secformer.ring.fixed_point import signed


class Product(Gate[Shared]):
    """A bilinear map of two wires, with one dealt value for each value of the result."""

    takes = (Masked, Masked)

    def shape(self, x: Masked, y: Masked) -> tuple[int, ...]:
        """Return the shape of the result."""
        raise AssertionError("a subclass of Product must define shape")

    def result(self, x: Masked, y: Masked) -> Form:
        """Return the form of the result."""
        return shared(self.shape(x, y), min(x.width, y.width), x.scale + y.scale)

    def materials(self, x: Masked, y: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared(self.shape(x, y), min(x.width, y.width)),)


@dataclass(frozen=True)
class Multiply(Product):
    """Elementwise product, with broadcasting."""

    def shape(self, x: Masked, y: Masked) -> tuple[int, ...]:
        """Return the shape of the result."""
        try:
            return tuple(torch.broadcast_shapes(x.shape, y.shape))
        except RuntimeError:
            raise ShapeError(f"cannot multiply shapes {tuple(x.shape)} and {tuple(y.shape)}") from None

    def deal(self, x: Masked, y: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (x.mask * y.mask,)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, y = wires
        own = party * y.public - y.mask
        return x.public * own - x.mask * y.public + dealt[0]

    def plain(self, x: Masked, y: Masked) -> Tensor:
        """Compute the result on plain numbers."""
        return x.public * y.public


@dataclass(frozen=True)
class MatMul(Product):
    """Matrix product x @ y, plain or batched, broadcast as in torch.matmul."""

    def shape(self, x: Masked, y: Masked) -> tuple[int, ...]:
        """Return the shape of the result."""
        if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-1] != y.shape[-2]:
            raise ShapeError(f"cannot multiply matrices of shapes {tuple(x.shape)} and {tuple(y.shape)}")
        try:
            batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except RuntimeError:
            raise ShapeError(
                f"cannot broadcast the batch dimensions of {tuple(x.shape)} and {tuple(y.shape)}"
            ) from None
        return (*batch, x.shape[-2], y.shape[-1])

    def work(self, x: Masked, y: Masked) -> tuple[int, int]:
        """Count the products of matrix entries and the table words combined."""
        return math.prod(self.shape(x, y)) * x.shape[-1], 0

    def deal(self, x: Masked, y: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        width = min(x.width, y.width)
        return (ring.matmul(x.mask, _static(y, "mask", y.mask, width), width),)

    def ahead(self, x: Masked, y: Masked) -> Tensor | None:
        """Compute −[r]_j @ ŷ for a weight: half of the work."""
        if y.cache is None:
            return None
        width = min(x.width, y.width)
        return ring.matmul(x.mask, _static(y, "public", y.public, width), width).neg_()

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        x, y = wires
        width = min(x.width, y.width)
        if len(dealt) == 2:  # the second is the result of `ahead`
            own = y.cached(f"own {width}", lambda: ring.prepare(party * y.public - y.mask, width))
            return ring.matmul(x.public, own, width).add_(dealt[0]).add_(dealt[1])
        product = ring.matmul(party * x.public - x.mask, _static(y, "public", y.public, width), width)
        product -= ring.matmul(x.public, _static(y, "mask", y.mask, width), width)
        return product.add_(dealt[0])

    def plain(self, x: Masked, y: Masked) -> Tensor:
        """Compute the product modulo 2^64 for all widths, so that the result is the true product and not one residue of it."""

        def prepared() -> ring.Prepared:
            return ring.prepare(y.public, b_bits=magnitude_bits(y.public))

        return ring.matmul(x.public, y.cached("plain", prepared), a_bits=magnitude_bits(x.public))


def _static(wire: Masked, name: str, matrix: Tensor, width: int) -> Tensor | ring.Prepared:
    """Return a static wire's matrix prepared for `width`, any other unchanged: only static wires are multiplied again."""
    if wire.cache is None:
        return matrix
    return wire.cached(f"{name} {width}", lambda: ring.prepare(matrix, width))


def magnitude_bits(tensor: Tensor) -> int:
    """Return the number of bits that hold every element, sign included."""
    low, high = torch.aminmax(tensor)
    return max(int(-1 - low if low < 0 else low), int(high)).bit_length() + 1


@dataclass(frozen=True)
class Square(Gate[Shared]):
    """Elementwise x²: [x²]_j = j·x̂² − 2x̂[r]_j + [r²]_j. With `rows`, summed over the last dimension: T shares Σ r²."""

    rows: bool = False

    def _shape(self, x: Masked) -> tuple[int, ...]:
        return (*x.shape[:-1], 1) if self.rows else tuple(x.shape)

    def _sum(self, terms: Tensor) -> Tensor:
        return terms.sum(-1, keepdim=True) if self.rows else terms

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return shared(self._shape(x), x.width, 2 * x.scale)

    def materials(self, x: Masked) -> tuple[Form, ...]:
        """Return the forms of the values that T shares."""
        return (shared(self._shape(x), x.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        """Compute T's values from the masks."""
        return (self._sum(x.mask * x.mask),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        return self._sum(x.public * (party * x.public - 2 * x.mask)) + dealt[0]

    def plain(self, x: Masked) -> Tensor:
        """Compute the result on plain numbers."""
        return self._sum(x.public * x.public)


@dataclass(frozen=True)
class Unmask(Gate[Shared]):
    """A wire turned back into a share, [x]_j = j·x̂ − [r]_j. T deals nothing."""

    def result(self, x: Masked) -> Form:
        """Return the form of the result."""
        return shared(tuple(x.shape), x.width, x.scale)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Tensor:
        """Compute the output share of S_j."""
        (x,) = wires
        return party * x.public - x.mask

    def plain(self, x: Masked) -> Tensor:
        """Compute the result on plain numbers."""
        return signed(x.public, x.width)


def multiply(runtime: Runtime, x: Masked, y: Masked) -> Shared:
    """Return x·y elementwise, with broadcasting."""
    return runtime.apply(Multiply(), x, y)


def matmul(runtime: Runtime, x: Masked, y: Masked) -> Shared:
    """Return x @ y, plain or batched."""
    return runtime.apply(MatMul(), x, y)


def square(runtime: Runtime, x: Masked) -> Shared:
    """Return x² elementwise."""
    return runtime.apply(Square(), x)


def row_squares(runtime: Runtime, x: Masked) -> Shared:
    """Return Σ x² over the last dimension."""
    return runtime.apply(Square(rows=True), x)


def unmask(runtime: Runtime, x: Masked) -> Shared:
    """Return the wire as a share."""
    return runtime.apply(Unmask(), x)

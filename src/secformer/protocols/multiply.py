"""Products of wires: local, because T shares the product of the masks.

With x̂ = x + r and ŷ = y + s public,

    [xy]_j = j·x̂ŷ − x̂[s]_j − [r]_j ŷ + [rs]_j        modulo 2^min(w_x, w_y)

since xy = (x̂ − r)(ŷ − s). The same holds for every bilinear map; a matmul is computed as
(j·x̂ − [r]_j) @ ŷ − x̂ @ [s]_j + [rs]_j: two ring matmuls a server, one at T. For a weight (a static wire) what the ring's
kernels derive from ŷ and [s]_j is kept from query to query.

Rounds 0; dealer bits: one value of the output's width for each output element.
Safe: nothing is sent; the dealt share is uniform on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.gate import Gate, Material
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared
from secformer.errors import ShapeError
from secformer.ring import matmul as ring
from secformer.ring.fixed_point import signed


def _joint(x: Masked, y: Masked) -> tuple[int, int]:
    """Width and scale of a product."""
    return min(x.width, y.width), x.scale + y.scale


@dataclass(frozen=True)
class Multiply(Gate):
    """Elementwise, with broadcasting."""

    def materials(self, x: Masked, y: Masked) -> tuple[Material, ...]:
        try:
            shape = torch.broadcast_shapes(x.shape, y.shape)
        except RuntimeError:
            raise ShapeError(f"cannot multiply shapes {tuple(x.shape)} and {tuple(y.shape)}") from None
        return (Material(tuple(shape), _joint(x, y)[0]),)

    def deal(self, x: Masked, y: Masked) -> Sequence[Tensor]:
        return (x.mask * y.mask,)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Shared:
        x, y = wires
        own = party * y.public - y.mask
        return Shared(x.public * own - x.mask * y.public + dealt[0], *_joint(x, y))

    def plain(self, x: Masked, y: Masked) -> Shared:
        return Shared(x.public * y.public, *_joint(x, y))


@dataclass(frozen=True)
class MatMul(Gate):
    """x @ y, plain or batched, as torch.matmul broadcasts."""

    def materials(self, x: Masked, y: Masked) -> tuple[Material, ...]:
        return (Material(_matmul_shape(x, y), _joint(x, y)[0]),)

    def deal(self, x: Masked, y: Masked) -> Sequence[Tensor]:
        width, _ = _joint(x, y)
        return (ring.matmul(x.mask, _static(y, "mask", y.mask, width), width),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Shared:
        x, y = wires
        width, scale = _joint(x, y)
        if y.public.device.type == "meta":
            return Shared(torch.empty_like(dealt[0]), width, scale)
        product = ring.matmul(party * x.public - x.mask, _static(y, "public", y.public, width), width)
        product -= ring.matmul(x.public, _static(y, "mask", y.mask, width), width)
        return Shared(product.add_(dealt[0]), width, scale)

    def plain(self, x: Masked, y: Masked) -> Shared:
        width, scale = _joint(x, y)
        bits = [magnitude_bits(x.public), y.cached("bits", lambda: magnitude_bits(y.public))]
        product = ring.matmul(x.public, y.public, width, a_bits=bits[0], b_bits=bits[1])
        return Shared(product, width, scale)


def _static(wire: Masked, name: str, matrix: Tensor, width: int) -> Tensor | ring.Prepared:
    """Only static wires are worth preparing: they are multiplied again."""
    if wire.cache is None:
        return matrix
    return wire.cached(f"{name} {width}", lambda: ring.prepare(matrix, width))


def _matmul_shape(x: Masked, y: Masked) -> tuple[int, ...]:
    if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-1] != y.shape[-2]:
        raise ShapeError(f"cannot multiply matrices of shapes {tuple(x.shape)} and {tuple(y.shape)}")
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        raise ShapeError(f"batches of {tuple(x.shape)} and {tuple(y.shape)} do not fit") from None
    return (*batch, x.shape[-2], y.shape[-1])


def magnitude_bits(tensor: Tensor) -> int:
    """Bits that hold every element, sign included."""
    low, high = torch.aminmax(tensor)
    return max(int(-1 - low if low < 0 else low), int(high)).bit_length() + 1


@dataclass(frozen=True)
class Square(Gate):
    """x² elementwise: [x²]_j = j·x̂² − 2x̂[r]_j + [r²]_j."""

    def materials(self, x: Masked) -> tuple[Material, ...]:
        return (Material(tuple(x.shape), x.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        return (x.mask * x.mask,)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Shared:
        (x,) = wires
        return Shared(x.public * (party * x.public - 2 * x.mask) + dealt[0], x.width, 2 * x.scale)

    def plain(self, x: Masked) -> Shared:
        return Shared(x.public * x.public, x.width, 2 * x.scale)


@dataclass(frozen=True)
class RowSquares(Gate):
    """Σ x² over the last dimension: one dealt value a row, Σ r²."""

    def materials(self, x: Masked) -> tuple[Material, ...]:
        return (Material((*x.shape[:-1], 1), x.width),)

    def deal(self, x: Masked) -> Sequence[Tensor]:
        return ((x.mask * x.mask).sum(-1, keepdim=True),)

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Shared:
        (x,) = wires
        rows = (x.public * (party * x.public - 2 * x.mask)).sum(-1, keepdim=True)
        return Shared(rows + dealt[0], x.width, 2 * x.scale)

    def plain(self, x: Masked) -> Shared:
        return Shared((x.public * x.public).sum(-1, keepdim=True), x.width, 2 * x.scale)


@dataclass(frozen=True)
class Unmask(Gate):
    """A wire back as a share, [x]_j = j·x̂ − [r]_j. Needs nothing from T."""

    def materials(self, x: Masked) -> tuple[Material, ...]:
        return ()

    def deal(self, x: Masked) -> Sequence[Tensor]:
        return ()

    def evaluate(self, party: int, wires: Sequence[Masked], dealt: Sequence[Tensor]) -> Shared:
        (x,) = wires
        return Shared(party * x.public - x.mask, x.width, x.scale)

    def plain(self, x: Masked) -> Shared:
        return Shared(signed(x.public, x.width), x.width, x.scale)


def multiply(runtime: Runtime, x: Masked, y: Masked) -> Shared:
    return runtime.shared(Multiply(), x, y)


def matmul(runtime: Runtime, x: Masked, y: Masked) -> Shared:
    return runtime.shared(MatMul(), x, y)


def square(runtime: Runtime, x: Masked) -> Shared:
    return runtime.shared(Square(), x)


def row_squares(runtime: Runtime, x: Masked) -> Shared:
    return runtime.shared(RowSquares(), x)


def unmask(runtime: Runtime, x: Masked) -> Shared:
    return runtime.shared(Unmask(), x)

"""Exact matrix products modulo 2^w.

`matmul` follows the shapes of `torch.matmul` for two or more dimensions. The result is some representative
modulo 2^width: which one depends on the way it was computed, so reduce before comparing or sending.

A static right operand (a weight) is handed to `prepare` once; what a kernel derives from it is then kept.
`a_bits`, `b_bits` promise that the int64 values lie below 2^(bits-1) in magnitude, which makes products of
small plain numbers (simulation) several times cheaper. A broken promise gives a wrong result.
"""

from torch import Tensor, int64

from secformer.errors import DtypeError, ShapeError, WidthError
from secformer.ring.fixed_point import check_width
from secformer.ring.kernels import step
from secformer.ring.limbs import Prepared

__all__ = ["Prepared", "matmul", "prepare"]


def prepare(b: Tensor, width: int = 64, *, b_bits: int | None = None) -> Prepared:
    """Keep what products with b derive from it; b must not change afterwards."""
    check_width(width)
    _check_operand(b)
    return Prepared(b, width, _content(width, b_bits), static=True)


def matmul(
    a: Tensor,
    b: Tensor | Prepared,
    width: int = 64,
    *,
    a_bits: int | None = None,
    b_bits: int | None = None,
) -> Tensor:
    """a @ b modulo 2^width: (..., m, k) @ (k, n) or (..., m, k) @ (..., k, n), batches broadcast.

    A prepared b serves every width up to its own; the bits promised for it at `prepare` hold.
    """
    check_width(width)
    if isinstance(b, Prepared):
        right = b
    else:
        _check_operand(b)
        right = Prepared(b, width, _content(width, b_bits))
    if width > right.width:
        raise WidthError(
            f"an operand prepared modulo 2^{right.width} cannot serve a product modulo 2^{width}; "
            f"prepare it for {width} bits"
        )
    _check_operand(a)
    if a.shape[-1] != right.tensor.shape[-2]:
        raise ShapeError(
            f"inner dimensions differ: {tuple(a.shape)} @ {tuple(right.tensor.shape)}; "
            f"the last of a must equal the last but one of b"
        )
    return step("matmul", a.device)(a, right, width, _content(width, a_bits))


def _content(width: int, bits: int | None) -> int:
    """How many bits of an operand count: the promised ones, or all of the ring."""
    if bits is None:
        return width
    if bits < 1:
        raise WidthError(f"an operand of {bits} bits was promised; it takes at least 1 (the sign)")
    return min(bits, width)


def _check_operand(x: Tensor) -> None:
    if x.dtype != int64:
        raise DtypeError(f"ring products take int64 tensors, not {x.dtype}; encode the values first")
    if x.dim() < 2:
        raise ShapeError(f"shape {tuple(x.shape)} is no matrix; add a dimension of size 1")

"""Fixed-point numbers as residues modulo 2^w, held in wrapping `torch.int64`.

A real v at scale s is the residue of round(v * 2^s). Only the low w bits of a tensor count: adding a
multiple of 2^w changes nothing, so sums and products need no reduction in between. Three operations do
care which representative they see, and live here:

    reduce       the residue in [0, 2^w)              before comparing or sending
    signed       the residue in [-2^(w-1), 2^(w-1))   before reading it as a number
    shift_right  the *logical* shift of the residue   `>>` on int64 is arithmetic and would drag the
                                                      sign bit, and whatever lies above bit w, along

They are called on every wire, so each is at most two tensor operations and returns its argument itself
where nothing is to be done.
"""

import math

import torch
from torch import Tensor

from secformer.errors import DtypeError, RangeError, ShapeError, WidthError


def check_width(width: int) -> None:
    """Refuse a ring that int64 cannot hold."""
    if not 1 <= width <= 64:
        raise WidthError(f"a ring of {width} bits was asked for; choose a width from 1 to 64")


def reduce(x: Tensor, width: int) -> Tensor:
    """The residue in [0, 2^width); modulo 2^64 every int64 is its own residue."""
    check_width(width)
    return x if width == 64 else x & ((1 << width) - 1)


def signed(x: Tensor, width: int) -> Tensor:
    """The residue in [-2^(width-1), 2^(width-1)): bit width-1 is copied into all bits above it."""
    check_width(width)
    return x if width == 64 else (x << (64 - width)) >> (64 - width)


def shift_right(x: Tensor, bits: int, width: int) -> Tensor:
    """floor(residue / 2^bits), where the residue is the one in [0, 2^width).

    Shifting first and masking second takes bits [bits, width) whatever `>>` filled in from above.
    """
    check_width(width)
    if not 0 <= bits <= width:
        raise WidthError(f"a residue of {width} bits cannot be shifted by {bits}; shift by 0 to {width}")
    if bits == 0:
        return reduce(x, width)
    return (x >> min(bits, 63)).bitwise_and_((1 << (width - bits)) - 1)


def encode(values: Tensor, scale: int, width: int = 64) -> Tensor:
    """round(values * 2^scale) as signed int64; refuses what the signed range of `width` bits cannot hold.

    Real values are rounded to nearest (ties to even) in float64; integers and booleans are exact.
    """
    check_width(width)
    if values.numel() == 0:
        raise ShapeError(f"nothing to encode: shape {tuple(values.shape)} has no elements; pass at least one")
    if values.dtype.is_complex or values.is_quantized:
        raise DtypeError(f"cannot encode {values.dtype} as fixed point; convert to a real or integer type")
    if not values.dtype.is_floating_point and scale >= 0:
        return _encode_integers(values, scale, width)
    rounded = torch.round(values.to(torch.float64) * math.ldexp(1.0, scale))
    limit = math.ldexp(1.0, width - 1)
    if not rounded.is_meta:
        smallest, largest = (bound.item() for bound in torch.aminmax(rounded))
        # A NaN anywhere makes both bounds NaN, for which no comparison holds.
        if not (-limit <= smallest and largest < limit):
            raise _out_of_range(math.isfinite(smallest) and math.isfinite(largest), scale, width)
    return rounded.to(torch.int64)


def decode(ring: Tensor, scale: int, width: int = 64) -> Tensor:
    """The float64 numbers that residues modulo 2^width stand for at this scale."""
    return signed(ring, width).to(torch.float64) * math.ldexp(1.0, -scale)


def _encode_integers(values: Tensor, scale: int, width: int) -> Tensor:
    """values * 2^scale without passing through float64, which holds integers only up to 2^53."""
    whole = values.to(torch.int64)
    if not whole.is_meta:
        # uint64 beyond 2^63 turns negative in int64, hence the look at the original type.
        wrapped = values.dtype == torch.uint64 and bool((whole < 0).any())
        smallest, largest = (int(bound.item()) for bound in torch.aminmax(whole))
        half = 1 << (width - 1)
        if wrapped or smallest << scale < -half or largest << scale >= half:
            raise _out_of_range(True, scale, width)
    # A shift by 64 or more is undefined; only zeros can have passed the check above then.
    return whole << scale if scale < 64 else torch.zeros_like(whole)


def _out_of_range(finite: bool, scale: int, width: int) -> RangeError:
    """The error of `encode`; it names the limit, never the value."""
    if not finite:
        return RangeError("the values hold NaN or infinity; clean the input before encoding it")
    largest = math.ldexp(1.0, width - 1 - scale)
    return RangeError(
        f"a value does not fit {width} signed bits at scale {scale}: magnitudes must stay below "
        f"{largest:g}; clip or rescale the input, lower the scale, or use a wider ring"
    )

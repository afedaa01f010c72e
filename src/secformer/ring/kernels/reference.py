"""Every step as its formula says it, in torch operations that any device knows; other kernels are tested against these."""

import torch
from torch import Tensor

from secformer.ring import gf2
from secformer.ring.fixed_point import reduce, shift_right
from secformer.ring.kernels.steps import Closed, Closing, put
from secformer.ring.keystream import Keystream, torch_elements
from secformer.ring.limbs import Prepared
from secformer.ring.packing import pack, unpack

gf2_matmul = gf2.four_russians


def matmul(a: Tensor, right: Prepared, width: int, a_bits: int) -> Tensor:
    """int64 arithmetic wraps modulo 2^64 by itself: exact modulo every smaller power of two."""
    return a @ right.tensor


def draw(
    keystream: Keystream,
    shape: tuple[int, ...],
    width: int,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
    out: Tensor | None = None,
) -> Tensor:
    elements = torch_elements(keystream, torch.Size(shape).numel(), width, device)
    return put(elements.view(tuple(shape)).to(dtype), out)


def close(share: Tensor, closing: Closing, keystream: Keystream) -> Closed:
    mask = draw(keystream, tuple(share.shape), closing.width, share.device)
    return close_with(share, closing, mask)


def close_with(share: Tensor, closing: Closing, mask: Tensor) -> Closed:
    """The rest of `close`, once the mask is drawn."""
    if closing.boolean:
        own = share ^ mask
    elif closing.drop:
        rounded_up = share + ((1 << closing.drop) - 1) if closing.party == 1 else share
        own = shift_right(rounded_up, closing.drop, closing.source_width).add_(mask)
    else:
        own = share + mask
    return Closed(pack(own, closing.width), own, mask)


def reveal(closed: Closed, received: Tensor, closing: Closing) -> Tensor:
    own = closed.own
    theirs = unpack(received.to(own.device), own.numel(), closing.width).reshape(own.shape)
    return reduce(own ^ theirs if closing.boolean else own + theirs, closing.width)


def correct(value: Tensor, width: int, boolean: bool, keystream: Keystream) -> Tensor:
    pad = draw(keystream, tuple(value.shape), width, value.device)
    return pack(value ^ pad if boolean else value - pad, width)


def to_host(tensor: Tensor) -> Tensor:
    return tensor.cpu()

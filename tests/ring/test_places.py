"""Draws and unpacked residues in a place that was given for them: the same as elsewhere, and nothing beside it."""

import pytest
import torch
from guarded import place

from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import cuda, reference
from secformer.ring.keystream import Keystream, native_cipher, torch_elements
from secformer.ring.packing import pack, unpack, unpacked

CPU = torch.device("cpu")
KEY, NONCE = bytes(range(200, 232)), bytes(range(120, 132))
KINDS = [(width, torch.int16) for width in (1, 10, 15)] + [(width, torch.int64) for width in (1, 10, 35, 63, 64)]
SHAPES = [(5, 7), (61, 7), (3, 5, 21)]
"""The first is packed as a stream of bits."""


@pytest.mark.parametrize("draw", [reference.draw, cuda.draw_plainly])
@pytest.mark.parametrize("cipher", [None, native_cipher(KEY)], ids=["torch", "native"])
@pytest.mark.parametrize("width, dtype", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_into_its_place(draw, cipher, width, dtype, shape):
    keystream = Keystream(KEY, NONCE, cipher)
    expected = torch_elements(keystream, torch.Size(shape).numel(), width, CPU).view(shape)
    with place(shape, dtype) as out:
        assert draw(keystream, shape, width, CPU, dtype, out) is out
        assert torch.equal(out, expected.to(dtype))


@pytest.mark.parametrize("take", [unpack, unpacked])
@pytest.mark.parametrize("width, dtype", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_residues_unpacked_into_their_place(take, width, dtype, shape):
    if take is unpacked and width == 64:
        pytest.skip("words of 64 bits are packed as they are")
    x = torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(width))
    with place(shape, dtype) as out:
        assert take(pack(x, width), x.numel(), width, dtype, out) is out
        assert torch.equal(out, reduce(x, width).to(dtype))

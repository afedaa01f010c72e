"""Residues as one long integer: the same numbers and the same bytes as element by element."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.ring import small
from secformer.ring.packing import pack, unpack

WORDS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 64), data=st.data())
def test_sums_and_bytes_agree_with_plain_arithmetic(width, data):
    left = data.draw(st.lists(WORDS, min_size=1, max_size=small.LIMIT))
    right = data.draw(st.lists(WORDS, min_size=len(left), max_size=len(left)))
    form = small.layout(len(left), width)
    x, y = (small.join(np.array(words, dtype=np.int64), form) for words in (left, right))
    modulus = 1 << width
    expected = [(a + b) % modulus for a, b in zip(left, right, strict=True)]
    assert [word % (1 << 64) for word in small.split(small.add(x, y, form), form).tolist()] == expected
    differing = [(a ^ b) % modulus for a, b in zip(left, right, strict=True)]
    assert [word % (1 << 64) for word in small.split(small.xor(x, y, form), form).tolist()] == differing
    stream = sum((word % modulus) << (width * place) for place, word in enumerate(left))
    assert bytes(small.squeeze(x, form)) == stream.to_bytes((len(left) * width + 7) // 8, "little")
    assert small.spread(bytes(small.squeeze(x, form)), form) == x


@pytest.mark.parametrize("width", [1, 7, 20, 33, 63, 64])
def test_the_limit_is_no_seam(width):
    """Just below and above it, both ways of packing give the same bytes for the same elements."""
    generator = torch.Generator().manual_seed(width)
    words = torch.empty(small.LIMIT + 8, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
    whole = bytes(pack(words, width).numpy())
    part = bytes(pack(words[: small.LIMIT].clone(), width).numpy())
    assert whole[: len(part)] == part
    again = unpack(pack(words[: small.LIMIT].clone(), width), small.LIMIT, width)
    assert torch.equal(again, words[: small.LIMIT] if width == 64 else words[: small.LIMIT] & ((1 << width) - 1))


def test_bits_beyond_the_last_element_are_ignored():
    form = small.layout(1, 3)
    assert small.spread(b"\xff", form) == 7

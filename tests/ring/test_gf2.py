"""Products over GF(2) against 0/1 matrices modulo 2."""

import numpy as np
import pytest
import torch

from secformer.errors import ShapeError
from secformer.ring.gf2 import MANY_ROWS, gf2_matmul


def _random_bits(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed))


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """Rows of bits in bytes, least significant first."""
    return torch.from_numpy(np.packbits(bits.numpy().astype(np.uint8), axis=-1, bitorder="little"))


def _words(bits: torch.Tensor) -> torch.Tensor:
    """(k, 64·words) bits to (k, words) int64."""
    grouped = bits.unflatten(-1, (-1, 64))
    return (grouped << torch.arange(64)).sum(-1)


@pytest.mark.parametrize("rows", [1, 3, 17, MANY_ROWS - 1, MANY_ROWS, 300])
@pytest.mark.parametrize("inner", [1, 7, 8, 9, 64, 301, 5000])
@pytest.mark.parametrize("words", [1, 5])
def test_equals_the_product_modulo_two(rows: int, inner: int, words: int) -> None:
    a, b = _random_bits(rows, inner, seed=1), _random_bits(inner, 64 * words, seed=2)
    expected = _words((a.double() @ b.double()).long() % 2)
    assert torch.equal(gf2_matmul(_packed(a), _words(b)), expected)


def test_all_ones_and_all_zeros() -> None:
    table = torch.tensor([[-1, 0], [-1, 1], [0, 1]])
    assert gf2_matmul(_packed(torch.ones(1, 3)), table).tolist() == [[0, 0]]
    assert gf2_matmul(_packed(torch.zeros(1, 3)), table).tolist() == [[0, 0]]


def test_sizes_must_fit() -> None:
    with pytest.raises(ShapeError, match="do not fit"):
        gf2_matmul(torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(40, 2, dtype=torch.int64))

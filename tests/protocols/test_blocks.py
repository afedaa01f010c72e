"""Pieces that stay in a core's cache: the same bits as all rows at once, and no more rows in hand than were asked for."""

import pytest
import torch

from secformer.engine.values import Masked, MaskedBits
from secformer.protocols import blocks
from secformer.protocols.attention import BlockPower
from secformer.protocols.blocks import in_cache
from secformer.protocols.fourier import Fourier, GatedFourier
from secformer.protocols.maximum import Histogram
from secformer.protocols.menu import activation
from secformer.ring.fixed_point import reduce

GENERATOR = torch.Generator().manual_seed(0)
FIT = activation("gelu", "tight")


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=GENERATOR)


def wire(width: int, *shape: int) -> Masked:
    return Masked(words(*shape), words(*shape), width)


def gate_bits(*shape: int) -> MaskedBits:
    return MaskedBits(words(*shape) & 1, words(*shape) & 1)


GATES = [
    (Histogram(4, 6), (wire(9, 3, 5, 40),)),
    (BlockPower(6, 50), (wire(13, 7, 11), wire(13, 7, 1))),
    (Fourier(FIT, 15, 13, 54), (wire(12, 9, 10),)),
    (Fourier(FIT, 15, 13, 54), (wire(24, 9, 10),)),
    (GatedFourier(FIT, 15, 13, 54), (wire(24, 13, 3), gate_bits(13, 3))),
]


@pytest.mark.parametrize("gate, wires", GATES, ids=lambda each: type(each).__name__)
def test_a_gate_in_pieces_gives_the_bits_of_the_whole(gate, wires, monkeypatch):
    dealt = [reduce(words(*form.shape), form.width) for form in gate.materials(*wires)]

    def results() -> list[torch.Tensor]:
        return [*gate.deal(*wires), *(gate.evaluate(party, wires, dealt) for party in (0, 1))]

    whole = results()
    monkeypatch.setattr(blocks, "CACHED_VALUES", 300)
    for pieces, expected in zip(results(), whole, strict=True):
        assert pieces.shape == expected.shape
        assert torch.equal(pieces, expected)


def test_no_more_rows_at_once_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(blocks, "CACHED_VALUES", 50)
    seen = []

    def double(rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return 2 * rows + more

    numbers = torch.arange(23)
    assert torch.equal(in_cache(double, 10, numbers, numbers), 3 * numbers)
    assert seen == [5, 5, 5, 5, 3]

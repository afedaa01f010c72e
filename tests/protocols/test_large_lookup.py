"""A table of 250,002 words, as multilingual models have: no more seconds a word than one of 30,522, in bounded memory."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from secformer.engine.values import MaskedBits
from secformer.models.embedding import ROWS_AT_ONCE, Embedding
from secformer.models.shapes import PRESETS
from secformer.models.statics import Source
from secformer.models.weights import Weights
from secformer.protocols.lookup import SelectRows, one_hot_rows, table_words
from secformer.ring.fixed_point import encode

SMALL, LARGE, TOKENS, WORDS = 30_522, 250_002, 128, 8


def seconds(vocabulary: int) -> float:
    """Of one server to choose 128 rows, the quickest of three; both servers' rows together are the right ones."""
    generator = torch.Generator().manual_seed(vocabulary)

    def random(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**62), 2**62, shape, generator=generator)

    table, masks = random(vocabulary, WORDS), [random(vocabulary, WORDS) for _ in range(2)]
    ids = torch.randint(vocabulary, (TOKENS,), generator=generator)
    covers = [random(TOKENS, -(-vocabulary // 8)) & 255 for _ in range(2)]
    one_hot = one_hot_rows(ids, vocabulary) ^ covers[0] ^ covers[1]
    covered = table ^ masks[0] ^ masks[1]
    gate, times, found = SelectRows(), [], []
    wires = [[MaskedBits(one_hot, covers[party], 8), MaskedBits(covered, masks[party], 64)] for party in range(2)]
    whole = [MaskedBits(one_hot, covers[0] ^ covers[1], 8), MaskedBits(covered, masks[0] ^ masks[1], 64)]
    (product,) = gate.deal(*whole)
    for party, dealt in enumerate((product, torch.zeros_like(product))):
        for _ in range(3):
            start = time.perf_counter()
            rows = gate.evaluate(party, wires[party], [dealt])
            times.append(time.perf_counter() - start)
        found.append(rows)
    assert torch.equal(found[0] ^ found[1], table[ids])
    return min(times)


@pytest.fixture
def one_core():
    """Two threads that wait for a busy core would measure the waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_large_table_costs_no_more_a_word(one_core):
    ratio = (seconds(LARGE) / LARGE) / (seconds(SMALL) / SMALL)
    assert ratio <= 2.0


def test_a_table_is_laid_out_some_rows_at_a_time():
    """As it would be all at once."""
    rows = 2 * ROWS_AT_ONCE + 3
    config = replace(PRESETS["bert-base"], vocabulary=rows, hidden=12, heads=1)
    word = torch.randn(rows, 12, generator=torch.Generator().manual_seed(1))
    embedding = Embedding(config, scale=10, width=30, word_bits=14, centred=True)
    made = embedding.statics()["word"].make(Source(Weights({"word": word})))
    centred = word.double() - word.double().mean(-1, keepdim=True)
    assert torch.equal(made, table_words(encode(centred, 10, 14), 14))

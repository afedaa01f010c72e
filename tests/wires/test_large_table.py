"""A table of 250,000 words, looked up whole: seconds a word as for one of 30,522, in bounded memory."""

from __future__ import annotations

import resource
import time

import pytest
import torch
from checkpoints import build_checkpoint
from secure import ask, load, relative_error, upload

SIZES = dict(heads=1, hidden=64, intermediate=8, layers=1, positions=128, seed=1)
SMALL, USUAL, LARGE = 99, 30_522, 250_002
MOST_MEMORY = 8e9


def seconds(folder, words: int) -> float:
    """The best of two queries of 128 tokens; the result is checked."""
    build_checkpoint(folder / "model", "bert", vocabulary=words, **SIZES)
    model = load(folder / "model", folder / "cache")
    texts = ["a " * 126]
    model.calibrate(texts, few=True)
    batch = model._batch(texts, None)
    assert batch.shape[:2] == (1, 128)
    batch.ids[0, 1:-1] = torch.arange(126) * ((words - 1) // 126)  # from all over the table
    uploaded, taken = upload(model), []
    for _ in range(2):
        started = time.perf_counter()
        found, _ = ask(model, uploaded, batch)
        taken.append(time.perf_counter() - started)
    assert relative_error(found, model._plain(batch)) <= 1e-2
    return min(taken)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_word_of_a_large_table_takes_no_longer(tmp_path):
    rest, usual, large = (seconds(tmp_path / str(words), words) for words in (SMALL, USUAL, LARGE))
    ratio = (large - rest) / LARGE / ((usual - rest) / USUAL)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"\nlookup of 128 tokens: {usual - rest:.2f} s and {large - rest:.2f} s, a word {ratio:.2f}x; {peak / 1e9:.1f} GB"
    )
    assert ratio <= 2
    assert peak <= MOST_MEMORY

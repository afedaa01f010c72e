"""Many texts as batches: every text once, like lengths together, no batch too large, and progress as it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkpoints import TEXTS, build_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from secformer.errors import InputError
from secformer.models.batches import DOCUMENTS, batched, calibration_tokens, documents, watched
from secformer.models.config_json import load_config
from secformer.models.shapes import PRESETS
from secformer.models.tokens import Tokens, load_tokenizer, tokenise

CONFIG = PRESETS["bert-base"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder, layers=1)
    config = load_config(folder)
    return load_tokenizer(folder, config), config


@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=40), most=st.integers(1, 400))
def test_every_text_once_in_batches_of_bounded_size(lengths, most):
    rows = [Tokens([index + 1] * length, None) for index, length in enumerate(lengths)]
    batches = list(batched(rows, CONFIG, most))
    seen = [row[mask].tolist() for batch in batches for row, mask in zip(batch.ids, batch.mask, strict=True)]
    assert sorted(seen) == sorted(row.ids for row in rows)
    assert [len(row) for row in seen] == sorted(lengths)
    for batch in batches:
        assert batch.ids.numel() <= most or batch.ids.shape[0] == 1
        assert batch.ids.shape[1] == int(batch.lengths.max())


def test_texts_are_those_of_a_query_and_cut_where_a_query_would_be_refused(loaded):
    tokenizer, config = loaded
    texts = [*TEXTS, "cat " * 100]
    rows = calibration_tokens(tokenizer, config, texts)
    for text, row in zip(TEXTS, rows, strict=False):
        assert tokenise(tokenizer, config, [text]).ids[0].tolist() == row.ids
    assert len(rows[-1].ids) == config.positions
    pairs = calibration_tokens(tokenizer, config, TEXTS, TEXTS[::-1])
    assert tokenise(tokenizer, config, TEXTS[1:2], TEXTS[2:3]).token_types[0].tolist() == pairs[1].types


def test_prompts_take_turns(loaded):
    tokenizer, config = loaded
    config = replace(config, prompts=(("query", "dog "), ("passage", "mat ")))
    for default, expected in (("", ["", "dog ", "mat ", ""]), ("passage", ["mat ", "dog ", "mat ", "dog "])):
        rows = calibration_tokens(tokenizer, replace(config, default_prompt=default), TEXTS)
        assert [row.ids for row in rows] == [
            tokenizer(prompt + text)["input_ids"] for prompt, text in zip(expected, TEXTS, strict=True)
        ]
    with pytest.raises(InputError, match="text 3 is empty"):  # counted over all, not over those of a prompt
        calibration_tokens(tokenizer, replace(config, prompts=(("none", ""),)), ["a", "b", "\x00\x01", "c"])


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=12),
    longest=st.integers(2, 64),
    typed=st.booleans(),
)
def test_texts_joined_to_documents(lengths, longest, typed):
    """Of half the model's length and all of it, between the first and last token every text has, from texts alone."""
    config = replace(CONFIG, positions=longest)
    rows = [
        Tokens([1, *range(10 * index + 3, 10 * index + 1 + length), 2], [0] * (length) if typed else None)
        for index, length in enumerate(lengths)
    ]
    inner = {token for row in rows for token in row.ids[1:-1]} or {1}
    found = documents(rows, config)
    assert [len(row.ids) for row in found] == [max(longest // 2, min(longest, 1)), longest] * DOCUMENTS
    for row in found:
        assert row.ids[0] == 1 and set(row.ids[1:-1]) <= inner
        assert len(row.ids) < 2 or row.ids[-1] == 2
        assert (row.types is None) != typed and (row.types is None or len(row.types) == len(row.ids))
    assert [row.ids for row in documents(rows, config)] == [row.ids for row in found]  # the same again


def test_documents_hold_every_text_where_there_is_room(loaded):
    tokenizer, config = loaded
    rows = calibration_tokens(tokenizer, config, TEXTS, TEXTS[::-1])
    inner = [token for row in rows for token in row.ids[1:-1]]
    longest = replace(config, positions=len(inner) + 2)
    whole = [row for row in documents(rows, longest) if len(row.ids) == longest.positions]
    assert len(whole) == DOCUMENTS and all(sorted(row.ids[1:-1]) == sorted(inner) for row in whole)
    assert whole[0].ids != whole[1].ids and all(set(row.types) == {0, 1} for row in whole)
    short = documents(rows, replace(config, max_tokens=20))
    assert [len(row.ids) for row in short] == [10, 20, 10, 20]


def test_progress_counts_texts_and_ends_with_all():
    rows, heard = [Tokens([1] * length, None) for length in (3, 3, 9, 30)], []
    batches = watched(batched(rows, CONFIG, 20), len(rows), lambda done, total: heard.append((done, total)))
    assert heard == [] and len(list(batches)) == 3
    assert heard == [(0, 4), (2, 4), (3, 4), (4, 4)]


def test_tokens_are_not_printed():
    assert "123" not in repr(Tokens([123, 456], [0, 0]))

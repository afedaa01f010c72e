import dataclasses
import shutil

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.errors import InputError, ModelError
from secformer.models.config_json import load_config
from secformer.models.tokens import Batch, for_query, length_class, load_tokenizer, tokenise


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    build_checkpoint(folder, request.param, layers=1)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    config = load_config(folder)
    return load_tokenizer(folder, config), config


def test_ids_are_the_tokenizers_own_padded_on_the_right(loaded):
    tokenizer, config = loaded
    batch = tokenise(tokenizer, config, TEXTS)
    for index, text in enumerate(TEXTS):
        ids = tokenizer(text)["input_ids"]
        assert batch.ids[index, : len(ids)].tolist() == ids
        assert batch.mask[index].tolist() == [True] * len(ids) + [False] * (batch.ids.shape[1] - len(ids))
        assert (batch.ids[index, len(ids) :] == config.pad_token).all()
    assert batch.ids.shape[1] == int(batch.lengths.max())


def test_pairs_get_token_types_where_the_model_has_them(loaded):
    tokenizer, config = loaded
    batch = tokenise(tokenizer, config, ["the cat", "a"], ["dog", "it was good"])
    assert (batch.token_types.sum(1) > 0).tolist() == [config.family == "bert"] * 2
    assert batch.ids[1, : batch.lengths[1]].tolist() == tokenizer("a", "it was good")["input_ids"]


def test_known_ids(tmp_path):
    build_checkpoint(tmp_path, layers=1)
    config = load_config(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config)
    pieces = ["[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]"]
    assert tokenise(tokenizer, config, ["The cats sat."]).ids.tolist() == [tokenizer.convert_tokens_to_ids(pieces)]


@settings(max_examples=40, deadline=None)
@given(text=st.text(min_size=1, max_size=12))
def test_any_text_gives_ids_of_the_table_or_an_input_error(loaded, text):
    tokenizer, config = loaded
    try:
        batch = tokenise(tokenizer, config, [text])
    except InputError:
        return
    assert int(batch.ids.min()) >= 0 and int(batch.ids.max()) < config.vocabulary
    assert batch.ids.shape[1] > 2 and batch.mask.all()


@pytest.mark.parametrize("text", ["", "  \n\t", "\ud800", 3, None])
def test_unusable_texts(loaded, text):
    for texts, pairs, name in ((["the", text], None, "text 2"), (["the"], [text], "second text 1")):
        with pytest.raises(InputError, match=name):
            tokenise(*loaded, texts, pairs)


def test_text_the_tokenizer_drops(loaded):
    tokenizer, config = loaded
    if config.family != "roberta":  # bytes are never dropped
        with pytest.raises(InputError, match="no token"):
            tokenise(tokenizer, config, ["\x00\x01"])


def test_texts_that_are_too_long(loaded):
    tokenizer, config = loaded
    with pytest.raises(InputError, match=r"text 2 has .* 64 are allowed"):
        tokenise(tokenizer, config, ["a", "the cat " * 60])
    for limit in (dict(max_length=4), dict(pad_to=4)):
        with pytest.raises(InputError, match="4 are allowed"):
            tokenise(tokenizer, config, ["the cat sat"], **limit)
    assert tokenise(tokenizer, config, ["the cat"], pad_to=50).ids.shape == (1, 50)


def test_padding_beyond_the_position_table_is_refused(loaded):
    tokenizer, config = loaded
    for length in (65, 0, -1):
        with pytest.raises(InputError, match=f"length of {length} tokens"):
            tokenise(tokenizer, config, ["the cat"], pad_to=length)


def test_texts_must_be_lists_of_equal_length(loaded):
    for texts, pairs in (("the cat", None), (["a"], "b"), ([], None), (["a", "b"], ["c"])):
        with pytest.raises(InputError):
            tokenise(*loaded, texts, pairs)


def test_lower_casing_before_the_tokenizer(loaded):
    tokenizer, config = loaded
    lowered = tokenise(tokenizer, dataclasses.replace(config, lower_case=True), ["THE Cat"])
    assert torch.equal(lowered.ids, tokenise(tokenizer, config, ["the cat"]).ids)


def test_a_tokenizer_larger_than_the_table(folder, loaded):
    small = dataclasses.replace(loaded[1], vocabulary=70)
    with pytest.raises(ModelError, match="only 70 rows"):
        load_tokenizer(folder, small)


def test_missing_and_broken_tokenizer_files(folder, loaded, tmp_path):
    config = loaded[1]
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(copy, config)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(copy, config)
    (copy / "vocab.json").write_text("{}")  # half a tokenizer: transformers makes one up
    with pytest.raises(ModelError):
        load_tokenizer(copy, config)


def test_a_batch_prints_no_token(loaded):
    assert repr(tokenise(*loaded, ["the cat"])).startswith("Batch(1 sentences of up to")


def test_a_query_has_one_of_few_lengths():
    classes = {length: length_class(length, 512) for length in range(1, 513)}
    assert sorted(set(classes.values())) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert all(length <= size <= max(16, 1.5 * length + 1) for length, size in classes.items())
    assert length_class(33, 40) == 40  # never more than the model takes


def test_the_shape_of_a_query_does_not_tell_how_long_its_text_is(loaded):
    _, config = loaded
    config = dataclasses.replace(config, positions=64, pad_token=7)
    queries = []
    for length in range(17, 25):
        ids = torch.arange(length)[None]
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
        queries.append(for_query(batch, config))
        assert torch.equal(queries[-1].ids[:, :length], ids) and (queries[-1].ids[:, length:] == 7).all()
        assert queries[-1].lengths.tolist() == [length] and not queries[-1].token_types.any()
    assert {tuple(part.shape) for query in queries for part in (query.ids, query.mask, query.token_types)} == {(1, 24)}

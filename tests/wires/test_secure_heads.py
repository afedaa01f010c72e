"""Heads beyond a classifier's: questions, choices, words for masks, vectors behind a map of their own."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from safetensors.torch import save_file
from secure import ask, assert_cost_as_declared, calibrated, load, relative_error, transformers_result, upload

from secformer.errors import InputError
from secformer.parties.prediction import prediction

TOLERANCE = 1e-2
PAIRS = ["the dog", "a good film was on", "it", "cats"]
CHOICES = [["a mat", "the dog ran home", "it"], ["good", "bad film", "a"], ["on", "cats", "the mat"], ["a", "b", "c"]]
ODD = dict(heads=1, hidden=17, intermediate=29, layers=1)
SMALL = dict(heads=2, hidden=22, intermediate=31, layers=1)
WIDE = dict(embedding_size=13, **ODD)

KINDS = [
    ("bert", "question", ODD),
    ("mpnet", "question", SMALL),
    ("roberta", "choice", ODD),
    ("electra", "choice", WIDE),
    ("distilbert", "choice", SMALL),
    ("bert", "masked", SMALL),
    ("roberta", "masked", dict(activation="relu", **ODD)),
    ("distilbert", "masked", dict(activation="relu", **ODD)),
    ("electra", "masked", WIDE),
    ("albert", "masked", WIDE),
]


@pytest.fixture
def built(tmp_path):
    return partial(calibrated, tmp_path)


def given(model, head):
    """Texts and second texts as a head of this kind takes them."""
    if head == "masked":
        mask = model.tokenizer.mask_token
        return [f"the {mask} sat on a {mask}", mask, f"it was a {mask} film, running the dog home"], None
    return TEXTS, {"question": PAIRS, "choice": CHOICES}[head]


LONG = {"mpnet question", "roberta choice", "distilbert choice", "electra masked", "albert masked", "distilbert masked"}
"""One of each head and shape every time, these in the long run."""


def case(family, head, sizes):
    marks = [pytest.mark.long] if f"{family} {head}" in LONG else []
    return pytest.param(family, head, sizes, id=f"{family} {head}", marks=marks)


@pytest.mark.parametrize(("family", "head", "sizes"), [case(*kind) for kind in KINDS])
def test_every_head_gives_what_transformers_gives(built, family, head, sizes):
    reference, model = built(family, head, seed=2, **sizes)
    texts, pairs = given(model, head)
    batch = model._batch(texts, pairs)
    expected = transformers_result(reference, model, batch)
    plain = model.predict(texts, pairs, mode="plain")
    assert relative_error(plain.result, expected) <= 1e-6
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, expected) <= TOLERANCE
    simulated = model.predict(texts, pairs, mode="simulate")
    assert relative_error(simulated.result, expected) <= TOLERANCE
    assert simulated.labels == plain.labels
    assert not any(simulated.marked) and int(run.value("evidence").abs().sum()) == 0
    assert_cost_as_declared(run)


@pytest.mark.parametrize(("suite", "family", "head"), [("fast", "bert", "masked"), ("secformer", "bert", "masked")])
def test_a_language_model_under_other_suites(built, suite, family, head):
    _, model = built(family, head, suite, seed=4, **ODD)
    texts, _ = given(model, head)
    secure, run = ask(model, upload(model), model._batch(texts, None))
    assert relative_error(secure, model.predict(texts, mode="plain").result) <= TOLERANCE
    assert_cost_as_declared(run)


# What the client makes of it


def test_an_answer_is_a_span_of_the_second_text(built):
    _, model = built("bert", "question", seed=2, **ODD)
    answers = model.predict(TEXTS, PAIRS, mode="plain").labels
    assert all(answer and answer in text for answer, text in zip(answers, PAIRS, strict=True))
    batch = model._batch(TEXTS[:1], ["A good  film, was on"])
    logits = torch.zeros(1, *batch.ids.shape[1:], 2)
    first = batch.ids[0].tolist().index(model.tokenizer.convert_tokens_to_ids("good"))
    logits[0, first, 0] = logits[0, first + 1, 1] = 5.0
    logits[0, 1, 0] = logits[0, 2, 1] = 9.0  # of the question itself: no answer
    assert prediction(model.config, batch, logits).labels == ["good  film"]


def test_a_choice_is_one_of_the_choices(built):
    _, model = built("bert", "choice", seed=2, **ODD)
    found = model.predict(TEXTS, CHOICES, mode="plain")
    assert found.result.shape == (4, 3) and found.labels == found.result.argmax(-1).tolist()
    assert len(model.predict(TEXTS, CHOICES, mode="simulate").marked) == 4


def test_words_for_masks(built):
    _, model = built("bert", "masked", seed=2, **ODD)
    texts, _ = given(model, "masked")
    found = model.predict(texts, mode="plain")
    assert found.result.shape == (3, 2, model.config.vocabulary)
    words = model.tokenizer.convert_ids_to_tokens(found.result[0].argmax(-1).tolist())
    assert found.labels[0] == words


@pytest.mark.parametrize(
    ("head", "texts", "pairs", "complaint"),
    [
        ("question", TEXTS, None, "second texts"),
        ("choice", TEXTS, None, "list of choices"),
        ("choice", TEXTS, PAIRS, "list of choices"),
        ("choice", TEXTS[:2], [["a", "b"], ["c"]], "as many each time"),
        ("masked", TEXTS, None, r"no \[MASK\]"),
    ],
)
def test_what_a_head_needs(built, head, texts, pairs, complaint):
    _, model = built("bert", head, **ODD)
    with pytest.raises(InputError, match=complaint):
        model.predict(texts, pairs, mode="plain")


# sentence-transformers' maps


def sentence_encoder(folder, pooling, activation, bias=True):
    """A checkpoint with a Dense behind its pooling, and what it gives."""
    reference = build_checkpoint(folder, "distilbert", **SMALL)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [dict(idx=0, path=path, type=f"sentence_transformers.models.{kind}") for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    for path in ("1_Pooling", "2_Dense"):
        (folder / path).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    dense = torch.nn.Linear(SMALL["hidden"], 9, bias=bias)
    torch.nn.init.normal_(dense.weight, generator=torch.Generator().manual_seed(1))
    name = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"
    settings = dict(in_features=SMALL["hidden"], out_features=9, bias=bias, activation_function=name)
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    save_file(
        {f"linear.{name}": tensor for name, tensor in dense.state_dict().items()},
        folder / "2_Dense" / "model.safetensors",
    )

    @torch.no_grad()
    def vectors(batch):
        hidden = reference(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        mask = batch.mask[..., None].double()
        pooled = hidden[:, 0] if pooling == "cls_token" else (hidden * mask).sum(1) / mask.sum(1)
        found = dense.double()(pooled)
        return torch.tanh(found) if activation == "Tanh" else found

    return vectors


@pytest.mark.parametrize(
    ("suite", "pooling", "activation", "bias"),
    [
        ("exact", "mean_tokens", "Identity", False),
        ("exact", "mean_tokens", "Tanh", True),
        ("exact", "cls_token", "Tanh", True),
        ("secformer", "mean_tokens", "Tanh", True),
    ],
)
def test_a_map_behind_the_pooling(tmp_path, suite, pooling, activation, bias):
    vectors = sentence_encoder(tmp_path / "model", pooling, activation, bias)
    model = load(tmp_path / "model", tmp_path / "cache", suite)
    model.calibrate(TEXTS, few=True)
    batch = model._batch(TEXTS, None)
    secure, run = ask(model, upload(model), batch)
    expected = vectors(batch) if suite == "exact" else model.predict(TEXTS, mode="plain").result
    assert secure.shape == (4, 9)
    assert relative_error(secure, expected) <= TOLERANCE
    assert_cost_as_declared(run)


def test_servers_are_told_how_many_words_are_asked_for(tmp_path):
    """Through a client and three servers: the number is part of the job, the places are shares."""
    build_checkpoint(tmp_path / "model", "bert", "masked", seed=2, **ODD)
    model = load(tmp_path / "model", tmp_path / "cache", servers="threads")
    model.calibrate(TEXTS, few=True)
    texts, _ = given(model, "masked")
    with model:
        secure = model.predict(texts)
    plain = model.predict(texts, mode="plain")
    assert relative_error(secure.result, plain.result) <= TOLERANCE and secure.labels == plain.labels
    assert not any(secure.marked)

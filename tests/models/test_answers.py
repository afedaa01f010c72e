"""Answers mean what transformers' pipelines and sentence-transformers say, to the last entity."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from secure import load

from secformer.errors import SettingsError
from secformer.models.answers import Answer, answer_of
from secformer.models.batches import query_bytes, sessions
from secformer.models.shapes import PRESETS
from secformer.parties.prediction import Prediction, together

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
NAMED = {"id2label": dict(enumerate(LABELS)), "label2id": {label: index for index, label in enumerate(LABELS)}}
UNKNOWN = "Zoë sat, the 猫 ran home"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tagger(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    reference = build_checkpoint(folder, request.param, "tokens", layers=1, labels=len(LABELS), seed=5, **NAMED)
    return folder, reference, load(folder, folder)


def pipeline(folder, reference, strategy):
    from transformers import AutoTokenizer, TokenClassificationPipeline

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    return TokenClassificationPipeline(model=reference, tokenizer=tokenizer, aggregation_strategy=strategy)


def test_entities_are_those_of_a_pipeline(tagger):
    folder, reference, model = tagger
    texts = [*TEXTS, UNKNOWN]
    found, merge = model.predict(texts, mode="plain"), pipeline(folder, reference, "simple")
    count = 0
    for text, answer in zip(texts, found, strict=True):
        assert answer.entities is not None
        expected = merge(text)
        count += len(expected)
        assert [entity.to_dict() for entity in answer.entities] == [
            {**one, "score": pytest.approx(float(one["score"]), abs=2e-6)} for one in expected
        ]
        assert all(0 <= entity.start <= entity.end <= len(text) for entity in answer.entities)
    assert count > 4 and any(len(entity.tokens) > 1 for answer in found for entity in answer.entities or ())


def test_tokens_are_those_of_a_pipeline_and_labels_leave_special_ones_out(tagger):
    folder, reference, model = tagger
    found, each = model.predict([UNKNOWN], mode="plain"), pipeline(folder, reference, "none")
    tokens = [token for token in found[0].tokens or () if token.label != "O"]
    expected = [tuple(one[part] for part in ("entity", "index", "word", "start", "end")) for one in each(UNKNOWN)]
    assert [(token.label, *token[2:6]) for token in tokens] == expected
    assert found.labels is not None and len(found.labels[0]) == len(found[0].tokens or ()) == found.result.shape[1] - 2


def test_entities_of_a_pair_keep_to_their_text(tagger):
    _, _, model = tagger
    (answer,) = model.predict(["the cat"], ["a dog ran"], mode="plain")
    for entity in answer.entities or ():
        assert len({token.second for token in entity.tokens}) == 1
        assert entity.to_dict().get("second", False) == entity.tokens[0].second
        assert entity.end <= len("a dog ran" if entity.tokens[0].second else "the cat")
    assert {token.second for token in answer.tokens or ()} == {False, True}


# Classifiers


CONFIG = replace(PRESETS["bert-base"], labels=("bad", "good", "odd"))
LOGITS = torch.tensor([-1.0, 2.0, 0.5], dtype=torch.float64)


def test_a_label_has_its_score_and_all_scores_on_request():
    answer, likely = answer_of(CONFIG, LOGITS, None), torch.softmax(LOGITS, -1).tolist()
    assert (answer.label, answer.score) == ("good", likely[1])
    assert list(answer.scores) == ["good", "odd", "bad"] and sum(answer.scores.values()) == pytest.approx(1)
    assert answer.to_dict() == {"label": "good", "score": round(likely[1], 6), "marked": False, "evidence": None}
    assert answer.to_dict(scores=True)["scores"] == {"good": 0.785597, "odd": 0.175290, "bad": 0.039113}
    assert repr(answer) == "Answer('good', score=0.786)"


def test_many_labels_are_a_yes_or_no_each():
    answer = answer_of(replace(CONFIG, multi_label=True), LOGITS, None)
    assert answer.labels == ("good", "odd") and answer.scores["bad"] == pytest.approx(float(torch.sigmoid(LOGITS[0])))
    assert answer_of(replace(CONFIG, multi_label=True), LOGITS - 9, None).labels == ()


def test_a_value_and_a_vector():
    assert answer_of(replace(CONFIG, head="regression", labels=("score",)), LOGITS[:1], None).value == -1.0
    answer = answer_of(replace(CONFIG, head="embedding", labels=()), LOGITS, None)
    assert answer.vector is LOGITS and repr(answer) == "Answer(vector of 3)"
    assert answer.to_dict()["vector"] == [-1.0, 2.0, 0.5]


# Predictions


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    build_checkpoint(folder, layers=1)
    model = load(folder, folder / "cache")
    model.calibrate(TEXTS, few=True)
    return model


def test_a_prediction_in_parts_is_the_prediction(encoder):
    """Least memory: a session a text. Order, evidence and answers are as in one session."""
    whole = encoder.predict(TEXTS, mode="simulate")
    parts = encoder.predict((text for text in TEXTS), mode="simulate", memory=1)  # a generator will do
    assert (parts.result - whole.result).abs().max() < 1e-3
    assert parts.marked == whole.marked and len(parts) == len(parts.answers) == len(TEXTS)
    assert parts.evidence is not None and parts.evidence.counts.shape == whole.evidence.counts.shape
    assert all(torch.equal(answer.vector, row) for answer, row in zip(parts, parts.result, strict=True))
    assert len(parts.to_dict()["answers"]) == len(TEXTS) and "cost" not in parts.to_dict()


def test_vectors_have_length_1_where_sentence_transformers_makes_them_so(tmp_path):
    build_checkpoint(tmp_path, layers=1)
    types = ("models.Transformer", "models.Pooling", "models.Normalize")
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in zip(("", "1", "2"), types)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    model = load(tmp_path, tmp_path / "cache")
    model.calibrate(TEXTS, few=True)
    for mode in ("plain", "simulate"):
        for answer in model.predict(TEXTS, mode=mode):
            assert float(answer.vector.norm()) == pytest.approx(1, abs=1e-9)


def test_reprs_are_short(encoder):
    found = encoder.predict(TEXTS, mode="plain")
    for thing in (encoder, encoder.plan(16), found, found[0], encoder.tokens(TEXTS)):
        assert len(repr(thing)) < 200 and "cat" not in repr(thing), repr(thing)[:300]


def test_tokens_of_parts_are_padded_and_in_order():
    short, long = torch.ones(1, 2, 3), 2 * torch.ones(1, 4, 3)
    found = together(
        [Prediction(short, [["a"]], answers=(Answer(),)), Prediction(long, [["b"]], answers=(Answer(),))], [1, 0]
    )
    assert found.labels == [["b"], ["a"]] and found.result.shape == (2, 4, 3)
    assert torch.equal(found.result[1], torch.cat((short[0], torch.zeros(2, 3))))


def test_pandas_is_asked_for_by_name(encoder, monkeypatch):
    found = encoder.predict(TEXTS[:2], mode="plain")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match="pip install pandas"):
        found.to_pandas()


def test_to_pandas_has_a_row_a_text(encoder):
    frame = encoder.predict(TEXTS[:2], mode="plain").to_pandas()
    assert list(frame.columns) == ["vector", "marked", "evidence"] and len(frame) == 2


# Sessions


def test_sessions_keep_to_their_memory():
    base = PRESETS["bert-base"]
    lengths = [500, 10, 12, 300, 9] * 20
    for memory in (1, 1 << 28, 1 << 30, 1 << 40):
        parts = sessions(lengths, base, memory)
        assert sorted(index for part in parts for index in part) == list(range(100))
        for part in parts:
            assert len(part) == 1 or query_bytes(base, len(part), max(lengths[index] for index in part)) <= memory
    assert sessions(lengths, base, 1 << 60) == [list(range(100))]
    alike = sessions(lengths, base, 1 << 60, alike=True)
    assert [len(part) for part in alike] == [60, 40]
    assert all(len(part) == 1 for part in sessions(lengths, base, 1))

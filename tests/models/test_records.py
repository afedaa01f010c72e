"""Where calibrations are kept: in the cache by hash, for the owner alone, and never for another model or suite."""

from __future__ import annotations

import json
import os
import stat
import warnings
from dataclasses import replace

import pytest
from checkpoints import TEXTS, WORDS, build_checkpoint
from secure import load

from secformer.errors import CalibrationError, InputError
from secformer.models import records
from secformer.models.provenance import FEWEST_TEXTS, Provenance, Source
from secformer.version import __version__
from secformer_lab.paper.suites import SECFORMER


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    build_checkpoint(folder, "bert", "classification", layers=2, heads=4, hidden=24, intermediate=40, seed=1)
    return folder


@pytest.fixture
def kept(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    return model, model.calibrate(TEXTS, few=True)


def snapshot(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("suite", ["exact", "fast", "secformer"])
def test_records_are_kept_in_the_cache_by_hash_for_the_owner_alone(checkpoint, tmp_path, suite):
    before = snapshot(checkpoint)
    previous = os.umask(0)  # a permissive mask shows a file made with the default mode
    try:
        path = load(checkpoint, tmp_path / "cache", suite).calibrate(TEXTS, few=True)
    finally:
        os.umask(previous)
    assert snapshot(checkpoint) == before
    assert path.parent == tmp_path / "cache" / "calibration"
    model = load(checkpoint, tmp_path / "cache", suite)  # found again
    assert model.calibrated and model.weights.digest in path.name and suite in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing half-written stays


@pytest.mark.parametrize("suite", ["exact", "secformer"])
def test_a_record_is_read_as_it_was_written(checkpoint, tmp_path, suite):
    model = load(checkpoint, tmp_path, suite)
    model.calibrate(TEXTS, few=True)
    again = load(checkpoint, tmp_path, suite)
    assert again._record == model._record and again.card == model.card


def test_suites_have_records_of_their_own(checkpoint, tmp_path):
    paths = {load(checkpoint, tmp_path, suite).calibration_path for suite in ("exact", "fast", "puma", "secformer")}
    assert len(paths) == 4
    load(checkpoint, tmp_path, "exact").calibrate(TEXTS, few=True)
    assert not load(checkpoint, tmp_path, "fast").calibrated


def test_out_says_where(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path / "cache")
    path = model.calibrate(TEXTS, few=True, out=tmp_path / "new" / "place.json")
    assert path == tmp_path / "new" / "place.json" and not (tmp_path / "cache").exists()
    assert load(checkpoint, tmp_path / "cache", calibration=path).card == model.card
    with pytest.raises(CalibrationError, match="cannot be kept"):
        model.calibrate(TEXTS, few=True, out=path / "below_a_file.json")


def test_other_weights_are_refused(kept, tmp_path):
    build_checkpoint(tmp_path / "other", "bert", "classification", layers=2, heads=4, seed=2)
    with pytest.raises(CalibrationError, match="other weights"):
        load(tmp_path / "other", tmp_path / "elsewhere", calibration=kept[1])
    other = load(tmp_path / "other", tmp_path / "elsewhere", "secformer")
    path = other.calibrate(TEXTS, few=True)
    with pytest.raises(CalibrationError, match="other weights"):
        records.load(path, kept[0].weights, kept[0].config, SECFORMER)


@pytest.mark.parametrize("suite", ["fast", "secformer"])
def test_another_suite_is_refused(kept, checkpoint, tmp_path, suite):
    with pytest.raises(CalibrationError, match="was made for suite 'exact'"):
        load(checkpoint, tmp_path / "elsewhere", suite, calibration=kept[1])


def test_a_record_of_an_earlier_release_in_the_cache_is_passed_over(checkpoint, tmp_path, monkeypatch):
    """Seen by users as a demonstration that an update had broken."""
    with monkeypatch.context() as earlier:
        earlier.setattr(records, "FORMAT", records.FORMAT - 1)
        theirs = load(checkpoint, tmp_path).calibrate(TEXTS, few=True)
    model = load(checkpoint, tmp_path)
    assert not model.calibrated and model.calibration_path != theirs
    model.calibrate(TEXTS, few=True)
    assert load(checkpoint, tmp_path).calibrated and theirs.is_file()


@pytest.mark.parametrize("format", [records.FORMAT - 1, records.FORMAT + 1, None, "2"])
def test_another_format_is_refused(kept, checkpoint, tmp_path, format):
    _, path = kept
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": format}))
    with pytest.raises(CalibrationError, match="by another release"):
        load(checkpoint, tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"calibration": 1}', "\udcff"])
def test_a_corrupt_file_is_refused_and_can_be_made_anew(kept, checkpoint, tmp_path, content):
    _, path = kept
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CalibrationError, match="calibrate again"):
        load(checkpoint, tmp_path)
    load(checkpoint, tmp_path, uncalibrated=True).calibrate(TEXTS, few=True)
    assert load(checkpoint, tmp_path).calibrated


@pytest.mark.parametrize("suite", ["puma", "secformer"])
@pytest.mark.parametrize(
    "damaged", [3, {}, {"digest": ""}, {"digest": "", "eta": 3}, {"digest": "", "eta": {"head": "much"}}], ids=str
)
def test_a_damaged_deflation_is_refused(checkpoint, tmp_path, suite, damaged):
    path = load(checkpoint, tmp_path, suite).calibrate(TEXTS, few=True)
    path.write_text(json.dumps({**json.loads(path.read_text()), "calibration": damaged}))
    with pytest.raises(CalibrationError, match="calibrate again"):
        load(checkpoint, tmp_path, suite)


def test_a_missing_file_is_named(checkpoint, tmp_path):
    for suite in ("exact", "secformer"):
        with pytest.raises(CalibrationError, match=r"no calibration at .*nowhere.json"):
            load(checkpoint, tmp_path, suite, calibration=tmp_path / "nowhere.json")


# Where a record comes from

MANY = [f"{TEXTS[index % 4]} {word}" for index in range(3) for word in WORDS[:14]]
SUITES = ["exact", "fast", "secformer"]


def test_a_record_says_which_texts_it_was_made_of(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    path = model.calibrate(MANY)
    (source,) = json.loads(path.read_text())["provenance"]
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in MANY]
    assert (source["origin"], source["texts"]) == ("own", len(MANY))
    assert (source["tokens"], source["longest"]) == (sum(lengths), max(lengths))
    assert source["version"] == __version__ and len(source["date"]) == len("2026-11-15")
    model.calibrate()
    (source,) = json.loads(path.read_text())["provenance"]
    assert source["origin"] == "sample" and source["texts"] >= FEWEST_TEXTS


@pytest.mark.parametrize("suite", SUITES)
def test_no_card_tells_where_its_calibration_comes_from(checkpoint, tmp_path, suite):
    model = load(checkpoint, tmp_path, suite)
    content = json.loads(model.calibrate(MANY).read_text())
    card = model.card.to_json()
    for word in ("provenance", "origin", "texts", "date", "version", "extremes", "ranges", "sentences"):
        assert f'"{word}"' not in card
    assert content["provenance"][0]["digest"] not in card
    other = records.Record(model._need_calibration(), Provenance((Source("sample", 1, 2, 3, "", "", ""),)))
    model._record = other
    assert model.card.to_json() == card


def loaded_notes(checkpoint, tmp_path, **options) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(checkpoint, tmp_path, **options)
    return [str(warning.message) for warning in caught]


def test_whoever_loads_a_sample_record_is_told_once(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate()
    (note,) = loaded_notes(checkpoint, tmp_path)
    assert "calibrated on the built-in sample only" in note and "secformer calibrate FOLDER --data FILE" in note
    model.calibrate(MANY[:5], add=True)  # a few of one's own do not make it better
    (note,) = loaded_notes(checkpoint, tmp_path)
    assert "calibrated on 5 texts of your own and the built-in sample only" in note
    model.calibrate(MANY, add=True)
    assert loaded_notes(checkpoint, tmp_path) == []


def test_whoever_loads_a_record_of_few_texts_is_told(kept, checkpoint, tmp_path):
    (note,) = loaded_notes(checkpoint, tmp_path)
    assert "calibrated on 4 texts of your own only" in note
    kept[0].calibrate(MANY)
    assert loaded_notes(checkpoint, tmp_path) == []


def test_few_texts_are_refused_unless_few_are_meant(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    for count in (1, FEWEST_TEXTS - 1):
        with pytest.raises(InputError, match=rf"^{count} texts? will not do .* 32 .*few=True"):
            model.calibrate(MANY[:count])
    assert not model.calibrated and not model.calibration_path.exists()
    model.calibrate(MANY[:FEWEST_TEXTS])
    model.calibrate(MANY[:1], few=True)


def test_one_text_may_be_added_to_many(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate(MANY)
    path = model.calibrate(["home was good"], add=True)
    assert [source["texts"] for source in json.loads(path.read_text())["provenance"]] == [len(MANY), 1]
    assert model.provenance.texts == len(MANY) + 1


# Adding to a record


@pytest.mark.parametrize("suite", ["fast", "secformer"])
def test_adding_in_parts_is_measuring_the_whole(checkpoint, tmp_path, suite):
    """Through the file, into which the first part went: the same constants, the same order, the same ranges. (`exact` joins
    each part to documents of its own, and keeps the centres of the first.)"""
    whole = load(checkpoint, tmp_path / "whole", suite)
    whole.calibrate(MANY)
    load(checkpoint, tmp_path / "parts", suite).calibrate(MANY[:10], few=True)
    parts = load(checkpoint, tmp_path / "parts", suite)
    parts.calibrate(MANY[10:], add=True)
    assert close(parts._need_calibration().to_data(), whole._need_calibration().to_data())
    assert parts.card.config == whole.card.config


def close(one, other) -> bool:
    """Equal, up to how a batch is rounded in float32."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, rel=1e-4, abs=1e-4) if isinstance(one, float) else other)


@pytest.mark.parametrize("suite", SUITES)
def test_adding_never_narrows_what_was_measured(checkpoint, tmp_path, suite):
    model = load(checkpoint, tmp_path, suite)
    model.calibrate(MANY)
    before = model._need_calibration()
    model.calibrate(["a"], add=True)
    after = model._need_calibration()
    if suite == "secformer":
        assert after.extremes.keys() == before.extremes.keys()
        for place, (low, high) in before.extremes.items():
            assert after.extremes[place][0] <= low and high <= after.extremes[place][1]
        return
    for name, layers in before.record.seen.items():
        for layer, seen in layers.items():
            assert after.record.seen[name][layer].include(seen) == after.record.seen[name][layer]
    joined = 4 if suite == "exact" else 0  # documents
    assert before.record.sentences == len(MANY) + joined
    assert after.record.sentences == before.record.sentences + 1 + joined
    assert after.secrets.key_centres == before.secrets.key_centres  # scores are measured from the same middle


def test_texts_are_not_added_twice(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate(MANY)
    model.calibrate(["a cat"], add=True)
    for texts in (MANY, ["a cat"]):
        with pytest.raises(InputError, match="part of the calibration already"):
            model.calibrate(texts, add=True)
    model.calibrate(["a cat"], ["a dog"], add=True)  # a pair is another text


def test_there_must_be_something_to_add_to(checkpoint, tmp_path):
    with pytest.raises(CalibrationError, match="not calibrated"):
        load(checkpoint, tmp_path).calibrate(MANY, add=True)


def test_what_cannot_be_added_leaves_the_record_as_it_was(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    path = model.calibrate(MANY)
    before, content, card = model._record, path.read_text(), model.card
    model.weights["layers.0.up.weight"].mul_(1000)
    with pytest.raises(CalibrationError, match="activations reach"):
        model.calibrate(["the cat sat"], add=True)
    assert model._record is before and path.read_text() == content and model.card == card
    assert before.calibration.to_data()["record"] == json.loads(content)["calibration"]["record"]


@pytest.mark.parametrize(
    "damaged",
    [None, [], 3, [{}], [{"origin": "own"}], "own", {"origin": "own"}],
    ids=str,
)
def test_a_record_without_its_sources_is_refused(kept, checkpoint, tmp_path, damaged):
    _, path = kept
    path.write_text(json.dumps({**json.loads(path.read_text()), "provenance": damaged}))
    with pytest.raises(CalibrationError, match="calibrate again"):
        load(checkpoint, tmp_path)


def test_an_unknown_origin_is_refused():
    source = Source("own", 40, 400, 12, "2026-11-15", "1.0", "")
    assert Provenance.from_data(Provenance((source,)).to_data()) == Provenance((source,))
    with pytest.raises(ValueError):
        Provenance.from_data(Provenance((replace(source, origin="found"),)).to_data())


# Precision


def test_measured_in_float32_as_in_float64(checkpoint, tmp_path, monkeypatch):
    import torch

    model = load(checkpoint, tmp_path)
    model.calibrate(MANY)
    quick, card = model._need_calibration().to_data(), model.card
    assert model.weights["word"].dtype == torch.float64  # what is folded and predicted with
    monkeypatch.setattr("secformer.secure_model.MEASURED_IN", torch.float64)
    model.calibrate(MANY)
    assert close(quick, model._need_calibration().to_data()) and model.card == card

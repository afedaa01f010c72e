"""Where calibrations are kept: in the cache by hash, for the owner alone, and never for another model or suite."""

from __future__ import annotations

import json
import os
import stat

import pytest
from checkpoints import TEXTS, build_checkpoint
from secure import load

from secformer.baselines.suites import SECFORMER
from secformer.errors import CalibrationError
from secformer.models import records


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    build_checkpoint(folder, "bert", "classification", layers=2, heads=4, hidden=24, intermediate=40, seed=1)
    return folder


@pytest.fixture
def kept(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    return model, model.calibrate(TEXTS)


def snapshot(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("suite", ["exact", "fast", "secformer"])
def test_records_are_kept_in_the_cache_by_hash_for_the_owner_alone(checkpoint, tmp_path, suite):
    before = snapshot(checkpoint)
    previous = os.umask(0)  # a permissive mask shows a file made with the default mode
    try:
        path = load(checkpoint, tmp_path / "cache", suite).calibrate(TEXTS)
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
    model.calibrate(TEXTS)
    again = load(checkpoint, tmp_path, suite)
    assert again._calibration == model._calibration and again.card == model.card


def test_suites_have_records_of_their_own(checkpoint, tmp_path):
    paths = {load(checkpoint, tmp_path, suite).calibration_path for suite in ("exact", "fast", "puma", "secformer")}
    assert len(paths) == 4
    load(checkpoint, tmp_path, "exact").calibrate(TEXTS)
    assert not load(checkpoint, tmp_path, "fast").calibrated


def test_out_says_where(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path / "cache")
    path = model.calibrate(TEXTS, out=tmp_path / "new" / "place.json")
    assert path == tmp_path / "new" / "place.json" and not (tmp_path / "cache").exists()
    assert load(checkpoint, tmp_path / "cache", calibration=path).card == model.card
    with pytest.raises(CalibrationError, match="cannot be kept"):
        model.calibrate(TEXTS, out=path / "below_a_file.json")


def test_other_weights_are_refused(kept, tmp_path):
    build_checkpoint(tmp_path / "other", "bert", "classification", layers=2, heads=4, seed=2)
    with pytest.raises(CalibrationError, match="other weights"):
        load(tmp_path / "other", tmp_path / "elsewhere", calibration=kept[1])
    other = load(tmp_path / "other", tmp_path / "elsewhere", "secformer")
    path = other.calibrate(TEXTS)
    with pytest.raises(CalibrationError, match="other weights"):
        records.load(path, kept[0].weights, kept[0].config, SECFORMER)


@pytest.mark.parametrize("suite", ["fast", "secformer"])
def test_another_suite_is_refused(kept, checkpoint, tmp_path, suite):
    with pytest.raises(CalibrationError, match="was made for suite 'exact'"):
        load(checkpoint, tmp_path / "elsewhere", suite, calibration=kept[1])


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
    load(checkpoint, tmp_path, uncalibrated=True).calibrate(TEXTS)
    assert load(checkpoint, tmp_path).calibrated


@pytest.mark.parametrize("suite", ["puma", "secformer"])
@pytest.mark.parametrize(
    "damaged", [3, {}, {"digest": ""}, {"digest": "", "eta": 3}, {"digest": "", "eta": {"head": "much"}}], ids=str
)
def test_a_damaged_deflation_is_refused(checkpoint, tmp_path, suite, damaged):
    path = load(checkpoint, tmp_path, suite).calibrate(TEXTS)
    path.write_text(json.dumps({**json.loads(path.read_text()), "calibration": damaged}))
    with pytest.raises(CalibrationError, match="calibrate again"):
        load(checkpoint, tmp_path, suite)


def test_a_missing_file_is_named(checkpoint, tmp_path):
    for suite in ("exact", "secformer"):
        with pytest.raises(CalibrationError, match=r"no calibration at .*nowhere.json"):
            load(checkpoint, tmp_path, suite, calibration=tmp_path / "nowhere.json")

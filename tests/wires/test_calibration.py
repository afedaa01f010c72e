"""Calibration: what was measured lies inside what was chosen, records fit one model only, and simulation is the guard."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from secure import load

from secformer.errors import CalibrationError, InputError, RangeError, SettingsError
from secformer.models import records
from secformer.models.config import PRESETS
from secformer.models.provenance import Source
from secformer.protocols.attention import SMALLEST_DENOMINATOR, largest_denominator
from secformer.protocols.menu import ACTIVATION_WINDOWS, RECIPROCAL_RATIOS
from secformer.systems import card_from_json
from secformer.wires.calibration import (
    LOG2_E,
    MARGIN,
    PADDING_OCTAVES,
    RELU_LIMIT,
    WINDOW_OVERHEAD,
    _bits,
    _variance,
    calibrate,
    neuron_margin,
)
from secformer.wires.card import WiresCard
from secformer.wires.presets import preset_constants, read_constants
from secformer.wires.ranges import Extremes, RangeRecord
from secformer.wires.suites import EXACT
from secformer.wires.widths import encoder_setting

SOURCE = Source("own", 40, 400, 12, "2026-11-15", "1.0", "")
SUITES = {"exact": "exact", "fast": "2quad"}


def extremes(low: float, high: float) -> Extremes:
    return Extremes(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    build_checkpoint(folder, "bert", "classification", layers=2, heads=4, hidden=24, intermediate=40, seed=1)
    return folder


@pytest.fixture(params=SUITES)
def measured(request, checkpoint, tmp_path):
    """A model, what was measured on it, and what calibration made of that."""
    model = load(checkpoint, tmp_path, request.param)
    batch = model._batch(TEXTS, None)
    record = RangeRecord(model.weights.digest).measure(model.weights, model.config, [batch])
    return model, record, model.system.calibrate(model.weights, model.config, [batch])


# Menus and margins


@given(magnitude=st.floats(1e-6, 1e6))
def test_whole_bits_hold_a_magnitude_with_margin(magnitude):
    bits = _bits(magnitude)
    assert 2.0**bits >= magnitude * MARGIN
    if magnitude > 2.0**-8:
        assert 2.0 ** (bits - 1) < magnitude * MARGIN  # and not a bit more


def test_few_tokens_widen_a_variance_window_as_far_as_the_menu_allows():
    seen = extremes(1.0, 10.0)
    few, many = _variance(seen, 500), _variance(seen, 10**6)
    assert few.low < many.low and few.high > many.high
    assert _variance(extremes(1.0, 400.0), 500) == _variance(extremes(1.0, 400.0), 10**6)
    with pytest.raises(CalibrationError, match="ratio of 2048"):
        _variance(extremes(1.0, 1e4), 10**6)


@given(low=st.floats(1e-6, 1e4), ratio=st.floats(1, 400))
def test_a_variance_window_is_on_the_half_octave_menu(low, ratio):
    window = _variance(extremes(low, low * ratio), 10**6)
    assert window.low <= low / MARGIN**2 and low * ratio * MARGIN**2 <= window.high
    for end in (window.low, window.high):
        assert math.isclose(2 * math.log2(end), round(2 * math.log2(end)), abs_tol=1e-9)
    assert window.high / window.low <= ratio * MARGIN**4 * 2.001  # rounding costs half an octave at each end


def test_few_tokens_need_a_wide_margin():
    assert neuron_margin(10**6) == MARGIN
    assert neuron_margin(10**7) == MARGIN
    assert neuron_margin(1000) == pytest.approx(2.0)
    assert neuron_margin(0) == neuron_margin(3) > 10
    margins = [neuron_margin(count) for count in (3, 10, 100, 10**4, 10**6)]
    assert margins == sorted(margins, reverse=True)


def test_everything_measured_lies_inside_what_was_chosen(measured):
    model, record, calibration = measured
    values, constants = record.values, calibration.constants
    words = model.weights["word"]
    assert 2.0**constants.embedding_bits >= MARGIN * values["embedding.centred"][-1].magnitude
    assert 2.0**constants.word_bits >= MARGIN * float((words - words.mean(-1, keepdim=True)).abs().max())
    assert calibration.longest == int(model._batch(TEXTS, None).lengths.max())
    assert calibration.digest == model.weights.digest
    for index, layer in enumerate(constants.layers):
        for name in ("attention", "output"):
            window, seen = getattr(layer, f"{name}_variance"), values[f"{name}.variance"][index]
            assert window.low <= float(seen.low) / MARGIN**2 and float(seen.high) * MARGIN**2 <= window.high
            assert 2.0 ** getattr(layer, f"{name}_bits") >= MARGIN * values[f"{name}.centred"][index].magnitude
        low, high = layer.denominator
        assert high / low <= max(RECIPROCAL_RATIOS) * (1 + 1e-9)
        if constants.softmax == "2quad":
            assert low <= float(values["denominator"][index].low) / MARGIN
            assert high >= float(values["denominator"][index].high) * MARGIN
            assert 2.0**layer.numerator_bits >= MARGIN * values["weighted"][index].magnitude
            assert 2.0**layer.score_bits >= MARGIN * (values["scores"][index].magnitude + 5)
        else:
            assert low == SMALLEST_DENOMINATOR
            assert high >= min(largest_denominator(record.longest), 1.2 * float(values["denominator"][index].high))
            numerator = min(values["weighted"][index].magnitude, values["context"][index].magnitude * high)
            assert 2.0**layer.numerator_bits >= MARGIN * numerator
        _check_neurons(record, calibration, index)
        _check_heads(record, calibration, index)


def _check_neurons(record, calibration, index):
    """Every neuron is in one class, and inside that class's window with its margin."""
    order, seen = calibration.layout.neurons[index], record.by_part["preactivation"][index]
    assert sorted(order) == list(range(len(seen.low)))
    margin, start = neuron_margin(record.tokens), 0
    for name, count in calibration.constants.layers[index].classes:
        low, high = ACTIVATION_WINDOWS[name]
        for neuron in order[start : start + count]:
            assert low <= float(seen.low[neuron]) * margin and float(seen.high[neuron]) * margin <= high
        start += count
    assert start == len(order)
    names = [name for name, _ in calibration.constants.layers[index].classes]
    assert names == [name for name in ACTIVATION_WINDOWS if name in names]  # narrow first


def _check_heads(record, calibration, index):
    """A head's scores, and its padded keys, lie inside its window of a power of two octaves."""
    order, windows = calibration.layout.heads[index], calibration.constants.layers[index].windows
    assert sorted(order) == list(range(len(windows)))
    assert [window.bits for window in windows] == sorted(window.bits for window in windows)
    scores, maxima = record.by_part["scores"][index], record.by_part["row_maximum"][index]
    for head, window in zip(order, windows, strict=True):
        low, high = float(scores.low[head]) * LOG2_E, float(scores.high[head]) * LOG2_E
        assert window.lowest == int(window.lowest) and window.bits >= 5
        assert window.lowest <= low
        assert window.lowest <= float(maxima.low[head]) * LOG2_E - PADDING_OCTAVES
        assert high - window.lowest + WINDOW_OVERHEAD <= 2.0**window.bits + 1  # +1: `lowest` is rounded down


def test_constants_are_coarse(measured):
    """Texts that differ a little give the very same public record: it says little about the weights."""
    model, record, calibration = measured
    widened = replace(record, values={}, by_part={})
    for target, source in ((widened.values, record.values), (widened.by_part, record.by_part)):
        for name, layers in source.items():
            target[name] = {
                layer: Extremes(seen.low * (1 + 1e-9), seen.high * (1 + 1e-9)) for layer, seen in layers.items()
            }
    again = calibrate(widened, model.config, 2.0**calibration.constants.word_bits / MARGIN * 0.999)
    assert again.constants == calibration.constants


# What cannot be calibrated


def record_of(model, **values):
    record = RangeRecord(model.weights.digest)
    record.measure(model.weights, model.config, [model._batch(TEXTS, None)])
    for name, (layer, seen) in values.items():
        record.values[name][layer] = seen
    return record


def test_2quad_row_sums_of_too_many_octaves_are_refused(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path, "fast")
    record = record_of(model, denominator=(1, extremes(1.0, 1e5)))
    with pytest.raises(CalibrationError, match=r"layer 1: 2Quad's row sums range from .* ratio above \d+.*'exact'"):
        calibrate(record, model.config, 1.0)


def test_flat_attention_over_very_long_texts_is_refused(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    record = record_of(model, denominator=(0, extremes(1.0, 1500.0)))
    record.longest = 2048
    with pytest.raises(CalibrationError, match="attention rows sum to 1500"):
        calibrate(record, model.config, 1.0)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_neurons_beyond_the_widest_window_are_refused(tmp_path, activation):
    build_checkpoint(tmp_path / "model", layers=1, activation=activation)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["layers.0.up.weight"].mul_(40)
    with pytest.raises(
        CalibrationError, match=r"layer 0: activations reach .* beyond the widest window \(-64.0, 64.0\)"
    ):
        model.calibrate(TEXTS, few=True)
    assert not model.calibrated and not model.calibration_path.exists()
    assert RELU_LIMIT == 64.0


@pytest.mark.parametrize(("family", "name", "limit"), [("bert", "tanh", "32"), ("distilbert", "relu", "64")])
def test_a_pooler_beyond_its_window_is_refused(tmp_path, family, name, limit):
    build_checkpoint(tmp_path / "model", family, "classification", layers=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["pooler.weight"].mul_(100)
    with pytest.raises(CalibrationError, match=f"head: the pooler's {name} reaches .*±{limit}"):
        model.calibrate(TEXTS, few=True)


def test_logits_beyond_the_result_are_refused(tmp_path):
    build_checkpoint(tmp_path / "model", "bert", "classification", layers=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["classifier.weight"].mul_(1e4)
    with pytest.raises(CalibrationError, match=r"head: logits beyond 2\^11"):
        model.calibrate(TEXTS, few=True)


def test_texts_that_cannot_be_measured(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    for texts, pairs, complaint in (
        ([], None, "no text"),
        (["a", " "], None, "text 2 is empty"),
        (["a", "cat"], ["dog"], "2 texts and 1 second texts"),
        ("a cat", None, "a list of texts"),
    ):
        with pytest.raises(InputError, match=complaint):
            model.calibrate(texts, pairs, few=True)
    assert not model.calibrated


def test_texts_too_long_are_cut(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate(["cat " * 500, "dog"], ["mat " * 500, "home"], few=True)
    assert model._need_calibration().longest == model.config.positions


# Records


def through_json(data):
    return json.loads(json.dumps(data))


def test_json_round_trip(measured):
    model, _, calibration = measured
    assert model.system.read_calibration(through_json(calibration.to_data())) == calibration
    assert read_constants(through_json(asdict(calibration.constants))) == calibration.constants
    card = model.system.card(model.config, calibration)
    assert card_from_json(card.to_json()) == card


def test_a_card_tells_nothing_that_is_the_providers(measured):
    """Neither the weights' digest, by which a candidate could be told, nor the order of heads and neurons."""
    model, _, calibration = measured
    text = model.system.card(model.config, calibration).to_json()
    assert calibration.digest and calibration.digest not in text
    assert set(json.loads(text)["constants"]) == set(asdict(calibration.constants))
    other = replace(
        calibration,
        layout=replace(calibration.layout, neurons=tuple(order[::-1] for order in calibration.layout.neurons)),
    )
    assert model.system.card(model.config, other).to_json() == text


def test_printing_a_calibration_prints_no_secret(measured):
    assert "neurons" not in repr(measured[2]) and measured[2].digest not in repr(measured[2])


def refused_as_a_record(path, content, model) -> None:
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match="calibrate again"):
        records.load(path, model.weights, model.config, EXACT)


@pytest.fixture(scope="module")
def exact(checkpoint, tmp_path_factory):
    return load(checkpoint, tmp_path_factory.mktemp("cache"))


@given(content=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
@settings(max_examples=30)
def test_other_json_is_no_calibration(exact, tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "other.json"
    refused_as_a_record(path, content, exact)
    whole = {"format": records.FORMAT, "suite": "exact", "provenance": [asdict(SOURCE)], "calibration": content}
    refused_as_a_record(path, whole, exact)
    with pytest.raises((KeyError, TypeError, ValueError)):
        EXACT.read_calibration(content)


def test_a_damaged_record_is_no_calibration(exact, tmp_path):
    path = exact.calibrate(TEXTS, few=True, out=tmp_path / "record.json")
    whole = json.loads(path.read_text())
    records.load(path, exact.weights, exact.config, EXACT)
    data = whole["calibration"]["constants"]
    damages = [
        {name: value for name, value in data.items() if name != "layers"},
        {**data, "extra": 1},
        {**data, "layers": [{}]},
        {**data, "layers": 3},
        {**data, "embedding_bits": "4"},
        {**data, "embedding_variance": {"low": 1}},
    ]
    for damaged in damages:
        content = {**whole, "calibration": {**whole["calibration"], "constants": damaged}}
        refused_as_a_record(tmp_path / "damaged.json", content, exact)
    for name in whole["calibration"]:
        content = {
            **whole,
            "calibration": {part: whole["calibration"][part] for part in whole["calibration"] if part != name},
        }
        refused_as_a_record(tmp_path / "damaged.json", content, exact)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data["layout"]["heads"][0].__setitem__(0, data["layout"]["heads"][0][1]),
        lambda data: data["layout"]["neurons"].pop(),
        lambda data: data["layout"]["neurons"][1].pop(),
        lambda data: data["constants"]["layers"].pop(),
        lambda data: data["constants"]["layers"][0]["windows"].pop(),
        lambda data: data["constants"]["layers"][0].__setitem__("classes", [["tight", 7]]),
        lambda data: data["constants"]["layers"][0].__setitem__("classes", [["unheard of", 40]]),
    ],
    ids=["head twice", "layer without neurons", "neuron lost", "layer lost", "window lost", "too few", "unknown class"],
)
def test_a_record_that_does_not_fit_is_refused(exact, tmp_path, edit):
    path = exact.calibrate(TEXTS, few=True, out=tmp_path / "record.json")
    content = json.loads(path.read_text())
    edit(content["calibration"])
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match=r"calibrate (again|this one)"):
        records.load(path, exact.weights, exact.config, EXACT)


def test_a_card_refuses_constants_of_another_shape():
    config = PRESETS["bert-base"]
    constants = preset_constants(config)
    for other in (
        replace(config, layers=3),
        replace(config, heads=6),
        replace(config, intermediate=77),
        replace(config, activation="relu"),
        replace(config, softmax="2quad", quad_shift=5.0),
    ):
        with pytest.raises(CalibrationError, match="this calibration was made for"):
            WiresCard(other, "exact", True, constants)


# An uncalibrated model, and one asked beyond its calibration


@pytest.mark.parametrize("mode", ["simulate", "secure"])
@pytest.mark.parametrize("suite", ["exact", "secformer"])
def test_an_uncalibrated_model_says_so_before_it_starts_anything(checkpoint, tmp_path, suite, mode):
    model = load(checkpoint, tmp_path, suite)
    steps: list[str] = []
    with pytest.raises(CalibrationError, match=r"not calibrated: call calibrate\(texts\) or run `secformer calibrate`"):
        model.predict(TEXTS, mode=mode, progress=steps.append)
    assert steps == []


def test_a_2quad_student_is_not_run_with_softmax(tmp_path):
    build_checkpoint(tmp_path / "student", layers=1, softmax="2quad", quad_shift=5.0)
    with pytest.raises(SettingsError, match="distilled for 2Quad"):
        load(tmp_path / "student", tmp_path)


OPERATIONS = {
    "word": ("word", 30, "embedding/layernorm"),
    "query": ("layers.1.query.weight", 30, "layer 1/softmax"),
    "value": ("layers.0.value.weight", 300, "layer 0/softmax"),
    "output": ("layers.0.output.weight", 60, "layer 0/layernorm"),
    "up": ("layers.1.up.weight", 30, "layer 1/gelu"),
    "down": ("layers.1.down.weight", 100, "layer 1/layernorm"),
    "pooler": ("pooler.weight", 100, "head/other"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_simulation_names_layer_operation_range_and_remedy(checkpoint, tmp_path, name):
    """Calibrated on tame weights, then asked with wild ones: the same as texts that leave the range."""
    tensor, factor, place = OPERATIONS[name]
    model = load(checkpoint, tmp_path)
    model.calibrate(TEXTS, few=True)
    model.predict(TEXTS, mode="simulate")
    model.weights[tensor].mul_(factor)
    model._folded = None
    if name == "word":  # the table itself is bounded by its own width
        with pytest.raises(RangeError, match="does not fit"):
            model.predict(TEXTS, mode="simulate")
        return
    with pytest.raises(
        RangeError, match=rf"^{place}: values from \S+ to \S+ leave the calibrated range \S+ to \S+: calibrate"
    ):
        model.predict(TEXTS, mode="simulate")


def test_texts_unlike_those_measured_are_noticed(checkpoint, tmp_path):
    """Calibrated on two tokens, asked with many: some operation leaves its range, and simulation says which."""
    model = load(checkpoint, tmp_path, "fast")
    model.calibrate(["a", "it"], few=True)
    with pytest.raises(RangeError, match=r"layer \d/|embedding/"):
        model.predict([TEXTS[2] + " " + TEXTS[0]], mode="simulate")


def test_a_new_calibration_is_used_at_once(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate(TEXTS, few=True)
    folded = model.folded()
    model.weights["layers.0.up.weight"].mul_(2.5)
    model.calibrate(TEXTS, few=True)
    assert model.folded() is not folded
    assert model.predict(TEXTS, mode="simulate").result.isfinite().all()


def test_widths_follow_a_calibration(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    model.calibrate(TEXTS, few=True)
    constants = model.card.public
    wider = replace(constants, layers=tuple(replace(layer, output_bits=9) for layer in constants.layers))
    narrow, wide = (encoder_setting(each, model.config, 16).layers[0] for each in (constants, wider))
    assert wide.activation_width - narrow.activation_width == 9 - constants.layers[0].output_bits


def test_a_text_longer_than_any_calibrated_one_is_pointed_out(tmp_path):
    build_checkpoint(tmp_path / "model", "bert", "embedding", seed=3)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.calibrate(["a b", "b c"], few=True)
    with (
        pytest.warns(UserWarning, match="longer than any this model was calibrated on"),
        contextlib.suppress(RangeError),
    ):
        model.predict(["a b c d a b c d"], mode="simulate")

"""Calibration: what was measured lies inside what was chosen, records fit one model only, and simulation is the guard."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from secure import load

from secformer.errors import CalibrationError, InputError, RangeError, SettingsError
from secformer.models import records
from secformer.models.provenance import Source
from secformer.models.shapes import PRESETS
from secformer.protocols.activation import window_of
from secformer.protocols.attention import LARGEST_VALUE, LOWEST_MAXIMUM, HeadGroup
from secformer.protocols.menu import activation
from secformer.systems import card_from_json
from secformer.wires import bounds, choices
from secformer.wires.calibration import (
    LEAST_MARGIN,
    LOG2_E,
    MAXIMUM_SLACK,
    _norm,
    calibrate,
    score_bits,
    text_margin,
)
from secformer.wires.card import WiresCard
from secformer.wires.presets import preset_constants
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
    calibration = model.system.calibrate(model.weights, model.config, [batch])
    return model, calibration.record, calibration


# Menus and margins


def test_few_tokens_need_a_wide_margin():
    assert text_margin(10**6) == text_margin(10**7) == LEAST_MARGIN
    assert text_margin(1000) == pytest.approx(2.0)
    assert text_margin(0) == text_margin(3) > 10
    margins = [text_margin(count) for count in (3, 10, 100, 10**4, 10**6)]
    assert margins == sorted(margins, reverse=True)


@given(low=st.floats(1e-5, 1e2), ratio=st.floats(1, 400), tokens=st.integers(3, 10**7))
def test_a_scaled_residual_holds_what_was_seen(low, ratio, tokens):
    """Of the menu, and its factor brings the variances seen into its range, with margin as far as the ratio allows."""
    norm, factor = _norm(extremes(low, low * ratio), tokens, 64)
    assert norm.bits in choices.RESIDUAL_BITS and norm.ratio in choices.VARIANCE_RATIOS and 0.25 <= factor <= 2**10
    largest, smallest = (64 * variance * factor**2 / 4.0**norm.bits for variance in (low * ratio, low))
    assert 1 / norm.ratio <= smallest * (1 + 1e-9) and largest <= 1 + 1e-9
    if ratio * text_margin(tokens) ** 3 < 2000:
        assert largest <= 1 / LEAST_MARGIN and smallest >= LEAST_MARGIN / norm.ratio


def test_variances_beyond_the_menu_are_refused():
    with pytest.raises(CalibrationError, match="ratio of 2048"):
        _norm(extremes(1.0, 1e4), 10**6, 64)
    with pytest.raises(CalibrationError, match=r"residuals up to .* beyond the menu"):
        _norm(extremes(1e9, 2e9), 10**6, 64)


def test_a_few_tokens_far_larger_than_others_get_the_widest_menu(measured):
    """Behind the feed-forward block alone, and then for all layers: none has the ratio that this menu leaves out."""
    model, record, _ = measured
    record.tokens = 10**6
    seen = record.seen
    for index, (low, high) in enumerate(((1.0, 7000.0), (0.5, 600.0))):
        seen["output.variance"][index] = extremes(low, high)
    found = calibrate(record, model.weights, model.config)
    found.check(model.config)
    assert [layer.output_norm.ratio for layer in found.constants.layers] == [choices.OUTPUT_RATIOS[-1][-1]] * 2
    seen["output.variance"][0] = extremes(1.0, 1000.0)
    narrower = calibrate(record, model.weights, model.config).constants
    assert [layer.output_norm.ratio for layer in narrower.layers] == [choices.VARIANCE_RATIOS[-1]] * 2
    for name, high, ratio in (("output", 3e4, 16384), ("attention", 7e3, 2048)):
        seen[f"{name}.variance"][0] = extremes(1.0, high)
        with pytest.raises(CalibrationError, match=f"ratio of {ratio}"):
            calibrate(record, model.weights, model.config)
        seen[f"{name}.variance"][0] = extremes(1.0, 10.0)


def test_everything_measured_lies_inside_what_was_chosen(measured):
    model, record, calibration = measured
    calibration.check(model.config)
    seen, constants, factors = record.seen, calibration.constants, calibration.secrets.norm_factors
    norms = [(constants.embedding_norm, seen["embedding.variance"][-1])]
    assert calibration.digest == model.weights.digest
    for index, layer in enumerate(constants.layers):
        norms += [(layer.attention_norm, seen["attention.variance"][index])]
        norms += [(layer.output_norm, seen["output.variance"][index])]
        if layer.quad is not None:
            denominator = seen["denominator"][index]
            assert 2.0**layer.quad.bits / layer.quad.ratio < float(denominator.low)
            assert float(denominator.high) < 2.0**layer.quad.bits
            scores = max(float(seen["scores"][index].high.max()), -float(seen["scores"][index].low.min()))
            assert scores + model.config.quad_shift < 2.0 ** score_bits(layer.quad.bits)
        for factor, length in zip(calibration.secrets.value_factors[index], seen["value"][index].high, strict=True):
            assert factor * float(length) * LEAST_MARGIN <= LARGEST_VALUE * (1 + 1e-9)
        _check_neurons(model, record, calibration, index)
        _check_heads(record, calibration, index)
    for (norm, variance), factor in zip(norms, factors, strict=True):
        low, high = (model.config.hidden * float(end) * factor**2 for end in (variance.low, variance.high))
        assert 4.0**norm.bits / norm.ratio <= low * (1 + 1e-9) and high <= 4.0**norm.bits * (1 + 1e-9)


def test_embedding_rows_fit_their_table(measured):
    model, _, calibration = measured
    largest = bounds.embedding(model.weights) * calibration.secrets.norm_factors[0]
    assert largest <= 2.0**calibration.constants.embedding_norm.bits


def _check_neurons(model, record, calibration, index):
    """Every neuron is in one class, and inside that class's window with its margin."""
    order, seen = calibration.secrets.neurons[index], record.seen["preactivation"][index]
    assert sorted(order) == list(range(len(seen.low)))
    reach, margin, start = bounds.preactivation(model.weights, index), text_margin(record.tokens), 0
    for name, count in calibration.constants.layers[index].classes:
        window = window_of(activation(model.config.activation, name))
        for neuron in order[start : start + count]:
            covered = window.low <= -reach[neuron] and reach[neuron] <= window.high
            inside = window.low <= float(seen.low[neuron]) * margin and float(seen.high[neuron]) * margin <= window.high
            assert covered or (inside and reach[neuron] < window.foreign)
        start += count
    assert start == len(order)
    names = [name for name, _ in calibration.constants.layers[index].classes]
    assert names == [name for name in choices.NEURON_CLASSES if name in names]  # narrow first


def _check_heads(record, calibration, index):
    """A head's placed scores lie inside its window, its row maxima far above its padded keys."""
    order, start = calibration.secrets.heads[index], 0
    scores, maxima = record.seen["scores"][index], record.seen["row_maximum"][index]
    assert sorted(order) == list(range(len(scores.low)))
    for bits, count in calibration.constants.layers[index].windows:
        group = HeadGroup(count, bits)
        for head in order[start : start + count]:
            assert float(scores.low[head]) * LOG2_E + group.centre >= 0
            assert float(scores.high[head]) * LOG2_E + group.centre <= group.highest
            assert float(maxima.low[head]) * LOG2_E + group.centre >= LOWEST_MAXIMUM + MAXIMUM_SLACK
        start += count


def test_constants_are_coarse(measured):
    """Texts that differ a little give the very same public record: it says little about the weights."""
    model, record, calibration = measured
    nudged = {
        name: {layer: Extremes(seen.low * (1 + 1e-9), seen.high * (1 + 1e-9)) for layer, seen in layers.items()}
        for name, layers in record.seen.items()
    }
    again = calibrate(replace(record, seen=nudged), model.weights, model.config)
    assert again.constants == calibration.constants and again.secrets != calibration.secrets


# What cannot be calibrated


def record_of(model, **values):
    record = RangeRecord(model.weights.digest)
    record.measure(model.weights, model.config, [model._batch(TEXTS, None)])
    for name, (layer, seen) in values.items():
        record.seen[name][layer] = seen
    return record


def test_2quad_row_sums_of_too_many_octaves_are_refused(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path, "fast")
    record = record_of(model, denominator=(1, extremes(1.0, 1e5)))
    with pytest.raises(CalibrationError, match=r"layer 1: 2Quad's row sums range from .* ratio above \d+.*'exact'"):
        calibrate(record, model.weights, model.config)


@pytest.mark.parametrize(
    ("tokens", "low", "ratio"),
    [
        (5_000, 60.0, 230),
        (5_000, 47.0, 230),
        (5_000, 46.0, 680),
        (10**6, 28.0, 230),
        (10**6, 27.0, 680),
        (40, 70.0, 680),
    ],
)
def test_the_lowest_row_sums_have_the_margin_of_scores_squared(checkpoint, tmp_path, tokens, low, ratio):
    """Of 5,000 tokens the margin is 1.62; the highest here are 2,000 · 1.25², below 2^12."""
    model = load(checkpoint, tmp_path, "fast")
    record = record_of(model, denominator=(1, extremes(low, 2000.0)))
    record.tokens = tokens
    quad = calibrate(record, model.weights, model.config).constants.layers[1].quad
    assert quad is not None and (quad.bits, quad.ratio) == (12, ratio)
    assert 2.0**quad.bits / quad.ratio <= low / min(text_margin(tokens), 2.0) ** 2


def test_where_the_menu_of_row_sums_ends_the_margin_shrinks_and_nothing_is_refused_that_has_the_least(
    checkpoint, tmp_path
):
    model = load(checkpoint, tmp_path, "fast")
    largest = choices.QUAD_RATIOS[-1]
    for below, taken in ((1.01 * LEAST_MARGIN, True), (0.99 * LEAST_MARGIN, False)):
        record = record_of(model, denominator=(1, extremes(below * 2.0**15 / largest, 2.0**15 / 1.6)))
        assert text_margin(record.tokens) > 2
        if taken:
            quad = calibrate(record, model.weights, model.config).constants.layers[1].quad
            assert quad is not None and (quad.bits, quad.ratio) == (15, largest)
        else:
            with pytest.raises(CalibrationError, match="row sums"):
                calibrate(record, model.weights, model.config)


def test_scores_beyond_the_widest_window_are_refused(checkpoint, tmp_path):
    model = load(checkpoint, tmp_path)
    record = record_of(model)
    record.seen["scores"][1].high[2] = 700.0
    with pytest.raises(CalibrationError, match=r"layer 1: a head's scores span .* beyond the widest window"):
        calibrate(record, model.weights, model.config)


@pytest.mark.parametrize(
    ("activation", "complaint"),
    [
        ("gelu", r"layer 0: activations reach .* beyond the widest window"),
        ("relu", r"a ReLU's input may reach .* beyond the menu"),
    ],
)
def test_neurons_beyond_the_widest_window_are_refused(tmp_path, activation, complaint):
    build_checkpoint(tmp_path / "model", layers=1, activation=activation)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["layers.0.up.weight"].mul_(1000)
    model.weights["layers.0.down.weight"].div_(1000)
    with pytest.raises(CalibrationError, match=complaint):
        model.calibrate(TEXTS, few=True)
    assert not model.calibrated and not model.calibration_path.exists()


@pytest.mark.parametrize(("family", "name"), [("bert", "tanh"), ("distilbert", "relu")])
def test_a_pooler_beyond_its_window_is_refused(tmp_path, family, name):
    build_checkpoint(tmp_path / "model", family, "classification", layers=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["pooler.weight"].mul_(1e4)
    with pytest.raises(CalibrationError, match=f"head: the input of its {name} may reach .* beyond the menu"):
        model.calibrate(TEXTS, few=True)


def test_logits_beyond_the_result_are_refused(tmp_path):
    build_checkpoint(tmp_path / "model", "bert", "classification", layers=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    model.weights["classifier.weight"].mul_(1e4)
    with pytest.raises(CalibrationError, match=r"head: its results may reach .*last map needs rescaling"):
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
    again = model.system.read_calibration(through_json(calibration.to_data()))
    assert (again.constants, again.secrets) == (calibration.constants, calibration.secrets)
    assert through_json(again.to_data()) == through_json(calibration.to_data())
    card = model.system.card(model.config, calibration)
    assert card_from_json(card.to_json()) == card


def test_a_card_tells_nothing_that_is_the_providers(measured):
    """Neither the weights' digest, by which a candidate could be told, nor orders, centres and factors."""
    model, _, calibration = measured
    text = model.system.card(model.config, calibration).to_json()
    assert calibration.digest and calibration.digest not in text
    assert set(json.loads(text)["constants"]) == set(asdict(calibration.constants))
    secrets = calibration.secrets
    numbers = [*secrets.norm_factors, *(factor for layer in secrets.value_factors for factor in layer)]
    numbers += [number for layer in secrets.key_centres for row in layer for number in row if number]
    assert not any(str(number) in text for number in numbers)
    names = {field.name for field in fields(secrets)} - {"heads"}  # their number is the config's
    assert not any(f'"{name}"' in text for name in names)
    other = replace(
        secrets,
        neurons=tuple(order[::-1] for order in secrets.neurons),
        norm_factors=(1.0,) * len(secrets.norm_factors),
    )
    assert model.system.card(model.config, replace(calibration, secrets=other)).to_json() == text


def test_printing_a_calibration_prints_no_secret(measured):
    calibration = measured[2]
    assert "neurons" not in repr(calibration) and calibration.digest not in repr(calibration)
    assert str(calibration.secrets.norm_factors[0]) not in repr(calibration.secrets)


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
        {**data, "pooler": "64"},
        {**data, "embedding_norm": {"bits": 1}},
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
        lambda data: data["secrets"]["heads"][0].__setitem__(0, data["secrets"]["heads"][0][1]),
        lambda data: data["secrets"]["neurons"].pop(),
        lambda data: data["secrets"]["neurons"][1].pop(),
        lambda data: data["secrets"]["key_centres"][0][0].pop(),
        lambda data: data["secrets"]["value_factors"][1].pop(),
        lambda data: data["secrets"]["norm_factors"].pop(),
        lambda data: data["constants"]["layers"].pop(),
        lambda data: data["constants"]["layers"][0]["windows"].pop(),
        lambda data: data["constants"]["layers"][0].__setitem__("classes", [["tight", 7]]),
        lambda data: data["constants"]["layers"][0].__setitem__("classes", [["unheard of", 40]]),
    ],
    ids=[
        "head twice",
        "layer without neurons",
        "neuron lost",
        "centre cut",
        "factor lost",
        "norm lost",
        "layer lost",
        "window lost",
        "too few",
        "unknown class",
    ],
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
    "query": ("layers.1.query.weight", 30, "layer 1/softmax"),
    "value": ("layers.0.value.weight", 300, "layer 0/softmax"),
    "output": ("layers.0.output.weight", 60, "layer 0/layernorm"),
    "up": ("layers.1.up.weight", 30, "layer 1/gelu"),
    "down": ("layers.1.down.weight", 100, "layer 1/layernorm"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_strict_simulation_names_layer_operation_range_and_remedy(checkpoint, tmp_path, name):
    """Calibrated on tame weights, then asked with wild ones: the same as texts that leave the range."""
    tensor, factor, place = OPERATIONS[name]
    model = load(checkpoint, tmp_path)
    model.calibrate(TEXTS, few=True)
    tame = model.predict(TEXTS, mode="simulate", strict=True)
    assert tame.marked == [False] * len(TEXTS) and tame.departures == ()
    model.weights[tensor].mul_(factor)
    model._folded = None
    with pytest.raises(
        RangeError,
        match=rf"^{place}: \d+ values from \S+ to \S+ leave the range \S+ to \S+: calibrate on data like this",
    ):
        model.predict(TEXTS, mode="simulate", strict=True)
    wild = model.predict(TEXTS, mode="simulate")
    assert any(wild.marked) and wild.departures[0].place == place and wild.departures[0].count > 0
    assert any(found.startswith(place.split("/")[0]) for text in range(4) for found in wild.evidence.of(text))


def test_texts_unlike_those_measured_are_noticed(checkpoint, tmp_path):
    """Calibrated on two tokens, asked with many: some operation leaves its range, and the result says so."""
    model, text = load(checkpoint, tmp_path, "fast"), TEXTS[2] + " " + TEXTS[0]
    model.calibrate(["a", "it"], few=True)
    assert model.predict([text], mode="simulate").marked == [True]
    with pytest.raises(RangeError, match=r"layer \d/|embedding/"):
        model.predict([text], mode="simulate", strict=True)


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
    wider = replace(
        constants,
        layers=tuple(
            replace(layer, output_norm=replace(layer.output_norm, bits=layer.output_norm.bits + 2))
            for layer in constants.layers
        ),
    )
    narrow, wide = (encoder_setting(each, model.config, 16).layers[0] for each in (constants, wider))
    assert wide.activation_width - narrow.activation_width == 2

import dataclasses
import json

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.huggingface import load_weights
from secformer.models.ranges import Extremes, RangeRecord
from secformer.models.tokens import load_tokenizer, tokenise


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder, "bert", "classification")
    config = ModelConfig.from_folder(folder)
    return config, load_weights(folder, config), load_tokenizer(folder, config)


def measured(loaded, texts, **padding):
    config, weights, tokenizer = loaded
    record = RangeRecord.empty(weights, config)
    return record.measure(weights, config, [tokenise(tokenizer, config, texts, **padding)])


def flat(record: RangeRecord) -> dict[tuple, torch.Tensor]:
    return {
        (kind, name, layer): torch.stack([extremes.low, extremes.high])
        for kind, table in (("value", record.values), ("part", record.by_part))
        for name, layers in table.items()
        for layer, extremes in layers.items()
    }


def same(one: RangeRecord, other: RangeRecord, tolerance: float = 0.0) -> bool:
    left, right = flat(one), flat(other)
    return left.keys() == right.keys() and all(
        torch.allclose(left[key], right[key], rtol=0, atol=tolerance) for key in left
    )


def test_extremes_are_those_of_the_unpadded_sentences(loaded):
    config, weights, tokenizer = loaded
    record, seen = measured(loaded, TEXTS, pad_to=40), {}
    for text in TEXTS:
        batch = tokenise(tokenizer, config, [text])
        plain.forward(weights, config, batch, lambda n, k, tensor, m: seen.setdefault((n, k), []).append(tensor[0]))
    for (name, layer), tensors in seen.items():
        extremes = record.values[name][layer]
        assert float(extremes.low) == pytest.approx(min(float(t.min()) for t in tensors), abs=1e-9)
        assert float(extremes.high) == pytest.approx(max(float(t.max()) for t in tensors), abs=1e-9)
    assert record.sentences == 4 and record.tokens == sum(len(t) for t in seen["input", 0])
    assert record.longest == max(len(t) for t in seen["input", 0])


def test_scores_by_head_and_preactivations_by_neuron(loaded):
    config, weights, tokenizer = loaded
    record, seen = measured(loaded, TEXTS[:1]), {}
    batch = tokenise(tokenizer, config, TEXTS[:1])
    plain.forward(weights, config, batch, lambda name, layer, tensor, mask: seen.__setitem__((name, layer), tensor[0]))
    for layer in range(config.layers):
        scores, inputs = seen["scores", layer], seen["preactivation", layer]
        assert torch.equal(record.by_part["scores"][layer].low, scores.amin((1, 2)))
        assert torch.equal(record.by_part["row_maximum"][layer].low, scores.amax(-1).amin(-1))
        assert torch.equal(record.by_part["row_maximum"][layer].high, scores.amax((1, 2)))
        assert torch.equal(record.by_part["preactivation"][layer].high, inputs.amax(0))
        assert record.by_part["preactivation"][layer].low.shape == (config.intermediate,)


def test_row_maxima_ignore_padding(loaded):
    assert same(measured(loaded, TEXTS), measured(loaded, TEXTS, pad_to=60), 1e-9)


def test_merging_is_measuring_together(loaded):
    merged = measured(loaded, TEXTS[:2]).merge(measured(loaded, TEXTS[2:]))
    together = measured(loaded, TEXTS)
    assert same(merged, together, 1e-9)
    assert (merged.sentences, merged.tokens, merged.longest) == (4, together.tokens, together.longest)


def test_saved_and_loaded(loaded, tmp_path):
    record = measured(loaded, TEXTS)
    record.save(tmp_path / "record.json")
    again = RangeRecord.load(tmp_path / "record.json")
    assert same(record, again) and again.to_json() == record.to_json()
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    again.check(loaded[1], loaded[0])


def test_a_record_fits_only_its_own_model(loaded):
    config, weights, _ = loaded
    record = measured(loaded, TEXTS)
    with pytest.raises(CalibrationError, match="other weights"):
        record.check(dataclasses.replace(weights, digest="0" * 64), config)
    with pytest.raises(CalibrationError, match="2quad"):
        record.check(weights, dataclasses.replace(config, softmax="2quad", quad_shift=5.0))
    with pytest.raises(CalibrationError, match="merged"):
        record.merge(RangeRecord("0" * 64, "exact", 0.0))


def test_values_that_are_not_finite_are_named(loaded):
    record = RangeRecord.empty(loaded[1], loaded[0])
    with pytest.raises(RangeError, match="'context' of layer 3"):
        record.observe("context", 3, torch.tensor([[[1.0, float("nan")]]]), torch.ones(1, 1, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("digest"),
        lambda data: data.update(format=99),
        lambda data: data.update(surprise=1),
        lambda data: data["values"].update(scores=[1, 2]),
        lambda data: data["values"]["scores"].update({"0": [3.0, -3.0]}),
        lambda data: data["values"]["scores"].update({"0": [float("nan"), 1.0]}),
        lambda data: data["by_part"]["scores"].update({"0": [[1.0], [2.0, 3.0]]}),
        lambda data: data["by_part"]["scores"].update({"x": [[1.0], [2.0]]}),
    ],
)
def test_damaged_records(loaded, tmp_path, damage):
    data = measured(loaded, TEXTS[:1]).to_json()
    damage(data)
    (tmp_path / "record.json").write_text(json.dumps(data))
    with pytest.raises(CalibrationError, match="cannot be read"):
        RangeRecord.load(tmp_path / "record.json")


def test_a_missing_record(tmp_path):
    with pytest.raises(CalibrationError, match="no range record"):
        RangeRecord.load(tmp_path / "record.json")


def test_magnitude():
    assert Extremes(torch.tensor([-3.0, 1.0]), torch.tensor([2.0, 2.5])).magnitude == 3.0

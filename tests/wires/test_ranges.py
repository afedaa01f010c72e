"""Measured ranges: extremes of what belongs to real tokens, by layer, head and neuron."""

import json

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.huggingface import load_weights
from secformer.models.plain import OUTSIDE
from secformer.models.tokens import load_tokenizer, tokenise
from secformer.wires.ranges import Extremes, RangeRecord


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder, "bert", "classification")
    config = ModelConfig.from_folder(folder)
    return config, load_weights(folder, config), load_tokenizer(folder, config)


def measured(loaded, *texts, **padding):
    config, weights, tokenizer = loaded
    batches = [tokenise(tokenizer, config, part, **padding) for part in texts]
    return RangeRecord(weights.digest).measure(weights, config, batches)


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


def test_measuring_in_parts_is_measuring_together(loaded):
    parts, together = measured(loaded, TEXTS[:2], TEXTS[2:]), measured(loaded, TEXTS)
    assert same(parts, together, 1e-9)
    assert (parts.sentences, parts.tokens, parts.longest) == (4, together.tokens, together.longest)
    assert parts.digest == together.digest == loaded[1].digest


def test_extremes_of_other_shapes_do_not_mix():
    record = RangeRecord("")
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    record.observe("preactivation", 0, torch.zeros(1, 1, 5), mask)
    with pytest.raises(CalibrationError, match="number of heads or neurons"):
        record.observe("preactivation", 0, torch.zeros(1, 1, 6), mask)


def test_a_record_comes_back_from_json(loaded):
    record = measured(loaded, TEXTS)
    data = json.loads(json.dumps(record.to_data()))
    again = RangeRecord.from_data(data)
    assert again == record and again.to_data() == data
    assert again.by_part["scores"][0].low.dtype == torch.float64 and OUTSIDE in again.values["embedding.variance"]
    extremes = record.values["context"][0]
    assert again != measured(loaded, TEXTS[:1]) and extremes != 3
    for damaged in (
        {},
        {**data, "values": 3},
        {**data, "values": {"context": {"0": [1.0]}}},
        {**data, "values": {"context": {"zero": [1.0, 2.0]}}},
        {**data, "values": {"context": {"0": [2.0, 1.0]}}},
        {**data, "by_part": {"scores": {"0": [[1.0, 2.0], [3.0]]}}},
        {**data, "by_part": {"scores": {"0": [["a"], ["b"]]}}},
        {**data, "tokens": "many"},
    ):
        with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
            RangeRecord.from_data(damaged)


def test_printing_a_record_prints_no_range(loaded):
    record = measured(loaded, TEXTS)
    assert repr(record) == f"RangeRecord(4 sentences, digest {record.digest[:12]}…)"


def test_values_that_are_not_finite_are_named(loaded):
    record = RangeRecord("")
    with pytest.raises(RangeError, match="'context' of layer 3"):
        record.observe("context", 3, torch.tensor([[[1.0, float("nan")]]]), torch.ones(1, 1, 1, dtype=torch.bool))


def test_magnitude():
    assert Extremes(torch.tensor([-3.0, 1.0]), torch.tensor([2.0, 2.5])).magnitude == 3.0

"""Measured ranges: extremes of what belongs to real tokens, by layer, head and neuron."""

import json

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.plain import OUTSIDE
from secformer.models.tokens import load_tokenizer, tokenise
from secformer.models.weights import Weights
from secformer.wires.ranges import RangeRecord, centre


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder, "bert", "classification")
    config = load_config(folder)
    return config, load_weights(folder, config), load_tokenizer(folder, config)


def measured(loaded, *texts, **padding):
    config, weights, tokenizer = loaded
    batches = [tokenise(tokenizer, config, part, **padding) for part in texts]
    return RangeRecord(weights.digest).measure(weights, config, batches)


def flat(record: RangeRecord) -> dict[tuple, torch.Tensor]:
    return {
        (name, layer): torch.stack([extremes.low, extremes.high])
        for name, layers in record.seen.items()
        for layer, extremes in layers.items()
    }


def same(one: RangeRecord, other: RangeRecord, tolerance: float = 0.0) -> bool:
    left, right = flat(one), flat(other)
    return left.keys() == right.keys() and all(
        torch.allclose(left[key], right[key], rtol=0, atol=tolerance) for key in left
    )


def observed(loaded, texts) -> dict[tuple[str, int], list[torch.Tensor]]:
    """Everything the forward pass shows, a sentence at a time."""
    config, weights, tokenizer = loaded
    seen: dict[tuple[str, int], list[torch.Tensor]] = {}
    for text in texts:
        batch = tokenise(tokenizer, config, [text])
        plain.forward(weights, config, batch, lambda n, k, tensor, m: seen.setdefault((n, k), []).append(tensor[0]))
    return seen


def test_extremes_are_those_of_the_unpadded_sentences(loaded):
    record, seen = measured(loaded, TEXTS, pad_to=40), observed(loaded, TEXTS)
    for name in ("embedding.variance", "attention.variance", "output.variance"):
        for layer, extremes in record.seen[name].items():
            tensors = seen[name, layer]
            assert float(extremes.low) == pytest.approx(min(float(t.min()) for t in tensors), abs=1e-9)
            assert float(extremes.high) == pytest.approx(max(float(t.max()) for t in tensors), abs=1e-9)
    assert record.sentences == 4 and record.tokens == sum(len(t) for t in seen["input", 0])
    assert record.longest == max(len(t) for t in seen["input", 0])


def test_scores_and_values_by_head_and_preactivations_by_neuron(loaded):
    config, _, _ = loaded
    record, seen = measured(loaded, TEXTS[:1]), observed(loaded, TEXTS[:1])
    for layer in range(config.layers):
        (scores,), (inputs,), (value,) = (seen[name, layer] for name in ("scores", "preactivation", "value"))
        assert torch.equal(record.seen["scores"][layer].low, scores.amin((1, 2)))
        assert torch.equal(record.seen["row_maximum"][layer].low, scores.amax(-1).amin(-1))
        assert torch.equal(record.seen["row_maximum"][layer].high, scores.amax((1, 2)))
        assert torch.equal(record.seen["value"][layer].high, value.norm(dim=-1).amax(-1))
        assert torch.equal(record.seen["preactivation"][layer].high, inputs.amax(0))
        assert record.seen["preactivation"][layer].low.shape == (config.intermediate,)


def test_centring_moves_whole_rows_of_scores_towards_zero(loaded):
    """It changes no Softmax: every row moves by one number, which is linear in its query."""
    config, weights, tokenizer = loaded
    shifted = with_far_keys(weights, 3.0)
    batch = tokenise(tokenizer, config, TEXTS)
    centres = centre(shifted, config, [batch])
    plainly = RangeRecord("").measure(shifted, config, [batch])
    centred = RangeRecord("", centres).measure(shifted, config, [batch])
    for layer in range(config.layers):
        assert centres[layer].shape == (config.heads, config.head_size)
        middles = [
            (record.seen["scores"][layer].low + record.seen["scores"][layer].high).abs().sum()
            for record in (plainly, centred)
        ]
        assert middles[1] < middles[0] / 4
        for name in ("attention.variance", "preactivation", "value"):
            assert centred.seen[name][layer] == plainly.seen[name][layer]


def with_far_keys(weights, size: float):
    """The same model, its keys all moved in one direction by the bias: far scores, equal attention."""
    return Weights(
        {name: tensor + size if name.endswith("key.bias") else tensor for name, tensor in weights.tensors.items()}
    )


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
    record.widen("preactivation", 0, torch.zeros(1, 1, 5), mask, (0, 1))
    with pytest.raises(CalibrationError, match="number of heads or neurons"):
        record.widen("preactivation", 0, torch.zeros(1, 1, 6), mask, (0, 1))


@pytest.mark.parametrize("centred", [False, True])
def test_a_record_comes_back_from_json(loaded, centred):
    record = measured(loaded, TEXTS)
    if centred:
        record.centres = tuple(torch.randn(3, 8, dtype=torch.float64) for _ in range(2))
    data = json.loads(json.dumps(record.to_data()))
    again = RangeRecord.from_data(data)
    assert again.to_data() == data and again.seen == record.seen
    assert (again.digest, again.sentences, again.tokens, again.longest) == (
        record.digest,
        record.sentences,
        record.tokens,
        record.longest,
    )
    assert again.seen["scores"][0].low.dtype == torch.float64 and OUTSIDE in again.seen["embedding.variance"]
    assert again.seen != measured(loaded, TEXTS[:1]).seen and record.seen["scores"][0] != 3


def test_a_record_that_came_back_can_be_widened(loaded):
    """What `calibrate --add` does."""
    config, weights, tokenizer = loaded
    again = RangeRecord.from_data(json.loads(json.dumps(measured(loaded, TEXTS[:2]).to_data())))
    again.measure(weights, config, [tokenise(tokenizer, config, TEXTS[2:])])
    assert same(again, measured(loaded, TEXTS), 1e-9) and again.sentences == 4


def test_other_data_is_no_record(loaded):
    data = json.loads(json.dumps(measured(loaded, TEXTS).to_data()))
    for damaged in (
        {},
        {**data, "seen": 3},
        {**data, "seen": {"context": {"0": [1.0]}}},
        {**data, "seen": {"context": {"zero": [1.0, 2.0]}}},
        {**data, "seen": {"context": {"0": [2.0, 1.0]}}},
        {**data, "seen": {"scores": {"0": [[1.0, 2.0], [3.0]]}}},
        {**data, "seen": {"scores": {"0": [["a"], ["b"]]}}},
        {**data, "tokens": "many"},
        {**data, "centres": 3},
        {**data, "centres": [["a"]]},
    ):
        with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
            RangeRecord.from_data(damaged)


def test_printing_a_record_prints_no_range(loaded):
    record = measured(loaded, TEXTS)
    assert repr(record) == f"RangeRecord(4 sentences, digest {record.digest[:12]}…)"


def test_values_that_are_not_finite_are_named():
    record = RangeRecord("")
    with pytest.raises(RangeError, match="'context' of layer 3"):
        record.widen("context", 3, torch.tensor([[[1.0, float("nan")]]]), torch.ones(1, 1, 1, dtype=torch.bool))

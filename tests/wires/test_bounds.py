"""Bounds from weights: no input exceeds them, and they are not idle."""

from __future__ import annotations

import math

import pytest
import torch
from checkpoints import build_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from secure import load

from secformer.models import plain
from secformer.models.tokens import Tokens, pad
from secformer.wires import bounds


@pytest.fixture(scope="module", params=["bert classification", "distilbert classification", "roberta tokens"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_checkpoint(folder / "checkpoint", *request.param.split(), layers=2, seed=3)
    return load(folder / "checkpoint", folder / "cache")


@given(seed=st.integers(0, 2**32), length=st.integers(3, 40))
@settings(max_examples=15, deadline=None)
def test_no_text_exceeds_a_bound(model, seed, length):
    """Random tokens, not texts: whatever a client may send."""
    config, weights = model.config, model.weights
    ids = torch.randint(config.vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    seen: dict[tuple[str, int], torch.Tensor] = {}
    batch = pad([Tokens(ids, None)], config)
    output = plain.forward(weights, config, batch, lambda name, layer, tensor, _: seen.update({(name, layer): tensor}))
    for layer in range(config.layers):
        assert (seen["preactivation", layer].abs().amax((0, 1)) <= bounds.preactivation(weights, layer)).all()
    deviation = math.sqrt(float(seen["embedding.variance", -1].max()))
    assert deviation <= bounds.embedding(weights)
    assert float(output.result.abs().max()) <= bounds.result(weights, config)


def test_a_bound_behind_a_norm_is_reached(model):
    """By the row of length √h that points along the centred column: the bound is as small as it can be."""
    name = "layers.0.attention_norm"
    norm, up = model.weights.norm(name), model.weights.linear("layers.0.up")
    column = norm.gain * up.weight[:, 5]
    column = column - column.mean()
    row = math.sqrt(len(column)) * column / column.norm()
    reached = [float(up((sign * row) * norm.gain + norm.bias)[5].abs()) for sign in (1, -1)]
    assert max(reached) == pytest.approx(float(bounds.preactivation(model.weights, 0)[5]))


def test_a_sum_of_embedding_rows_is_bounded_by_the_tables(model):
    tables = [model.weights[name] for name in ("word", "position", "token_type") if name in model.weights]
    rows = [table - table.mean(-1, keepdim=True) for table in tables]
    largest = max(float(sum(part[:, place].abs().max() for part in rows)) for place in range(rows[0].shape[1]))
    assert bounds.embedding(model.weights) == pytest.approx(largest)

"""The trainable model is the plaintext model, and a distillation's losses look at real tokens only."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint

from secformer.errors import SettingsError
from secformer.models import plain
from secformer.models.tokens import tokenise
from secformer.training.folders import read_folder
from secformer.training.losses import DistillationLoss, Weighting, layer_pairs
from secformer.training.network import Dropout, Swaps, swaps_named


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    build_checkpoint(path, request.param, "classification")
    return read_folder(path)


def batch_of(folder, texts=TEXTS):
    return tokenise(folder.tokenizer, folder.network.config, texts)


@pytest.mark.parametrize("swaps", [Swaps(), Swaps("2quad", 5.0)])
def test_it_computes_what_the_plaintext_model_does(folder, swaps):
    network = replace(folder.network, swaps=swaps, config=swaps.config(folder.network.config))
    batch = batch_of(folder)
    expected = plain.forward(network.weights, network.config, batch).result
    assert torch.allclose(network.infer(batch).result, expected, atol=1e-5)
    assert torch.allclose(network(batch).result, expected, atol=1e-5)


def test_a_quadratic_gelu_changes_it(folder):
    batch = batch_of(folder)
    quad = replace(folder.network, swaps=Swaps(gelu="quad"))
    assert not torch.allclose(quad.infer(batch).result, folder.network.infer(batch).result, atol=1e-2)


def test_dropout_is_its_generators(folder):
    batch = batch_of(folder)
    once, again, other = (
        folder.network(batch, dropout=Dropout(0.3, seed, "cpu")).result.detach() for seed in (1, 1, 2)
    )
    assert torch.equal(once, again) and not torch.equal(once, other)


def loss_of(folder, mask_tail, **weights):
    """With rubbish, or nothing, behind the shortest text."""
    teacher = folder.network
    student = replace(teacher, swaps=Swaps("2quad", 5.0), config=Swaps("2quad", 5.0).config(teacher.config))
    batch = batch_of(folder)
    ids = torch.where(batch.mask, batch.ids, 7) if mask_tail else batch.ids
    loss = DistillationLoss(student, teacher, Weighting(**weights), final=True)
    return float(loss(replace(batch, ids=ids), torch.zeros(len(TEXTS))))


def test_padding_is_left_out_of_every_part(folder):
    weights = dict(attention=1.0, hidden=0.1, penalty=0.01, sums=1.0)
    assert loss_of(folder, True, **weights) == pytest.approx(loss_of(folder, False, **weights), rel=1e-5)


def test_every_part_counts(folder):
    parts = [dict(attention=0.0, hidden=0.0), dict(attention=0.0, hidden=0.1), dict(attention=1.0, hidden=0.1)]
    parts.append(dict(attention=1.0, hidden=0.1, penalty=0.1))
    losses = [loss_of(folder, False, **part) for part in parts]
    assert losses == sorted(losses) and len(set(losses)) == len(losses)


def test_row_sums_count_from_where_one_reciprocal_does_not_reach_them(folder):
    swaps = Swaps("2quad", 5.0)
    student = replace(folder.network, swaps=swaps, config=swaps.config(folder.network.config))
    loss = DistillationLoss(student, folder.network, Weighting(sums=1.0), final=False)
    rows = [
        [0.0, -5.0, 9.0],
        [153.0, 0.0, 9.0],
        [-5.0, -5.0, 9.0],
        [300.0, 0.0, 9.0],
    ]  # of the last key nobody sees anything
    scores, mask = torch.tensor(rows, requires_grad=True), torch.tensor([[True, True, False]])
    found = [loss._outside([row[None, None, None].expand(1, 1, 3, 3)], mask) for row in scores]
    sums = [25.0, 158.0**2 + 25, 1e-6, 305.0**2 + 25]
    wanted = [max(0.0, math.log(25 / each), math.log(each / 25_000)) ** 2 for each in sums]
    assert [each.item() for each in found] == pytest.approx(wanted, rel=1e-4) and wanted[:2] == [0.0, 0.0] != wanted[2:]
    torch.stack(found).sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_a_teacher_has_no_distance_from_itself(folder):
    loss = DistillationLoss(folder.network, folder.network, Weighting(), final=True)
    assert float(loss(batch_of(folder), torch.zeros(len(TEXTS)))) == pytest.approx(0.0, abs=1e-6)


def test_layers_of_a_shorter_student():
    assert layer_pairs(3, 6) == [1, 3, 5]
    assert layer_pairs(6, 6) == list(range(6))
    assert layer_pairs(4, 12) == [2, 5, 8, 11]


def test_a_row_of_scores_at_minus_c_is_no_division_by_nought(folder):
    """As bfloat16 can have it: 0/0 made losses of students that were no numbers."""
    swaps = Swaps("2quad", 5.0)
    functions = swaps.functions(swaps.config(folder.network.config))
    scores = torch.tensor([[-5.0, -5.0, 3.0], [-5.0, -5.0, -5.0]], requires_grad=True)
    numerators = functions.softmax_weights(scores, torch.tensor([True, True, False]))
    shares = numerators * functions.reciprocal(numerators.sum(-1, keepdim=True), "layers.0.softmax")
    shares.sum().backward()
    assert shares.tolist() == [[0.0] * 3] * 2 and scores.grad is not None and torch.isfinite(scores.grad).all()


def test_unknown_functions_are_refused():
    with pytest.raises(SettingsError, match="unknown gelu 'relu'"):
        swaps_named("2quad", 5.0, "relu")

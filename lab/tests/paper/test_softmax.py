"""Softmax and its substitutes: every variant against its twin, with mixed lengths and padding that would win."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from variants import check, departures, number, on_grid, simulate

from secformer.engine.values import Shared
from secformer.protocols import menu
from secformer.protocols.attention import QuadSetting, RowSetting
from secformer_lab.paper import softmax
from secformer_lab.paper import variants as v
from secformer_lab.paper.function_cases import quad_weights

LENGTHS = (7, 4, 1)
KEYS = 7


def batch(spread: float = 2.0, padding: float = 12.0) -> tuple[Tensor, Tensor]:
    """Scores (3, 2, 5, 7) whose padding is far above every token, and the mask (3, 1, 1, 7)."""
    torch.manual_seed(3)
    mask = torch.zeros(3, 1, 1, KEYS, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        mask[row, ..., :length] = 1
    scores = torch.randn(3, 2, 5, KEYS, dtype=torch.float64).clamp(-2, 2) * spread
    return on_grid(torch.where(mask == 1, scores, padding)), mask


def twin(variant: v.Softmax, scores: Tensor, mask: Tensor, eta: float) -> Tensor:
    weights = variant.weights(scores, mask == 1, softmax.SHIFT)
    return weights * variant.reciprocal(weights.sum(-1, keepdim=True), eta)


def exact(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(mask == 0, -torch.inf), -1)


def quad(scores: Tensor, mask: Tensor) -> Tensor:
    weights = (scores + softmax.SHIFT).square() * mask
    return weights / weights.sum(-1, keepdim=True)


VARIANTS = {  # the pair, its deflation, what it approximates and how well, rounds
    "crypten": (v.SOFTMAX_CRYPTEN, 1.0, exact, 5e-3, 9 * 3 + 38),
    "puma": (v.SOFTMAX_PUMA, 1.0, exact, 2.5e-2, 9 * 3 + 44),
    "2quad-newton": (v.QUAD_MPCFORMER, 16.0, quad, 1e-6, 31),
    "2relu-newton": (v.RELU2_MPCFORMER, 1.0, None, None, 39),
    "2quad-goldschmidt": (v.QUAD_SECFORMER, 320.0, quad, 1e-3, 16),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name):
    variant, eta, target, approximation, rounds = VARIANTS[name]
    scores, mask = batch()
    expected = twin(variant, scores, mask, eta)
    if target is not None:
        assert (expected - target(scores, mask)).abs().max() <= approximation

    def protocol(runtime, x: Shared, keys: Shared) -> Shared:
        return variant.protocol(runtime, x, keys, softmax.SHIFT, eta)

    # a weight deflated by η = 320 is rounded to 2^-16, which a row sum of 3 (one token) magnifies by 2·320/3
    run = check(protocol, expected, 4e-3, scores, number(mask, 0))
    assert run.plan.cost.rounds == rounds
    padded = (mask == 0).expand_as(scores)
    assert run.value("y")[padded].abs().max() == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_without_a_mask_there_is_one_product_less(name):
    variant, eta, _, _, rounds = VARIANTS[name]
    scores, mask = batch(padding=0.5)
    expected = twin(variant, scores, torch.ones_like(mask), eta)
    run = check(lambda runtime, x: variant.protocol(runtime, x, None, softmax.SHIFT, eta), expected, 3e-3, scores)
    assert run.plan.cost.rounds == rounds - 1


def test_relu2_of_a_row_without_positive_scores_is_zero():
    scores = -torch.ones(2, 4, dtype=torch.float64)
    check(softmax.relu2_mpcformer, torch.zeros(2, 4, dtype=torch.float64), 0.0, scores)


def test_scores_beyond_the_penalty_are_named():
    scores, mask = batch(padding=40.0)
    (found,) = departures(softmax.softmax_crypten, scores, number(mask, 0))
    assert found.endswith("leave the range -32 to 32")


def test_the_paper_s_deflation_diverges_at_512_tokens():
    """c = 5 and η = 5000 hold at 128 tokens (q = 0.64) and not at 512 (q = 2.56): simulate shows it."""
    for length, right in ((128, True), (512, False)):
        scores = torch.zeros(1, length, dtype=torch.float64)
        error = (simulate(softmax.quad_secformer, scores) - 1 / length).abs().max()
        assert (error < 1e-4) == right


def test_quad_ours():
    scores, mask = batch(padding=0.0)
    setting = QuadSetting(RowSetting(menu.reciprocal(2.0, 400.0), reciprocal_scale=24), weight_scale=8)

    def ours(runtime, x: Shared, keys: Shared) -> Shared:
        return quad_weights(runtime, x, keys, setting)

    run = check(ours, quad(scores, mask), 1e-3, scores, number(mask, 0))
    assert run.plan.cost.rounds == 3


@pytest.mark.parametrize("variant", [v.QUAD_SECFORMER, v.QUAD_MPCFORMER], ids=["secformer", "mpcformer"])
def test_published_opens_the_reciprocal_at_full_size(variant):
    """With row sums under 2 even the published form is right."""
    scores = on_grid(torch.linspace(-5.4, -4.6, 12, dtype=torch.float64).reshape(2, 6))
    weights = (scores + softmax.SHIFT).square()
    run = check(variant.published, weights / weights.sum(-1, keepdim=True), 5e-2, scores)
    assert [opening.form.shape for opening in run.plan.tape.openings].count((2, 6)) == 3

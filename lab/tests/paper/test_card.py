"""Cards and calibrations of the paper's suites."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secformer.engine.form import Form
from secformer.errors import CalibrationError, ModelError, SettingsError
from secformer.models.config import ModelConfig
from secformer.models.shapes import PRESETS
from secformer.models.statics import Source
from secformer.models.weights import assemble
from secformer_lab.paper.suites import CRYPTEN, MPCFORMER, PUMA, SECFORMER, Deflation, _Measuring
from secformer_lab.paper.variants import half_octave

TINY = replace(
    PRESETS["bert-base"], layers=2, heads=3, hidden=24, intermediate=40, vocabulary=99, positions=32, labels=("a", "b")
)
BARE = replace(TINY, pooler="")
HEADS: dict[str, ModelConfig] = {
    "bert classification": TINY,
    "bert embedding": replace(BARE, head="embedding", labels=()),
    "bert tokens": replace(BARE, head="tokens"),
    "roberta regression": replace(TINY, family="roberta", token_types=1, head="regression", labels=("score",)),
    "distilbert classification": replace(TINY, family="distilbert", token_types=0, activation="relu", pooler="relu"),
    "distilbert tokens": replace(BARE, family="distilbert", token_types=0, head="tokens", activation="silu"),
}


def weights_of(config: ModelConfig):
    generator = torch.Generator().manual_seed(1)
    return assemble(config, lambda _, shape: 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("private_table", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_the_card_declares_what_folding_makes(name, private_table):
    card = replace(SECFORMER.preset(HEADS[name]), private_table=private_table)
    folded = card.fold(Source(weights_of(HEADS[name])))
    made: dict[str, Form] = {key: encoded.form for key, encoded in folded.items()}
    assert made == card.static_forms()
    assert all(form.is_wire for form in made.values())
    assert ("word" in made) == private_table


def test_suites_take_the_softmax_they_have():
    student = replace(TINY, softmax="2quad", quad_shift=3.5)
    for suite in (MPCFORMER, SECFORMER):
        assert suite.adapt(TINY) == replace(TINY, softmax="2quad", quad_shift=5.0)
        assert suite.adapt(student) == student
    for suite in (CRYPTEN, PUMA):
        assert suite.adapt(TINY) == TINY
        with pytest.raises(SettingsError, match="distilled for 2Quad"):
            suite.adapt(student)


def test_an_activation_without_a_protocol_is_refused():
    limited = replace(SECFORMER, activations={"gelu": SECFORMER.activations["gelu"]})
    with pytest.raises(ModelError, match="suite secformer has no protocol for activation 'relu'; it has gelu"):
        limited.adapt(replace(TINY, activation="relu"))


def test_a_calibration_of_another_shape_is_refused():
    eta = {"embedding_norm": 1.0, "layers.0.output_norm": 1.0, "layers.1.output_norm": 1.0}
    Deflation("", eta).check(TINY)
    with pytest.raises(CalibrationError, match="another shape"):
        Deflation("", eta).check(replace(TINY, layers=3))


# η


def observed(suite, low: float, high: float):
    """What calibration makes of a LayerNorm's variances."""
    measuring = _Measuring(suite, suite.adapt(TINY))
    variances = torch.tensor([[[low], [high]]], dtype=torch.float64)
    measuring.observe("output.variance", 0, variances, torch.ones_like(variances, dtype=torch.bool))
    return measuring.eta["layers.0.output_norm"]


@given(low=st.floats(1e-6, 1e6), ratio=st.floats(1, 1e4), suite=st.sampled_from([CRYPTEN, PUMA, MPCFORMER, SECFORMER]))
def test_eta_is_on_the_half_octave_menu(low, ratio, suite):
    eta = observed(suite, low, low * ratio)
    assert 2 * math.log2(eta) == pytest.approx(round(2 * math.log2(eta)), abs=1e-9) and half_octave(eta) == eta
    count = TINY.hidden if suite.layernorm.sums else 1
    wanted = suite.layernorm.eta(count * low, count * low * ratio)
    assert wanted * (1 - 1e-9) <= eta < wanted * math.sqrt(2)
    Deflation("", {"layers.1.output_norm": eta}).check(TINY)


@pytest.mark.parametrize("eta", [3.0, 0.0, -2.0, float("nan"), float("inf"), 2.0 * (1 + 1e-12)])
def test_another_eta_is_refused(eta):
    with pytest.raises(CalibrationError, match=r"layers.1.output_norm: η = .* calibrate again"):
        Deflation("", {"layers.1.output_norm": eta}).check(TINY)
    with pytest.raises(CalibrationError, match="not a whole power"):
        CRYPTEN.read_card(TINY, {"layers.1.output_norm": eta}, True)


@pytest.mark.parametrize("suite", [CRYPTEN, MPCFORMER, PUMA, SECFORMER], ids=lambda suite: suite.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_approximation_that_diverges_is_named(suite, value):
    with pytest.raises(CalibrationError, match=f"layers.0.output_norm: .* not finite.* suite {suite.name} diverges"):
        observed(suite, 1.0, value)


def test_variances_of_zero_cannot_be_deflated():
    with pytest.raises(CalibrationError, match="cannot deflate values down to 0"):
        observed(CRYPTEN, 0.0, 1.0)

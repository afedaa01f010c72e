"""Cards and calibrations of the paper's suites."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from secformer.baselines.suites import CRYPTEN, MPCFORMER, PUMA, SECFORMER, Deflation
from secformer.engine.form import Form
from secformer.errors import CalibrationError, ModelError, SettingsError
from secformer.models.config import PRESETS, ModelConfig
from secformer.models.statics import Source
from secformer.models.weights import assemble

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

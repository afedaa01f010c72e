"""The suites under their names, what each is made of, and a clear word for a wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secformer.errors import ModelError, SettingsError
from secformer.models.shapes import PRESETS
from secformer.systems import add_suite, suite_named, suite_names
from secformer_lab.paper import goldschmidt, softmax
from secformer_lab.paper import variants as v
from secformer_lab.paper.beaver import FRACTION_BITS
from secformer_lab.paper.suites import MPCFORMER, SECFORMER

BERT = PRESETS["bert-base"]
PAPER = {
    "crypten": (v.GELU_CRYPTEN, v.SOFTMAX_CRYPTEN, v.NORM_CRYPTEN),
    "puma": (v.GELU_PUMA, v.SOFTMAX_PUMA, v.NORM_PUMA),
    "mpcformer": (v.GELU_QUAD, v.QUAD_MPCFORMER, v.NORM_CRYPTEN),
    "secformer": (v.GELU_SECFORMER, v.QUAD_SECFORMER, v.NORM_SECFORMER),
}


def test_names():
    assert suite_names() == ("exact", "fast", "crypten", "mpcformer", "puma", "secformer")
    assert all(suite_named(name).name == name for name in suite_names())


@pytest.mark.parametrize("name", PAPER)
def test_the_variants_of_the_paper_s_suites(name):
    variants = suite_named(name).variants(BERT)
    assert (variants.activation, variants.softmax, variants.layernorm) == PAPER[name]


def test_the_paper_s_parameters():
    assert (SECFORMER.softmax.default_eta, SECFORMER.layernorm.default_eta, softmax.SHIFT) == (5000.0, 2000.0, 5.0)
    assert (goldschmidt.RECIPROCAL_STEPS, goldschmidt.INVERSE_SQRT_STEPS, FRACTION_BITS) == (13, 11, 16)
    adapted = [suite_named(name).adapt(BERT) for name in suite_names()]
    assert [config.softmax for config in adapted] == ["exact", "2quad", "exact", "2quad", "exact", "2quad"]
    assert {config.quad_shift for config in adapted if config.softmax == "2quad"} == {softmax.SHIFT}


def test_parts_can_be_changed():
    suite = replace(MPCFORMER, name="2relu", softmax=v.RELU2_MPCFORMER)
    assert suite.variants(BERT).softmax is v.RELU2_MPCFORMER and MPCFORMER.softmax is v.QUAD_MPCFORMER
    assert suite.adapt(BERT).softmax == "exact"


@pytest.mark.parametrize(
    ("name", "words"), [("secfromer", "did you mean secformer"), ("zzz", "known are exact, fast, crypten")]
)
def test_wrong_names(name, words):
    with pytest.raises(SettingsError, match=words):
        suite_named(name)


def test_a_name_is_given_once():
    with pytest.raises(SettingsError, match="another name"):
        add_suite(replace(MPCFORMER, softmax=v.RELU2_MPCFORMER))
    assert suite_named("mpcformer") is MPCFORMER


@pytest.mark.parametrize("name", ["crypten", "puma", "exact"])
def test_a_model_distilled_for_2quad_needs_2quad(name):
    with pytest.raises(SettingsError, match="distilled for 2Quad"):
        suite_named(name).adapt(replace(BERT, softmax="2quad", quad_shift=5.0))


def test_an_activation_without_a_protocol_is_named():
    suite = replace(MPCFORMER, activations={"gelu": v.GELU_QUAD})
    with pytest.raises(ModelError, match="no protocol for activation 'silu'"):
        suite.adapt(replace(BERT, activation="silu"))

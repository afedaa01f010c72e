"""The suites under their names, and a clear word for a wrong one."""

from __future__ import annotations

import pytest

from secformer.errors import SettingsError
from secformer.protocols.suites import PAPER_SUITES, SUITES, suite_named


def test_names():
    assert tuple(SUITES) == ("crypten", "puma", "mpcformer", "secformer", "fast", "exact")
    assert PAPER_SUITES == ("crypten", "puma", "mpcformer", "secformer")
    assert all(suite.name == name for name, suite in SUITES.items())


def test_the_paper_s_parameters():
    suite = suite_named("secformer")
    assert (suite.eta_softmax, suite.eta_layernorm, suite.shift) == (5000.0, 2000.0, 5.0)
    assert (suite.softmax_steps, suite.layernorm_steps, suite.fraction_bits) == (13, 11, 16)
    assert [suite.softmax_kind for suite in SUITES.values()] == ["exact", "exact", "2quad", "2quad", "2quad", "exact"]


def test_fields_can_be_changed():
    suite = suite_named("mpcformer", softmax="2relu-newton", softmax_kind="2relu")
    assert suite.softmax == "2relu-newton" and SUITES["mpcformer"].softmax == "2quad-newton"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("secfromer", {}, "did you mean secformer"),
        ("zzz", {}, "known are crypten"),
        ("puma", {"softmax": "best"}, "no softmax variant 'best'"),
        ("puma", {"speed": 3}, "speed"),
    ],
)
def test_wrong_names(name, changes, words):
    with pytest.raises(SettingsError, match=words):
        suite_named(name, **changes)

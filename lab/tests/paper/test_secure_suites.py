"""Whole encoders under the paper's suites, on two real shares, against the suite's own twin."""

from __future__ import annotations

from functools import partial

import pytest
from checkpoints import TEXTS
from secure import ask, ask_texts, assert_cost_as_declared, calibrated, relative_error, upload

from secformer_lab.paper.suites import CRYPTEN, MPCFORMER, PUMA, SECFORMER

TOLERANCE = 1e-2
PAPER_SUITES = [system.name for system in (CRYPTEN, PUMA, MPCFORMER, SECFORMER)]


@pytest.fixture
def built(tmp_path):
    return partial(calibrated, tmp_path)


@pytest.mark.parametrize("suite", PAPER_SUITES)
@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "classification"),
        ("distilbert", "embedding"),
        pytest.param("roberta", "tokens", marks=pytest.mark.long),
    ],
)
def test_a_paper_suite_gives_what_its_twin_gives(built, family, head, suite):
    _, model = built(family, head, suite, seed=6, layers=1, heads=2, hidden=18, intermediate=26)
    twin = model.predict(TEXTS, mode="plain").result
    secure, run = ask_texts(model, TEXTS)
    assert relative_error(secure, twin) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="simulate").result, twin) <= TOLERANCE
    assert_cost_as_declared(run)


def test_a_word_table_that_is_handed_out(built):
    _, model = built("bert", "classification", "secformer", private_table=False, layers=1)
    uploaded, batch = upload(model), model._batch(TEXTS, None)
    assert "word" not in uploaded.wires
    assert_cost_as_declared(uploaded.run)
    assert uploaded.run.plan.cost.rounds == 1
    secure, run = ask(model, uploaded, batch)
    assert set(run.plan.program.inputs) >= {"words", "mask"} and "one_hot" not in run.plan.program.inputs
    assert relative_error(secure, model.predict(TEXTS, mode="plain").result) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="simulate").result, secure) <= TOLERANCE
    assert_cost_as_declared(run)

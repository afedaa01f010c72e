"""The student in examples/sentiment, under `fast`: how far a logit is from the plaintext one, and that no error is a bias.

Its logits are steep: texts it is not sure of (the first two here) pass an error on to them some twenty times as large as texts
it is sure of. What each rounding adds is in docs/protocols.md, "Errors of a steep model".
"""

from __future__ import annotations

import pytest
import torch
from secure import ask, load, upload

from secformer.models.bundled import example_classifier

COPIES = 64
TEXTS = {"a private text": 2.8e-3, "i did not like it at all": 3.6e-3, "a warm and funny film": 5e-4}
"""With the root mean square of a logit's error. Before V had more bits in short texts, GeLU's roundings were balanced and drops
were without bias, it was 4.2e-3, 6.6e-3 and 4e-4."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    loaded = load(example_classifier(), tmp_path_factory.mktemp("cache"), "fast")
    loaded.calibrate()
    return loaded


@pytest.fixture(scope="module")
def uploaded(model):
    return upload(model)


@pytest.mark.parametrize("text", TEXTS)
def test_a_logits_error(model, uploaded, text):
    """Copies of a text in one session have coins of their own."""
    plain = model.predict([text], mode="plain").result
    secure, run = ask(model, uploaded, model._batch([text] * COPIES))
    errors = secure - plain
    assert float(errors.square().mean(0).max().sqrt()) <= TEXTS[text]
    assert not run.value("evidence").any()
    spread = errors.std(0) / COPIES**0.5
    assert (errors.mean(0).abs() <= 1e-3 + 4 * spread).all()  # weights, fits and tables: 8e-4 for these texts


def test_simulation_is_within_the_spread_of_secure_runs(model):
    """It rounds to the nearest: one of the outcomes, not their middle."""
    for text, size in TEXTS.items():
        simulated = model.predict([text], mode="simulate").result
        assert torch.allclose(simulated, model.predict([text], mode="plain").result, rtol=0, atol=3.5 * size)

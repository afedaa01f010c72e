"""Every family beyond BERT's own three, on two real shares: what transformers gives, with the evidence quiet."""

from __future__ import annotations

from functools import partial

import pytest
from checkpoints import TEXTS, build_checkpoint
from secure import ask, assert_cost_as_declared, calibrated, load, relative_error, transformers_result, upload

from secformer.errors import InputError, ModelError

TOLERANCE = 1e-2
PAIRS = ["the dog", "a good film was on", "it", "cats"]
SMALL = dict(heads=3, hidden=24, intermediate=40, layers=2)
ODD = dict(heads=1, hidden=17, intermediate=29, layers=1)
MODERN = dict(heads=2, hidden=24, intermediate=19, layers=2, local_attention=6, classifier_pooling="mean")
DEEP = dict(heads=2, hidden=22, intermediate=31, layers=2)

# One of each family every time, the others in the long run.
LONG = {
    "camembert tokens",
    "electra embedding",
    "albert embedding",
    "mpnet tokens",
    "deberta-v2 tokens",
    "modernbert tokens",
}
LONG |= {"modernbert embedding"}
KINDS = [
    ("xlm-roberta", "classification", SMALL),
    ("camembert", "tokens", ODD),
    ("electra", "classification", dict(**DEEP, embedding_size=13)),
    ("electra", "embedding", dict(**ODD, embedding_size=17)),
    ("albert", "classification", dict(**DEEP, embedding_size=9, activation="gelu_new")),
    ("albert", "embedding", dict(**SMALL, embedding_size=24, num_hidden_groups=2)),
    ("mpnet", "classification", SMALL),
    ("mpnet", "tokens", DEEP),
    ("deberta-v2", "classification", dict(SMALL, position_buckets=8)),
    ("deberta-v2", "tokens", dict(ODD, position_buckets=-1, positions=40)),
    ("modernbert", "classification", MODERN),
    ("modernbert", "tokens", dict(MODERN, hidden=20, layers=2)),
    ("modernbert", "embedding", dict(MODERN, layers=4, local_attention=10)),
]


@pytest.fixture
def built(tmp_path):
    return partial(calibrated, tmp_path)


def case(*parts, name):
    return pytest.param(*parts, id=name, marks=[pytest.mark.long] if name in LONG else [])


@pytest.mark.parametrize(("family", "head", "sizes"), [case(*kind, name=f"{kind[0]} {kind[1]}") for kind in KINDS])
def test_exact_gives_what_transformers_gives(built, family, head, sizes):
    reference, model = built(family, head, seed=2, **sizes)
    batch = model._batch(TEXTS, None)
    assert len(set(batch.lengths.tolist())) >= 3  # of different length
    expected = transformers_result(reference, model, batch)
    assert relative_error(model.predict(TEXTS, mode="plain").result, expected) <= (
        1e-6 if family != "modernbert" else 1e-5
    )
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, expected) <= TOLERANCE
    simulated = model.predict(TEXTS, mode="simulate")
    assert relative_error(simulated.result, expected) <= TOLERANCE
    assert not any(simulated.marked) and int(run.value("evidence").abs().sum()) == 0
    assert_cost_as_declared(run)


SUITES = [
    ("fast", "albert", dict(heads=2, hidden=22, intermediate=31, layers=2, embedding_size=9, activation="gelu_new")),
    ("fast", "mpnet", ODD),
    ("fast", "modernbert", dict(heads=2, hidden=20, intermediate=11, layers=1, local_attention=6)),
    ("secformer", "electra", dict(**ODD, embedding_size=13)),
    ("crypten", "mpnet", ODD),
    ("puma", "albert", dict(heads=2, hidden=22, intermediate=31, layers=2, embedding_size=9)),
]


LONG |= {"fast mpnet", "puma albert"}


@pytest.mark.parametrize(
    ("suite", "family", "sizes"), [case(*suite, name=f"{suite[0]} {suite[1]}") for suite in SUITES]
)
def test_other_suites_give_what_their_twins_give(built, suite, family, sizes):
    _, model = built(family, "classification", suite, seed=4, **sizes)
    secure, run = ask(model, upload(model), model._batch(TEXTS, None))
    assert relative_error(secure, model.predict(TEXTS, mode="plain").result) <= TOLERANCE
    assert_cost_as_declared(run)


def test_a_text_beyond_512_tokens_is_refused_by_its_length(tmp_path):
    """ModernBERT has no table of positions that would end, attention does: the card has 512 rows, and cut texts have no more."""
    build_checkpoint(tmp_path / "model", "modernbert", heads=1, hidden=16, layers=1, positions=8192)
    model = load(tmp_path / "model", tmp_path)
    assert model.config.positions == 512
    with pytest.raises(InputError, match="text 1 has 602 tokens, 512 are allowed"):
        model.predict(["the cat " * 300], mode="plain")
    (cut,) = model.tokens(["the cat " * 300], truncate=True)
    assert len(cut.ids) == 512


@pytest.mark.parametrize("suite", ["crypten", "secformer"])
def test_the_papers_suites_refuse_what_they_do_not_compute(tmp_path, suite):
    build_checkpoint(tmp_path / "model", "modernbert", heads=1, hidden=16)
    with pytest.raises(
        ModelError, match=f"suite {suite} computes layers as BERT has them, not those of model type 'modernbert'"
    ):
        load(tmp_path / "model", tmp_path, suite)


def test_padding_that_meets_a_bias_alone_is_not_counted(tmp_path):
    """MPNet's bias of a head, −60 nats for any distance: centred keys undo it for every query but those of padding, as
    all-mpnet-base-v2 has it in its layers 1 and 4."""
    build_checkpoint(tmp_path / "model", "mpnet", "classification", heads=1, hidden=12, intermediate=11, layers=1)
    model = load(tmp_path / "model", tmp_path / "cache")
    tensors = model.weights.tensors
    tensors["relative"].sub_(60)
    tensors["layers.0.query.bias"].add_(6)
    for part in ("query", "key"):
        tensors[f"layers.0.{part}.weight"].mul_(0.05)
    model.calibrate(TEXTS, few=True)
    assert not any(model.predict(TEXTS, mode="simulate").marked)


def test_shared_layers_are_uploaded_and_calibrated_once(built):
    """ALBERT's one layer: as the first, behind the projection, and as every other, behind its own LayerNorm."""
    _, model = built("albert", "embedding", heads=1, hidden=12, intermediate=16, layers=5, embedding_size=8)
    numbers = {name.split(".")[0] for name in model.card.static_forms() if name[0].isdigit()}
    assert numbers == {"0", "1"}
    assert len(model.card.constants()["layers"]) == 1

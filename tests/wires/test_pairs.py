"""Every family with every head that transformers has for it: computed, or refused by name."""

from __future__ import annotations

import json

import pytest
from checkpoints import CLASSES, HEADS, MORE_CLASSES, MORE_HEADS, TEXTS, build_checkpoint
from secure import ask, calibrated, load, relative_error, transformers_result, upload

from secformer.errors import ModelError
from secformer.models.families import family_named

TOLERANCE = 1e-2
TINY = dict(heads=1, hidden=13, intermediate=11, layers=1, seed=3)
MORE_SIZES = {
    "electra": dict(embedding_size=7),
    "albert": dict(embedding_size=7),
    "deberta-v2": dict(position_buckets=8),
    "modernbert": dict(hidden=14, local_attention=6),
}
SECOND = ["the dog", "a good film was on", "it", "cats"]
CHOICES = [["a mat", "it"], ["good", "bad film"], ["on", "cats"], ["a", "b"]]
FAMILIES = {**CLASSES, **MORE_CLASSES}
ENDINGS = {**HEADS, **MORE_HEADS}
REFUSED = {("modernbert", "choice")}
"""What transformers has and we do not."""


def pairs() -> list[tuple[str, str]]:
    import transformers

    return [
        (family, head)
        for family, name in FAMILIES.items()
        for head, ending in ENDINGS.items()
        if hasattr(transformers, name + ending)
    ]


def named(pair: tuple[str, str]):
    return pytest.param(*pair, id=" ".join(pair))


def sizes(family: str) -> dict:
    return TINY | MORE_SIZES.get(family, {})


def given(model, head):
    if head == "masked":
        mask = model.tokenizer.mask_token
        return [f"the {mask} sat on a {mask}", mask, f"it was a {mask} film, running home"], None
    return TEXTS, {"question": SECOND, "choice": CHOICES}.get(head)


@pytest.mark.long
@pytest.mark.parametrize(("family", "head"), [named(pair) for pair in pairs() if pair not in REFUSED])
def test_a_pair_gives_what_transformers_gives(tmp_path, family, head):
    reference, model = calibrated(tmp_path, family, head, **sizes(family))
    texts, second = given(model, head)
    batch = model._batch(texts, second)
    expected = transformers_result(reference, model, batch)
    assert relative_error(model.predict(texts, second, mode="plain").result, expected) <= 1e-5
    simulated = model.predict(texts, second, mode="simulate")
    assert relative_error(simulated.result, expected) <= TOLERANCE and not any(simulated.marked)
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, expected) <= TOLERANCE and not run.value("evidence").any()


@pytest.mark.parametrize(("family", "head"), [named(pair) for pair in sorted(REFUSED)])
def test_a_pair_that_is_not_computed_is_refused_by_name(tmp_path, family, head):
    build_checkpoint(tmp_path, family, head, **sizes(family))
    with pytest.raises(ModelError, match=FAMILIES[family] + ENDINGS[head]):
        load(tmp_path, tmp_path / "cache")


def test_the_pairs_are_those_of_the_families():
    """A head that is added to a family is tried above; one that transformers does not have is a mistake."""
    known = {(family, head) for family in FAMILIES for head in family_named(family).heads}
    ours = {pair for pair in pairs() if pair[1] in MORE_HEADS or pair[1] in ("classification", "tokens")}
    assert known == ours - REFUSED


def test_debertas_other_language_head_is_refused_by_name(tmp_path):
    """With legacy false it has another form."""
    build_checkpoint(tmp_path, "deberta-v2", "masked", **sizes("deberta-v2"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "legacy": False}))
    with pytest.raises(ModelError, match="legacy"):
        load(tmp_path, tmp_path / "cache")

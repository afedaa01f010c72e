"""Suites by name, and cards as they travel: every system's, from and to JSON, and what is refused as one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secformer import systems
from secformer.engine.tracing import trace
from secformer.errors import CalibrationError, ModelError, SecFormerError, SettingsError
from secformer.models.shapes import PRESETS
from secformer.systems import add_suite, card_from_json, suite_for, suite_named, suite_names
from secformer.wires.suites import EXACT
from secformer_lab.paper.suites import BaselineCard

TINY = replace(
    PRESETS["bert-base"],
    family="roberta",
    layers=2,
    heads=3,
    hidden=24,
    intermediate=40,
    vocabulary=99,
    positions=32,
    token_types=1,
    head="regression",
    labels=("score",),
)


def digest(card) -> str:
    return trace(card.query_program(2, 8)).tape.digest()


def test_suites_are_found_by_name():
    assert suite_names()[:2] == ("exact", "fast")
    for name in suite_names():
        assert suite_named(name).name == name
    with pytest.raises(SettingsError, match="unknown suite 'exakt': did you mean exact"):
        suite_named("exakt")
    with pytest.raises(SettingsError, match="known are exact, fast"):
        suite_named("")
    with pytest.raises(SettingsError, match="there is a suite 'exact' already"):
        add_suite(replace(EXACT))


def test_a_model_has_a_suite_of_its_own():
    assert suite_for(TINY).name == "exact" and suite_for(TINY, "puma").name == "puma"
    assert suite_for(replace(TINY, softmax="2quad", quad_shift=5.0)).name == "fast"


def test_a_suite_is_found_by_the_entry_point_of_a_package(monkeypatch):
    class Entry:
        name = "brought"

        @staticmethod
        def load():
            return replace(EXACT, name="brought")

    def found(group, name="brought"):
        assert group == "secformer.suites"
        return EntryPoints([Entry] if name == "brought" else [])

    class EntryPoints(list):
        names = ("brought",)

    monkeypatch.setattr(systems, "_SUITES", dict(systems._SUITES))
    monkeypatch.setattr(systems, "entry_points", found)
    assert suite_names()[-1] == "brought" and suite_named("brought").name == "brought"
    with pytest.raises(SettingsError, match="already"):
        add_suite(replace(EXACT, name="brought"))


# Cards


def test_a_server_reads_cards_of_the_suites_it_accepts():
    card = suite_named("exact").preset(TINY)
    assert card_from_json(card.to_json(), ("fast", "exact")) == card
    with pytest.raises(SettingsError, match="does not accept suite 'exact', only fast"):
        card_from_json(card.to_json(), ("fast",))


@pytest.mark.parametrize("private_table", [True, False])
@pytest.mark.parametrize("suite", suite_names())
def test_a_card_survives_its_journey(suite, private_table):
    card = replace(suite_named(suite).preset(TINY), private_table=private_table)
    if isinstance(card, BaselineCard):
        card = replace(card, eta=(("head", 2.0**1.5), ("layers.0.attention_norm", 0.125)))
    again = card_from_json(card.to_json())
    assert again == card and type(again) is type(card)
    assert again.to_json() == card.to_json()
    assert again.config == suite_named(suite).adapt(TINY)
    assert again.static_forms() == card.static_forms()
    assert digest(again) == digest(card)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"config": {}}', '{"suite": {}}', '{"suite": "exact"}', "null", "3", "[" * 100_000]
)
def test_other_text_is_no_card(text):
    with pytest.raises(SettingsError, match="no description of a model"):
        card_from_json(text)


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"suite": "exakt"}, SettingsError, "did you mean exact"),
        ({"constants": {}}, SettingsError, "no description of a model"),
        ({"constants": None}, SettingsError, "no description of a model"),
        ({"config": {"heads": 5}}, ModelError, "not a multiple"),
        ({"config": {"layers": 3}}, CalibrationError, "another shape"),
        ({"config": {"layers": "3"}}, SettingsError, "no description of a model"),
        ({"config": {"unheard_of": 3}}, SettingsError, "no description of a model"),
        ({"config": {"labels": 3}}, SettingsError, "no description of a model"),
        ({"config": {"softmax": "2quad", "quad_shift": 5.0}}, CalibrationError, "softmax 'exact', not '2quad'"),
        ({"config": {"activation": "mish"}}, ModelError, "mish"),
    ],
    ids=str,
)
def test_a_card_that_does_not_fit_is_refused(change, error, complaint):
    content = json.loads(suite_named("exact").preset(TINY).to_json())
    for name, value in change.items():
        content[name] = {**content[name], **value} if name == "config" else value
    with pytest.raises(error, match=complaint):
        card_from_json(json.dumps(content))


def paths(content, above=()):
    """Where something stands in a JSON document."""
    yield above
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield from paths(value, (*above, key))


CARDS = {suite: json.loads(suite_named(suite).preset(TINY).to_json()) for suite in ("exact", "fast", "secformer")}
junk = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=True) | st.text(max_size=3)


@given(data=st.data(), suite=st.sampled_from(sorted(CARDS)), put=junk | st.lists(junk, max_size=2))
def test_a_damaged_card_is_read_or_refused_and_nothing_else(data, suite, put):
    content = json.loads(json.dumps(CARDS[suite]))
    *way, last = data.draw(st.sampled_from([path for path in paths(content) if path]))
    place = content
    for step in way:
        place = place[step]
    place[last] = put
    try:
        card = card_from_json(json.dumps(content))
    except SecFormerError:
        return
    assert json.loads(card.to_json()).keys() == content.keys()

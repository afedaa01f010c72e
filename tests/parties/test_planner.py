from __future__ import annotations

import json
from dataclasses import replace

import pytest
import small_programs
from servers import stored

from secformer.deployment import Limits
from secformer.engine.form import masked, masked_bits, shared
from secformer.engine.program import Program
from secformer.errors import (
    InputError,
    LimitError,
    ModelError,
    SecFormerError,
    SettingsError,
    ShapeError,
    TapeError,
    WidthError,
)
from secformer.models.shapes import PRESETS
from secformer.parties.messages import Job
from secformer.parties.planner import (
    CATALOGUE,
    PLANS_KEPT,
    Planner,
    caller_forms,
    result_forms,
    used_wires,
)
from secformer.wires.suites import EXACT

WEIGHT = {"weight": masked((4, 5), 54, 16)}
SMALL = replace(PRESETS["bert-base"], layers=1, hidden=16, heads=2, intermediate=32, vocabulary=64, positions=16)
CARD = EXACT.preset(SMALL)
MODEL = stored(CARD.static_forms(), CARD.to_json())


def counting(built):
    def build(given, model):
        built.append(given)
        form = shared((given["n"],))
        return Program("same", lambda runtime, values: {"y": runtime.disclose(values["x"])}, {"x": form}, {"y": 0})

    return Planner({"same": build})


def test_queries_of_one_shape_share_a_plan():
    built: list = []
    planner = counting(built)
    first = planner.plan(Job("same", {"n": 1}), None)
    assert planner.plan(Job("same", {"n": 1}, uses="a", stores=small_programs.placing("b")), None) is first
    assert len(built) == 1
    assert planner.plan(Job("same", {"n": 1}), stored(WEIGHT)) is not first
    assert planner.plan(Job("same", {"n": 2}), None) is not first


def test_a_plan_is_for_one_upload():
    built: list = []
    planner = counting(built)
    first = planner.plan(Job("same", {"n": 1}), stored(WEIGHT, origin=b"first"))
    assert planner.plan(Job("same", {"n": 1}), stored(WEIGHT, origin=b"first")) is first
    assert planner.plan(Job("same", {"n": 1}), stored(WEIGHT, origin=b"second")) is not first
    assert len(built) == 2


def test_old_plans_are_forgotten():
    built: list = []
    planner = counting(built)
    for n in range(1, PLANS_KEPT + 2):
        planner.plan(Job("same", {"n": n}), None)
    planner.plan(Job("same", {"n": PLANS_KEPT + 1}), None)
    planner.plan(Job("same", {"n": 1}), None)
    assert len(built) == PLANS_KEPT + 2


@pytest.mark.parametrize("kind", [KeyError, TypeError, ZeroDivisionError, RuntimeError, AttributeError, OverflowError])
def test_a_builder_that_stumbles_blames_the_parameters(kind):
    def build(given, model):
        raise kind("a text that may quote anything")

    with pytest.raises(InputError, match=rf"p cannot be built from these parameters \({kind.__name__}\)"):
        Planner({"p": build}).plan(Job("p"), None)


def test_errors_of_ours_pass():
    def build(given, model):
        raise WidthError("too narrow")

    with pytest.raises(WidthError):
        Planner({"p": build}).plan(Job("p"), None)


def test_a_program_that_does_not_disclose_its_results_is_not_planned():
    def build(given, model):
        return Program("bare", lambda runtime, values: {"y": values["x"]}, {"x": shared((3,))}, {"y": 0})

    with pytest.raises(TapeError, match="disclose it"):
        Planner({"bare": build}).plan(Job("bare"), None)


def test_what_the_caller_brings_and_gets_and_what_is_stored():
    planner, model = Planner(small_programs.CATALOGUE), stored({**WEIGHT, "other": WEIGHT["weight"]})
    query = planner.plan(Job("dense", {"rows": 3}), model)
    assert caller_forms(query) == {"x": shared((3, 4), 54, 12)}
    assert result_forms(query) == {"y": shared((3, 5), 32, 12)}
    assert list(used_wires(query, model)) == ["weight"]
    assert used_wires(query, None) == {}
    tensors = {"w": {"shape": [2]}, "b": {"shape": [3], "kind": "bits"}}
    upload = planner.plan(Job("upload", {"tensors": tensors}), None)
    assert set(caller_forms(upload)) == {"w", "b"}
    assert result_forms(upload) == {}
    assert used_wires(upload, stored({"w": masked((2,))})) == {}
    assert {name: form.kind for name, form in upload.outputs.items()} == {"w": "masked", "b": "masked_bits"}
    assert upload.cost.rounds == 1


def test_an_upload_by_card_opens_what_the_card_says_in_one_round():
    planner = Planner(CATALOGUE)
    upload = planner.plan(Job("upload", {"card": CARD.to_json()}), None)
    assert caller_forms(upload) == {name: form.as_share() for name, form in CARD.static_forms().items()}
    assert upload.outputs == CARD.static_forms()
    assert upload.cost.rounds == 1


def test_a_query_by_card_takes_the_callers_batch_and_every_stored_wire():
    query = Planner(CATALOGUE).plan(Job("query", {"card": MODEL.digest, "batch": 2, "tokens": 8}), MODEL)
    assert caller_forms(query) == CARD.embedding.query_forms(2, 8)
    assert set(used_wires(query, MODEL)) == set(CARD.static_forms())
    assert result_forms(query).keys() == {"result", "evidence"}
    assert result_forms(query)["result"].shape == (2, 2)
    assert result_forms(query)["evidence"].shape == (2, len(CARD.places()))


def test_servers_offer_two_programs():
    with pytest.raises(InputError, match="known are query, upload"):
        Planner(CATALOGUE).plan(Job("layer"), MODEL)


LOOKUP = {"tokens": 2, "columns": 9, "bits": 16, "scale": 4}


@pytest.mark.parametrize(
    ("job", "forms", "kind"),
    [
        (Job("upload", {"tensors": {}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": []}}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": [2], "width": 65}}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": [1 << 24, 1 << 24]}}}), {}, ShapeError),
        (Job("upload", {"tensors": {"w": {"shape": [2], "kind": "masked"}}}), {}, InputError),
        (Job("dense", {"rows": 1}), {"weight": masked((4,))}, InputError),
        (Job("dense", {"rows": True}), WEIGHT, InputError),
        (Job("dense", {"rows": 2, "low": float("nan")}), WEIGHT, InputError),
        (Job("lookup", LOOKUP), WEIGHT, InputError),
        (Job("lookup", LOOKUP), {"table": masked_bits((10, 9))}, ShapeError),
    ],
)
def test_parameters_that_make_no_program(job, forms, kind):
    with pytest.raises(kind):
        Planner(small_programs.CATALOGUE).plan(job, stored(forms))


def text_of(**changes) -> str:
    """The card with other entries of its configuration; None leaves one out."""
    content = json.loads(CARD.to_json())
    config = {name: value for name, value in {**content["config"], **changes}.items() if value is not None}
    return json.dumps({**content, "config": config})


def without_constants() -> str:
    content = json.loads(CARD.to_json())
    return json.dumps({**content, "constants": {}})


BAD_UPLOADS = {
    "no card": ({}, InputError),
    "a number": ({"card": 3}, InputError),
    "one thing more": ({"card": CARD.to_json(), "tensors": {}}, InputError),
    "too long": ({"card": " " * (1 << 20) + CARD.to_json()}, InputError),
    "no JSON": ({"card": "{"}, SettingsError),
    "no object": ({"card": "[]"}, SettingsError),
    "nesting without end": ({"card": "[" * 100_000}, SettingsError),
    "an unknown suite": ({"card": CARD.to_json().replace('"exact"', '"inexact"')}, SecFormerError),
    "no constants": ({"card": without_constants()}, SecFormerError),
    "constants of another shape": ({"card": text_of(layers=2)}, SecFormerError),
    "a word for a number": ({"card": text_of(hidden="sixteen")}, SecFormerError),
    "nothing for a number": ({"card": text_of(hidden=None)}, SettingsError),
    "an unknown entry": ({"card": text_of(speed=9)}, SettingsError),
    "no heads": ({"card": text_of(heads=0)}, ModelError),
    "a fraction of a layer": ({"card": text_of(intermediate=32.5)}, SecFormerError),
    "a vocabulary without end": ({"card": text_of(vocabulary=1 << 60)}, LimitError),
    "positions without end": ({"card": text_of(positions=1 << 60)}, SecFormerError),
}


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_a_card_that_makes_no_upload(name):
    given, kind = BAD_UPLOADS[name]
    with pytest.raises(kind):
        Planner(CATALOGUE).plan(Job("upload", given), None)


def test_a_model_of_too_many_layers_is_not_traced():
    card = EXACT.preset(replace(SMALL, layers=Limits().model_layers + 1))
    with pytest.raises(LimitError, match="larger than servers take"):
        Planner(CATALOGUE).plan(Job("upload", {"card": card.to_json()}), None)


QUERY = {"card": MODEL.digest, "batch": 1, "tokens": 8}
BAD_QUERIES = {
    "no parameters": ({}, InputError, "parameters"),
    "no length": ({"card": MODEL.digest, "batch": 1}, InputError, "tokens"),
    "the card itself": ({**QUERY, "card": CARD.to_json()}, InputError, "parameters"),
    "another card": ({**QUERY, "card": "0" * 64}, InputError, "another card"),
    "a batch of nothing": ({**QUERY, "batch": 0}, InputError, "batch"),
    "a batch of truth": ({**QUERY, "batch": True}, InputError, "batch"),
    "a part of a token": ({**QUERY, "tokens": 8.5}, InputError, "tokens"),
    "more tokens than positions": ({**QUERY, "tokens": 17}, SettingsError, "1 to 16 tokens"),
    "one thing more": ({**QUERY, "layer": 0}, InputError, "layer"),
}


@pytest.mark.parametrize("name", BAD_QUERIES)
def test_a_query_that_makes_no_program(name):
    given, kind, text = BAD_QUERIES[name]
    with pytest.raises(kind, match=text):
        Planner(CATALOGUE).plan(Job("query", given), MODEL)


@pytest.mark.parametrize(("batch", "tokens"), [(4096, 16), (1 << 16, 1)])
def test_a_query_has_a_bounded_size(batch, tokens):
    with pytest.raises(LimitError, match="too many for one query"):
        Planner(CATALOGUE).plan(Job("query", {**QUERY, "batch": batch, "tokens": tokens}), MODEL)


@pytest.mark.parametrize("forms", [{}, {"w": masked((3,))}], ids=["nothing", "something else"])
def test_a_program_over_wires_that_are_not_stored_is_not_traced(forms):
    def builder(given, model):
        return Program("huge", lambda runtime, values: pytest.fail("traced"), {"w": masked((1 << 40,))})

    with pytest.raises(InputError, match="stored model"):
        Planner({"huge": builder}).plan(Job("huge"), stored(forms))
    with pytest.raises(InputError, match="stored model"):
        Planner({"huge": builder}).plan(Job("huge"), None)

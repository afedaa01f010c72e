"""A stored model may be used for what its provider named, and for nothing else, whoever asks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from servers import WEIGHT, X, settings_in, trio, weights

from secformer.engine.program import InputSpec, Program
from secformer.errors import InputError
from secformer.models.config import PRESETS
from secformer.models.job import ModelCard
from secformer.models.presets import preset_calibration
from secformer.parties.catalogue import Planner, default_catalogue
from secformer.parties.messages import Job
from secformer.parties.store import ModelStore, StoredModel

GELU = {"function": "gelu", "low": -10.0, "high": 10.0}
MODEL = "bounded"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with trio(settings_in(tmp_path_factory.mktemp("uses") / "identity")) as running:
        running.provider.upload(MODEL, weights(), {"dense": GELU})
        running.provider.upload("closed", weights(), {})
        yield running


def dense(uses=MODEL, **changes) -> Job:
    return Job("dense", {"rows": 3, **GELU, **changes}, uses=uses)


def test_what_was_allowed_runs_with_free_parameters_of_the_caller(servers):
    for rows in (3, 2):
        result = servers.client.run(dense(rows=rows), {"x": X[:rows]})
        assert (result.outputs["y"] - torch.nn.functional.gelu(X[:rows] @ WEIGHT)).abs().max() < 3e-3


FORBIDDEN = {
    "another program": Job("attention", {"rows": 3}, uses=MODEL),
    "another function": dense(function="tanh"),
    "another window": dense(high=12.0),
    "a parameter left out": Job("dense", {"rows": 3}, uses=MODEL),
    "a model for nobody": dense(uses="closed"),
    "an upload from a model": Job("upload", {"tensors": {"x": {"shape": [3, 16]}}}, uses=MODEL, stores="copy"),
}


@pytest.mark.parametrize("caller", ["client", "provider"])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_nothing_else_runs_on_a_model(servers, name, caller):
    with pytest.raises(InputError, match=r"uploaded for|serves dense with another"):
        getattr(servers, caller).run(FORBIDDEN[name], {"x": X})
    assert all(isinstance(error, InputError) for error in servers.errors().values())


@pytest.mark.parametrize("role", ["server0", "server1", "assistant"])
def test_every_server_refuses_by_itself(servers, role):
    store = servers.servers[role]._models
    assert store.used_by(dense()).origin == store.get(MODEL).origin
    for job in FORBIDDEN.values():
        with pytest.raises(InputError):
            store.used_by(job)


def test_a_second_upload_states_its_uses_anew(servers):
    servers.provider.upload("turning", weights(), {"dense": {}})
    servers.client.run(dense("turning"), {"x": X})
    servers.provider.upload("turning", weights(), {"attention": {}})
    with pytest.raises(InputError, match="was not uploaded for dense"):
        servers.client.run(dense("turning"), {"x": X})


# Whole models: a card is the provider's or none


def small_card(**changes) -> ModelCard:
    config = replace(PRESETS["bert-base"], layers=1, hidden=16, heads=2, intermediate=32, vocabulary=64, positions=16)
    return ModelCard(replace(config, **changes), preset_calibration(config))


CARD = small_card()
STORED = StoredModel(b"session", {}, {"encoder": {"card": CARD.to_json()}})


def query(program="encoder", card=CARD) -> Job:
    return Job(program, {"card": card.to_json(), "batch": 1, "tokens": 8}, uses=MODEL)


def test_an_encoder_answers_its_own_card_only():
    STORED.check_use(query())
    other = small_card(pooling="cls")
    assert other.static_specs() == CARD.static_specs()  # the forms of the weights alone do not tell them apart
    for job in (query(card=other), query("layer"), Job("lookup", {"tokens": 1}, uses=MODEL)):
        with pytest.raises(InputError):
            STORED.check_use(job)


def test_a_calibration_of_the_callers_own_is_another_card():
    data = json.loads(CARD.to_json())
    data["calibration"]["layers"][0]["attention_variance"]["high"] *= 2
    changed = Job("encoder", {**query().parameters, "card": json.dumps(data)}, uses=MODEL)
    with pytest.raises(InputError, match="another card"):
        STORED.check_use(changed)


def test_no_model_needs_no_leave():
    assert ModelStore().used_by(Job("activation", {"shape": [3]})).forms == {}


# What a caller describes must exist, and have a size


def test_a_program_over_wires_that_are_not_stored_is_not_traced():
    def builder(given, stored):
        return Program("huge", lambda runtime, values: pytest.fail("traced"), {"w": InputSpec("masked", (1 << 40,))})

    for stored in ({}, {"w": InputSpec("masked", (3,))}):
        with pytest.raises(InputError, match="stored model"):
            Planner({"huge": builder}).plan(Job("huge"), stored)


@pytest.mark.parametrize("program", ["encoder", "layer"])
@pytest.mark.parametrize(("batch", "tokens"), [(4096, 16), (1 << 16, 1)])
def test_a_query_has_a_bounded_size(program, batch, tokens):
    job = Job(program, {"card": CARD.to_json(), "batch": batch, "tokens": tokens})
    with pytest.raises(InputError, match="too many for one query"):
        Planner(default_catalogue()).plan(job, CARD.static_specs())

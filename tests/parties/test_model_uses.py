"""A stored model is queried by the card it was uploaded with, and by nothing else, whoever asks."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from servers import settings_in, stored, trio
from small_programs import placing

from secformer.engine.sharing import Encoded
from secformer.errors import AccessError, AgreementError, InputError, SettingsError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.query import private_query
from secformer.models.shapes import PRESETS
from secformer.models.system import Card
from secformer.models.tokens import Batch
from secformer.models.weights import Weights, assemble
from secformer.parties.client import Client
from secformer.parties.messages import Job, Placing
from secformer.parties.planner import CATALOGUE, Planner
from secformer.parties.provider import Provider
from secformer.parties.store import card_digest
from secformer.roles import SERVERS
from secformer.systems import card_from_json
from secformer.wires.choices import RELU_BITS, VARIANCE_RATIOS
from secformer.wires.suites import EXACT

MODEL = "bounded"
CONFIG = replace(PRESETS["bert-base"], layers=1, hidden=16, heads=2, intermediate=32, vocabulary=64, positions=16)
ACCURACY = 3e-3

_numbers = torch.Generator().manual_seed(3)


class Small(NamedTuple):
    """A model of one layer with all that belongs to it."""

    config: ModelConfig
    weights: Weights
    card: Card
    folded: dict[str, Encoded]


def batch(sentences: int, length: int) -> Batch:
    """Random tokens, the first sentence with two places of padding."""
    ids = torch.randint(1, CONFIG.vocabulary, (sentences, length), generator=_numbers)
    mask = torch.ones(sentences, length, dtype=torch.bool)
    mask[0, -2:] = False
    return Batch(ids, mask, torch.zeros_like(ids))


def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    spread = torch.randn(*shape, generator=_numbers, dtype=torch.float64)
    return 1 + 0.1 * spread if name.endswith("gain") else 0.3 * spread


def small_model(config: ModelConfig = CONFIG) -> Small:
    weights = assemble(config, tensor)
    calibration = EXACT.calibrate(weights, config, [batch(8, config.positions) for _ in range(4)])
    card = EXACT.card(config, calibration)
    return Small(config, weights, card, card.fold(EXACT.source(weights, calibration)))


@functools.cache
def small() -> Small:
    return small_model()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    catalogues = dict.fromkeys(SERVERS, CATALOGUE)
    with trio(settings_in(tmp_path_factory.mktemp("uses") / "identity"), catalogues=catalogues) as running:
        upload(running, MODEL, small())
        yield running


def upload(servers, name: str, model: Small, role: str = "provider"):
    return Provider(servers.network(role), servers.settings).upload(name, model.card, model.folded, readers=["*"])


def client_of(servers, name: str = MODEL, card: Card | None = None, role: str = "client") -> Client:
    return Client(servers.network(role), servers.settings, name, card or small().card, tokenizer=None)


def query(card: str | Card | None = None, **changes) -> Job:
    text = card if isinstance(card, str) else (card or small().card).to_json()
    return Job("query", {"card": card_digest(text), "batch": 1, "tokens": 8, **changes}, uses=MODEL)


# What is allowed


@pytest.mark.parametrize("role", ["client", "provider"])
def test_its_own_card_is_answered_with_a_batch_and_a_length_of_the_callers(servers, role):
    for given in (batch(1, 16), batch(2, 8)):
        exact = plain.forward(small().weights, CONFIG, given).result
        result = client_of(servers, role=role).predict_batch(given).result
        assert (result - exact).abs().max() < ACCURACY
    for given in (batch(2, 8), batch(3, 5)):  # as they are, not padded on
        exact = plain.forward(small().weights, CONFIG, given).result
        outcome = client_of(servers, role=role).query(given, lambda step: None)
        assert (outcome.outputs["result"] - exact).abs().max() < ACCURACY


# What is not


def other_card(**changes) -> Card:
    """A card under which the stored tensors have the same forms: the forms alone would not tell the two apart."""
    other = replace(small().card, config=replace(CONFIG, **changes))
    assert other.static_forms() == small().card.static_forms() and other != small().card
    return other


def other_pooler() -> Card:
    """Another function, with a constant of its own menu."""
    public = replace(small().card.public, pooler=RELU_BITS[0])
    other = replace(small().card, config=replace(CONFIG, pooler="relu"), public=public)
    assert other.static_forms() == small().card.static_forms()
    return other


def own_calibration() -> str:
    """Another range of the menu."""
    content = json.loads(small().card.to_json())
    norm = content["constants"]["layers"][0]["attention_norm"]
    norm["ratio"] = next(ratio for ratio in VARIANCE_RATIOS if ratio != norm["ratio"])
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert card_from_json(text).to_json() == text
    return text


def other_words() -> str:
    """The same card written with spaces."""
    return json.dumps(json.loads(small().card.to_json()), sort_keys=True)


FORBIDDEN = {
    "another head's names": lambda: query(other_card(labels=("yes", "no"))),
    "another epsilon": lambda: query(other_card(layer_norm_eps=1e-6)),
    "another pooler": lambda: query(other_pooler()),
    "a calibration of the caller's own": lambda: query(own_calibration()),
    "the same card in other words": lambda: query(other_words()),
    "no card": lambda: Job("query", {"batch": 1, "tokens": 8}, uses=MODEL),
    "the card's own text": lambda: Job("query", {**query().parameters, "card": small().card.to_json()}, uses=MODEL),
    "a part of the model": lambda: query(layer=0),
    "one layer": lambda: Job("layer", query().parameters, uses=MODEL),
    "a row of its table": lambda: Job("lookup", {"tokens": 1, "columns": 16, "bits": 16, "scale": 12}, uses=MODEL),
    "a product with a weight": lambda: Job("dense", {"rows": 1}, uses=MODEL),
    "a query to no model": lambda: Job("query", query().parameters),
}


@pytest.mark.parametrize("caller", ["client", "provider"])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_nothing_else_runs_on_a_model(servers, name, caller):
    inputs = private_query(small().card.embedding, batch(1, 8))
    with pytest.raises(InputError):
        getattr(servers, caller).run(FORBIDDEN[name](), inputs)
    assert isinstance(servers.errors(("server0",))["server0"], InputError)


@pytest.mark.parametrize("role", SERVERS)
def test_every_server_refuses_by_itself(servers, role):
    server = servers.servers[role]
    model = server._models.get(MODEL)
    assert model.card == small().card.to_json()
    assert server._planner.plan(query(), model).program.settings == model.card
    for forbidden in FORBIDDEN.values():
        job = forbidden()
        with pytest.raises(InputError):
            server._planner.plan(job, model if job.uses else None)


def test_a_client_that_goes_by_another_card_is_told_so(servers):
    with pytest.raises(InputError, match="another card"):
        client_of(servers, card=other_card(labels=("yes", "no"))).predict_batch(batch(1, 8))


def test_a_query_stores_nothing(servers):
    with pytest.raises(InputError, match="do not name"):
        servers.provider.run(
            replace_job(query(), stores=placing("copy")), private_query(small().card.embedding, batch(1, 8))
        )
    with pytest.raises(InputError, match="no model 'copy' is stored"):
        client_of(servers, "copy").predict_batch(batch(1, 8))


def replace_job(job: Job, stores: Placing) -> Job:
    return Job(job.program, job.parameters, job.uses, stores)


def test_an_upload_reads_nothing_of_a_model_it_names(servers):
    """The new model holds what the provider brought, under masks of its own."""
    other, given = small_model(), batch(1, 8)
    job = Job("upload", {"card": other.card.to_json()}, uses=MODEL, stores=placing("beside"))
    servers.provider.run(job, {name: Encoded(part.form.as_share(), part.ring) for name, part in other.folded.items()})
    exact = plain.forward(other.weights, CONFIG, given).result
    assert (client_of(servers, "beside", other.card).predict_batch(given).result - exact).abs().max() < ACCURACY


# The card is the provider's


def test_only_a_provider_sets_the_card(servers):
    with pytest.raises(AccessError, match="the provider does that"):
        upload(servers, MODEL, small(), role="client")
    given = batch(1, 8)
    exact = plain.forward(small().weights, CONFIG, given).result
    assert (client_of(servers).predict_batch(given).result - exact).abs().max() < ACCURACY


def test_a_second_upload_brings_its_own_card(servers):
    other = small_model(replace(CONFIG, labels=("yes", "no")))
    upload(servers, "turning", small())
    client_of(servers, "turning").predict_batch(batch(1, 8))
    upload(servers, "turning", other)
    with pytest.raises(InputError, match="another card"):
        client_of(servers, "turning").predict_batch(batch(1, 8))
    given = batch(1, 8)
    exact = plain.forward(other.weights, other.config, given).result
    assert (client_of(servers, "turning", other.card).predict_batch(given).result - exact).abs().max() < ACCURACY


def test_weights_that_are_not_the_cards_are_refused(servers):
    missing = {name: encoded for name, encoded in small().folded.items() if name != min(small().folded)}
    with pytest.raises(AgreementError, match="the program takes the inputs"):
        Provider(servers.network("provider"), servers.settings).upload("partial", small().card, missing)
    with pytest.raises(InputError, match="no model 'partial' is stored"):
        client_of(servers, "partial").predict_batch(batch(1, 8))


def test_a_model_without_a_card_is_never_queried():
    with pytest.raises(SettingsError, match="no description of a model"):
        Planner(CATALOGUE).plan(query(""), stored(small().card.static_forms(), ""))


def test_a_card_for_other_tensors_than_the_stored_ones_is_refused():
    card = EXACT.preset(replace(CONFIG, intermediate=64))
    with pytest.raises(InputError, match="stored model"):
        Planner(CATALOGUE).plan(query(card), stored(small().card.static_forms(), card.to_json()))

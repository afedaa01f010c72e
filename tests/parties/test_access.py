"""Who may do what: owners, readers, versions, limits; and that a principal is one certificate at all three servers."""

from __future__ import annotations

import logging
import secrets
import time

import pytest
from checkpoints import TEXTS, build_checkpoint
from secure import load
from servers import MODEL, QUERY, Trio, X, attended, promptly, settings_in, trio, weights
from small_programs import upload_job

from secformer.crypto import keyring
from secformer.crypto.identity import create_identity
from secformer.deployment import Limits
from secformer.errors import (
    AccessError,
    AgreementError,
    IdentityError,
    InputError,
    LimitError,
    MissingModelError,
    TransportError,
)
from secformer.parties import access, planner
from secformer.parties.access import Meter
from secformer.parties.caller import Caller
from secformer.parties.client import Client
from secformer.parties.library import Library, tokenizer_files
from secformer.parties.messages import Job, Placing
from secformer.parties.provider import Provider
from secformer.roles import SERVERS
from secformer.transport.network import MemoryHub
from secformer.transport.tls_network import TlsNetwork

CERTIFICATES = {name: secrets.token_hex(32) for name in ("A", "B", "X", "Y")}


class Place(Trio):
    """Providers A and B, clients X and Y, in memory."""

    def __init__(self, running: Trio, hub: MemoryHub) -> None:
        super().__init__(running.settings, running.servers, lambda role, settings: hub.network(role))
        self._hub = hub

    def party(self, name: str, kind: type[Caller] = Caller) -> Caller:
        role = "provider" if name in "AB" else "client"
        return kind(self._hub.network(role, CERTIFICATES[name]), self.settings)

    def push(self, name: str, model: str = MODEL, *readers: str) -> str:
        placing = Placing(model, secrets.token_hex(16), [CERTIFICATES.get(one, one) for one in readers])
        given = upload_job(weights(), model)
        self.party(name).run(Job(given.program, given.parameters, stores=placing), weights())
        return f"{model}@{placing.upload[:12]}"

    def asks(self, name: str, model: str = MODEL):
        return self.party(name).run(Job(QUERY.program, QUERY.parameters, uses=model), {"x": X})


def place_with(tmp_path, **limits):
    hub = MemoryHub(Limits(**limits))
    settings = settings_in(tmp_path / "identity")
    return hub, trio(settings, networks=lambda role, own: hub.network(role))


@pytest.fixture
def place(tmp_path):
    hub, servers = place_with(tmp_path)
    with servers as running:
        yield Place(running, hub)


# Owners and readers


def test_provider_b_can_neither_overwrite_nor_read_nor_remove_what_is_as(place):
    version = place.push("A", MODEL, "X")
    for attempt in (
        lambda: place.push("B", MODEL, "B"),
        lambda: place.asks("B"),
        lambda: place.party("B", Provider).share(MODEL, own=[CERTIFICATES["B"]]),
        lambda: place.party("B", Provider).remove(MODEL),
        lambda: place.party("B", Library).fetch(MODEL),
    ):
        with promptly(), pytest.raises(AccessError):
            attempt()
    assert place.party("B", Library).models() == []
    assert place.asks("X").model == version
    assert not list(place.settings.data_folder.rglob("staging/*"))


def test_a_client_needs_to_be_listed(place):
    place.push("A", MODEL, "X")
    assert (place.asks("X").outputs["y"] - attended(X)).abs().max() < 5e-3
    with promptly(), pytest.raises(AccessError, match="does not list this certificate"):
        place.asks("Y")
    assert place.asks("A").model  # its owner may, too


def test_nobody_is_listed_unless_said(place):
    place.push("A")
    for name in "XYB":
        with pytest.raises(AccessError):
            place.asks(name)


def test_everybody_is_every_client_and_no_other_provider(place):
    place.push("A", MODEL, "*")
    assert place.asks("X").model and place.asks("Y").model
    with pytest.raises(AccessError):
        place.asks("B")


def test_a_new_version_is_for_those_the_name_is_for(place):
    place.push("A", MODEL, "X")
    assert place.push("A") == place.asks("X").model
    with pytest.raises(AccessError):
        place.asks("Y")
    place.push("A", MODEL, "Y")
    assert place.asks("Y").model
    with pytest.raises(AccessError, match=f"--allow {CERTIFICATES['X']}"):
        place.asks("X")


def test_one_version_is_removed_and_the_others_serve(place):
    first, second = place.push("A", MODEL, "X"), place.push("A")
    owner = place.party("A", Provider)
    owner.remove(second)
    assert place.asks("X").model == first
    with pytest.raises(MissingModelError):
        place.asks("X", second)
    owner.remove(MODEL)
    with pytest.raises(MissingModelError):
        place.asks("X", first)
    assert not list(place.settings.data_folder.rglob(f"models/{MODEL}"))


def test_an_owner_changes_who_may_and_hands_over(place):
    place.push("A")
    owner = place.party("A", Provider)
    owner.share(MODEL, allow=[CERTIFICATES["Y"]])
    assert place.asks("Y").model
    owner.share(MODEL, deny=[CERTIFICATES["Y"]], own=[CERTIFICATES["B"]])
    with pytest.raises(AccessError):
        place.asks("Y")
    with pytest.raises(InputError, match="at least one owner"):
        owner.share(MODEL, disown=list(CERTIFICATES.values()))
    place.party("B", Provider).share(MODEL, disown=[CERTIFICATES["A"]])
    with pytest.raises(AccessError):
        place.push("A")
    assert place.push("B", MODEL, "Y") == place.asks("Y").model
    place.party("B", Provider).remove(MODEL)
    with pytest.raises(MissingModelError):
        place.asks("Y")
    assert place.push("A", MODEL, "X") == place.asks("X").model  # the name is free again


def test_a_beginning_of_a_fingerprint_is_nobody(place):
    with pytest.raises(InputError, match="64 digits"):
        place.push("A", MODEL, "abcdef0123")


@pytest.mark.parametrize("role", SERVERS)
def test_every_server_refuses_by_itself(place, role):
    """Though the others would let it pass."""
    place.push("A", MODEL, "X")
    for other in SERVERS:
        if other != role:
            server = place.servers[other]
            server._admit = lambda visit, server=server: server._models.find(visit.job.uses)  # type: ignore[method-assign]
    with promptly(), pytest.raises(AccessError):
        place.asks("Y")


def test_only_listed_models_are_listed(place):
    first, second = place.push("A", "one", "X"), place.push("B", "two", "X", "Y")
    names = {name: [f"{one.name}@{one.upload[:12]}" for one in place.party(name, Library).models()] for name in "ABXY"}
    assert names == {"A": [first], "B": [second], "X": [first, second], "Y": [second]}
    assert place.party("X", Library).models()[0].readers == []
    assert place.party("A", Library).models()[0].readers == [CERTIFICATES["X"]]


# Versions


def test_a_model_replaced_under_a_clients_feet_is_noticed(place):
    first = place.push("A", MODEL, "X")
    assert place.asks("X", first).model == first
    second = place.push("A", MODEL, "X")
    assert place.asks("X").model == second != first
    assert place.asks("X", first).model == first  # still there for who pinned it
    third = place.push("A", MODEL, "X")
    assert place.asks("X").model == third
    with promptly(), pytest.raises(MissingModelError, match="its newest is"):
        place.asks("X", first)


def test_servers_that_would_answer_with_another_version_get_nothing(place):
    first = place.push("A", MODEL, "X")
    place.push("A", MODEL, "X")
    for role in SERVERS:
        store = place.servers[role]._models
        find = store.find
        store.find = lambda reference, upload=None, find=find: find(MODEL, None)  # type: ignore[method-assign]
    with promptly(), pytest.raises(AgreementError, match="was asked for"):
        place.asks("X", first)


# Limits


def test_a_job_beyond_its_ceiling_is_neither_traced_nor_stored(tmp_path, monkeypatch):
    build_checkpoint(tmp_path / "model", layers=1)
    model = load(tmp_path / "model", tmp_path)
    model.calibrate(TEXTS, few=True)
    hub, servers = MemoryHub(Limits(job_tokens=40)), settings_in(tmp_path / "identity")
    catalogues = dict.fromkeys(SERVERS, planner.CATALOGUE)
    with trio(servers, catalogues=catalogues, networks=lambda role, own: hub.network(role)) as running:
        provider = Provider(hub.network("provider"), running.settings)
        provider.upload(MODEL, model.card, model.folded(), ["*"], tokenizer_files(tmp_path / "model", "bert"))
        client = Client(hub.network("client"), running.settings, MODEL, model.card, model.tokenizer)
        assert client.predict(TEXTS[:2]).outcome.model.startswith(MODEL)
        monkeypatch.setattr(planner, "trace", lambda program: pytest.fail("traced"))
        with promptly(), pytest.raises(LimitError, match="too many for one query"):
            client.predict(TEXTS)
        fetched = Library(hub.network("client"), running.settings).fetch(MODEL)
        assert (
            fetched.card == model.card
            and fetched.tokenizer()("a cat")["input_ids"] == model.tokenizer("a cat")["input_ids"]
        )


def test_queries_a_minute(tmp_path):
    hub, servers = place_with(tmp_path, queries_a_minute=3)
    with servers as running:
        place = Place(running, hub)
        place.push("A", MODEL, "X", "Y")
        for _ in range(3):
            place.asks("X")
        with promptly(), pytest.raises(LimitError, match="sessions within a minute"):
            place.asks("X")
        assert place.asks("Y").model  # another's are another's


def test_bytes_a_minute(tmp_path):
    hub, servers = place_with(tmp_path, bytes_a_minute=200_000)
    with servers as running:
        place = Place(running, hub)
        place.push("A", MODEL, "X")
        with promptly(), pytest.raises(LimitError, match="bytes between the servers"):
            for _ in range(50):
                place.asks("X")


def test_models_of_one_owner(tmp_path):
    hub, servers = place_with(tmp_path, models=2)
    with servers as running:
        place = Place(running, hub)
        for name in ("one", "two", "two"):
            place.push("A", name)
        with promptly(), pytest.raises(LimitError, match="may not own more"):
            place.push("A", "three")
        place.push("B", "three")


def test_calls_at_once_and_the_minute_that_passes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(access, "monotonic", lambda: now[0])
    meter = Meter(Limits(sessions=2, queries_a_minute=1, bytes_a_minute=100))
    meter.enter("X")
    meter.enter("X")
    with pytest.raises(LimitError):
        meter.enter("X")
    meter.leave("X")
    meter.enter("X")
    meter.begin("X")
    with pytest.raises(LimitError, match="again in 60 s"):
        meter.begin("X")
    meter.move("X", 100)
    with pytest.raises(LimitError):
        meter.move("X", 1)
    now[0] = 61.0
    meter.begin("X")
    meter.move("X", 100)
    meter.leave("X")
    meter.leave("X")
    now[0] = 200.0
    meter.begin("Y")
    assert set(meter._begun) == {"Y"} and not meter._moved and not meter._here  # who is gone is forgotten


def test_servers_with_other_limits_do_not_agree(tmp_path):
    hubs = {role: MemoryHub(Limits(sessions=3 if role == "dealer" else 4)) for role in SERVERS}
    shared = MemoryHub()

    def network(role, settings):
        own = shared.network(role)
        own.limits = hubs[role].limits if role in hubs else own.limits
        return own

    with trio(settings_in(tmp_path / "identity"), networks=network) as servers:
        with promptly(), pytest.raises(AgreementError, match="limit sessions"):
            servers.client.run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})


# One certificate at all servers


@pytest.fixture
def secured(tmp_path):
    settings = settings_in(tmp_path / "identity")
    with trio(settings) as servers:
        servers.upload(weights())
        yield servers


class TwoFaced(Caller):
    """Shows S1 another certificate than S0."""

    def _dial(self, role, session, timeout):
        if role == "server1":
            self._network = self.other
        return super()._dial(role, session, timeout)


def test_two_certificates_in_one_session_are_refused(secured, tmp_path):
    folder = secured.settings.identity_folder
    second = create_identity("client", tmp_path / "second")
    keyring.trust(folder, second.certificate_path)
    time.sleep(0.5)  # servers look at their pins four times a second
    client = secured.caller(TwoFaced)
    client.other = TlsNetwork("client", secured.settings, second)
    with promptly(), pytest.raises(TransportError, match=r"transport\.identity.*another certificate"):
        client.run(QUERY, {"x": X})
    assert (secured.client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3


def test_a_revoked_certificate_is_refused_within_a_second_and_its_session_ends(secured, tmp_path):
    second = create_identity("client", tmp_path / "second")
    pinned = keyring.trust(secured.settings.identity_folder, second.certificate_path)
    network = TlsNetwork("client", secured.settings, second)

    class Revoked(Caller):
        def _share(self, links, inputs, ready):
            keyring.distrust(secured.settings.identity_folder, pinned.fingerprint)
            time.sleep(1.0)
            super()._share(links, inputs, ready)

    time.sleep(0.5)
    assert Caller(network, secured.settings).run(QUERY, {"x": X}).model
    with promptly(), pytest.raises(TransportError):
        Revoked(network, secured.settings).run(QUERY, {"x": X})
    with promptly(), pytest.raises(IdentityError):
        Caller(network, secured.settings).run(QUERY, {"x": X})
    assert secured.client.run(QUERY, {"x": X}).model


def test_every_line_of_a_session_names_the_principal(secured, caplog):
    with caplog.at_level(logging.INFO, "secformer.parties.server"):
        secured.client.run(QUERY, {"x": X})
        secured.errors()
    own = TlsNetwork("client", secured.settings)._identity.fingerprint[:16]
    lines = [record.getMessage() for record in caplog.records]
    session = next(line[:10] for line in lines if line.endswith(": called"))
    done = [line for line in lines if " in " in line and line.startswith(session)]
    assert len(done) == 3 and all(own in line for line in done), lines

"""Whatever goes wrong in a session: a typed error at every party within 5 s, and the next session works."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import torch
from servers import (
    MODEL,
    NETWORKS,
    PROMPT,
    QUERY,
    Processes,
    X,
    address_of,
    attended,
    promptly,
    query_works,
    settings_in,
    trio,
    upload,
    weights,
)
from small_programs import CATALOGUE, placing

from secformer.crypto.identity import PinnedPeers, create_identity, load_identity
from secformer.errors import (
    AccessError,
    AgreementError,
    IdentityError,
    InputError,
    MaterialError,
    MissingModelError,
    PeerAbortedError,
    PeerTimeoutError,
    RangeError,
    SecFormerError,
    ShapeError,
    TransportError,
)
from secformer.parties import messages
from secformer.parties.caller import Caller
from secformer.parties.inputs import PACKED, Part, send_encodings, send_part
from secformer.parties.messages import Job
from secformer.parties.serve import make_server
from secformer.roles import COMPUTING, SERVERS
from secformer.transport.channel import FrameType
from secformer.transport.tls import connect
from secformer.transport.tls_network import TlsNetwork


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return tmp_path_factory.mktemp("deployment") / "identity"


@pytest.fixture(scope="module", params=NETWORKS)
def running(request, identities):
    with trio(settings_in(identities), networks=NETWORKS[request.param]()) as servers:
        assert servers.works()
        yield servers


@pytest.fixture
def servers(running):
    """Three servers that still work after the test."""
    yield running
    assert running.works()


@pytest.fixture(params=NETWORKS)
def networks(request):
    return NETWORKS[request.param]()


# Jobs and inputs


BAD_JOBS = {
    "unknown program": (Job("quicksort"), InputError, "unknown program 'quicksort'"),
    "wrong type": (Job("attention", {"rows": "three"}, uses=MODEL), InputError, "rows"),
    "out of bounds": (Job("attention", {"rows": 0}, uses=MODEL), InputError, "rows"),
    "unknown parameter": (Job("attention", {"rows": 3, "speed": 9}, uses=MODEL), InputError, "speed"),
    "missing parameter": (Job("attention", {}, uses=MODEL), InputError, "rows"),
    "too large": (Job("activation", {"shape": [1 << 24, 1 << 24]}), ShapeError, "elements"),
    "no such function": (Job("activation", {"shape": [3], "function": "gamma"}), InputError, "gamma"),
    "no such model": (Job("attention", {"rows": 3}, uses="other"), InputError, "upload"),
    "no model": (Job("attention", {"rows": 3}), InputError, "keys"),
    "a client's upload": (
        Job("upload", {"tensors": {"x": {"shape": [3, 16]}}}, stores=placing("mine")),
        AccessError,
        "provider",
    ),
    "an upload for nothing": (Job("upload", {"tensors": {"x": {"shape": [3, 16]}}}), InputError, "name a model"),
    "a query that stores": (Job("attention", {"rows": 3}, uses=MODEL, stores=placing("x")), AccessError, "provider"),
}


AT_THE_DOOR = ("no such model", "a client's upload", "a query that stores")
"""What S0 refuses by itself, before it troubles the others."""


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job(running, name):
    job, kind, text = BAD_JOBS[name]
    with promptly(), pytest.raises(kind, match=text):
        running.client.run(job, {"x": X})
    told = ("server0",) if name in AT_THE_DOOR else SERVERS
    assert all(isinstance(error, kind) for error in running.errors(told).values())


def test_after_all_bad_jobs(servers):
    """The fixture runs a session."""


BAD_INPUTS = {
    "NaN": (torch.full((3, 16), float("nan")), RangeError),
    "infinity": (torch.full((3, 16), float("inf")), RangeError),
    "out of range": (torch.full((3, 16), 1e14), RangeError),
    "wrong shape": (torch.zeros(4, 16), ShapeError),
    "empty": (torch.zeros(0, 16), ShapeError),
    "complex": (torch.zeros(3, 16, dtype=torch.complex64), InputError),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_a_bad_input(running, name):
    given, kind = BAD_INPUTS[name]
    with promptly(), pytest.raises(kind):
        running.client.run(QUERY, {"x": given})


def test_inputs_with_other_names(servers):
    with pytest.raises(AgreementError, match=r"\['x'\], not \['y'\]"):
        servers.client.run(QUERY, {"y": X})


def test_a_job_that_is_too_long_leaves_nobody_waiting(servers):
    with promptly(), pytest.raises(InputError, match="exceeds the limit"):
        servers.client.run(Job("attention", {"text": "x" * (1 << 20)}), {"x": X})


class Oversized(Caller):
    """Announces more than the program takes."""

    def _share(self, links, inputs, ready):
        part = Part(PACKED, bytes(1 << 20), (1 << 20,), 8)
        for role in COMPUTING:
            send_encodings(links[role], {"x": part})
            send_part(links[role], part)


def test_an_oversized_input(servers):
    with promptly(), pytest.raises(PeerAbortedError, match=r"transport\.frame"):
        servers.caller(Oversized).run(QUERY, {"x": X})


class Malformed(Caller):
    def _begin(self, links, job):
        channel = links.add(self._dial("server0", links.session, 3))
        channel.send(FrameType.CONTROL, b"\x80\x04\x95\x0a")
        return messages.receive(channel, messages.Ready)


def test_a_malformed_record(servers):
    with promptly(), pytest.raises(PeerAbortedError, match="malformed Job"):
        servers.caller(Malformed).run(QUERY, {"x": X})


class TwoJobs(Caller):
    """Tells S1 another story than S0."""

    def _dial(self, role, session, timeout):
        channel = super()._dial(role, session, timeout)
        if role == "server1":
            send = channel.send
            other = messages._encode(Job("attention", {"rows": 4}, uses=MODEL))
            channel.send = lambda kind, payload, *rest: send(kind, other, *rest)  # type: ignore[method-assign]
        return channel


def test_different_jobs_for_the_two_servers(servers):
    with promptly(), pytest.raises(AgreementError):
        servers.caller(TwoJobs).run(QUERY, {"x": X})
    assert all(isinstance(error, AgreementError) for error in servers.errors().values())


# Sessions


class Repeating(Caller):
    def _new_session(self, trio) -> bytes:
        return b"the same session"


def test_a_session_is_taken_once(servers):
    client = servers.caller(Repeating)
    client.run(QUERY, {"x": X})
    with promptly(), pytest.raises(MaterialError, match="new session"):
        client.run(QUERY, {"x": X})


class Vanishing(Caller):
    """Goes away at a certain moment."""

    moment = "_share"

    def _share(self, links, inputs, ready):
        if self.moment == "before the inputs":
            raise KeyboardInterrupt
        super()._share(links, inputs, ready)
        raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["before the inputs", "after them"])
def test_a_client_that_goes_away(servers, moment):
    client = servers.caller(Vanishing)
    client.moment = moment
    with pytest.raises(KeyboardInterrupt):
        client.run(QUERY, {"x": X})
    assert all(isinstance(error, TransportError) for error in servers.errors().values())


class Silent(Caller):
    """Calls S0 and says nothing."""

    def _begin(self, links, job):
        return messages.receive(links.add(self._dial("server0", links.session, 3)), messages.Ready)


class Half(Caller):
    """Never calls S1."""

    def _begin(self, links, job):
        channel = links.add(self._dial("server0", links.session, 3))
        messages.send(channel, job)
        messages.receive(channel, messages.Invitation)
        return messages.receive(channel, messages.Ready)


@pytest.mark.parametrize("kind", [Silent, Half])
def test_a_client_that_does_not_go_on_is_let_go(identities, networks, kind):
    with trio(settings_in(identities, handshake_timeout=1.0), networks=networks) as servers:
        assert servers.works()
        with promptly(), pytest.raises(PeerAbortedError, match=r"transport\.timeout"):
            servers.caller(kind).run(QUERY, {"x": X})
        assert servers.works()


def test_a_server_still_busy_with_a_dead_session_joins_the_next_when_it_can(identities, networks):
    """Planning cannot be interrupted. A caller waits for it at S0, where nobody gives up, and not at S1's door."""
    quick = {**CATALOGUE, "slow": CATALOGUE["activation"]}
    busy, released = threading.Event(), threading.Event()

    def slow(given, model):
        busy.set()
        released.wait(20)
        return quick["activation"](given, model)

    class Brief(Caller):
        """Goes away while S1 plans."""

        def _begin(self, links, job):
            threading.Thread(target=lambda: busy.wait(5) and links.fail(InputError("enough")), daemon=True).start()
            return super()._begin(links, job)

    catalogues = {**dict.fromkeys(SERVERS, quick), "server1": {**quick, "slow": slow}}
    with trio(settings_in(identities, handshake_timeout=1.0), catalogues=catalogues, networks=networks) as servers:
        with promptly(), pytest.raises(InputError, match="enough"):
            servers.caller(Brief).run(Job("slow", {"shape": [3]}), {"x": X[0, :3]})
        threading.Timer(3.0, released.set).start()
        assert servers.works()


def test_clients_at_the_same_time_take_turns(servers):
    results: list = []

    def ask(x):
        with suppress(SecFormerError):
            results.append((servers.client.run(QUERY, {"x": x}).outputs["y"] - attended(x)).abs().max().item())

    threads = [threading.Thread(target=ask, args=(X * factor,)) for factor in (0.25, 0.5, 0.75, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 4 and max(results) < 5e-3


def test_callers_who_wait_for_their_turn_hear_that_a_server_stops(identities, networks):
    with trio(settings_in(identities, lanes=1), networks=networks) as servers:
        outcomes = {}

        def ask(kind, name):
            try:
                outcomes[name] = servers.caller(kind).run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})
            except SecFormerError as error:
                outcomes[name] = error

        waiting = [threading.Thread(target=ask, args=(Half, "served"), daemon=True)]
        waiting += [threading.Thread(target=ask, args=(Caller, number), daemon=True) for number in range(3)]
        for thread in waiting:
            thread.start()
            time.sleep(0.2)
        with promptly():
            servers.servers["server0"].stop()
            for thread in waiting:
                thread.join(PROMPT)
        assert len(outcomes) == len(waiting), outcomes
        assert all(isinstance(outcome, TransportError) for outcome in outcomes.values()), outcomes


# Agreement


def test_a_different_setting_is_named_at_all_servers(identities, networks):
    with trio(settings_in(identities), {"server1": {"network": "lan"}}, networks=networks) as servers:
        with promptly(), pytest.raises(AgreementError, match="setting network"):
            servers.client.run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})
        assert all(isinstance(error, AgreementError) for error in servers.errors().values())


@pytest.mark.parametrize("odd", SERVERS)
def test_a_different_tape_is_noticed_before_anything_is_shared(identities, networks, odd):
    def activation(given, model):
        return CATALOGUE["activation"]({**given, "low": -11.0}, model)

    wider = {**CATALOGUE, "activation": activation}
    with trio(settings_in(identities), catalogues={odd: wider}, networks=networks) as servers:
        with promptly(), pytest.raises(AgreementError, match="tape"):
            servers.client.run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})
        assert all(isinstance(error, AgreementError) for error in servers.errors().values())


def test_a_different_number_of_connections(identities, networks):
    with trio(settings_in(identities), {"server1": {"connections": 1}}, networks=networks) as servers:
        with promptly(), pytest.raises(AgreementError, match="connections"):
            servers.client.run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})


def test_a_server_that_restarts_has_its_models(identities, networks):
    """One of three restarts between upload and query: nothing has to be uploaded again."""
    settings = settings_in(identities)
    with trio(settings, networks=networks) as servers:
        assert servers.works()
        for role in SERVERS:
            servers.servers[role].stop()
            with make_server(role, servers.network(role), settings, CATALOGUE):
                assert query_works(servers.client)
            servers.servers[role] = make_server(role, servers.network(role), settings, CATALOGUE).start()
        assert query_works(servers.client)
        for server in servers.servers.values():
            server.stop()


@pytest.mark.parametrize("loser", SERVERS)
def test_a_server_that_lost_its_disk_says_which_model_it_lacks(identities, networks, loser):
    settings = settings_in(identities)
    with trio(settings, networks=networks) as servers:
        assert servers.works()
        servers.servers[loser].stop()
        shutil.rmtree(settings.data_folder / loser)
        with make_server(loser, servers.network(loser), settings, CATALOGUE):
            with promptly(), pytest.raises(MissingModelError, match="upload"):
                servers.client.run(QUERY, {"x": X})
            assert servers.works()


def test_a_version_that_one_server_lacks_is_not_used(identities, networks):
    """S1 kept an older upload than the others: their masks do not belong together. The older one still serves."""
    with trio(settings_in(identities), networks=networks) as servers:
        servers.upload(weights())
        older = servers.servers["server1"]._models.newest(MODEL)
        servers.upload(weights())
        servers.servers["server1"]._models._kept[MODEL].pop()
        with promptly(), pytest.raises(MissingModelError, match="server1 has no version"):
            servers.client.run(QUERY, {"x": X})
        pinned = Job(QUERY.program, QUERY.parameters, uses=older.reference)
        assert servers.client.run(pinned, {"x": X}).model == older.reference


# Strangers at the door of each server


@pytest.fixture(scope="module")
def open_to_strangers(identities):
    with trio(settings_in(identities)) as servers:
        yield servers


@pytest.fixture
def reachable(open_to_strangers):
    """Three servers at real addresses that still work after the test."""
    yield open_to_strangers
    assert open_to_strangers.works()


def _call(servers, identity, role, address=None):
    """Dial the server in that role, at its own address or another's."""
    pinned = PinnedPeers.load_folder(servers.settings.identity_folder)
    return connect(identity, pinned, role, address or address_of(servers.settings, role), os.urandom(16), 1, timeout=3)


@pytest.mark.parametrize("role", SERVERS)
def test_a_stranger_is_refused(reachable, role, tmp_path):
    stranger = create_identity("client", tmp_path)
    with promptly(), pytest.raises(IdentityError):
        _call(reachable, stranger, role)


@pytest.mark.parametrize("role", SERVERS)
def test_an_expired_certificate_is_refused(reachable, role, tmp_path):
    expired = create_identity("client", tmp_path, valid_days=1, valid_from=datetime.now(UTC) - timedelta(days=3))
    with promptly(), pytest.raises(IdentityError):
        _call(reachable, expired, role)


@pytest.mark.parametrize(("caller", "role"), [("client", "dealer"), ("provider", "dealer"), ("server1", "server0")])
def test_a_role_that_has_no_business_here(reachable, caller, role):
    identity = load_identity(caller, reachable.settings.identity_folder)
    with promptly(), pytest.raises((IdentityError, AgreementError)):
        _call(reachable, identity, role)


@pytest.mark.parametrize("role", SERVERS)
def test_a_server_in_the_wrong_place(reachable, role):
    """A caller that finds another role's certificate at the address says nothing to it."""
    other = "server1" if role != "server1" else "server0"
    with promptly(), pytest.raises(IdentityError):
        _call(
            reachable,
            load_identity("client", reachable.settings.identity_folder),
            other,
            address_of(reachable.settings, role),
        )


@pytest.mark.parametrize("role", SERVERS)
def test_tls_1_2_is_refused(reachable, role):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        promptly(),
        socket.create_connection(address_of(reachable.settings, role)) as raw,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(raw).recv(1)


@pytest.mark.parametrize("role", SERVERS)
def test_plaintext_is_refused(reachable, role):
    with promptly(), socket.create_connection(address_of(reachable.settings, role)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        raw.settimeout(4)
        with suppress(ConnectionResetError):
            while raw.recv(4096):
                pass


@pytest.mark.parametrize("role", SERVERS)
def test_a_caller_that_only_waits_holds_nobody_up(reachable, role):
    silent = socket.create_connection(address_of(reachable.settings, role))
    with promptly(), silent:
        reachable.client.run(QUERY, {"x": X})


# Servers that die


@pytest.fixture(scope="module")
def processes(tmp_path_factory, identities):
    running = Processes(settings_in(identities), tmp_path_factory.mktemp("logs"))
    yield running
    running.close()


def _all_sessions_ended(processes, role, patience=5.0) -> bool:
    """Whether the server's log has an end for every session that it was called to."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        lines = processes.lines(role)
        begun = [line[:10] for line in lines if line.endswith(": called")]
        ended = [line[:10] for line in lines if not line.endswith(": called") and line.startswith("[")]
        if len(begun) == len(ended):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("victim", SERVERS)
@pytest.mark.parametrize("frames", [1, 4, 8, 13, 18, 24])
def test_a_server_killed_at_any_frame(processes, victim, frames):
    """The dead server takes two sessions to die in: the upload has too few frames for the later moments."""
    processes.start(victim, frames)
    with promptly(), pytest.raises((TransportError, InputError)) as caught:
        upload(processes.provider, weights())
        processes.client.run(QUERY, {"x": X})
    assert isinstance(caught.value, TransportError), caught.value
    assert processes.died(victim)
    survivors = [role for role in SERVERS if role != victim]
    assert all(_all_sessions_ended(processes, role) for role in survivors)
    failures = [line for role in survivors for line in processes.lines(role) if "failed" in line]
    assert all("[transport." in line for line in failures)
    assert not [line for line in failures if "[internal]" in line]
    processes.start(victim)
    assert processes.works()


@pytest.mark.parametrize("victim", SERVERS)
def test_a_server_that_is_not_there(processes, victim):
    processes.kill(victim)
    settings = replace(processes.settings, connect_timeout=1.0)
    impatient = Caller(TlsNetwork("client", settings), settings)
    with promptly(), pytest.raises((PeerTimeoutError, PeerAbortedError)):
        impatient.run(Job("activation", {"shape": [3]}), {"x": X[0, :3]})
    processes.start(victim)
    assert processes.works()


def test_pinned_peers_of_the_deployment(identities):
    assert PinnedPeers.load_folder(identities).roles >= {"client", "provider", *SERVERS}

"""Crowds at the door, with and without a certificate, while an honest client is served; and everything comes back.

In `make test` the crowds are small, and one of each kind; `make soak` brings 1,000 silent and 100 dripping connections
and 10^5 frames.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack

import pytest
from attackers import Attacker, Watch
from servers import MODEL, QUERY, X, address_of, attended, query_works, settings_in, trio, upload, weights
from small_programs import on_python_path

from secformer.crypto import keyring
from secformer.crypto.identity import PinnedPeers, create_identity
from secformer.deployment import read_deployment
from secformer.errors import LimitError, PeerTimeoutError, SecFormerError, TransportError
from secformer.parties import messages
from secformer.parties.caller import Caller
from secformer.parties.launch import launch
from secformer.roles import SERVERS
from secformer.settings import Settings
from secformer.transport import greetings, listener
from secformer.transport.greetings import Greetings

SOAK = bool(os.environ.get("SECFORMER_SOAK"))
SILENT, DRIPPING, FRAMES, QUERIES = (1000, 100, 100_000, 50) if SOAK else (150, 15, 300, 5)
MORE_MEMORY = 64 << 20
LONG_UNKNOWN, LONG_KNOWN = (pytest.param(name, marks=pytest.mark.long) for name in ("unknown", "known"))


@pytest.fixture(scope="module")
def servers():
    with on_python_path(), launch(Settings(threads=1), module="small_programs") as running:
        upload(Caller(running.network("provider"), running.settings), weights())
        assert query_works(Caller(running.network("client"), running.settings))
        yield running


@pytest.fixture(scope="module")
def known(servers, tmp_path_factory):
    """An attacker whose certificate is pinned as a client's."""
    identity = create_identity("client", tmp_path_factory.mktemp("attacker"))
    keyring.trust(servers.settings.identity_folder, identity.certificate_path)
    time.sleep(0.5)
    return identity, PinnedPeers.load_folder(servers.settings.identity_folder)


def doors(servers):
    """Every address at which a server listens."""
    places = read_deployment(servers.settings.deployment).places
    return [(role, door, address) for role, place in places.items() for door, address in place.doors.items()]


def served(servers, count: int) -> float:
    """The honest client, so many times; gives the longest wait."""
    client, slowest = Caller(servers.network("client"), servers.settings), 0.0
    for _ in range(count):
        started = time.monotonic()
        assert (client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3
        slowest = max(slowest, time.monotonic() - started)
    return slowest


def watches(servers):
    return {role: Watch(servers._processes[role]._process.pid) for role in SERVERS}


def unharmed(servers, before) -> None:
    """Descriptors and memory come back, and a query works."""
    served(servers, 2)
    for role, watch in watches(servers).items():
        assert watch.settled(before[role][0] + 4), (role, watch.descriptors, before[role])
        assert watch.memory < before[role][1] + MORE_MEMORY, role


@pytest.fixture
def before(servers):
    served(servers, 2)
    return {role: (watch.descriptors, watch.memory) for role, watch in watches(servers).items()}


def attackers(stack: ExitStack, servers, certificate, source="127.0.0.9") -> list[Attacker]:
    """One at every door that such a party would find."""
    found = []
    for role, door, address in doors(servers):
        if certificate is None or door == "callers":
            attacker = Attacker(address, source, *(certificate or (None, None)))
            attacker.expected = role
            stack.callback(attacker.close)
            found.append(attacker)
    return found


def with_silent_crowd(servers, certificate, source="127.0.0.9") -> None:
    with ExitStack() as stack:
        for attacker in attackers(stack, servers, certificate, source):
            threading.Thread(target=attacker.hold, args=(SILENT,), daemon=True).start()
        time.sleep(1.0)
        served(servers, QUERIES)


def with_dripping_crowd(servers, certificate) -> None:
    with ExitStack() as stack:
        for attacker in attackers(stack, servers, certificate):
            attacker.drip(DRIPPING)
        time.sleep(1.0)
        served(servers, QUERIES)


def with_babbling_crowd(servers, certificate) -> None:
    with ExitStack() as stack:
        threads = []
        for attacker in attackers(stack, servers, certificate):
            threads.append(threading.Thread(target=attacker.babble, args=(FRAMES // 4,), daemon=True))
            threads[-1].start()
        while any(thread.is_alive() for thread in threads):
            served(servers, 1)


@pytest.mark.parametrize("certificate", ["unknown", LONG_KNOWN])
def test_a_silent_crowd(servers, known, before, certificate):
    with_silent_crowd(servers, known if certificate == "known" else None)
    unharmed(servers, before)


@pytest.mark.long
def test_a_silent_crowd_at_the_clients_own_address(servers, before):
    with_silent_crowd(servers, None, "127.0.0.1")
    unharmed(servers, before)


@pytest.mark.parametrize("certificate", [LONG_UNKNOWN, "known"])
def test_a_dripping_crowd(servers, known, before, certificate):
    with_dripping_crowd(servers, known if certificate == "known" else None)
    unharmed(servers, before)


@pytest.mark.parametrize("certificate", [LONG_UNKNOWN, "known"])
def test_a_babbling_crowd(servers, known, before, certificate):
    with_babbling_crowd(servers, known if certificate == "known" else None)
    unharmed(servers, before)
    assert all("Traceback" not in servers.log(role) for role in SERVERS)


# Inside


class Mute(Caller):
    """Calls S0 and says nothing, though it is there."""

    def _begin(self, links, job):
        return messages.receive(links.add(self._dial("server0", links.session, 3)), messages.Ready)


class Dribbler(Caller):
    """Is asked for its inputs, and says every second that it is there, but nothing else."""

    def _share(self, links, inputs, ready):
        messages.receive(links["server0"], messages.Step)


def test_who_calls_and_says_nothing_keeps_nobody_waiting(tmp_path):
    with trio(settings_in(tmp_path / "identity")) as running:
        assert running.works()
        silent = [threading.Thread(target=_fails, args=(running.caller(Mute),), daemon=True) for _ in range(5)]
        for thread in silent:
            thread.start()
        time.sleep(0.5)
        started = time.monotonic()
        assert query_works(running.client)
        assert time.monotonic() - started < 3
        for thread in silent:
            thread.join(10)
            assert not thread.is_alive()


def _fails(caller: Caller) -> None:
    with pytest.raises(TransportError):
        caller.run(QUERY, {"x": X})


def test_inputs_that_do_not_come_end_the_session_by_an_absolute_time_and_nothing_is_dealt(tmp_path):
    with trio(settings_in(tmp_path / "identity", caller_timeout=1.5)) as running:
        assert running.works()
        dealt = running.servers["dealer"]
        dealing = []
        dealt_run = dealt._deal

        def deal(links, *others):
            try:
                return dealt_run(links, *others)
            finally:
                dealing.append(links["server1"].counters.payload_sent)

        dealt._deal = deal  # type: ignore[method-assign]
        started = time.monotonic()
        with pytest.raises(TransportError, match=r"transport\.timeout"):
            running.caller(Dribbler).run(QUERY, {"x": X})
        assert time.monotonic() - started < 6
        running.errors()
        assert dealing and dealing[-1] < 2000  # records and a seed, no material
        assert running.works()


def test_a_session_has_an_end_whatever_its_parties_do(tmp_path):
    with trio(settings_in(tmp_path / "identity", session_timeout=1.0)) as running:
        running.upload(weights())
        with pytest.raises((PeerTimeoutError, TransportError), match="too long"):
            running.caller(Dribbler).run(QUERY, {"x": X})


def test_calls_at_once_of_one_certificate(tmp_path, monkeypatch):
    settings = settings_in(tmp_path / "identity")
    text = settings.deployment.read_text().replace("# sessions = 32", "sessions = 2")
    settings.deployment.write_text(text)
    with trio(settings) as running:
        held = [running.caller(Mute)._dial("server0", os.urandom(16), 3) for _ in range(2)]
        time.sleep(0.3)
        with pytest.raises(LimitError, match="calls with this certificate"):
            running.client.run(QUERY, {"x": X})
        for channel in held:
            channel.close()
        time.sleep(0.5)
        assert running.works()


def test_greetings_are_bounded_by_address_and_in_all():
    import socket

    pairs = [socket.socketpair() for _ in range(9)]
    current = Greetings(in_all=6, of_one=3)
    for number, (raw, _) in enumerate(pairs[:4]):
        current.begin(raw, "a")
        assert len(current._current) == min(number + 1, 3)
    assert pairs[0][1].recv(1) == b""  # the one that dawdled longest was hung up on
    proven = current._current[0]
    current.prove(proven, "certificate")
    for raw, _ in pairs[4:8]:
        current.begin(raw, "b")
    assert len(current._current) == 6 and proven in current._current
    for greeting in list(current._current):
        current.end(greeting)
    assert current._current == []
    for pair in pairs:
        for end in pair:
            end.close()
    assert greetings.OF_ONE * 2 <= greetings.IN_ALL


def test_no_descriptor_left_is_no_reason_to_spin(tmp_path, monkeypatch):
    """At the limit the listener waits a little, says so, and goes on when there is room."""
    calls = []
    breath = listener.sleep
    monkeypatch.setattr(listener, "sleep", lambda seconds: (calls.append(seconds), breath(seconds)))
    with trio(settings_in(tmp_path / "identity")) as running:
        real = running.servers["server0"]._listening._doors["callers"]
        full = threading.Event()
        full.set()

        class Full:
            def __init__(self, raw):
                self._raw = raw

            def accept(self):
                if full.is_set():
                    raise OSError(24, "Too many open files")
                return self._raw.accept()

            def __getattr__(self, name):
                return getattr(self._raw, name)

        address = address_of(running.settings, "server0")
        real._server = Full(real._server)
        with ExitStack() as stack:
            attacker = Attacker(address)
            stack.callback(attacker.close)
            attacker.hold(1)  # the accept that was waiting
            time.sleep(1.0)
            assert 3 < len(calls) < 20
            full.clear()
            assert running.works()


def test_memory_of_a_model_is_given_back(servers):
    """Uploads of the same name do not add up."""
    provider = Caller(servers.network("provider"), servers.settings)
    for _ in range(3):
        upload(provider, weights(), MODEL)
    before = {role: watch.memory for role, watch in watches(servers).items()}
    for _ in range(20 if SOAK else 5):
        upload(provider, weights(), MODEL)
        served(servers, 1)
    for role, watch in watches(servers).items():
        assert watch.memory < 1.3 * before[role] + (8 << 20), role


def test_errors_stay_typed(servers):
    with pytest.raises(SecFormerError):
        Caller(servers.network("client"), servers.settings).run(messages.Job("nothing"), {})

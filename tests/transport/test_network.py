"""What every network promises, over TLS and within one process: whom it lets in, and that nobody waits for ever."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from servers import MODEL, NETWORKS, PROMPT, QUERY, X, attended, promptly, settings_in, trio, upload, weights
from small_programs import CATALOGUE
from talking import both

from secformer.deployment import read_deployment
from secformer.errors import ConnectionLostError, IdentityError, PeerAbortedError, PeerTimeoutError
from secformer.parties.caller import Caller
from secformer.parties.computing_server import ComputingServer
from secformer.parties.dealing_server import DealingServer
from secformer.parties.launch import in_memory
from secformer.roles import CALLERS, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions, FrameType
from secformer.transport.network import Listening, MemoryHub
from secformer.transport.tls_network import TlsNetwork

SESSIONS = [bytes([number]) * 16 for number in range(3)]
OPTIONS = ChannelOptions(timeout=PROMPT)


class Place:
    """Networks by role; every call takes the time it may take, and every channel is closed in the end."""

    def __init__(self, networks, settings: Settings) -> None:
        self.settings = settings
        self._networks = networks
        self._channels: list[Channel] = []

    def network(self, role: str):
        return self._networks(role, self.settings)

    def listen(self, *roles: str):
        """As server0."""
        return closing(self.network("server0").listen(roles))

    def dial(
        self, role: str, session: bytes = SESSIONS[0], timeout: float = PROMPT, options: ChannelOptions = OPTIONS
    ) -> Channel:
        return self._kept(self.network(role).connect("server0", session, timeout=timeout, options=options))

    def accept(
        self,
        listening: Listening,
        role: str,
        session: bytes | None = SESSIONS[0],
        timeout: float | None = PROMPT,
        options: ChannelOptions = OPTIONS,
    ) -> Channel:
        return self._kept(listening.accept(role, session, timeout=timeout, options=options))

    def joined(self, listening: Listening, session: bytes | None = SESSIONS[0]) -> tuple[Channel, Channel]:
        """server0's end of a client's call, and the client's."""
        ends = both(lambda: self.accept(listening, "client", session), lambda: self.dial("client"))
        for end in ends:
            assert isinstance(end, Channel), end
        return ends

    def _kept(self, channel: Channel) -> Channel:
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return tmp_path_factory.mktemp("deployment") / "identity"


@pytest.fixture(params=NETWORKS)
def place(request, identities):
    with closing(Place(NETWORKS[request.param](), settings_in(identities, handshake_timeout=2.0))) as found:
        yield found


# Calls


def test_a_network_belongs_to_one_party(place):
    assert place.network("dealer").role == "dealer"


def test_both_sides_hear_each_other(place):
    with place.listen("client") as listening:
        called, calling = place.joined(listening)
        assert (called.peer, calling.peer) == ("client", "server0")
        assert called.session == calling.session == SESSIONS[0]
        called.send(FrameType.CONTROL, b"to the caller")
        calling.send(FrameType.CONTROL, b"to the called")
        assert bytes(calling.receive(FrameType.CONTROL).tolist()) == b"to the caller"
        assert bytes(called.receive(FrameType.CONTROL).tolist()) == b"to the called"
        got = both(lambda: called.exchange(b"01"), lambda: calling.exchange(b"10"))
        assert [part.tolist() for part in got] == [list(b"10"), list(b"01")]
        calling.close()
        with pytest.raises(ConnectionLostError):
            called.receive(FrameType.CONTROL)


def test_callers_are_told_apart_by_role_and_session(place):
    asked = [("client", SESSIONS[0]), ("client", SESSIONS[1]), ("provider", SESSIONS[0])]
    dialled: dict[tuple[str, bytes], Channel] = {}

    def dial(role, session):
        dialled[role, session] = place.dial(role, session)

    with place.listen("client", "provider") as listening:
        threads = [threading.Thread(target=dial, args=caller) for caller in asked]
        for thread in threads:
            thread.start()
        for role, session in reversed(asked):
            called = place.accept(listening, role, session)
            assert (called.peer, called.session) == (role, session)
            called.send(FrameType.CONTROL, role.encode() + session)
        for thread in threads:
            thread.join(PROMPT)
        for role, session in asked:
            with dialled[role, session] as calling:
                assert bytes(calling.receive(FrameType.CONTROL).tolist()) == role.encode() + session


def test_the_called_side_may_learn_the_session_from_the_caller(place):
    with place.listen("client") as listening:
        called, calling = place.joined(listening, session=None)
        assert called.session == calling.session == SESSIONS[0]


def test_a_caller_of_another_session_is_left_waiting(place):
    with place.listen("client") as listening:
        ends = both(lambda: place.accept(listening, "client", SESSIONS[1], 0.3), lambda: place.joined(listening))
        assert isinstance(ends[0], PeerTimeoutError)
        assert [end.peer for end in ends[1]] == ["client", "server0"]


def test_each_side_keeps_its_own_patience(place):
    with place.listen("client") as listening:
        ends = both(
            lambda: place.accept(listening, "client", options=ChannelOptions(timeout=7.0)),
            lambda: place.dial("client", options=ChannelOptions(timeout=None)),
        )
        assert [end.timeout for end in ends] == [7.0, None]


def test_parties_in_other_roles_are_refused_and_disturb_nobody(place):
    with place.listen("client", "provider") as listening:
        waiting = threading.Timer(0.5, place.dial, ("client",))
        waiting.start()
        with promptly():
            ends = both(lambda: place.accept(listening, "client"), lambda: place.dial("server1"))
        assert isinstance(ends[0], Channel)
        assert isinstance(ends[1], IdentityError) and "server1 called server0" in str(ends[1])
        waiting.join()


# Waiting


def test_nobody_calls(place):
    with place.listen("client") as listening, pytest.raises(PeerTimeoutError, match="client did not call server0"):
        place.accept(listening, "client", timeout=0.2)


def test_nobody_listens(place):
    started = time.monotonic()
    with promptly(), pytest.raises(PeerTimeoutError, match="server0 cannot be reached"):
        place.dial("client", timeout=0.3)
    assert time.monotonic() - started > 0.2


def test_a_caller_waits_for_a_party_that_starts_later(place):
    def listen_later():
        time.sleep(0.3)
        with place.listen("client") as listening:
            return place.accept(listening, "client")

    ends = both(listen_later, lambda: place.dial("client"))
    assert [getattr(end, "peer", end) for end in ends] == ["client", "server0"]


@pytest.mark.parametrize("timeout", [PROMPT, None])
def test_closing_wakes_who_accepts(place, timeout):
    with place.listen("client") as listening:
        threading.Timer(0.2, listening.close).start()
        with promptly(), pytest.raises(ConnectionLostError, match="server0 no longer listens"):
            place.accept(listening, "client", timeout=timeout)


def test_closing_tells_callers_who_wait(place):
    """Over TLS they wait to be accepted; in memory, for the first word."""
    with place.listen("client") as listening:
        threading.Timer(0.5, listening.close).start()
        with promptly(), pytest.raises(PeerAbortedError, match="server0 no longer listens"):
            place.dial("client").receive(FrameType.CONTROL)


def test_channels_outlive_the_door(place):
    with place.listen("client") as listening:
        called, calling = place.joined(listening)
    called.send(FrameType.CONTROL, b"still here")
    assert bytes(calling.receive(FrameType.CONTROL).tolist()) == b"still here"
    with pytest.raises(PeerTimeoutError):
        place.dial("client", SESSIONS[1], timeout=0.2)


def test_a_party_may_come_back(place):
    for session in SESSIONS:
        with place.listen("client") as listening:
            ends = both(
                lambda listening=listening, session=session: place.accept(listening, "client", session),
                lambda session=session: place.dial("client", session),
            )
            assert [end.session for end in ends] == [session, session]


def test_many_roles_accept_at_once(place):
    found: dict[str, Channel] = {}
    with place.listen(*CALLERS) as listening:

        def welcome(role):
            found[role] = place.accept(listening, role, None)

        threads = [threading.Thread(target=welcome, args=(role,)) for role in CALLERS]
        for thread in threads:
            thread.start()
        for role, session in zip(CALLERS, SESSIONS, strict=False):
            place.dial(role, session)
        for thread in threads:
            thread.join(PROMPT)
    assert [found[role].session for role in CALLERS] == SESSIONS[: len(CALLERS)]


# Of one kind


def test_parties_of_another_hub_are_not_there():
    with closing(MemoryHub().network("server0").listen(("client",))), pytest.raises(PeerTimeoutError):
        MemoryHub().network("client").connect("server0", SESSIONS[0], timeout=0.1, options=OPTIONS)


def test_in_memory_a_restarted_party_takes_the_place_of_the_old_one():
    hub = MemoryHub()
    old, new = (hub.network("server0").listen(("client",)) for _ in range(2))
    with pytest.raises(ConnectionLostError, match="no longer listens"):
        old.accept("client", None, timeout=1, options=OPTIONS)
    old.close()
    calling = hub.network("client").connect("server0", SESSIONS[0], timeout=1, options=OPTIONS)
    assert new.accept("client", None, timeout=1, options=OPTIONS).session == calling.session


def test_over_tls_addresses_are_those_of_the_deployment(identities):
    settings = settings_in(identities)
    places = read_deployment(settings.deployment).places
    for role in SERVERS:
        guests = [guest for door in places[role].doors for guest in (CALLERS if door == "callers" else ("server0",))]
        with closing(TlsNetwork(role, settings).listen(guests)) as listening:
            assert listening.address == ", ".join(map(str, places[role].doors.values()))


def test_a_server_may_listen_elsewhere_than_it_is_called(identities):
    settings = settings_in(identities)
    settings = replace(settings, listen_callers="127.0.0.2:0")
    with closing(TlsNetwork("server0", settings).listen(CALLERS)) as listening:
        assert listening.address.startswith("127.0.0.2:")


def test_over_tls_servers_use_more_connections_than_callers(identities):
    settings = settings_in(identities, connections=3)
    assert TlsNetwork("server0", settings).connections("server1") == 3
    assert TlsNetwork("dealer", settings).connections("server1") == 3
    assert TlsNetwork("server0", settings).connections("client") == 1
    assert TlsNetwork("provider", settings).connections("server0") == 1


@pytest.mark.parametrize("network", ["none", "lan"])
def test_over_tls_both_ends_imitate_the_line_of_the_settings(identities, network):
    with closing(Place(TlsNetwork, settings_in(identities, network=network))) as place:
        with place.listen("client") as listening:
            ends = place.joined(listening)
            assert [end.line is not None for end in ends] == [network != "none"] * 2


# Servers


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_same_servers_run_over_either(identities, kind):
    with trio(settings_in(identities), networks=NETWORKS[kind]()) as servers:
        assert {role: type(server) for role, server in servers.servers.items()} == {
            "dealer": DealingServer,
            "server0": ComputingServer,
            "server1": ComputingServer,
        }
        assert servers.works()
        result = servers.client.run(QUERY, {"x": X})
        assert (result.rounds, result.online_bytes) == (result.declared.rounds, result.declared.online_bytes)


def test_servers_in_memory_live_as_long_as_their_block():
    with in_memory(Settings(threads=1, connect_timeout=0.2), CATALOGUE) as servers:
        provider, client = (Caller(servers.network(role), servers.settings) for role in ("provider", "client"))
        upload(provider, weights(), MODEL)
        assert (client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3
    with promptly(), pytest.raises(PeerTimeoutError, match="server0 cannot be reached in this process"):
        client.run(QUERY, {"x": X})


def test_servers_in_memory_take_a_client_for_no_server():
    with in_memory(Settings(threads=1), CATALOGUE) as servers:
        for role in ("client", "provider"):
            with pytest.raises(IdentityError, match=f"{role} called dealer"):
                Caller(servers.network(role), servers.settings)._dial("dealer", SESSIONS[0], 1)

"""Sessions at once: whose turn it is, what a full server says, who frees a lane, and several servers of one role."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from servers import MODEL, QUERY, Trio, X, attended, in_one_process, promptly, query_works, settings_in, trio, weights
from small_programs import CATALOGUE, upload_job

from secformer.errors import AgreementError, BusyError, PeerTimeoutError, SecFormerError, SettingsError
from secformer.parties import messages
from secformer.parties.caller import Caller
from secformer.parties.messages import Job
from secformer.parties.serve import make_server
from secformer.parties.turns import Turns
from secformer.roles import CLIENT, PROVIDER, SERVERS
from secformer.transport.network import MemoryHub, trio_of
from secformer.transport.tls_network import TlsNetwork

# Turns


def served(turns: Turns, count: int) -> list:
    return [turns.take()[0] for _ in range(count)]


def test_the_principal_with_the_fewest_sessions_comes_next_then_the_one_served_longest_ago():
    turns: Turns = Turns(2, 64, lambda guest: False)
    for number in range(4):
        turns.add(f"many-{number}", "many")
    for name in ("few", "other"):
        turns.add(name, name)
    assert served(turns, 3) == ["many-0", "few", "other"]
    turns.leave("few", False, 1.0)
    turns.add("few-again", "few")
    turns.add("new", "new")
    assert served(turns, 3) == ["new", "few-again", "many-1"]


def test_one_who_brings_many_gets_the_same_share_as_one_who_comes_again_each_time():
    turns: Turns = Turns(1, 64, lambda guest: False)
    for _ in range(20):
        turns.add("many", "many")
    turns.add("one", "one")
    got = []
    for _ in range(10):
        got += served(turns, 1)
        turns.leave(got[-1], False, 1.0)
        if got[-1] == "one":
            turns.add("one", "one")
    assert got.count("one") == got.count("many") == 5


def test_what_changes_the_store_runs_alone_and_holds_up_nobody_else():
    turns: Turns = Turns(3, 64, lambda guest: False)
    for name in ("first", "second"):
        turns.add(name, name, alone=True)
    turns.add("query", "third")
    assert served(turns, 2) == ["first", "query"]
    turns.leave("first", True, 1.0)
    assert served(turns, 1) == ["second"]


def test_a_full_queue_says_when_to_come_again_and_who_hung_up_leaves_a_seat():
    gone = set()
    turns: Turns = Turns(2, 3, lambda guest: guest in gone)
    for number in range(5):
        turns.check_room()
        turns.add(number, "a")
    served(turns, 2)
    for _ in range(40):
        turns.leave("b", False, 8.0)  # sessions take eight seconds here
    with pytest.raises(BusyError, match="3 callers wait already") as error:
        turns.check_room()
    assert error.value.retry_after == 12
    gone.add(3)
    assert turns.purge() == [3] and turns.purge() == []
    turns.check_room()
    with pytest.raises(BusyError):
        turns.check_room(coming=1)
    assert turns.close() == [2, 4] and turns.take() is None


# Lanes


class Dribbler(Caller):
    """Is asked for its inputs, and says that it is there, but nothing else."""

    def _share(self, links, inputs, ready):
        self.links = links
        messages.receive(links["server0"], messages.Step)


@contextmanager
def occupied(running: Trio, count: int = 1):
    """So many lanes are taken by callers that do not go on; gives those callers."""
    callers = [running.caller(Dribbler) for _ in range(count)]
    threads = [threading.Thread(target=_ask, args=(caller,), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    until(lambda: all(hasattr(caller, "links") for caller in callers))
    try:
        yield callers
    finally:
        for caller, thread in zip(callers, threads, strict=True):
            caller.links.fail(PeerTimeoutError("enough"))
            thread.join(5)


def _ask(caller: Caller) -> None:
    with suppress(SecFormerError):
        caller.run(QUERY, {"x": X})


def until(holds, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return tmp_path_factory.mktemp("deployment") / "identity"


@pytest.fixture(scope="module")
def servers(identities):
    """Two lanes, and one caller may wait."""
    with trio(settings_in(identities, lanes=2, queue=1), networks=in_one_process()) as running:
        running.upload(weights())
        yield running


def test_a_caller_that_dawdles_holds_up_one_lane_and_no_other(servers):
    with occupied(servers), promptly(3.0):
        assert query_works(servers.client)


def test_sessions_at_once_give_each_caller_its_own_result(servers):
    found = {}
    until(lambda: servers.servers["server0"].running == 0)  # the dawdler's session may still be ending

    def ask(factor):
        found[factor] = (servers.client.run(QUERY, {"x": X * factor}).outputs["y"] - attended(X * factor)).abs().max()

    threads = [threading.Thread(target=ask, args=(factor,)) for factor in (0.25, 0.5, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3 and max(found.values()) < 5e-3


def test_a_full_server_is_busy_and_a_dead_caller_frees_its_place(servers):
    zero = servers.servers["server0"]
    with occupied(servers, 2) as (first, _):
        waiting = Caller(servers.network(CLIENT), servers.settings)
        thread = threading.Thread(target=_ask, args=(waiting,), daemon=True)
        thread.start()
        until(lambda: zero.waiting == 1)
        with promptly(), pytest.raises(BusyError, match=r"server0: .*again in") as error:
            servers.client.run(QUERY, {"x": X})
        assert error.value.retry_after >= 1
        first.links.fail(PeerTimeoutError("it died"))
        with promptly():
            until(lambda: zero.waiting == 0)
            thread.join(5)
            assert query_works(servers.client)


def test_who_hangs_up_while_it_waits_leaves_its_seat(servers):
    zero = servers.servers["server0"]
    with occupied(servers, 2) as (first, _):
        channel = servers.network(CLIENT).connect(
            "server0", b"waits and leaves", timeout=1, options=servers.servers["server1"]._options("server0")
        )
        messages.send(channel, QUERY)
        until(lambda: zero.waiting == 1)
        channel.close()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(query_works(servers.client)), daemon=True)
        thread.start()  # a busy server would refuse it
        until(lambda: not zero._heard and zero.waiting == 1)
        first.links.fail(PeerTimeoutError("it died"))
        thread.join(5)
        assert answers == [True]


def test_a_version_pushed_in_one_lane_is_seen_by_all(servers):
    for _ in range(3):
        servers.upload(weights(), "fresh")
        with occupied(servers), promptly():
            assert (servers.client.run(QUERY_FRESH, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3


QUERY_FRESH = Job(QUERY.program, QUERY.parameters, uses="fresh")


def test_two_providers_that_bring_one_name_at_once_have_one_owner_everywhere(identities):
    hub = MemoryHub()
    with trio(settings_in(identities, lanes=2), networks=lambda role, settings: hub.network(role)) as running:
        owners = [Caller(hub.network(PROVIDER, f"memory:{name}"), running.settings) for name in ("a", "b")]
        said = []

        def push(caller):
            try:
                tensors = weights()
                caller.run(upload_job(tensors, MODEL), tensors)
            except SecFormerError as error:
                said.append(error)

        threads = [threading.Thread(target=push, args=(caller,)) for caller in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(said) == 1 and "belongs to another certificate" in str(said[0])
        found = {tuple(server._models.newest(MODEL).access.owners) for server in running.servers.values()}
        assert len(found) == 1


@pytest.mark.parametrize(
    "lanes", [{"server0": 4, "server1": 1, "dealer": 1}, {"server0": 2, "server1": 1, "dealer": 3}]
)
def test_different_numbers_of_lanes_do_not_make_sessions_wait_for_each_other(identities, lanes):
    changes = {role: {"lanes": count} for role, count in lanes.items()}
    with trio(settings_in(identities), changes, networks=in_one_process()) as running:
        running.upload(weights())
        good = []
        threads = [
            threading.Thread(target=lambda: good.append(query_works(running.caller())), daemon=True) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert good == [True] * 6


# Several servers of one role


@contextmanager
def trios(identities, count: int = 2):
    settings = settings_in(identities, trios=count, connect_timeout=0.5)
    running = []
    for number in range(count):
        own = replace(settings, trio=number, data_folder=settings.data_folder / str(number))
        running.append({role: make_server(role, TlsNetwork(role, own), own, CATALOGUE).start() for role in SERVERS})
    try:
        yield settings, running
    finally:
        for servers in running:
            for server in servers.values():
                server.stop()


def test_callers_find_the_same_trio_everywhere_and_another_when_one_is_gone(identities):
    with trios(identities) as (settings, running):
        client, provider = (Caller(TlsNetwork(role, settings), settings) for role in (CLIENT, PROVIDER))
        tensors = weights()
        job = upload_job(tensors, MODEL)
        for number in provider.trios:
            provider.run(job, tensors, trio=number)
        uploads = {server._models.newest(MODEL).note.upload for servers in running for server in servers.values()}
        assert uploads == {job.stores.upload}
        for number, servers in enumerate(running):
            before = len(servers["dealer"].outcomes)
            assert (client.run(QUERY, {"x": X}, trio=number).outputs["y"] - attended(X)).abs().max() < 5e-3
            until(lambda servers=servers, before=before: len(servers["dealer"].outcomes) == before + 1)
        running[0]["server0"].stop()
        for _ in range(4):
            assert query_works(client)
        with pytest.raises(PeerTimeoutError):
            client.run(QUERY, {"x": X}, trio=0)


def test_a_server_refuses_a_session_for_another_trio(identities):
    with trios(identities) as (settings, _):
        client = Caller(TlsNetwork(CLIENT, settings), settings)
        client._network.trios = 3  # as if its deployment file had another line
        client._new_session = lambda trio: next(  # type: ignore[method-assign]
            name for name in iter(lambda: client._network.new_session(1), None) if trio_of(name, 2) == 0
        )
        with promptly(), pytest.raises(AgreementError, match="for trio 0"):
            client.run(QUERY, {"x": X}, trio=1)


def test_a_trio_that_the_deployment_does_not_list(identities):
    with pytest.raises(SettingsError, match="lists 1"):
        TlsNetwork("dealer", settings_in(identities, trio=1))

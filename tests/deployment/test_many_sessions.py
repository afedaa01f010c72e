"""A service under load: many clients at once, lanes over a slow line, stock against none, and `kill -9` with stock in use.

In `make test` small versions of the first two, in `make test-long` of all; `make soak` has the numbers that are promised.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from attackers import Watch
from checkpoints import TEXTS, build_checkpoint
from secure import relative_error
from servers import MODEL, QUERY, Changed, Networks, X, attended, numbers, settings_in, trio, upload, weights
from small_programs import on_python_path

from secformer.crypto.identity import passing_identity
from secformer.errors import BusyError, SecFormerError, TransportError
from secformer.models.tokens import for_query, tokenise
from secformer.parties.caller import Caller
from secformer.parties.client import Client
from secformer.parties.launch import ProcessServers, launch
from secformer.parties.memory import IDLE
from secformer.parties.messages import Job
from secformer.parties.provider import Provider
from secformer.parties.stock import BURNED
from secformer.roles import CLIENT, PROVIDER, SERVERS
from secformer.secure_model import SecureModel
from secformer.settings import Settings
from secformer.transport.network import MemoryHub
from secformer.transport.shaped import shaped
from secformer.transport.tls_network import TlsNetwork

SOAK = bool(os.environ.get("SECFORMER_SOAK"))
CLIENTS, GREED = 8, 4
QUERIES, WARM = (500, 150) if SOAK else (40, 16)
SLOW = 40 if SOAK else 8
ASKED = 40 if SOAK else 8
KILLS = 100 if SOAK else 4
DEATH = 5.0
"""Seconds within which everybody hears of a death."""
OTHER = "other"


# Many clients


@contextmanager
def served(folder: Path) -> Iterator[tuple[list[Caller], dict[str, Watch]]]:
    """Clients with a certificate each before servers with two models, and the memory of each of these."""
    with on_python_path(), launch(Settings(threads=1, lanes=2), module="small_programs") as running:
        clients = [admitted(running, folder, number) for number in range(CLIENTS)]
        bring(Caller(running.network(PROVIDER), running.settings))
        time.sleep(1.5)  # a new certificate is known within a second
        yield clients, {role: Watch(running._processes[role]._process.pid) for role in SERVERS}


@contextmanager
def served_in_memory(folder: Path) -> Iterator[tuple[list[Caller], dict[str, Watch]]]:
    """The same as threads of this process, whose memory says nothing."""
    hub = MemoryHub()
    with trio(settings_in(folder / "identity", lanes=2), networks=lambda role, settings: hub.network(role)) as running:
        bring(running.provider)
        yield [Caller(hub.network(CLIENT, f"memory:{number}"), running.settings) for number in range(CLIENTS)], {}


def bring(provider: Caller) -> None:
    for name in (MODEL, OTHER):
        upload(provider, weights(), name)


def admitted(servers: ProcessServers, folder: Path, number: int) -> Caller:
    """One more client, with a certificate of its own."""
    identity = passing_identity(CLIENT, folder / str(number))
    shutil.copy(identity.certificate_path, servers.settings.identity_folder / f"client.{number}.crt")
    return Caller(TlsNetwork(CLIENT, servers.settings, identity), servers.settings)


class Crowd:
    """Callers that ask one query after another, of two models in turn, until there were enough."""

    def __init__(self, enough: int) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[BaseException] = []
        self._enough = enough
        self._lock = threading.Lock()

    def ask(self, whose: int, caller: Caller, x: torch.Tensor) -> None:
        turn = whose
        while self.answers.total() < self._enough and not self.failures:
            turn += 1
            job = Job(QUERY.program, QUERY.parameters, uses=(MODEL, OTHER)[turn % 2])
            try:
                found = caller.run(job, {"x": x}).outputs["y"]
                assert (found - attended(x)).abs().max() < 5e-3, "a wrong result"
            except BusyError as error:
                time.sleep(error.retry_after)
                continue
            except BaseException as error:
                self.failures.append(error)
                return
            with self._lock:
                if self.answers.total() < self._enough:  # behind the last one nobody stands in line any more
                    self.answers[whose] += 1

    def run(self, callers: list[tuple[int, Caller]]) -> None:
        threads = [
            threading.Thread(target=self.ask, args=(whose, caller, numbers(*X.shape)), daemon=True)
            for whose, caller in callers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3000)
        assert not self.failures, self.failures[0]


def at_rest(watches: dict[str, Watch]) -> dict[str, int]:
    """The memory of each, when it has given back what was freed."""
    if watches:
        time.sleep(IDLE + 3)
    return {role: watch.memory for role, watch in watches.items()}


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize("kind", ["memory", pytest.param("processes", marks=pytest.mark.long)])
def test_clients_at_once_get_right_results_and_fair_shares_and_leave_no_memory(tmp_path, kind):
    """Client 0 brings four callers at once, the others one each: it gets no more than they do."""
    with (served_in_memory if kind == "memory" else served)(tmp_path) as (clients, watches):
        callers = [(number, one) for number, one in enumerate(clients) for _ in range(GREED if number == 0 else 1)]
        Crowd(WARM).run(callers)
        level = at_rest(watches)
        crowd = Crowd(QUERIES)
        crowd.run(callers)
        ends = at_rest(watches)
    slope = {role: round((ends[role] - level[role]) / QUERIES / 1024, 1) for role in ends}
    print(f"answers {dict(sorted(crowd.answers.items()))}; KiB a query {slope}")
    fair = QUERIES / CLIENTS
    assert crowd.answers.total() == QUERIES
    assert crowd.answers[0] <= 1.25 * fair + 2, crowd.answers
    assert min(crowd.answers[number] for number in range(CLIENTS)) >= 0.75 * fair - 2, crowd.answers
    assert all(ends[role] <= 1.1 * level[role] for role in ends), (level, ends)


# Lanes over a slow line


def slow_memory() -> Networks:
    """A line of 20 ms each way (the profile `wan`) without what TLS costs."""
    hub = MemoryHub()
    return lambda role, settings: Changed(hub.network(role), lambda channel: shaped(channel, "wan"))


def rate(settings: Settings, networks: Networks, count: int) -> float:
    """Queries a second that four callers get through."""
    with trio(settings, networks=networks) as running:
        bring(running.provider)
        crowd = Crowd(count)
        started = time.monotonic()
        crowd.run([(number, running.caller()) for number in range(4)])
        return crowd.answers.total() / (time.monotonic() - started)


@pytest.mark.parametrize("kind", ["memory", pytest.param("tls", marks=pytest.mark.long)])
def test_two_lanes_carry_more_than_one_where_the_line_is_slow(tmp_path, kind):
    """20 ms each way between all parties. A busy machine can hide it, so it may try three times."""
    for _ in range(3):
        rates = []
        for lanes in (1, 2):
            settings = settings_in(tmp_path / "identity", lanes=lanes, network="wan")
            rates.append(rate(settings, slow_memory() if kind == "memory" else TlsNetwork, SLOW))
        one, two = rates
        print(
            f"queries a second over 20 ms of delay: {one:.2f} with one lane, {two:.2f} with two, {two / one:.2f} times"
        )
        if two >= 1.5 * one:
            break
    assert two >= 1.5 * one


# Stock


NAME, ITEMS = "sentiment", 3


class Given:
    """A model, what it says of TEXTS, and the shape of that query."""

    def __init__(self, folder: Path) -> None:
        sizes = dict(layers=2, heads=4, hidden=64, intermediate=128)
        build_checkpoint(folder / "checkpoint", "bert", "classification", **sizes)
        self.model = SecureModel.from_pretrained(
            folder / "checkpoint", settings=Settings(cache_folder=folder / "cache")
        )
        self.model.calibrate(TEXTS, few=True)
        self.expected = self.model.predict(TEXTS, mode="plain").result
        batch = tokenise(self.model.tokenizer, self.model.config, TEXTS)
        self.shape = "x".join(map(str, for_query(batch, self.model.config).ids.shape))

    def launch(self) -> ProcessServers:
        return launch(Settings(threads=1, log_format="json", stock=f"{NAME} {self.shape} {ITEMS}"))

    def brought(self, servers: ProcessServers, name: str = NAME) -> Client:
        """A client of the model that is now at these servers."""
        model = self.model
        Provider(servers.network(PROVIDER), servers.settings).upload(name, model.card, model.folded(), ["*"])
        return Client(servers.network(CLIENT), servers.settings, name, model.card, model.tokenizer)

    def asked(self, client: Client) -> tuple[float, bool]:
        """Seconds of a right answer, and whether it found stock."""
        said = client.predict(TEXTS)
        assert relative_error(said.result, self.expected) <= 1e-2
        assert said.outcome is not None
        return said.outcome.seconds, said.outcome.dealer_bytes == 0


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(tmp_path_factory.mktemp("model"))


def wait_for_stock(servers: ProcessServers) -> None:
    """Until it is full, and nobody works any more."""
    folders = [servers.settings.data_folder / role / "stock" for role in SERVERS]
    deadline = time.monotonic() + 60
    while not all(len(list(folder.glob("*.json"))) == 1 + ITEMS for folder in folders):  # and the epoch
        assert time.monotonic() < deadline, "there is no stock"
        time.sleep(0.1)
    time.sleep(0.1)


@pytest.mark.long
@pytest.mark.timeout(3600 if SOAK else 300)
def test_a_query_that_finds_stock_is_answered_sooner(given):
    """The same model under two names, one of them in stock, asked in turn."""
    times: dict[bool, list[float]] = {True: [], False: []}
    with given.launch() as servers:
        clients = {True: given.brought(servers), False: given.brought(servers, OTHER)}
        for number in range(1 + ASKED):
            for in_stock, client in clients.items():
                wait_for_stock(servers)
                seconds, found = given.asked(client)
                assert found == in_stock
                times[found] += [seconds] if number else []
    with_stock, without = statistics.median(times[True]), statistics.median(times[False])
    print(f"p50 {1000 * with_stock:.0f} ms with stock, {1000 * without:.0f} ms without: {with_stock / without:.2f}")
    assert with_stock < without


def used_items(servers: ProcessServers) -> dict[str, set[str]]:
    """From the logs of all three: in which sessions each item was used."""
    found: dict[str, set[str]] = {}
    for role in SERVERS:
        for line in servers.log(role).splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("stocked"):
                found.setdefault(entry["stocked"], set()).add(entry["session"])
    return found


def ledgers(servers: ProcessServers) -> dict[str, list[str]]:
    folder = servers.settings.data_folder
    texts = {role: (folder / role / "stock" / BURNED).read_text() for role in SERVERS}
    return {role: [line.split()[0] for line in text.splitlines()] for role, text in texts.items()}


@pytest.mark.long
@pytest.mark.timeout(7200 if SOAK else 300)
def test_no_item_is_used_twice_whoever_is_killed_whenever(given):
    chance, outcomes = random.Random(11), Counter()
    with given.launch() as servers:
        client = given.brought(servers)
        given.asked(client)
        for _ in range(KILLS):
            victim = chance.choice(SERVERS)
            error, seconds = struck(servers, client, given, victim, chance.uniform(0.0, 0.6))
            assert error is None or isinstance(error, SecFormerError), error
            assert seconds < DEATH, seconds
            outcomes[type(error).__name__ if error else "answered"] += 1
            servers.restart(victim)
            outcomes["found stock"] += next_works(client, given)
            time.sleep(chance.uniform(0.0, 1.0))  # sometimes there is stock by then, sometimes it is coming in
        outcomes["found stock"] += given.asked(client)[1]
        used, burned = used_items(servers), ledgers(servers)
    print(
        f"{KILLS} kills: {dict(outcomes)}; {len(used)} items used, burned { ({role: len(b) for role, b in burned.items()}) }"
    )
    assert all(len(sessions) == 1 for sessions in used.values()), "an item was used twice"
    assert all(len(set(items)) == len(items) for items in burned.values())
    assert set(used) <= set.intersection(*map(set, burned.values())), "an item was used before all three had burned it"
    assert used, "stock was in use"


def struck(
    servers: ProcessServers, client: Client, given: Given, victim: str, after: float
) -> tuple[BaseException | None, float]:
    """What a query ends with while a server is killed, and how long after."""
    ended: list[tuple[BaseException | None, float]] = []

    def ask() -> None:
        try:
            given.asked(client)
            ended.append((None, time.monotonic()))
        except BaseException as error:
            ended.append((error, time.monotonic()))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time.sleep(after)
    killed = time.monotonic()
    servers.kill(victim)
    thread.join(60)
    assert ended, "a query hangs"
    return ended[0][0], ended[0][1] - killed


def next_works(client: Client, given: Given) -> bool:
    """The others may still be leaving the session that broke."""
    deadline = time.monotonic() + DEATH
    while True:
        try:
            return given.asked(client)[1]
        except TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.2)

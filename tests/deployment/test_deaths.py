"""`kill -9` and freezing of each server while it is idle, during a query and during a push: typed errors in time, the next
query works without touching the survivors, every stored model is intact. And memory after queries of many shapes.

In `make test` a case of each, in `make test-long` all; `make soak` does them 50 times, with 300 shapes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attackers import Watch
from checkpoints import TEXTS, build_checkpoint
from secure import load
from servers import MODEL, QUERY, WEIGHT, X, attended, numbers, query_works, upload, weights
from small_programs import on_python_path, upload_job

from secformer.errors import TransportError
from secformer.parties.caller import Caller
from secformer.parties.launch import launch
from secformer.parties.messages import Job
from secformer.roles import SERVERS
from secformer.settings import Settings

SOAK = bool(os.environ.get("SECFORMER_SOAK"))
TIMES = 50 if SOAK else 1
SHAPES, FIRST = (300, 30) if SOAK else (45, 30)
DEATH = 5.0
FREEZE = 4.0
"""Seconds of silence that these servers and callers allow."""
SLACK = 6.0
"""Seconds more that a freeze may take to be told: a handshake, a farewell, a busy machine."""
LARGE = {f"w{place}": numbers(512, 512) for place in range(4)}


@pytest.fixture(scope="module")
def servers():
    with on_python_path(), launch(Settings(threads=1, receive_timeout=FREEZE), module="small_programs") as running:
        upload(provider(running), weights())
        assert query_works(client(running))
        yield running


def client(servers) -> Caller:
    return Caller(servers.network("client"), servers.settings)


def provider(servers) -> Caller:
    return Caller(servers.network("provider"), servers.settings)


def large():
    from secformer.engine.sharing import Encoded

    return {name: Encoded.numbers(value, 16, 54) for name, value in LARGE.items()}


def query(servers) -> None:
    assert (client(servers).run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3


def push(servers) -> None:
    tensors = large()
    provider(servers).run(upload_job(tensors, "large"), tensors)


ACTIONS = {"idle": None, "query": query, "push": push}
SHORT = {("server0", "push"), ("server1", "query"), ("dealer", "idle")}
"""Every server once, and every moment."""
CASES = [
    pytest.param(victim, moment, marks=() if (victim, moment) in SHORT else pytest.mark.long)
    for victim in SERVERS
    for moment in ACTIONS
]


def outcome(servers, action, strike) -> tuple[BaseException | None, float]:
    """What an action ends with while somebody strikes, and how long after the strike."""
    ended: list = []

    def act() -> None:
        try:
            action(servers)
            ended.append((None, time.monotonic()))
        except BaseException as error:
            ended.append((error, time.monotonic()))

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    time.sleep(random.uniform(0.0, 0.3))
    struck = time.monotonic()
    strike()
    thread.join(60)
    assert ended, "nobody noticed"
    return ended[0][0], ended[0][1] - struck


@pytest.mark.parametrize(("victim", "moment"), CASES)
@pytest.mark.timeout(3600 if SOAK else 120)
def test_killed(servers, victim, moment):
    for _ in range(TIMES):
        action = ACTIONS[moment]
        if action is None:
            servers.kill(victim)
        else:
            error, seconds = outcome(servers, action, lambda: servers.kill(victim))
            assert error is None or isinstance(error, TransportError), error
            assert seconds < DEATH, seconds
        servers.restart(victim)
        query(servers)
    intact(servers)


@pytest.mark.parametrize(("victim", "moment"), CASES)
@pytest.mark.timeout(3600 if SOAK else 120)
def test_frozen(servers, victim, moment):
    for _ in range(TIMES):
        process = servers._processes[victim]._process
        try:
            action = ACTIONS[moment] or query
            if ACTIONS[moment] is None:
                process.send_signal(signal.SIGSTOP)
            error, seconds = outcome(servers, action, lambda process=process: process.send_signal(signal.SIGSTOP))
            assert error is None or isinstance(error, TransportError), error
            assert error is not None or ACTIONS[moment] is not None
            assert seconds < FREEZE + SLACK, seconds
        finally:
            process.send_signal(signal.SIGCONT)
        _again(servers)
    intact(servers)


def _again(servers) -> None:
    """The thawed server may still be leaving the session it was frozen in."""
    deadline = time.monotonic() + DEATH
    while True:
        try:
            return query(servers)
        except TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def intact(servers) -> None:
    """Every stored model gives what it gave, also after a restart of all."""
    query(servers)
    assert all("is left out" not in servers.log(role) and "damaged" not in servers.log(role) for role in SERVERS)


# Memory


@pytest.mark.timeout(3600 if SOAK else 120)
def test_queries_of_many_shapes_leave_no_memory_behind(servers):
    """No party's memory ends above 1.3 times its level after the first 30."""
    shapes, asking = random.Random(5), client(servers)
    watches = {role: Watch(servers._processes[role]._process.pid) for role in SERVERS}
    level = {}
    for number in range(SHAPES):
        if number == FIRST:
            level = {role: watch.memory for role, watch in watches.items()}
        rows = shapes.randrange(1, 3000)
        x = torch.randn(rows, WEIGHT.shape[0], dtype=torch.float64)
        asking.run(Job("dense", {"rows": rows}, uses=MODEL), {"x": x})
    ends = {role: watch.memory for role, watch in watches.items()}
    print({role: f"{level[role] >> 20} -> {ends[role] >> 20} MiB" for role in SERVERS})
    assert all(ends[role] <= 1.3 * level[role] for role in SERVERS), (level, ends)


# Keys


KILLED = """
import os, sys, signal
sys.path[:0] = {path!r}
from secure import load
model = load({folder!r}, {cache!r})
model.calibrate({texts!r}, few=True)
model.predict({texts!r})
print("started", flush=True)
os.kill(os.getpid(), signal.{signal})
"""


def test_no_private_key_is_in_a_file(servers):
    """Nor could a death at any moment leave one there."""
    files = [path for path in servers._folder.rglob("*") if path.is_file()]
    assert any(b"CERTIFICATE" in path.read_bytes() for path in files)
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in files)


@pytest.mark.long
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_no_private_key_is_left_behind_by_a_killed_program(tmp_path, number):
    build_checkpoint(tmp_path / "model", layers=1)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    program = KILLED.format(
        path=sys.path, folder=str(tmp_path / "model"), cache=str(tmp_path / "cache"), texts=TEXTS, signal=number
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, timeout=100
    )
    assert done.returncode == -getattr(signal, number), done.stderr.decode()
    assert b"started" in done.stdout
    until = time.monotonic() + 30
    while list(temporary.iterdir()) and time.monotonic() < until:  # its servers notice, and remove what they kept
        time.sleep(0.1)
    assert not list(temporary.iterdir())


def test_threads_share_the_servers_of_a_model_and_a_failure_starts_new_ones(tmp_path, monkeypatch):
    """`SecureModel` with servers in this process."""
    build_checkpoint(tmp_path / "model", layers=1)
    with load(tmp_path / "model", tmp_path / "cache", servers="threads") as model:
        model.calibrate(TEXTS, few=True)
        with ThreadPoolExecutor(3) as pool:
            services = list(pool.map(lambda _: (model.predict(TEXTS[:1]), model._service)[1], range(3)))
        assert services[0] is not None and all(service is services[0] for service in services)

        def fail(*_: object) -> None:
            raise TransportError("server1 is gone")

        monkeypatch.setattr(services[0].client, "predict_batch", fail)
        with pytest.raises(TransportError):
            model.predict(TEXTS[:1])
        assert model._service is None
        assert model.predict(TEXTS[:1]).result.isfinite().all() and model._service is not services[0]


@pytest.mark.long
def test_a_model_whose_server_died_works_again_and_threads_share_its_servers(tmp_path):
    """`SecureModel`: three threads ask first, and start three servers; one dies, and the next query but one works."""
    build_checkpoint(tmp_path / "model", layers=1)
    with load(tmp_path / "model", tmp_path / "cache") as model:
        model.calibrate(TEXTS, few=True)
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: model.predict(TEXTS).result, range(3)))
        assert all((answer - answers[0]).abs().max() < 2e-2 for answer in answers)
        servers = model._service._stack._exit_callbacks[0][1].__self__
        assert len(servers._processes) == 3
        servers.kill("server1")
        with pytest.raises(TransportError):
            model.predict(TEXTS)
        assert (model.predict(TEXTS).result - answers[0]).abs().max() < 2e-2

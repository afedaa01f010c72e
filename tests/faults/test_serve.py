"""A server as a process: it says when it listens, and however it is told to stop, it stops cleanly and at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import pytest
from servers import PROMPT, address_of, promptly, settings_in
from small_programs import on_python_path

from secformer.deployment import Address
from secformer.errors import PeerAbortedError
from secformer.parties import serve
from secformer.parties.caller import Caller
from secformer.parties.launch import START_TIMEOUT, _environment
from secformer.parties.messages import Invitation, receive
from secformer.roles import SERVERS
from secformer.transport.tls_network import TlsNetwork

TIMES = 20 if os.environ.get("SECFORMER_SOAK") else 8


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return settings_in(tmp_path_factory.mktemp("deployment") / "identity")


# From a process that has loaded everything: quick to start


def _serve(role: str, environment: dict[str, str], said: Connection) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(said.fileno(), sys.stdout.fileno())
    serve.main([role])


@pytest.fixture(scope="module")
def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_servers"])
    return context


@contextmanager
def forked(forks, role, settings):
    """The server's process, when it listens."""
    listening, said = forks.Pipe(duplex=False)
    process = forks.Process(target=_serve, args=(role, _environment(settings), said), daemon=True)
    with on_python_path():
        process.start()
    said.close()
    try:
        with os.fdopen(os.dup(listening.fileno())) as lines:
            assert lines.readline().startswith(f"{serve.READY} {role} 127.0.0.1:")
        yield process
    finally:
        process.kill()
        process.join()


def stopped(process) -> int | None:
    """How it ended, within the promised time."""
    process.join(PROMPT)
    return process.exitcode


def tell(process, *signals: signal.Signals, pause: float = 0.0) -> None:
    with suppress(ProcessLookupError):  # gone already
        for number in signals:
            os.kill(process.pid, number)
            time.sleep(pause)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_server_stops_cleanly_when_told_twice(forks, settings, second):
    """The second signal comes at once, or at any later moment of the way out."""
    for pause in (0.0, 0.001, 0.003, 0.01) * (TIMES // 4):
        with forked(forks, "dealer", settings) as process, promptly():
            tell(process, signal.SIGTERM, second, pause=pause)
            assert stopped(process) == 0, f"{pause} s after the first"


def test_a_server_stops_cleanly_when_told_many_times(forks, settings):
    for role in SERVERS:
        with forked(forks, role, settings) as process, promptly():
            tell(process, *[signal.SIGTERM] * 100)
            assert stopped(process) == 0


def test_a_caller_hears_that_the_server_is_told_to_stop(forks, settings):
    with forked(forks, "server0", settings) as process:
        channel = Caller(TlsNetwork("client", settings), settings)._dial("server0", os.urandom(16), PROMPT)
        threading.Timer(0.5, tell, (process, signal.SIGTERM, signal.SIGTERM)).start()
        with promptly(), channel, pytest.raises(PeerAbortedError, match=r"transport\.lost.*being stopped"):
            receive(channel, Invitation)
        assert stopped(process) == 0


# As a person starts it


@contextmanager
def started(settings, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "secformer.parties.serve", *arguments],
        env=_environment(settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def ready(process) -> str:
    return process.stdout.readline()


@pytest.mark.parametrize("way", ["twice SIGTERM", "SIGINT", "the end of its input"])
def test_a_server_process_ends_with_zero(settings, way):
    with started(settings, "dealer", serve.STOP_WITH_PARENT) as process:
        assert ready(process) == f"{serve.READY} dealer {Address(*address_of(settings, 'dealer'))}\n"
        with promptly():
            if way == "the end of its input":
                process.stdin.close()
            else:
                for number in [signal.SIGTERM] * 2 if "SIGTERM" in way else [signal.SIGINT]:
                    process.send_signal(number)
            assert process.wait(PROMPT) == 0
        assert "Traceback" not in process.stderr.read()


def test_the_end_of_its_input_is_nothing_to_a_server_by_itself(settings):
    with started(settings, "dealer") as process:
        assert ready(process)
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(PROMPT) == 0


def test_a_server_that_cannot_start_says_why_in_one_line(settings):
    with started(settings, "client") as process:
        assert process.wait(START_TIMEOUT) == 2
        assert ready(process) == ""
        assert process.stderr.read() == "error [input]: unknown role 'client': serve as dealer, server0, server1\n"

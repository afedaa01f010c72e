"""The three servers for a test: as threads of this process, or as processes that can be killed."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from secformer.crypto.identity import ROLES, create_identity
from secformer.engine.program import InputSpec
from secformer.parties.assistant_server import AssistantServer
from secformer.parties.catalogue import Planner, default_catalogue
from secformer.parties.client import Client
from secformer.parties.computing_server import ComputingServer
from secformer.parties.launch import free_ports
from secformer.parties.messages import Job
from secformer.parties.provider import Provider, Weight
from secformer.parties.server import SERVER_NAMES, Server
from secformer.settings import Settings
from secformer.transport.channel import Channel

PROMPT = 5.0
MODEL = "model"
QUERY = Job("attention", {"rows": 3}, uses=MODEL)

_numbers = torch.Generator().manual_seed(5)


def numbers(*shape: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=_numbers, dtype=torch.float64) * size


KEYS, VALUES, WEIGHT = numbers(16, 8, size=0.7), numbers(8, 5), numbers(16, 7, size=0.5)
X = numbers(3, 16)


def attended(x: torch.Tensor) -> torch.Tensor:
    """What QUERY gives, in the clear."""
    return torch.softmax(x @ KEYS * 0.6931471805599453, -1) @ VALUES


SERVES = {"attention": {}, "dense": {}, "lookup": {}}
"""What the tests' models may be used for."""


def weights() -> dict[str, Weight]:
    return {"keys": Weight(KEYS, 16), "values": Weight(VALUES, 10, 35), "weight": Weight(WEIGHT, 16)}


@functools.cache
def warm_up() -> None:
    """Compute the fits of QUERY once, alone: three servers that do it in one process get into each other's way."""
    forms = {
        name: InputSpec("masked", tuple(weight.numbers.shape), weight.width, weight.scale)
        for name, weight in weights().items()
    }
    Planner(default_catalogue()).plan(QUERY, forms)


def settings_in(folder: Path, **changes) -> Settings:
    """Settings with free ports and an identity for every role."""
    if not folder.exists():
        for role in ROLES:
            create_identity(role, folder)
    ports = dict(zip(("port_t", "port_s0", "port_s1"), free_ports(3), strict=True))
    return Settings(identity_folder=folder, threads=1, **ports, **changes)


def make(role: str, settings: Settings, catalogue=None, assistant=AssistantServer, computing=ComputingServer) -> Server:
    return assistant(settings, catalogue) if role == "assistant" else computing(int(role[-1]), settings, catalogue)


class Trio:
    """Server threads by role, and callers for them."""

    def __init__(self, settings: Settings, servers: dict[str, Server]) -> None:
        self.settings = settings
        self.servers = servers
        self.client = Client(settings)
        self.provider = Provider(settings)

    def errors(self, roles=tuple(SERVER_NAMES)) -> dict[str, BaseException | None]:
        """How the last session ended at each server, within the promised time."""
        deadline = time.monotonic() + PROMPT
        for role in roles:
            while self.servers[role]._links is not None:
                assert time.monotonic() < deadline, f"{role} is still in the session"
                time.sleep(0.01)
        return {role: self.servers[role].outcomes[-1].error for role in roles}

    def works(self) -> bool:
        """Whether a session from beginning to end gives the right result."""
        self.provider.upload(MODEL, weights(), SERVES)
        return bool((self.client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3)


@contextmanager
def trio(
    settings: Settings,
    changes: dict[str, dict] | None = None,
    catalogues: dict | None = None,
    **kinds,
):
    """Three servers as threads; `changes` and `catalogues` single out a role."""
    warm_up()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # three servers in one process: more threads would only wait for each other
        servers = {}
        for role in SERVER_NAMES:
            own = replace(settings, **(changes or {}).get(role, {}))
            servers[role] = stack.enter_context(make(role, own, (catalogues or {}).get(role), **kinds))
        yield Trio(settings, servers)


@contextmanager
def promptly(seconds: float = PROMPT):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds, "the error came too late"


# Processes


def doomed(server: Server, frames: int) -> None:
    """Let the process die, without a word, when the server is about to send or take its n-th frame."""
    dress, left = server._dress, [frames]

    def counted(action: Callable) -> Callable:
        def count(*arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*arguments)

        return count

    def dressed(channel: Channel) -> Channel:
        channel._put, channel._take = counted(channel._put), counted(channel._take)  # type: ignore[method-assign]
        return dress(channel)

    server._dress = dressed  # type: ignore[method-assign]


def _serve(role: str, settings: Settings, log: Path, ready, frames: int) -> None:
    logging.basicConfig(level="INFO", filename=log, format="%(message)s")
    torch.set_num_threads(1)
    server = make(role, settings)
    if frames:
        doomed(server, frames)
    server.start()
    ready.set()
    signal.pause()


class Processes:
    """Servers as processes, forked from one that has torch loaded already, so that a restart is quick."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["warm_servers"])
        self._running: dict[str, multiprocessing.process.BaseProcess] = {}
        with _python_path():
            for role in SERVER_NAMES:
                self.start(role)

    def start(self, role: str, frames: int = 0) -> None:
        """Start or restart; it dies at frame number `frames`, if that is given."""
        self.kill(role)
        self.log_path(role).unlink(missing_ok=True)
        ready = self._context.Event()
        process = self._context.Process(
            target=_serve, args=(role, self.settings, self.log_path(role), ready, frames), daemon=True
        )
        process.start()
        assert ready.wait(60), f"{role} did not start"
        self._running[role] = process

    def kill(self, role: str) -> None:
        if role in self._running:
            self._running[role].kill()
            self._running[role].join()

    def died(self, role: str, patience: float = PROMPT) -> bool:
        self._running[role].join(patience)
        return self._running[role].exitcode == -signal.SIGKILL

    def log_path(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def lines(self, role: str) -> list[str]:
        return self.log_path(role).read_text().splitlines() if self.log_path(role).exists() else []

    def close(self) -> None:
        for role in self._running:
            self.kill(role)


@contextmanager
def _python_path():
    """The process that forks finds what this one finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

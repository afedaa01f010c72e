"""The three servers for a test: as threads of this process, over TLS or in memory, or as processes that can be killed."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from small_programs import CATALOGUE, on_python_path, upload_job

from secformer.crypto.identity import create_identity
from secformer.deployment import read_deployment
from secformer.engine.form import Form
from secformer.engine.sharing import Encoded
from secformer.engine.values import wire_of
from secformer.parties.caller import Caller, Result
from secformer.parties.launch import on_this_machine
from secformer.parties.messages import Job
from secformer.parties.planner import Planner
from secformer.parties.serve import make_server
from secformer.parties.server import Server
from secformer.parties.store import StoredModel
from secformer.roles import CLIENT, PROVIDER, ROLES, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions
from secformer.transport.network import Listening, MemoryHub, Network
from secformer.transport.tls_network import TlsNetwork

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


def weights() -> dict[str, Encoded]:
    return {
        "keys": Encoded.numbers(KEYS, 16, 54),
        "values": Encoded.numbers(VALUES, 10, 35),
        "weight": Encoded.numbers(WEIGHT, 16, 54),
    }


def upload(provider: Caller, tensors: dict[str, Encoded], name: str = MODEL) -> Result:
    return provider.run(upload_job(tensors, name), tensors)


def query_works(client: Caller) -> bool:
    """Whether the stored model gives what it gives in the clear."""
    return bool((client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3)


def stored(forms: Mapping[str, Form], card: str = "", origin: bytes = b"session") -> StoredModel:
    """A model of which the forms are known, and nothing else."""
    wires = {name: wire_of(form, form.empty(), form.empty()) for name, form in forms.items()}
    return StoredModel(origin, dict(forms), card, lambda: wires)


@functools.cache
def warm_up() -> None:
    """Compute the fits of QUERY once, alone: three servers that do it in one process get into each other's way."""
    Planner(CATALOGUE).plan(QUERY, stored({name: tensor.form.as_wire() for name, tensor in weights().items()}))


def settings_in(folder: Path, trios: int = 1, **changes) -> Settings:
    """Settings with free ports, an empty data folder and an identity for every role."""
    if not folder.exists():
        for role in ROLES:
            create_identity(role, folder)
    place = Path(tempfile.mkdtemp(dir=folder.parent))
    return replace(on_this_machine(Settings(threads=1, **changes), place, trios), identity_folder=folder)


def address_of(settings: Settings, role: str) -> tuple[str, int]:
    """Where a server is called; by callers, if it has such a door."""
    doors = read_deployment(settings.deployment).places[role].doors
    return doors.get("callers") or doors["servers"]


# Networks

Change = Callable[[Channel], Channel]
Networks = Callable[[str, Settings], Network]
"""How a party in this role, with these settings, reaches the others."""


class Changed(Network):
    """Another network, each channel of which is changed as it is made."""

    def __init__(self, network: Network, change: Change) -> None:
        self.role, self.limits = network.role, network.limits
        self._network, self._change = network, change

    def listen(self, roles: Collection[str]) -> Listening:
        return _ChangedListening(self._network.listen(roles), self._change)

    def connect(self, peer: str, session: bytes, *, timeout: float, options: ChannelOptions) -> Channel:
        return self._change(self._network.connect(peer, session, timeout=timeout, options=options))


class _ChangedListening(Listening):
    def __init__(self, listening: Listening, change: Change) -> None:
        self.address = listening.address
        self._listening, self._change = listening, change

    def accept(self, role: str, session: bytes | None, *, timeout: float | None, options: ChannelOptions) -> Channel:
        return self._change(self._listening.accept(role, session, timeout=timeout, options=options))

    def close(self) -> None:
        self._listening.close()


def in_one_process() -> Networks:
    """A new hub; settings do not matter to it."""
    hub = MemoryHub()
    return lambda role, settings: hub.network(role)


NETWORKS: dict[str, Callable[[], Networks]] = {"tls": lambda: TlsNetwork, "memory": in_one_process}


# Threads


class Trio:
    """Server threads by role, and callers for them."""

    def __init__(self, settings: Settings, servers: dict[str, Server], networks: Networks) -> None:
        self.settings = settings
        self.servers = servers
        self._networks = networks
        self.client = self.caller()
        self.provider = self.caller(role=PROVIDER)

    def network(self, role: str) -> Network:
        return self._networks(role, self.settings)

    def caller(self, kind: type[Caller] = Caller, role: str = CLIENT) -> Caller:
        return kind(self.network(role), self.settings)

    def upload(self, tensors: dict[str, Encoded], name: str = MODEL) -> Result:
        return upload(self.provider, tensors, name)

    def errors(self, roles: tuple[str, ...] = SERVERS) -> dict[str, BaseException | None]:
        """How the last session ended at each server, within the promised time."""
        deadline = time.monotonic() + PROMPT
        for role in roles:
            while self.servers[role].running:
                assert time.monotonic() < deadline, f"{role} is still in the session"
                time.sleep(0.01)
        return {role: self.servers[role].outcomes[-1].error for role in roles}

    def works(self) -> bool:
        """Whether a session from beginning to end gives the right result."""
        self.upload(weights())
        return query_works(self.client)


@contextmanager
def trio(
    settings: Settings,
    changes: dict[str, dict] | None = None,
    catalogues: dict | None = None,
    networks: Networks = TlsNetwork,
):
    """Three servers as threads; `changes` and `catalogues` single out a role."""
    warm_up()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # three servers in one process: more threads would only wait for each other
        servers = {}
        for role in SERVERS:
            own = replace(settings, **(changes or {}).get(role, {}))
            catalogue = (catalogues or {}).get(role, CATALOGUE)
            servers[role] = stack.enter_context(make_server(role, networks(role, own), own, catalogue))
        yield Trio(settings, servers, networks)


@contextmanager
def promptly(seconds: float = PROMPT):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds, "the error came too late"


# Processes


def doomed(network: Network, frames: int) -> Network:
    """Lets the process die, without a word, when it is about to send or take its n-th frame."""
    left = [frames]

    def counted(action: Callable) -> Callable:
        def count(*arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*arguments)

        return count

    def change(channel: Channel) -> Channel:
        channel._put, channel._take = counted(channel._put), counted(channel._take)  # type: ignore[method-assign]
        return channel

    return Changed(network, change)


def _serve(role: str, settings: Settings, log: Path, ready, frames: int) -> None:
    logging.basicConfig(level="INFO", filename=log, format="%(message)s")
    torch.set_num_threads(1)
    network = TlsNetwork(role, settings)
    make_server(role, doomed(network, frames) if frames else network, settings, CATALOGUE).start()
    ready.set()
    signal.pause()


class Processes:
    """Servers as processes, forked from one that has torch loaded already, so that a restart is quick."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.client, self.provider = (Caller(TlsNetwork(role, settings), settings) for role in (CLIENT, PROVIDER))
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["warm_servers"])
        self._running: dict[str, multiprocessing.process.BaseProcess] = {}
        with on_python_path():
            for role in SERVERS:
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

    def works(self) -> bool:
        upload(self.provider, weights())
        return query_works(self.client)

    def log_path(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def lines(self, role: str) -> list[str]:
        return self.log_path(role).read_text().splitlines() if self.log_path(role).exists() else []

    def close(self) -> None:
        for role in self._running:
            self.kill(role)

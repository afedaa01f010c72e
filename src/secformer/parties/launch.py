"""All three servers on this machine, for a demonstration, a benchmark, a test or a notebook.

    with launch(Settings(threads=1)) as servers:
        Client(servers.network("client"), servers.settings, ...).predict(...)

`launch` gives each a process of its own, over TLS. Identities are made for the occasion in a temporary folder, ports are
free ones, and leaving the block ends the processes, whatever happened. Should this process die without a word, they notice
that their input ended, and stop. `in_memory` gives each a thread of this process instead: the same sessions under a
debugger, with no network and no isolation.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread
from typing import IO, Self

from secformer.crypto.identity import create_identity
from secformer.errors import PeerTimeoutError
from secformer.parties.planner import CATALOGUE, Catalogue
from secformer.parties.serve import READY, STOP_WITH_PARENT, make_server
from secformer.roles import ROLES, SERVERS
from secformer.settings import ENVIRONMENT_PREFIX, Settings
from secformer.transport.network import MemoryHub, Network
from secformer.transport.tls_network import TlsNetwork

START_TIMEOUT = 60.0
"""Seconds until a server listens; most of it is torch's import, and it may share the cores with others."""
_STOP_TIMEOUT = 10.0  # a loaded machine takes seconds to end an interpreter


def launch(settings: Settings | None = None, module: str = "secformer.parties.serve") -> ProcessServers:
    """Processes with these settings, but for ports and identities. Threads default to one for each server.

    `module` is what they run: a caller that offers other programs brings its own (`serve.main` with a catalogue).
    """
    return ProcessServers(settings or Settings(threads=1), module)


def in_memory(settings: Settings | None = None, catalogue: Catalogue = CATALOGUE) -> MemoryServers:
    return MemoryServers(settings or Settings(), catalogue)


class MemoryServers:
    """A context in which S0, S1 and T run; `network(role)` is how a party reaches them."""

    def __init__(self, settings: Settings, catalogue: Catalogue) -> None:
        self.settings = settings
        self._catalogue = catalogue
        self._hub = MemoryHub()
        self._stack = ExitStack()

    def network(self, role: str) -> Network:
        return self._hub.network(role)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for role in SERVERS:
                stack.enter_context(make_server(role, self.network(role), self.settings, self._catalogue))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class ProcessServers:
    """The same with a process for each; `settings` has the ports and identities that were made for them."""

    def __init__(self, settings: Settings, module: str) -> None:
        self._given, self._module = settings, module
        self._processes: dict[str, _Process] = {}
        self._stack = ExitStack()

    def network(self, role: str) -> Network:
        return TlsNetwork(role, self.settings)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secformer-")))
            for role in ROLES:
                create_identity(role, folder / "identity")
            ports = dict(zip((f"port_{role}" for role in SERVERS), free_ports(len(SERVERS)), strict=True))
            self.settings = replace(self._given, identity_folder=folder / "identity", **ports)
            self._folder = folder
            stack.callback(self._stop_all)
            for role in SERVERS:
                self._processes[role] = _Process(role, self._module, self.settings, folder)
            for process in self._processes.values():
                process.wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, role: str) -> None:
        """End a server without a word, as a crash would."""
        self._processes[role].kill()

    def restart(self, role: str, settings: Settings | None = None) -> None:
        """Start a server anew, with other settings if given; its models are gone."""
        self._processes[role].stop()
        self._processes[role] = _Process(role, self._module, settings or self.settings, self._folder)
        self._processes[role].wait_until_ready()

    def log(self, role: str) -> str:
        return self._processes[role].log()

    def _stop_all(self) -> None:
        for process in self._processes.values():
            process.ask_to_stop()
        for process in self._processes.values():
            process.stop()


class _Process:
    def __init__(self, role: str, module: str, settings: Settings, folder: Path) -> None:
        self._role = role
        self._log_path = folder / f"{role}.log"
        command = [sys.executable, "-m", module, role, STOP_WITH_PARENT]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=_environment(settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_until_ready(self) -> None:
        """The server says one line when it listens."""
        said: list[bytes] = []
        output = self._process.stdout
        assert output is not None
        reader = Thread(target=_read_line, args=(output, said), daemon=True)
        reader.start()
        reader.join(START_TIMEOUT)
        if not said or not said[0].startswith(READY.encode()):
            self.stop()
            last = "\n".join(self.log().splitlines()[-5:])
            raise PeerTimeoutError(f"{self._role} did not start; its last words:\n{last}")

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        self.ask_to_stop()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _read_line(stream: IO[bytes], said: list[bytes]) -> None:
    with suppress(ValueError):  # closed meanwhile: the server did not start in time
        said.append(stream.readline())


def _environment(settings: Settings) -> dict[str, str]:
    """This process's environment with every setting spelt out, so that no file or variable interferes."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENVIRONMENT_PREFIX)}
    given = {ENVIRONMENT_PREFIX + field.name.upper(): str(getattr(settings, field.name)) for field in fields(settings)}
    if settings.threads:
        kept["OMP_NUM_THREADS"] = str(settings.threads)
    return {**kept, **given}


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

"""All three servers on this machine, for a demonstration, a benchmark, a test or a notebook.

    with launch(Settings(threads=1)) as servers:
        Client(servers.network("client"), servers.settings, ...).predict(...)

`launch` gives each a process of its own, over TLS. Identities are made for the occasion: certificates lie in a temporary
folder, private keys in the memory of whom they belong to and nowhere else. Ports are free ones, and leaving the block ends
the processes, whatever happened. Should this process die without a word, they notice that their input ended, stop, and remove
the temporary folder with the models they kept in it.
`in_memory` gives each a thread of this process instead: the same sessions under a debugger, with no network and no isolation.
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
from typing import IO, Any, Self

from secformer.crypto.identity import Identity, passing_identity
from secformer.deployment import DOORS, Address, Place, deployment_text
from secformer.errors import PeerTimeoutError
from secformer.parties.memory import TUNABLES
from secformer.parties.planner import CATALOGUE, Catalogue
from secformer.parties.serve import KEY_FROM_INPUT, READY, REMOVE, STOP_WITH_PARENT, make_server
from secformer.roles import ROLES, SERVERS
from secformer.settings import ENVIRONMENT_PREFIX, Settings
from secformer.transport.network import MemoryHub, Network
from secformer.transport.tls_network import TlsNetwork

SERVING = "secformer.parties.serve"
"""The module that a server's process runs."""
START_TIMEOUT = 60.0
"""Seconds until a server listens; most of it is torch's import, and it may share the cores with others."""
_STOP_TIMEOUT = 10.0  # a loaded machine takes seconds to end an interpreter


def launch(settings: Settings | None = None, module: str = SERVING) -> ProcessServers:
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
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secformer-")))
            self.settings = replace(self.settings, data_folder=folder)
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
        return TlsNetwork(role, self.settings, self._identities[role])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="secformer-")))
            self._identities = {role: passing_identity(role, folder / "identity") for role in ROLES}
            self.settings = on_this_machine(self._given, folder)
            self._folder = folder
            stack.callback(self._stop_all)
            self._start_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_all(self) -> None:
        for role in SERVERS:
            self._start(role, self.settings)
        for process in self._processes.values():
            process.wait_until_ready()

    def _start(self, role: str, settings: Settings) -> None:
        self._processes[role] = _Process(self._identities[role], self._module, settings, self._folder)

    def kill(self, role: str) -> None:
        """End a server without a word, as a crash would."""
        self._processes[role].kill()

    def restart(self, role: str, settings: Settings | None = None) -> None:
        """Start a server anew, with other settings if given."""
        self._processes[role].stop()
        self._start(role, settings or self.settings)
        self._processes[role].wait_until_ready()

    def change(self, **settings: Any) -> None:
        """Start all of them anew with other settings; what they keep on disk stays."""
        self._stop_all()
        self.settings = replace(self.settings, **settings)
        self._start_all()

    def log(self, role: str) -> str:
        return self._processes[role].log()

    def _stop_all(self) -> None:
        for process in self._processes.values():
            process.ask_to_stop()
        for process in self._processes.values():
            process.stop()


class _Process:
    def __init__(self, identity: Identity, module: str, settings: Settings, folder: Path) -> None:
        self._role = identity.role
        self._log_path = folder / f"{self._role}.log"
        command = [sys.executable, "-m", module, self._role, STOP_WITH_PARENT, KEY_FROM_INPUT, f"{REMOVE}{folder}"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=_environment(settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdin is not None and identity.key is not None
        with suppress(BrokenPipeError):  # it has ended already: `wait_until_ready` tells why
            self._process.stdin.write(identity.key)
            self._process.stdin.flush()

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
            ended = self._process.returncode
            raise PeerTimeoutError(f"{self._role} did not start (exit status {ended}); its last words:\n{last}")

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
    return {**TUNABLES, **kept, **given}


def on_this_machine(settings: Settings, folder: Path, trios: int = 1) -> Settings:
    """These settings, for servers at free ports of this machine; writes their deployment file."""
    ports = iter(free_ports(trios * sum(map(len, DOORS.values()))))

    def place(role: str) -> Place:
        first, *more = ({door: Address("127.0.0.1", next(ports)) for door in DOORS[role]} for _ in range(trios))
        return Place(first, more=tuple(more))

    places = {role: place(role) for role in SERVERS}
    deployment = folder / "deployment.toml"
    deployment.write_text(deployment_text("this machine", places))
    own = dict(deployment=deployment, identity_folder=folder / "identity", data_folder=folder / "data")
    return replace(settings, listen_callers="", listen_servers="", **own)


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

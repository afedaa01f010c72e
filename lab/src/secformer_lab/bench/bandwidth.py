"""How fast an opening of 64 MiB moves over TLS, against bare TLS sockets with as many connections, in the same run.

Two processes on this machine, both directions at once. The bare side does nothing but `sendall` and `recv_into` on
every connection, a thread each, with the same contexts and socket options; the channel frames, stripes, checks and
counts. The two take turns, and the best of each is kept: what the machine can do, not what else it was doing.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import perf_counter

import torch

from secformer.crypto.identity import Identity, PinnedPeers, client_context, create_identity, server_context
from secformer.errors import ConnectionLostError
from secformer.transport.channel import Channel
from secformer.transport.connection import tune
from secformer.transport.tls import connect, listen

REQUIRED_SHARE = 0.7
SIZE = 64 << 20
SESSION = bytes(range(16))
HOST = "127.0.0.1"
START_UP = 60.0


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second in each direction, with both busy."""

    size: int
    connections: int
    channel: float
    bare: float

    @property
    def share(self) -> float:
        return self.channel / self.bare


def measure_bandwidth(size: int = SIZE, connections: int = 2, repetitions: int = 8) -> Bandwidth:
    with tempfile.TemporaryDirectory() as folder:
        identities = [create_identity(role, Path(folder)) for role in ("server0", "server1")]
        peers = PinnedPeers.load_folder(Path(folder))
        with (
            listen(identities[0], peers, HOST, roles=("server1",)) as listener,
            socket.create_server((HOST, 0)) as plain,
        ):
            ports = listener.address[1], plain.getsockname()[1]
            with peer("secformer_lab.bench.bandwidth", folder, *ports, size, connections, repetitions) as process:
                try:
                    channel = listener.accept("server1", SESSION, connections, timeout=START_UP)
                    context = server_context(identities[0], peers)
                    sockets = [_accept(plain, context) for _ in range(2 * connections)]
                    return _measure(channel, sockets[1::2], sockets[0::2], size, repetitions)
                except BaseException:
                    process.kill()
                    raise


def peer(module: str, *words: object) -> subprocess.Popen[bytes]:
    """The other process of a measurement."""
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen([sys.executable, "-m", module, *map(str, words)], env={**os.environ, "PYTHONPATH": path})


def joined(folder: str, port: int, connections: int) -> tuple[Channel, Identity, PinnedPeers]:
    """The other process's end of the channel."""
    identity = Identity("server1", Path(folder) / "server1.crt", Path(folder) / "server1.key")
    peers = PinnedPeers.load_folder(Path(folder))
    return connect(identity, peers, "server0", (HOST, port), SESSION, connections, timeout=START_UP), identity, peers


def _peer_main(folder: str, *numbers: str) -> None:
    """Does the same, measures nothing."""
    port, plain_port, size, connections, repetitions = map(int, numbers)
    channel, identity, peers = joined(folder, port, connections)
    context = client_context(identity, peers)
    sockets = [_dial(plain_port, context) for _ in range(2 * connections)]
    _measure(channel, sockets[0::2], sockets[1::2], size, repetitions)


def _accept(server: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    server.settimeout(START_UP)
    connection, _ = server.accept()
    tune(connection)
    return context.wrap_socket(connection, server_side=True)


def _dial(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection((HOST, port), timeout=START_UP)
    tune(connection)
    connection.settimeout(None)
    return context.wrap_socket(connection)


def _measure(
    channel: Channel, out: list[ssl.SSLSocket], into: list[ssl.SSLSocket], size: int, repetitions: int
) -> Bandwidth:
    payload = torch.zeros(size, dtype=torch.uint8)
    part = size // len(out)
    sources = [memoryview(bytearray(part)) for _ in out]
    targets = [memoryview(bytearray(part)) for _ in into]
    bare, framed = [], []
    for _ in range(repetitions):
        bare.append(_timed(channel, lambda: _move(out, into, sources, targets)))
        framed.append(_timed(channel, lambda: channel.exchange(payload)))
    channel.close()
    for connection in (*out, *into):
        connection.close()
    return Bandwidth(size, len(out), size / min(framed), size / min(bare))


def _timed(channel: Channel, action: Callable[[], object]) -> float:
    """From when both are ready until both are done."""
    channel.exchange(b"ready")
    start = perf_counter()
    action()
    channel.exchange(b"done")
    return perf_counter() - start


def _move(
    out: list[ssl.SSLSocket], into: list[ssl.SSLSocket], sources: list[memoryview], targets: list[memoryview]
) -> None:
    threads = [Thread(target=link.sendall, args=(data,)) for link, data in zip(out, sources, strict=True)]
    threads += [Thread(target=_fill, args=(link, data)) for link, data in zip(into, targets, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fill(connection: ssl.SSLSocket, target: memoryview) -> None:
    while target:
        count = connection.recv_into(target)
        if count == 0:
            raise ConnectionLostError("the other process of the measurement ended: run it again")
        target = target[count:]


if __name__ == "__main__":
    _peer_main(*sys.argv[1:])

"""Parties that mean no good: silent, dripping and babbling callers, with and without a certificate."""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

from secformer.crypto.identity import Identity, PinnedPeers, client_context
from secformer.errors import SecFormerError
from secformer.transport.connection import Hello, receive_greeting, secure, send_greeting
from secformer.transport.frame import HEADER_BYTES, FrameType, encode

ELSEWHERE = "127.0.0.9"


def dialled(address: tuple[str, int], source: str = ELSEWHERE) -> socket.socket:
    raw = socket.socket()
    raw.settimeout(5)
    raw.bind((source, 0))
    raw.connect(address)
    return raw


class Attacker:
    """`identity` and `peers` where it has a certificate that is pinned."""

    def __init__(self, address, source=ELSEWHERE, identity: Identity | None = None, peers: PinnedPeers | None = None):
        self.address, self.source = address, source
        self._identity, self._peers = identity, peers
        self._context = client_context(identity, peers) if identity and peers else None
        self._random = random.Random(7)
        self._held: list[socket.socket] = []
        self._stopping = threading.Event()

    def enter(self) -> socket.socket:
        raw = dialled(self.address, self.source)
        return secure(raw, self._context, False, 5.0) if self._context is not None else raw

    def hold(self, count: int) -> int:
        """So many connections that say nothing; gives how many came to be."""
        for _ in range(count):
            with suppress(OSError, SecFormerError):
                self._held.append(self.enter())
        return len(self._held)

    def drip(self, count: int) -> list[threading.Thread]:
        """So many connections that say a byte a second."""
        threads = [threading.Thread(target=self._drip, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def _drip(self) -> None:
        data = encode(FrameType.HELLO, 0, (36,), 8, 36, bytes(16)) if self._context else _client_hello()
        while not self._stopping.is_set():
            with suppress(OSError, SecFormerError), self.enter() as connection:
                for byte in data:
                    if self._stopping.wait(1.0):
                        return
                    connection.sendall(bytes([byte]))

    def babble(self, count: int) -> int:
        """Malformed frames, as far in as this attacker gets; gives how many were sent."""
        sent = 0
        while sent < count and not self._stopping.is_set():
            with suppress(OSError, SecFormerError, EOFError):
                sent += self._babble_once()
        return sent

    def _babble_once(self) -> int:
        if self._context is None:
            with dialled(self.address, self.source) as raw:
                raw.sendall(self._random.randbytes(self._random.randrange(1, 400)))
            return 1
        session, connections = os.urandom(16), []
        try:
            for number in range(2):
                connection = self.enter()
                connections.append(connection)
                receive_greeting(connection, "server", 5.0)
                if self._random.random() < 0.3:
                    connection.sendall(self._mutated(session))
                    return 1
                send_greeting(connection, session, Hello(number, 2, self._identity.role, self.expected))
                receive_greeting(connection, "server", 5.0)
            if self.expected == "server0":  # S1 waits for nobody whom S0 has not announced
                receive_greeting(connections[0], "server", 5.0)
            connections[0].sendall(self._mutated(session) + self._mutated(session))
            return 2
        finally:
            for connection in connections:
                connection.close()

    expected = "server0"

    def _mutated(self, session: bytes) -> bytes:
        """A header with a few bytes changed, and some payload or none."""
        kind = self._random.choice(list(FrameType))
        head = bytearray(encode(kind, self._random.randrange(3), (8,), 8, 8, session))
        for _ in range(self._random.randrange(4)):
            head[self._random.randrange(HEADER_BYTES)] = self._random.randrange(256)
        return bytes(head) + self._random.randbytes(self._random.choice((0, 8, 8, 300)))

    def close(self) -> None:
        self._stopping.set()
        for connection in self._held:
            with suppress(OSError):
                connection.close()
        self._held.clear()


def _client_hello() -> bytes:
    """The first flight of an honest handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


class Watch:
    """What a process holds: memory, descriptors, threads."""

    def __init__(self, pid: int) -> None:
        self._place = Path(f"/proc/{pid}")

    @property
    def memory(self) -> int:
        line = next(line for line in (self._place / "status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) << 10

    @property
    def descriptors(self) -> int:
        return len(list((self._place / "fd").iterdir()))

    @property
    def threads(self) -> int:
        return len(list((self._place / "task").iterdir()))

    def settled(self, descriptors: int, patience: float = 30.0) -> bool:
        """Whether no more descriptors than these are open, before long."""
        deadline = time.monotonic() + patience
        while self.descriptors > descriptors:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

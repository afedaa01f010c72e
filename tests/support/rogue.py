"""A peer that holds a proper certificate and says improper things."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

from talking import SESSION, Deployment

from secformer.crypto.identity import client_context
from secformer.transport.connection import Hello, receive_greeting, secure, send_greeting
from secformer.transport.frame import HEADER_BYTES, FrameType, decode, encode, payload_bytes
from secformer.transport.tls import Listener


def frame(sequence=1, shape=(100,), width=8, kind=FrameType.OPENING, session=SESSION, payload=None) -> bytes:
    size = payload_bytes(shape, width)
    return encode(kind, sequence, shape, width, size, session) + (bytes(size) if payload is None else payload)


def patched(data: bytes, offset: int, layout: str, value: object) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<" + layout, changed, offset, value)
    return bytes(changed)


class Rogue:
    """server1's side of a channel to server0 with one connection each way, made by hand."""

    def __init__(self, deployment: Deployment, listener: Listener, session: bytes = SESSION) -> None:
        context = client_context(deployment.identities["server1"], deployment.peers)
        self.connections: list[ssl.SSLSocket] = []
        for number in range(2):
            raw = socket.create_connection(listener.address)
            connection = secure(raw, context, False, 5)
            receive_greeting(connection, "server0", 5)
            send_greeting(connection, session, Hello(number, 2, "server1", "server0"))
            receive_greeting(connection, "server0", 5)
            self.connections.append(connection)
        receive_greeting(self.connections[0], "server0", timeout=5)

    def send(self, data: bytes) -> None:
        self.connections[0].sendall(data)

    def heard(self) -> tuple[FrameType, bytes]:
        """The next frame of server0."""
        connection = self.connections[1]
        connection.settimeout(5)
        head = _exactly(connection, HEADER_BYTES)
        header = decode(head, SESSION, 1 << 20)
        return header.kind, _exactly(connection, header.length)

    def end_properly(self) -> None:
        """Close by TLS's own goodbye, wherever in a frame that is."""
        for connection in self.connections:
            with suppress(OSError, ValueError):  # the other side does not say goodbye back, or hung up first
                connection.settimeout(0.2)
                connection.unwrap()
        self.hang_up()

    def hang_up(self) -> None:
        for connection in self.connections:
            connection.close()


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data

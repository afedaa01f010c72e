"""Larger records: what large frames travel in, on connections that began as TLS.

TLS cuts a stream into records of 16 KiB, and Python reads one a call, under the interpreter's lock: lanes read by several threads
wait for each other more than they decrypt, and the more there are the slower they get. So every connection of a channel but
the first, once TLS has authenticated both its ends, carries a fresh key from its sender to its receiver, inside TLS, and
leaves TLS behind. From then on its sender seals pieces of a stripe with AES-256-GCM under that key,

    record n = AES-256-GCM(key, nonce n, piece)      the piece and 16 bytes of tag

without the interpreter's lock, and so does its receiver open them. Both know the cuts from the stripe's length, which the frame's
header told on the first connection, under TLS. A connection carries one direction and has a key of its own, nonces count up
from 0: a record that was changed, left out, repeated, moved or sent back does not open, and a cut stream is a lost connection.
The key lives as long as the connection and was never anywhere else, so it is as forward secret as the TLS session that bore it.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from time import monotonic

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secformer.errors import ConnectionLostError, FrameError, PeerTimeoutError

RECORD = 512 << 10
"""Bytes of a piece: long enough that the interpreter does not show, short enough that both ends work at the same time."""

KEY_BYTES = 32
_TAG_BYTES = 16
_NONCE_BYTES = 12


class Sealing:
    """One end of a sealed connection: the cipher, and the number of the next record."""

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        self._connection = connection
        self._cipher = AESGCM(key)
        self._records = 0
        self._box = memoryview(bytearray(RECORD + _TAG_BYTES))
        self._left = self._box[:0]  # of a record that the socket did not take at once
        self._idle = _nothing
        self._peeked = bytearray(1)

    def _next_nonce(self) -> bytes:
        number, self._records = self._records, self._records + 1
        return number.to_bytes(_NONCE_BYTES, "little")

    def _sealed(self, piece: memoryview | bytes) -> memoryview:
        box = self._box[: len(piece) + _TAG_BYTES]
        self._cipher.encrypt_into(self._next_nonce(), piece, None, box)
        return box

    def sendall(self, data: memoryview | bytes) -> None:
        left, self._left = self._left, self._box[:0]
        if left:
            self._connection.sendall(left)
        for start in range(0, len(data), RECORD):
            self._connection.sendall(self._sealed(data[start : start + RECORD]))

    def offer(self, pieces: Sequence[memoryview | bytes]) -> list[memoryview | bytes]:
        """Send what the socket takes without waiting. Gives the rest, for `sendall`, which goes on where this ended."""
        for number, piece in enumerate(pieces):
            for start in range(0, len(piece), RECORD):
                box = self._sealed(piece[start : start + RECORD])
                try:
                    count = self._connection.send(box, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    count = 0
                if count < len(box):
                    self._left = box[count:]
                    return [piece[start + RECORD :], *pieces[number + 1 :]]
        return []

    def sleep_for(self, seconds: float, idle: Callable[[], None]) -> None:
        """While `read` waits, call `idle` whenever nothing has come for so long."""
        self._idle = idle
        patience = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)

    def look(self, seconds: float) -> bool:
        """Whether there is something to read, or the end; look for so long, without sleeping."""
        until = monotonic() + seconds
        while True:
            try:
                self._connection.recv_into(self._peeked, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return True
            except BlockingIOError:
                if monotonic() >= until:
                    return False
                os.sched_yield()  # the other server may need this very core

    def read(self, buffer: memoryview) -> int:
        """Open the next record into the buffer's beginning: how many bytes it held.

        The stream has no end of its own, the first connection's tells: here it only ever breaks off.
        """
        piece = buffer[:RECORD]
        box = self._box[: len(piece) + _TAG_BYTES]
        position = 0
        while position < len(box):
            try:
                count = self._connection.recv_into(box[position:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                self._idle()
                continue
            if not count:
                raise ConnectionResetError("a sealed connection broke off")
            position += count
        try:
            return self._cipher.decrypt_into(self._next_nonce(), box, None, piece)
        except InvalidTag:
            raise FrameError("record: a sealed record was changed on its way, or is not the next one") from None


def _nothing() -> None:
    pass


def seal(connection: ssl.SSLSocket, deadline: float) -> Sealing:
    """The sender's end; all of it until `deadline`."""
    key = os.urandom(KEY_BYTES)
    _wait_until(connection, deadline)
    connection.sendall(key)
    return Sealing(_without_tls(connection, deadline), key)


def unseal(connection: ssl.SSLSocket, deadline: float) -> Sealing:
    """The receiver's end."""
    key = bytearray()
    while len(key) < KEY_BYTES:
        _wait_until(connection, deadline)
        part = connection.recv(KEY_BYTES - len(key))
        if not part:
            raise ConnectionLostError("the peer closed a connection before it was sealed")
        key += part
    return Sealing(_without_tls(connection, deadline), bytes(key))


def _without_tls(connection: ssl.SSLSocket, deadline: float) -> socket.socket:
    """Both ends say that nothing follows under TLS, and keep the connection."""
    _wait_until(connection, deadline)
    plain = connection.unwrap()
    plain.settimeout(None)
    return plain


def _wait_until(connection: ssl.SSLSocket, deadline: float) -> None:
    left = deadline - monotonic()
    if left <= 0:
        raise PeerTimeoutError("sealing took too long")
    connection.settimeout(left)

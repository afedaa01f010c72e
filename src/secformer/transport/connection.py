"""One TLS connection from the TCP handshake to the first frame.

    listener                                  dialer
    TLS 1.3, both certificates            <-> TLS 1.3, both certificates
    is the certificate pinned? welcome     -> is this the role I called?
                                          <-  hello: session, role, which connection of how many
    seated: the hello is repeated          -> the other connections, a few at a time
    (all have come, `accept` asked) go     ->                                   on connection 0 only

The listener speaks first: a TLS 1.3 client believes in its handshake before the server has judged its
certificate, and only reading tells it otherwise. Whoever refuses says why in an ABORT frame, so both sides
raise the same error.

Afterwards a connection carries one direction only. OpenSSL does not allow one thread to read while another
writes the same connection; and since nothing is ever outstanding on a connection that only receives, TCP
keepalive runs on it undisturbed and notices a vanished host in 4 s, however much waits on the others.
TCP_USER_TIMEOUT would break a promise instead: it kills a connection whose receiver is alive but asks the
sender to wait, which is what a dealer's link does most of the time.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch

from secformer.crypto.identity import PinnedPeers, fingerprint_of, translate_ssl_error, verify_peer
from secformer.errors import (
    AgreementError,
    ConnectionLostError,
    FrameError,
    IdentityError,
    PeerTimeoutError,
    TransportError,
)
from secformer.transport.channel import describe_abort, peer_aborted, read_abort
from secformer.transport.frame import HEADER_BYTES, SESSION_BYTES, FrameType, decode, encode, session_of
from secformer.version import __version__

HANDSHAKE_TIMEOUT = 4.0
NO_SESSION = bytes(SESSION_BYTES)

_SOCKET_BUFFER = 4 << 20
_GREETING_LIMIT = 1024
_FAREWELL = 0.5  # seconds for a peer to read why it was refused, and to hang up
# seconds of silence before the first probe, between probes, and how many of them: 2 + 2 · 1 = 4 s
_KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
# number of this connection, connections in all, own role, role of the peer
_HELLO = struct.Struct("<HH16s16s")


PROBE = 0
"""As a number of connections: none, only news of the peer are wanted."""
# the clock in seconds, and the release
_NEWS = struct.Struct("<d32s")


class News(NamedTuple):
    """What a listener says of itself to whoever looks after a deployment."""

    clock: float
    release: str


class Hello(NamedTuple):
    number: int
    count: int
    role: str
    expected_role: str


def tune(connection: socket.socket) -> None:
    """Small frames leave at once, large ones find room, a vanished host is noticed. Before connect or listen."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, option in (("rmem_max", socket.SO_RCVBUF), ("wmem_max", socket.SO_SNDBUF)):
        # A fixed size switches the kernel's own tuning off, which is better than a size cut to the maximum.
        if _kernel_maximum(name) >= _SOCKET_BUFFER:
            connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)


def _kernel_maximum(name: str) -> int:
    try:
        return int(Path("/proc/sys/net/core", name).read_text())
    except (OSError, ValueError):
        return 0


def wrapped(raw: socket.socket, context: ssl.SSLContext, server_side: bool) -> ssl.SSLSocket:
    """The connection before its handshake; it takes the place of `raw`.

    A ragged end stays visible: it tells a killed peer from one that cut a frame short.
    """
    return context.wrap_socket(raw, server_side=server_side, do_handshake_on_connect=False, suppress_ragged_eofs=False)


def shake_hands(connection: ssl.SSLSocket, timeout: float) -> None:
    """The TLS handshake, within `timeout` seconds in all."""
    connection.settimeout(timeout)
    try:
        connection.do_handshake()
    except OSError as error:
        close_gently(connection)
        raise broken(error, "the peer", "the TLS handshake") from error


def secure(raw: socket.socket, context: ssl.SSLContext, server_side: bool, timeout: float) -> ssl.SSLSocket:
    connection = wrapped(raw, context, server_side)
    shake_hands(connection, timeout)
    return connection


def peer_role(connection: ssl.SSLSocket, peers: PinnedPeers) -> str:
    """The role whose pinned certificate the peer holds."""
    role = peers.role_of(connection.getpeercert(binary_form=True) or b"")
    if role is None:
        raise IdentityError("the peer's certificate is pinned for no role here")
    verify_peer(connection, role, peers)
    return role


def principal_of(connection: ssl.SSLSocket) -> str:
    """Who the peer is: the fingerprint of the certificate it showed."""
    return fingerprint_of(connection.getpeercert(binary_form=True) or b"")


def broken(error: OSError, peer: str, during: str) -> TransportError:
    """The typed error for a socket error during the greeting."""
    if isinstance(error, TimeoutError):
        return PeerTimeoutError(f"{peer} did not answer in time during {during}")
    found = translate_ssl_error(error)
    return IdentityError(f"{peer}: {found}") if isinstance(found, IdentityError) else found


def send_greeting(connection: ssl.SSLSocket, session: bytes, hello: Hello) -> None:
    payload = _HELLO.pack(hello.number, hello.count, hello.role.encode(), hello.expected_role.encode())
    _send(connection, FrameType.HELLO, session, payload)


def send_news(connection: ssl.SSLSocket) -> None:
    _send(connection, FrameType.HELLO, NO_SESSION, _NEWS.pack(time.time(), __version__.encode()[:32]))


def receive_news(connection: ssl.SSLSocket, peer: str, timeout: float) -> News:
    kind, payload, _ = _receive(connection, peer, timeout)
    if kind is FrameType.ABORT:
        raise _refusal(peer, payload)
    if len(payload) != _NEWS.size:
        raise FrameError(f"length: {peer} did not tell its news")
    clock, release = _NEWS.unpack(payload)
    return News(clock, _text(release))


def refuse(connection: ssl.SSLSocket, error: BaseException) -> None:
    """Tell the peer why it is not welcome, and hang up."""
    with suppress(OSError):
        _send(connection, FrameType.ABORT, NO_SESSION, describe_abort(error))
    close_gently(connection)


def _send(connection: ssl.SSLSocket, kind: FrameType, session: bytes, payload: bytes) -> None:
    connection.sendall(encode(kind, 0, (len(payload),), 8, len(payload), session) + payload)


def receive_greeting(connection: ssl.SSLSocket, peer: str, timeout: float) -> tuple[bytes, Hello]:
    """(session, hello) of the peer's HELLO frame; an ABORT raises the error it names."""
    kind, payload, session = _receive(connection, peer, timeout)
    if kind is FrameType.ABORT:
        raise _refusal(peer, payload)
    if kind is not FrameType.HELLO or len(payload) != _HELLO.size:
        raise FrameError(f"kind: {peer} did not begin with a greeting")
    number, count, role, expected = _HELLO.unpack(payload)
    return session, Hello(number, count, _text(role), _text(expected))


def _receive(connection: ssl.SSLSocket, peer: str, timeout: float) -> tuple[FrameType, bytes, bytes]:
    """(kind, payload, session) of the peer's next frame, all of it within `timeout` seconds."""
    deadline = monotonic() + timeout
    try:
        head = _read(connection, HEADER_BYTES, deadline)
        header = decode(head, None, _GREETING_LIMIT)
        return header.kind, _read(connection, header.length, deadline), session_of(head)
    except OSError as error:
        raise broken(error, peer, "the greeting") from error


def _read(connection: ssl.SSLSocket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(deadline - monotonic(), 1e-3))
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionLostError("the peer closed the connection during the greeting")
        data += piece
    return bytes(data)


def _text(role: bytes) -> str:
    return role.rstrip(b"\0").decode("ascii", errors="replace")


def _refusal(peer: str, payload: bytes) -> TransportError | AgreementError:
    """A refusal in the words of the peer and with the type it has there."""
    code, text = read_abort(payload)
    for kind in (IdentityError, FrameError, AgreementError):
        if code == kind.code:
            return kind(f"{peer} refused the connection: {text}")
    return peer_aborted(peer, torch.frombuffer(bytearray(payload), dtype=torch.uint8))


def close_gently(connection: socket.socket) -> None:
    """Close so that what was said last is heard: closing with unread bytes would destroy it (TCP reset)."""
    with suppress(OSError):
        shut(connection, socket.SHUT_WR)
        deadline = monotonic() + _FAREWELL  # a peer that keeps talking is not listened to for ever
        while (remaining := deadline - monotonic()) > 0:
            connection.settimeout(remaining)
            if not socket.socket.recv(connection, 1 << 16):
                break
    connection.close()


def shut(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut the TCP connection, waking every thread that waits on it.

    Not SSLSocket.shutdown: that forgets the TLS state, and a reader would go on with what it takes for plain bytes.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, how)

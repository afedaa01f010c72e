"""Channels between machines: TLS 1.3, both sides authenticated by pinned certificates.

    listener = listen(identity, peers, host, port)
    channel = listener.accept("server1", session)                            # on server0
    channel = connect(identity, peers, "server0", (host, port), session)     # on server1

`connections` is the number in each direction; a channel has twice as many. Even-numbered ones carry what the
dialer sends, odd-numbered ones what the listener sends (transport/connection.py says why not both).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import BoundedSemaphore, Event
from time import monotonic, sleep

from secformer.crypto.identity import Identity, PinnedPeers, client_context, verify_peer
from secformer.errors import ConnectionLostError, PeerTimeoutError, SecFormerError, SettingsError
from secformer.transport.channel import ChannelOptions
from secformer.transport.connection import (
    HANDSHAKE_TIMEOUT,
    NO_SESSION,
    PROBE,
    Hello,
    News,
    broken,
    receive_greeting,
    receive_news,
    refuse,
    secure,
    send_greeting,
    tune,
)
from secformer.transport.listener import Listener, listen
from secformer.transport.tls_channel import TlsChannel

__all__ = ["ChannelOptions", "Listener", "TlsChannel", "connect", "listen"]

_RETRY = 0.05
_ATTEMPTS, _PAUSE = 4, 0.1  # to get through a door that others crowd
# Connections that are dialled at once at one door, beside the first of every session: it greets 32 of an address or certificate
# at once (greetings.py), and on one machine servers share their address.
_AT_ONCE = 4


def connect(
    identity: Identity,
    peers: PinnedPeers,
    expected_role: str,
    address: tuple[str, int],
    session: bytes,
    connections: int = 2,
    *,
    timeout: float = 30.0,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    options: ChannelOptions | None = None,
) -> TlsChannel:
    """The channel to the peer at `address`, which must hold `expected_role`'s certificate.

    Tries again until `timeout` while the peer is not there yet; whatever else is wrong is raised at once.
    """
    if connections < 1:
        raise SettingsError("a channel needs at least one connection in each direction")
    deadline = monotonic() + timeout
    peers.refresh()
    context = client_context(identity, peers)

    def seated(number: int) -> ssl.SSLSocket:
        connection = _enter(context, address, expected_role, deadline, handshake_timeout)
        try:
            verify_peer(connection, expected_role, peers)
            _greet(connection, session, Hello(number, 2 * connections, identity.role, expected_role), handshake_timeout)
        except SecFormerError as error:
            refuse(connection, error)
            raise
        return connection

    made = _all_seated(seated, 2 * connections, _Door(address, expected_role, deadline))
    try:
        receive_greeting(made[0], expected_role, max(deadline - monotonic(), handshake_timeout))
    except SecFormerError as error:
        for connection in made:
            refuse(connection, error)
        raise
    return TlsChannel(expected_role, session, made[0::2], made[1::2], options or ChannelOptions())


def _all_seated(seated: Callable[[int], ssl.SSLSocket], count: int, door: _Door) -> list[ssl.SSLSocket]:
    """All connections, or none: the first by itself, for whoever is not welcome hears it there; then a few at a time, for each
    takes four journeys there and back."""
    made, failed = {0: seated(0)}, Event()

    def further(number: int) -> None:
        with door:
            if not failed.is_set():
                try:
                    made[number] = seated(number)
                except BaseException:
                    failed.set()
                    raise

    try:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="transport-dial") as pool:
            futures = [pool.submit(further, number) for number in range(1, count)]
        for future in futures:
            future.result()
    except BaseException as error:
        failed.set()
        for connection in list(made.values()):
            refuse(connection, error)
        raise
    return [made[number] for number in range(count)]


class _Door:
    """Where a few of this process's connections may be dialled at once, whatever sessions they are for."""

    def __init__(self, address: tuple[str, int], role: str, deadline: float) -> None:
        self._places, self._role, self._deadline = _places(address), role, deadline

    def __enter__(self) -> None:
        if not self._places.acquire(timeout=max(self._deadline - monotonic(), 0.0)):
            raise PeerTimeoutError(
                f"{self._role} cannot be reached in time: other sessions of this party are at its door"
            )

    def __exit__(self, *_: object) -> None:
        self._places.release()


@lru_cache(maxsize=256)
def _places(address: tuple[str, int]) -> BoundedSemaphore:
    return BoundedSemaphore(_AT_ONCE)


def probe(identity: Identity, peers: PinnedPeers, expected_role: str, address: tuple[str, int], timeout: float) -> News:
    """What the peer at `address` says of itself; raises what a call would raise."""
    connection = _enter(client_context(identity, peers), address, expected_role, monotonic() + timeout, timeout)
    try:
        verify_peer(connection, expected_role, peers)
        send_greeting(connection, NO_SESSION, Hello(0, PROBE, identity.role, expected_role))
        return receive_news(connection, expected_role, timeout)
    except OSError as error:
        raise broken(error, expected_role, "the greeting") from error
    finally:
        connection.close()


def _enter(
    context: ssl.SSLContext, address: tuple[str, int], role: str, deadline: float, timeout: float
) -> ssl.SSLSocket:
    """A connection on which the peer has said welcome. A crowd at its door may push this one out: then come again."""
    lost: ConnectionLostError | None = None
    for _ in range(_ATTEMPTS):
        try:
            raw = _dial(address, role, deadline if lost is None else 0.0)
        except PeerTimeoutError as absent:
            raise lost or absent from None
        try:
            return _welcomed(secure(raw, context, False, timeout), role, timeout)
        except ConnectionLostError as error:
            lost = error
        except PeerTimeoutError as silent:
            raise lost or silent from None
        if monotonic() + _PAUSE > deadline:
            break
        sleep(_PAUSE)
    assert lost is not None
    raise lost


def _welcomed(connection: ssl.SSLSocket, role: str, timeout: float) -> ssl.SSLSocket:
    """The connection once its peer has spoken; a refusal comes before anything is written."""
    try:
        receive_greeting(connection, role, timeout)
    except SecFormerError:
        connection.close()
        raise
    return connection


def _dial(address: tuple[str, int], role: str, deadline: float) -> socket.socket:
    """A TCP connection, as soon as somebody listens."""
    while True:
        try:
            return _dial_once(address)
        except OSError as error:
            if monotonic() + _RETRY > deadline:
                reason = error.strerror or type(error).__name__
                raise PeerTimeoutError(
                    f"{role} cannot be reached at {address[0]}:{address[1]} ({reason}): is it running?"
                ) from error
            sleep(_RETRY)


def _dial_once(address: tuple[str, int]) -> socket.socket:
    """To the first of the host's addresses that answers."""
    refusal: OSError = OSError("no address")
    for family, _, _, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        raw = socket.socket(family)
        try:
            tune(raw)
            raw.settimeout(HANDSHAKE_TIMEOUT)
            raw.connect(place)
            return raw
        except OSError as error:
            raw.close()
            refusal = error
    raise refusal


def _greet(connection: ssl.SSLSocket, session: bytes, hello: Hello, timeout: float) -> None:
    try:
        send_greeting(connection, session, hello)
    except OSError as error:
        raise broken(error, hello.expected_role, "the greeting") from error
    receive_greeting(connection, hello.expected_role, timeout)

"""The side that is called.

A thread accepts connections and greets each in a thread of its own, so that nobody who stalls can block the
others; greetings.py bounds how many. Callers wait in a lobby, sorted by certificate and session, until all their
connections have come and an `accept` asks for them: the order in which parties start does not matter. The lobby is
bounded, too, and nobody waits there for long.

Pins are looked at again for every caller, so one that is taken out is refused at once.

Who is not welcome is told why, and logged; `accept` waits on for whom it expects.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from time import monotonic, sleep
from typing import Self

from secformer.crypto.identity import Identity, PinnedPeers, server_context
from secformer.errors import (
    AgreementError,
    ConnectionLostError,
    FrameError,
    IdentityError,
    PeerTimeoutError,
    SecFormerError,
    TransportError,
)
from secformer.transport.channel import ChannelOptions
from secformer.transport.connection import (
    HANDSHAKE_TIMEOUT,
    NO_SESSION,
    PROBE,
    Hello,
    close_gently,
    peer_role,
    principal_of,
    receive_greeting,
    refuse,
    send_greeting,
    send_news,
    shake_hands,
    tune,
    wrapped,
)
from secformer.transport.greetings import Greeting, Greetings
from secformer.transport.tls_channel import TlsChannel

_log = logging.getLogger(__name__)

_FORGET = 10.0  # seconds a caller may wait in the lobby
_LOBBY = 512  # connections that wait there
_LOBBY_OF_ONE = 128  # of them, with one certificate
_CONNECTIONS = 64  # of one channel, both directions together
_LOOK = 1.0  # seconds between two looks at who has left the lobby
_BREATH = 0.1  # seconds until the next attempt when the system has no descriptor left
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass
class _Caller:
    """The connections of one dialer, by their number."""

    role: str
    principal: str
    session: bytes
    count: int
    since: float = field(default_factory=monotonic)
    connections: dict[int, ssl.SSLSocket] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.connections) == self.count

    @property
    def gone(self) -> bool:
        """Whether it hung up, or waits for too long, and must not be handed to anybody."""
        return monotonic() - self.since > _FORGET or any(map(_hung_up, self.connections.values()))

    def dismiss(self, error: BaseException) -> None:
        for connection in self.connections.values():
            refuse(connection, error)


class Listener:
    def __init__(
        self,
        server: socket.socket,
        identity: Identity,
        peers: PinnedPeers,
        roles: Collection[str],
        handshake_timeout: float,
    ) -> None:
        self.address: tuple[str, int] = server.getsockname()[:2]
        self._server = server
        self._role = identity.role
        self._peers = peers
        self._identity = identity
        self._context = server_context(identity, peers)
        self._generation, self._renewing = peers.generation, Lock()
        self._roles = roles
        self._handshake_timeout = handshake_timeout
        self._changed = Condition()
        self._lobby: dict[tuple[str, str, bytes], _Caller] = {}
        self._closed = False
        self._greetings = Greetings()
        Thread(target=self._run, name="transport-listen", daemon=True).start()

    def accept(
        self,
        expected_role: str,
        session: bytes | None,
        connections: int = 2,
        *,
        timeout: float | None = 30.0,
        options: ChannelOptions | None = None,
    ) -> TlsChannel:
        """The channel to the peer in that role, for that session; None takes the session the peer names.

        `timeout` in seconds; None waits. Several threads may accept at once.
        """
        deadline = None if timeout is None else monotonic() + timeout
        with self._changed:
            while (caller := self._find(expected_role, session, connections)) is None:
                self._wait(expected_role, deadline)
        return self._join(caller, options or ChannelOptions())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            callers = list(self._lobby.values())
            self._lobby.clear()
            self._changed.notify_all()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._server.close()
        for caller in callers:
            caller.dismiss(ConnectionLostError(f"{self._role} no longer listens"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Greeting, in threads of its own

    def _run(self) -> None:
        while not self._closed:
            try:
                raw, address = self._server.accept()
            except OSError as error:
                if self._closed:
                    return
                if error.errno in _SHORT_OF:
                    _log.warning("no descriptor for a caller (%s): raise the limit (ulimit -n)", error.strerror)
                    sleep(_BREATH)
                continue  # otherwise the caller hung up before it was accepted
            greeting = self._greetings.begin(raw, str(address[0]))
            try:
                Thread(target=self._greet, args=(greeting, address), name="transport-greet", daemon=True).start()
            except RuntimeError:  # no thread to be had
                self._greetings.end(greeting)
                raw.close()
                sleep(_BREATH)

    def _greet(self, greeting: Greeting, address: tuple) -> None:
        where = f"{address[0]}:{address[1]}"
        try:
            tune(greeting.raw)
            greeting.raw = connection = wrapped(greeting.raw, self._current_context(), True)
            shake_hands(connection, self._handshake_timeout)
            try:
                self._admit(connection, greeting)
            except (SecFormerError, OSError) as error:
                refuse(connection, error)
                raise
        except SecFormerError as error:
            _log.warning("refused a caller from %s: %s", where, error)
        except OSError as error:
            _log.warning("a caller from %s went away during the greeting (%s)", where, type(error).__name__)
        finally:
            self._greetings.end(greeting)

    def _current_context(self) -> ssl.SSLContext:
        """With the pins of this moment, and this party's key as it is now."""
        with self._renewing:
            self._peers.refresh()
            if self._peers.generation != self._generation:
                try:
                    self._context = server_context(self._identity, self._peers)
                    self._generation = self._peers.generation
                except IdentityError as error:  # half of a new key, say: the next caller finds the other half
                    _log.warning("the pins have changed, and do not load: %s", error)
            return self._context

    def _admit(self, connection: ssl.SSLSocket, greeting: Greeting) -> None:
        role, principal = peer_role(connection, self._peers), principal_of(connection)
        self._greetings.prove(greeting, principal)
        send_greeting(connection, NO_SESSION, Hello(0, 0, self._role, role))
        session, hello = receive_greeting(connection, role, self._handshake_timeout)
        if (hello.role, hello.expected_role) != (role, self._role):
            raise IdentityError(
                f"{role} calls itself {hello.role!r} and calls {hello.expected_role!r}, this is {self._role}"
            )
        if hello.count == PROBE:  # whoever is known may look, also where it has no business
            send_news(connection)
            close_gently(connection)
            return
        if role not in self._roles:
            raise IdentityError(f"{role} called {self._role}, which expects {', '.join(self._roles)}")
        if not 2 <= hello.count <= _CONNECTIONS or hello.number >= hello.count:
            raise FrameError(f"hello: connection {hello.number} of {hello.count} does not exist")
        self._greetings.end(greeting)  # before the dialer hears of it and calls again: nobody takes its place any more
        send_greeting(connection, session, hello)
        with self._changed:
            if self._closed:
                raise ConnectionLostError(f"{self._role} no longer listens")
            self._tidy()
            self._seat(connection, _Caller(role, principal, session, hello.count), hello.number)
            self._changed.notify_all()

    def _seat(self, connection: ssl.SSLSocket, fresh: _Caller, number: int) -> None:
        key = fresh.role, fresh.principal, fresh.session
        caller = self._lobby.get(key)
        if caller is None or caller.count != fresh.count or number in caller.connections:
            # a dialer that started again: what it left here is stale
            self._leave(key)
            self._check_room(fresh.principal)
            self._lobby[key] = caller = fresh
        caller.connections[number] = connection

    def _check_room(self, principal: str) -> None:
        waiting = [(caller.principal, len(caller.connections)) for caller in self._lobby.values()]
        if sum(count for _, count in waiting) >= _LOBBY:
            raise TransportError(f"{self._role} has too many callers at its door: try again later")
        if sum(count for whose, count in waiting if whose == principal) >= _LOBBY_OF_ONE:
            raise TransportError(f"too many connections with this certificate wait at {self._role}: end some first")

    def _tidy(self) -> None:
        """Let go of who hung up, waits for too long, or is no longer trusted."""
        for key, caller in list(self._lobby.items()):
            if caller.gone or not self._peers.trusts(caller.principal):
                self._leave(key)

    def _leave(self, key: tuple[str, str, bytes]) -> None:
        caller = self._lobby.pop(key, None)
        for connection in caller.connections.values() if caller else ():
            Thread(target=close_gently, args=(connection,), daemon=True).start()

    # Finding the awaited caller, under the lock

    def _find(self, role: str, session: bytes | None, connections: int) -> _Caller | None:
        self._tidy()
        for key, caller in list(self._lobby.items()):
            if caller.complete and caller.role == role and session in (None, caller.session):
                del self._lobby[key]
                if caller.count == 2 * connections:
                    return caller
                self._dismiss(caller, connections)
        return None

    def _dismiss(self, caller: _Caller, connections: int) -> None:
        """In a thread: a caller that does not listen must not hold the lock."""
        problem = AgreementError(
            f"{caller.role} uses {caller.count // 2} connections, {self._role} {connections}: set the same number"
        )
        Thread(target=caller.dismiss, args=(problem,), daemon=True).start()
        _log.warning("refused a caller: %s", problem)

    def _wait(self, role: str, deadline: float | None) -> None:
        if self._closed:
            raise ConnectionLostError(f"{self._role} no longer listens")
        remaining = None if deadline is None else deadline - monotonic()
        if remaining is not None and remaining <= 0:
            raise PeerTimeoutError(f"{role} did not call {self._role} in time: is it running?")
        self._changed.wait(_LOOK if remaining is None else min(remaining, _LOOK))

    def _join(self, caller: _Caller, options: ChannelOptions) -> TlsChannel:
        ordered = [caller.connections[number] for number in range(caller.count)]
        try:
            send_greeting(ordered[0], caller.session, Hello(0, caller.count, self._role, caller.role))
        except OSError as error:
            raise ConnectionLostError(f"{caller.role} went away during the greeting") from error
        return TlsChannel(caller.role, caller.session, ordered[1::2], ordered[0::2], options)


def _hung_up(connection: ssl.SSLSocket) -> bool:
    """Whether the stream has ended; a caller in the lobby has nothing else to say."""
    try:
        connection.settimeout(0)
        return not socket.socket.recv(connection, 1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    finally:
        with suppress(OSError):
            connection.settimeout(None)


def listen(
    identity: Identity,
    peers: PinnedPeers,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    roles: Collection[str],
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
) -> Listener:
    """Begin to listen; port 0 lets the system choose, `Listener.address` tells. `roles` are those who may call."""
    server = None
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = socket.socket(family)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tune(server)
        server.bind(place)
        server.listen(128)
        return Listener(server, identity, peers, roles, handshake_timeout)
    except OSError as error:
        if server is not None:
            server.close()
        advice = "is this server running already? If not, choose" if error.errno == errno.EADDRINUSE else "choose"
        raise TransportError(f"cannot listen on {host}:{port} ({error.strerror}): {advice} another port") from error

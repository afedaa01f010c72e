"""How a party reaches the others and is reached: over TLS between machines, or in memory within one process.

A `Network` belongs to one party. The parties' code (parties/) knows no more of it than this interface, so a whole
deployment of client, provider, S0, S1 and T runs in one process, under a debugger, in tests and in notebooks:

    hub = MemoryHub()
    server = ComputingServer(0, hub.network("server0"), settings)
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from threading import Condition
from time import monotonic

from secformer.deployment import Limits
from secformer.errors import AgreementError, ConnectionLostError, IdentityError, PeerTimeoutError
from secformer.transport.channel import Channel, ChannelOptions
from secformer.transport.frame import SESSION_BYTES
from secformer.transport.memory import memory_pair


def trio_of(session: bytes, trios: int) -> int:
    """Callers and servers choose alike, by the session's name."""
    return int.from_bytes(session[:4], "little") % trios


class Listening(ABC):
    """The side that is called."""

    address: str

    @abstractmethod
    def accept(self, role: str, session: bytes | None, *, timeout: float | None, options: ChannelOptions) -> Channel:
        """The channel to the peer in that role, for that session; None takes the session the peer names."""

    @abstractmethod
    def close(self) -> None: ...


class Network(ABC):
    role: str
    """Whose network this is."""
    limits = Limits()
    """What the deployment allows one principal."""
    trios = 1
    """How many servers there are in each role: the first S0, S1 and T belong together, and so on."""
    trio = 0
    """To which of them a server belongs."""

    def new_session(self, trio: int) -> bytes:
        """A name that was never used, and that says which trio the session is for."""
        while trio_of(session := os.urandom(SESSION_BYTES), self.trios) != trio:
            pass
        return session

    def check_session(self, session: bytes) -> None:
        """A server: whether a session is for its trio."""
        if (wanted := trio_of(session, self.trios)) != self.trio:
            raise AgreementError(
                f"this is {self.role} of trio {self.trio}, the session is for trio {wanted}: "
                "use the same deployment file everywhere, and start each server as the trio it is listed for"
            )

    def trusts(self, principal: str) -> bool:
        """Whether this party may still be talked to."""
        return True

    @abstractmethod
    def listen(self, roles: Collection[str]) -> Listening:
        """Begin to listen for parties in these roles; others are refused."""

    @abstractmethod
    def connect(self, peer: str, session: bytes, *, timeout: float, options: ChannelOptions) -> Channel:
        """The channel to the party in that role; tries until `timeout` while the peer is not there yet."""


# -- within one process ---------------------------------------------------------------------------------------------------


class MemoryHub:
    """What the parties of one process share."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.changed = Condition()
        self.listening: dict[str, MemoryListening] = {}

    def network(self, role: str, principal: str = "") -> MemoryNetwork:
        """`principal` tells apart several parties in one role; without, all of them are one."""
        return MemoryNetwork(self, role, principal or f"memory:{role}")


class MemoryNetwork(Network):
    def __init__(self, hub: MemoryHub, role: str, principal: str) -> None:
        self.role, self.limits = role, hub.limits
        self._hub, self._principal = hub, principal

    def listen(self, roles: Collection[str]) -> MemoryListening:
        with self._hub.changed:
            self._hub.listening[self.role] = listening = MemoryListening(self._hub, self.role, roles)
            self._hub.changed.notify_all()
        return listening

    def connect(self, peer: str, session: bytes, *, timeout: float, options: ChannelOptions) -> Channel:
        with self._hub.changed:
            self._hub.changed.wait_for(lambda: peer in self._hub.listening, timeout)
            listening = self._hub.listening.get(peer)
            if listening is None:
                raise PeerTimeoutError(f"{peer} cannot be reached in this process: is it running?")
            return listening.call(self.role, self._principal, session, options)


class MemoryListening(Listening):
    def __init__(self, hub: MemoryHub, role: str, roles: Collection[str]) -> None:
        self.address = f"memory:{role}"
        self._hub, self._role, self._roles = hub, role, roles
        self._lobby: list[Channel] = []

    def call(self, role: str, principal: str, session: bytes, options: ChannelOptions) -> Channel:
        """Called by the dialling side, under the hub's lock."""
        if role not in self._roles:
            raise IdentityError(f"{role} called {self._role}, which expects {', '.join(self._roles)}")
        own, theirs = memory_pair(role, self._role, session, options.timeout, options.receive_buffer)
        theirs.principal = principal
        self._lobby.append(theirs)
        self._hub.changed.notify_all()
        return own

    def accept(self, role: str, session: bytes | None, *, timeout: float | None, options: ChannelOptions) -> Channel:
        deadline = None if timeout is None else monotonic() + timeout
        with self._hub.changed:
            while (channel := self._find(role, session)) is None:
                if self._hub.listening.get(self._role) is not self:
                    raise ConnectionLostError(f"{self._role} no longer listens")
                remaining = None if deadline is None else deadline - monotonic()
                if remaining is not None and remaining <= 0:
                    raise PeerTimeoutError(f"{role} did not call {self._role} in time: is it running?")
                self._hub.changed.wait(remaining)
        channel.timeout = options.timeout
        return channel

    def _find(self, role: str, session: bytes | None) -> Channel | None:
        for channel in self._lobby:
            if channel.peer == role and session in (None, channel.session):
                self._lobby.remove(channel)
                return channel
        return None

    def close(self) -> None:
        with self._hub.changed:
            if self._hub.listening.get(self._role) is self:
                del self._hub.listening[self._role]
            callers, self._lobby = self._lobby, []
            self._hub.changed.notify_all()
        for channel in callers:
            channel.abort(ConnectionLostError(f"{self._role} no longer listens"))
            channel.close()

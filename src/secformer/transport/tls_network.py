"""A deployment over TLS: who listens where, under which identity."""

from __future__ import annotations

from collections.abc import Collection

from secformer.crypto.identity import PinnedPeers, load_identity
from secformer.roles import DEALER, SERVER0, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions
from secformer.transport.network import Listening, Network
from secformer.transport.shaped import shaped
from secformer.transport.tls import Listener, connect, listen

CALLER_CONNECTIONS = 1
"""Connections each way between a caller and a server; servers among themselves use the setting."""


class TlsNetwork(Network):
    """Addresses, limits and the line to imitate come from the settings, the identity from their folder."""

    def __init__(self, role: str, settings: Settings) -> None:
        self.role = role
        self._settings = settings
        self._identity = load_identity(role, settings.identity_folder)
        self._peers = PinnedPeers.load_folder(settings.identity_folder)

    def listen(self, roles: Collection[str]) -> Listening:
        settings = self._settings
        listener = listen(
            self._identity,
            self._peers,
            settings.host,
            _port(settings, self.role),
            roles=roles,
            handshake_timeout=settings.handshake_timeout,
        )
        return _TlsListening(self, listener)

    def connect(self, peer: str, session: bytes, *, timeout: float, options: ChannelOptions) -> Channel:
        settings = self._settings
        channel = connect(
            self._identity,
            self._peers,
            peer,
            (settings.host, _port(settings, peer)),
            session,
            self.connections(peer),
            timeout=timeout,
            handshake_timeout=settings.handshake_timeout,
            options=options,
        )
        return self.dressed(channel)

    def connections(self, peer: str) -> int:
        return self._settings.connections if {peer, self.role} <= set(SERVERS) else CALLER_CONNECTIONS

    def dressed(self, channel: Channel) -> Channel:
        return channel if self._settings.network == "none" else shaped(channel, self._settings.network)


class _TlsListening(Listening):
    def __init__(self, network: TlsNetwork, listener: Listener) -> None:
        self.address = "{}:{}".format(*listener.address)
        self._network, self._listener = network, listener

    def accept(self, role: str, session: bytes | None, *, timeout: float | None, options: ChannelOptions) -> Channel:
        count = self._network.connections(role)
        channel = self._listener.accept(role, session, count, timeout=timeout, options=options)
        return self._network.dressed(channel)

    def close(self) -> None:
        self._listener.close()


def _port(settings: Settings, role: str) -> int:
    if role == DEALER:
        return settings.port_dealer
    return settings.port_server0 if role == SERVER0 else settings.port_server1

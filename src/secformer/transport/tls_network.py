"""A deployment over TLS: who listens where, under which identity."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from secformer.crypto.identity import Identity, PinnedPeers, check_validity, load_identity
from secformer.deployment import Address, DeploymentFile, parse_address
from secformer.errors import IdentityError, SettingsError
from secformer.roles import DEALER, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions
from secformer.transport.network import Listening, Network, trio_of
from secformer.transport.shaped import shaped
from secformer.transport.tls import Listener, connect, listen

CALLER_CONNECTIONS = 1
"""Connections each way between a caller and a server; servers among themselves use the setting."""


class TlsNetwork(Network):
    """Addresses and fingerprints come from the deployment file, the line to imitate from the settings, keys and pins from
    the identity folder; an `identity` that is given takes the place of the one there."""

    def __init__(self, role: str, settings: Settings, identity: Identity | None = None) -> None:
        self.role = role
        self._settings = settings
        self._file = DeploymentFile(settings.deployment)
        self._deployment = self._file.deployment
        self.limits, self.trios = self._deployment.limits, self._deployment.trios
        self.trio = settings.trio if role in SERVERS else 0
        if self.trio >= self.trios:
            raise SettingsError(f"setting trio: the deployment file lists {self.trios}, counted from 0")
        self.unnamed = tuple(role for role, prints in self._deployment.fingerprints().items() if not prints)
        """Servers of which the deployment file names no certificate: any that is trusted here for the role will do."""
        self._identity = identity or load_identity(role, settings.identity_folder)
        self.validity = check_validity(self._identity)
        self._check_named()
        self._peers = PinnedPeers.load_folder(settings.identity_folder, self._file.fingerprints)

    def _check_named(self) -> None:
        """A server that the deployment file does not know would be refused by everybody."""
        named = self._file.fingerprints().get(self.role)
        if named and self._identity.fingerprint not in named:
            raise IdentityError(
                f"the deployment file names another certificate for {self.role} than this one "
                f"({self._identity.fingerprint[:16]}...): correct the file everywhere, or the identity folder here"
            )

    def trusts(self, principal: str) -> bool:
        return self._peers.trusts(principal)

    def listen(self, roles: Collection[str]) -> Listening:
        doors: dict[str, list[str]] = {}
        for role in roles:
            doors.setdefault(_door(role), []).append(role)
        opened: dict[str, Listener] = {}
        try:
            for door, through in doors.items():
                opened[door] = self._open(door, through)
        except BaseException:
            for listener in opened.values():
                listener.close()
            raise
        return _TlsListening(self, opened)

    def _open(self, door: str, roles: Collection[str]) -> Listener:
        return listen(
            self._identity,
            self._peers,
            *self.listens_at(door),
            roles=roles,
            handshake_timeout=self._settings.handshake_timeout,
        )

    def listens_at(self, door: str) -> Address:
        """The address on this machine, which need not be the one that others call."""
        given = getattr(self._settings, f"listen_{door}")
        return (
            parse_address(given, f"setting listen_{door}")
            if given
            else self._deployment.address(self.role, door, self.trio)
        )

    def connect(self, peer: str, session: bytes, *, timeout: float, options: ChannelOptions) -> Channel:
        trio = self.trio if self.role in SERVERS else trio_of(session, self.trios)
        channel = connect(
            self._identity,
            self._peers,
            peer,
            self._deployment.address(peer, _door(self.role), trio),
            session,
            self.connections(peer),
            timeout=timeout,
            handshake_timeout=self._settings.handshake_timeout,
            options=options,
        )
        return self.dressed(channel)

    def connections(self, peer: str) -> int:
        return self._settings.connections if {peer, self.role} <= set(SERVERS) else CALLER_CONNECTIONS

    def dressed(self, channel: Channel) -> Channel:
        ahead = self._settings.deal_first and DEALER in (self.role, channel.peer)
        return channel if ahead or self._settings.network == "none" else shaped(channel, self._settings.network)


class _TlsListening(Listening):
    """Two doors behind one counter: callers in a crowd cannot keep servers out."""

    def __init__(self, network: TlsNetwork, doors: Mapping[str, Listener]) -> None:
        self.address = ", ".join(str(Address(*listener.address)) for listener in doors.values())
        self._network, self._doors = network, doors

    def accept(self, role: str, session: bytes | None, *, timeout: float | None, options: ChannelOptions) -> Channel:
        count = self._network.connections(role)
        channel = self._doors[_door(role)].accept(role, session, count, timeout=timeout, options=options)
        return self._network.dressed(channel)

    def close(self) -> None:
        for listener in self._doors.values():
            listener.close()


def _door(caller: str) -> str:
    """Through which of a server's doors a party in this role comes."""
    return "servers" if caller in SERVERS else "callers"

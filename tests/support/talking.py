"""Two parties that talk over TLS in one test: identities, joined channels, and both outcomes of a meeting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secformer.crypto.identity import PinnedPeers, create_identity, load_identity
from secformer.transport.tls import ChannelOptions, Listener, TlsChannel, connect, listen

SESSION = bytes(range(16))


class Deployment:
    """A folder with the keys of several roles that all know each other."""

    def __init__(self, folder: Path, roles: tuple[str, ...] = ("server0", "server1", "client")) -> None:
        self.folder = folder
        self.identities = {role: create_identity(role, folder) for role in roles}

    @property
    def peers(self) -> PinnedPeers:
        return PinnedPeers.load_folder(self.folder)

    def listen(self, role: str = "server0", **options: Any) -> Listener:
        return listen(self.identities[role], self.peers, **{"roles": ("server0", "server1"), **options})

    def connect(self, listener: Listener, role: str = "server1", **changes: Any) -> TlsChannel:
        arguments: dict[str, Any] = {"expected_role": "server0", "session": SESSION, "timeout": 5.0} | changes
        return connect(self.identities[role], self.peers, address=listener.address, **arguments)

    @contextmanager
    def channels(
        self, connections: int = 2, options: ChannelOptions | None = None
    ) -> Iterator[tuple[TlsChannel, TlsChannel]]:
        """(server0's end, server1's end)"""
        with self.listen() as listener:
            ends = both(
                lambda: listener.accept("server1", SESSION, connections, timeout=10, options=options),
                lambda: self.connect(listener, connections=connections, options=options),
            )
            try:
                for end in ends:
                    assert isinstance(end, TlsChannel), end
                yield ends
            finally:
                for end in ends:
                    if isinstance(end, TlsChannel):
                        end.close()


def join_from_folder(folder: str, address: tuple[str, int], connections: int = 2) -> TlsChannel:
    """server1's end in another process."""
    identity, peers = load_identity("server1", Path(folder)), PinnedPeers.load_folder(Path(folder))
    return connect(identity, peers, "server0", address, SESSION, connections)


def both(first: Callable[[], Any], second: Callable[[], Any], patience: float = 60) -> tuple[Any, Any]:
    """What two parties get when they act at the same time: a value, or the exception it ended in."""
    results: list[Any] = [TimeoutError("did not finish"), TimeoutError("did not finish")]

    def act(index: int, action: Callable[[], Any]) -> None:
        try:
            results[index] = action()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=act, args=item, daemon=True) for item in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
    return results[0], results[1]

"""The channels of one session at one party: they begin one by one and end all together.

Whoever fails says so to everybody it is connected to, and whoever hears of a failure passes it on. A party computes
for a while without touching its channels, or waits on one of them while another breaks; a watching thread notices
that within WATCH_PERIOD and ends the session, so that no party learns it later than the 5 seconds promised.

An ABORT carries a code. Where it names an error of ours that is not about the connection (a malformed job, a
difference in settings), the same error is raised here, and that is also what goes on to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Lock, Thread
from time import monotonic

from secformer.errors import IdentityError, PeerAbortedError, PeerTimeoutError, SecFormerError, TransportError
from secformer.roles import COMPUTING, DEALER
from secformer.transport.channel import Channel

WATCH_PERIOD = 0.2
_FAREWELL = 3.0  # seconds for telling all peers at once; a peer that does not listen is left


class Links:
    """`links[role]` is the channel to the party in that role."""

    def __init__(
        self,
        session: bytes,
        trusts: Callable[[str], bool] = lambda principal: True,
        limit: float = float("inf"),
        reads_on: bool = False,
    ) -> None:
        """`trusts` tells whether a principal may still be talked to; after `limit` seconds the session is given up. `reads_on`:
        this party does nothing but receive, so that a peer which said all it had to say, and left, is heard to the end."""
        self.session = session
        self._reads_on = reads_on
        self._trusts, self._ends = trusts, monotonic() + limit
        self.reason: BaseException | None = None
        """Why the session failed, the first cause this party heard of."""
        self.afterwards = ExitStack()
        """What is given back when the session is over, however it ends."""
        self._channels: dict[str, Channel] = {}
        self._lock = Lock()
        self._unwatched = Event()

    def add(self, channel: Channel) -> Channel:
        with self._lock:
            self._channels[channel.peer] = channel
            failed = self.reason
        if failed is not None:  # between the failure and now; nobody else would close it
            _end(channel, failed)
        return channel

    def __getitem__(self, role: str) -> Channel:
        return self._channels[role]

    def __iter__(self) -> Iterator[Channel]:
        return iter(tuple(self._channels.values()))

    def check(self) -> None:
        """Raise if the session has failed meanwhile."""
        if self.reason is not None:
            raise self.reason

    def fail(self, error: BaseException, told: BaseException | None = None) -> BaseException:
        """Tell every peer and close; gives back the first cause, which may not be this error.

        `told` is what the peers hear instead of an error that speaks of a secret.
        """
        with self._lock:
            first = self.reason is None
            if first:
                self.reason = original(error)
            reason = self.reason
        assert reason is not None
        self.unwatch()
        if first:
            self._farewell(told or reason)
        return reason

    def _farewell(self, reason: BaseException) -> None:
        threads = [Thread(target=_end, args=(channel, reason), daemon=True) for channel in self]
        for thread in threads:
            thread.start()
        ends = monotonic() + _FAREWELL
        for thread, channel in zip(threads, self, strict=False):
            thread.join(max(ends - monotonic(), 0.0))
            if thread.is_alive():  # it does not listen: what waits to be sent is given up
                Thread(target=channel.close, daemon=True).start()

    def close(self) -> None:
        self.unwatch()
        for channel in self:
            channel.close()

    # Watching

    def watch(self) -> None:
        """From now on until `unwatch`, a channel that ends, ends the session."""
        Thread(target=self._watch, name="session-watch", daemon=True).start()

    def unwatch(self) -> None:
        """Call before telling a peer that this party is done: the peer may hang up then."""
        self._unwatched.set()

    def _watch(self) -> None:
        while not self._unwatched.wait(WATCH_PERIOD):
            for channel in self:
                error = self._end_of(channel) or self._verdict(channel)
                if error is not None and not self._unwatched.is_set():
                    self.fail(error)
                    return

    def _end_of(self, channel: Channel) -> TransportError | None:
        return None if self._reads_on and channel.unread else channel.ended

    def _verdict(self, channel: Channel) -> TransportError | None:
        """Why a channel that works must end all the same."""
        if not self._trusts(channel.principal):
            return IdentityError(f"the certificate of {channel.peer} is no longer trusted")
        if monotonic() > self._ends:
            return PeerTimeoutError("the session takes too long: it is given up")
        return None


def _end(channel: Channel, reason: BaseException) -> None:
    channel.abort(reason)
    channel.close()


def original(error: BaseException) -> BaseException:
    """The error that made a peer abort, as this party would have raised it, where that is possible."""
    if not isinstance(error, PeerAbortedError):
        return error
    kind = _by_code(SecFormerError).get(error.peer_code)
    if kind is None or issubclass(kind, TransportError):
        return error
    named = error.reason.startswith(COMPUTING + (DEALER,))
    return kind(error.reason if named else f"{error.peer}: {error.reason}")


def _by_code(kind: type[SecFormerError]) -> dict[str, type[SecFormerError]]:
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        found |= _by_code(child)
    return found

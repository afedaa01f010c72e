"""Two channels in one process, joined by queues: every protocol runs under a debugger, and tests need no port.

Nothing is serialised, and the tensor that was sent is the tensor that is received; sequence, kind, shape and
width are checked as on a socket, and the counters show what a socket would have carried.
"""

from __future__ import annotations

from time import monotonic

from torch import Tensor

from secformer.errors import ConnectionLostError, TransportError
from secformer.transport.channel import Channel, peer_aborted
from secformer.transport.frame import Frame, FrameType, Shape
from secformer.transport.inbox import Inbox


class MemoryChannel(Channel):
    def __init__(self, peer: str, session: bytes, inbox: Inbox, outbox: Inbox, timeout: float | None) -> None:
        super().__init__(peer, session, timeout, f"memory:{peer}")
        self._inbox = inbox
        self._outbox = outbox

    def _put(self, kind: FrameType, sequence: int, shape: Shape, width: int, payload: Tensor) -> None:
        if kind is FrameType.ABORT:
            self._outbox.end(peer_aborted(self._outbox.peer, payload))
            self._inbox.room.throw_open()
            return
        self._check_alive()
        self._outbox.room.enter(payload.numel())
        self._check_alive()
        self._outbox.put(Frame(kind, sequence, shape, width, payload, monotonic()))

    def _check_alive(self) -> None:
        if self._inbox.error is not None:
            raise self._inbox.error.with_traceback(None)

    def _take(self) -> Frame:
        return self._inbox.take(self.timeout, self.deadline)

    @property
    def ended(self) -> TransportError | None:
        return self._inbox.error

    @property
    def unread(self) -> bool:
        return self._inbox.unread

    def close(self) -> None:
        self._outbox.end(ConnectionLostError("the peer closed the channel"))
        self._inbox.end(ConnectionLostError(f"the channel to {self.peer} was closed on this side"))


def _signs_of_life() -> int:
    """Whoever shares a process with this party is as alive as it is: one sign a second, as over TLS."""
    return int(monotonic())


def memory_pair(
    first: str,
    second: str,
    session: bytes,
    timeout: float | None = None,
    receive_buffer: int | None = None,
) -> tuple[MemoryChannel, MemoryChannel]:
    """Two joined channels: the one `first` holds, whose peer is `second`, and the one `second` holds.

    `receive_buffer`: bytes that may wait for a receiver before its peer's `send` blocks; None is any number.
    """
    at_first, at_second = (Inbox(peer, receive_buffer, _signs_of_life) for peer in (second, first))
    return (
        MemoryChannel(second, session, at_first, at_second, timeout),
        MemoryChannel(first, session, at_second, at_first, timeout),
    )

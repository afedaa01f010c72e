"""Lanes: a connection used in one direction, with the thread that serves it.

Frames travel on lane 0, under TLS. The payload of a large one is cut into one stripe for each of the others, which are sealed
(sealed.py), so that several cores encrypt and decrypt at once; both sides compute the cuts from the length alone.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from time import monotonic
from typing import NamedTuple

from secformer.errors import ConnectionLostError, FrameError, TransportError
from secformer.transport.sealed import Sealing

STRIPE_FROM = 256 << 10
HEARTBEAT = 1.0
"""Seconds of nothing to say after which a party says that it is there."""
# Sent by one call, without the interpreter's lock: pieces of 64 KiB cost a quarter of the throughput, of 1 MiB a
# twentieth. Not everything in one piece, for `flush` sees progress piece by piece.
_PIECE = 8 << 20
_GRAIN = 16 << 10
_SHARE = 1 << 20


def stripes(size: int, lanes: int) -> list[slice]:
    """The part of a payload that each lane carries; small payloads stay on lane 0, large ones leave it.

    Another lane is taken for every MiB: to wake its threads at both ends costs as much as half of that.
    """
    if lanes == 1 or size < STRIPE_FROM:
        return [slice(0, size)]
    count = min(lanes - 1, -(-size // _SHARE))
    step = -(-size // (count * _GRAIN)) * _GRAIN
    cuts = range(0, count * step, step)
    return [slice(0, 0), *(slice(min(start, size), min(start + step, size)) for start in cuts)]


class OutgoingLane:
    """Sends at once while nothing waits, and from its thread otherwise."""

    def __init__(
        self,
        connection: ssl.SSLSocket | Sealing,
        lost: Callable[[OSError], None],
        idle: Callable[[], None] | None = None,
    ) -> None:
        """`idle` is called every second in which there is nothing to send."""
        self.connection = connection
        self._lost, self._idle = lost, idle
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting = 0
        self._sent = 0
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="transport-send", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return self._waiting == 0

    def post(self, pieces: list[memoryview | bytes], done: Callable[[], None]) -> None:
        """Send in the background; `done` is called when the socket has taken it all, or is lost."""
        with self._changed:
            self._waiting += 1
        self._jobs.put(_Job(pieces, done))

    def offer(self, pieces: list[memoryview | bytes], done: Callable[[], None]) -> None:
        """Of a sealed lane: send by the caller itself what the socket takes without waiting, the rest in the background."""
        assert isinstance(self.connection, Sealing)
        rest = self.connection.offer(pieces) if self.idle else pieces
        if rest:
            self.post(rest, done)
        else:
            done()

    def flush(self, patience: float | None, deadline: float | None = None) -> bool:
        """Wait until everything is sent. Return False if nothing moved for `patience` seconds, or the deadline has passed.

        None waits while the connection lives.
        """
        with self._changed:
            moved = -1
            while self._waiting and moved != self._sent and (deadline is None or monotonic() < deadline):
                moved, left = self._sent, None if deadline is None else deadline - monotonic()
                limits = [limit for limit in (patience, left) if limit is not None]
                self._changed.wait_for(lambda: not self._waiting, timeout=min(limits, default=None))
            return not self._waiting

    def stop(self) -> None:
        """End the thread; the connection must be shut, or idle."""
        self._jobs.put(None)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        while job := self._next():
            try:
                for piece in job.pieces:
                    self._send(memoryview(piece))
            except Exception as error:  # whatever it is, who waits must hear of it
                self._lost(error if isinstance(error, OSError) else OSError(f"sending failed ({type(error).__name__})"))
            job.done()
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        while True:
            try:
                return self._jobs.get(timeout=None if self._idle is None else HEARTBEAT)
            except Empty:
                assert self._idle is not None
                self._idle()

    def _send(self, data: memoryview) -> None:
        for start in range(0, max(1, len(data)), _PIECE):  # of nothing, too: some of what was offered may be left
            self.connection.sendall(data[start : start + _PIECE])
            self._sent += 1


class _Job(NamedTuple):
    pieces: list[memoryview | bytes]
    done: Callable[[], None]


class IncomingLane:
    """Fills buffers from a connection."""

    def __init__(self, connection: ssl.SSLSocket | Sealing) -> None:
        self.connection = connection
        self._read = connection.read if isinstance(connection, Sealing) else connection.recv_into
        self.received = 0

    def fill(self, buffer: memoryview, inside: bool = True) -> None:
        """Read exactly len(buffer) bytes; `inside` a frame, an end of the stream is a truncation."""
        position, size, read = 0, len(buffer), self._read
        while position < size:
            count = read(buffer[position:])
            if not count:
                raise _ended(inside or position > 0)
            position += count
            self.received += count


def _ended(inside: bool) -> TransportError:
    if inside:
        return FrameError("payload: the peer ended the stream inside a frame, it is truncated")
    return ConnectionLostError("the peer closed the connection")


class StripeReader:
    """A further incoming lane, read by its own thread when lane 0 has seen a large frame's header."""

    def __init__(self, lane: IncomingLane) -> None:
        self._lane = lane
        self._buffers: SimpleQueue[memoryview | None] = SimpleQueue()
        self._results: SimpleQueue[Exception | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="transport-stripe", daemon=True)
        self._thread.start()

    def start(self, buffer: memoryview) -> None:
        self._buffers.put(buffer)

    def finish(self) -> None:
        """Wait for the stripe, and raise what went wrong."""
        error = self._results.get()
        if error is not None:
            raise error

    def stop(self) -> None:
        self._buffers.put(None)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        while (buffer := self._buffers.get()) is not None:
            try:
                self._lane.fill(buffer)
            except Exception as error:  # whatever it is, who waits in `finish` must hear of it
                known = isinstance(error, OSError | TransportError)
                self._results.put(error if known else ConnectionLostError(f"reading failed ({type(error).__name__})"))
            else:
                self._results.put(None)
        self._results.put(ConnectionLostError("the channel was closed on this side"))  # for whoever waits in `finish`

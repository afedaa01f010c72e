"""A quick lane: short rounds between two servers, read by the thread that waits for them.

A run has hundreds of rounds, and to wake a thread takes as long as to send a hundred kilobytes. So where the channel between S0
and S1 has three connections or more, the last carries nothing but the openings of `exchange` below a MiB, header and payload,
sealed (sealed.py). No thread drains it: whoever is in `exchange` sends and then reads by itself, and looks for the first byte
for a moment before it sleeps. What the socket does not take at once is sent by the lane's thread meanwhile, so that two servers
which send at the same time never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from torch import Tensor

from secformer.transport.frame import HEADER_BYTES, Frame, Header
from secformer.transport.lanes import HEARTBEAT, IncomingLane, OutgoingLane
from secformer.transport.sealed import Sealing

LOOKING = 3e-4
"""Seconds of looking before sleeping: most of the time by which the other server is late."""


class QuickLane:
    def __init__(
        self,
        outgoing: OutgoingLane,
        incoming: IncomingLane,
        read: Callable[[bytearray], Header],
        idle: Callable[[], None],
    ) -> None:
        """`read` checks a header; `idle` is called in every second in which nothing comes, and raises to end it."""
        assert isinstance(outgoing.connection, Sealing) and isinstance(incoming.connection, Sealing)
        self.outgoing, self.incoming = outgoing, incoming
        self._in = incoming.connection
        self._read = read
        self._in.sleep_for(HEARTBEAT, idle)

    def send(self, header: bytes, data: memoryview) -> None:
        """At once, as far as the socket takes it."""
        self.outgoing.offer([header, data], lambda: None)

    @property
    def ready(self) -> bool:
        """Whether something waits here."""
        return self._in.look(0.0)

    def take(self, place: Callable[[Header], Tensor]) -> Frame:
        """The next opening."""
        self._in.look(LOOKING)
        head = bytearray(HEADER_BYTES)
        self.incoming.fill(memoryview(head), inside=False)
        arrived = monotonic()
        header = self._read(head)
        payload = place(header)
        self.incoming.fill(payload.numpy().data)
        return Frame(header.kind, header.sequence, header.shape, header.width, payload, arrived)

"""A channel over TLS connections: as many lanes out as in, one reading thread that always drains all but the quick lane.

Frames below a MiB are sent by the caller itself, small ones with header and payload in one record. Larger ones are queued
and sent by the lanes' threads, striped, while the caller already waits for the answer or computes (of an opening, whose answer
it can only wait for, the caller sends the header and what one socket takes at once); `send` blocks when
more than `send_buffer` bytes wait. The reader moves frames into memory as they come, so two parties can send
gigabytes to each other at once; with a `receive_buffer` it stops when that is full, and TCP makes the
sender wait.

A party that has nothing to send says every second that it is there (lanes.py), so that a peer which waits can tell one
that computes for long from one that hangs: silence for longer than the timeout is an error, whatever the program does.

How a channel ends. The reader notices first, whatever happened: a closed or killed peer ends the stream, an
ABORT says why, a malformed frame makes everything after it meaningless. The reason goes into the inbox behind
the frames that came before it, and is raised by every call from then on. A failing `send` therefore waits a
moment for the reader's explanation before it reports a lost connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from threading import Event, Lock, Thread, current_thread
from time import monotonic

from torch import Tensor

from secformer.errors import ConnectionLostError, FrameError, PeerTimeoutError, TransportError
from secformer.transport.buffers import BufferPool
from secformer.transport.channel import Channel, ChannelOptions, Payload, peer_aborted
from secformer.transport.connection import HANDSHAKE_TIMEOUT, principal_of, shut
from secformer.transport.frame import HEADER_BYTES, Frame, FrameType, Header, Shape, decode, encode
from secformer.transport.inbox import Inbox, Room
from secformer.transport.lanes import HEARTBEAT, IncomingLane, OutgoingLane, StripeReader, stripes
from secformer.transport.quick import QuickLane
from secformer.transport.sealed import Sealing, seal, unseal

# Connections from which on the last is a quick lane (quick.py).
_QUICK_FROM = 3
# Copying this much costs less than a second TLS record.
_JOIN_BELOW = 32 << 10
# Up to here the caller sends by itself: two wake-ups less, and the answer is what it waits for anyway.
_AT_ONCE = 1 << 20
_EXPLANATION = 1.0  # seconds a failed send waits for the reader to learn the reason
_LINGER = 4.0  # seconds without progress (8 MiB, so 17 Mb/s) after which `close` gives up what still waits


class TlsChannel(Channel):
    def __init__(
        self,
        peer: str,
        session: bytes,
        outgoing: Sequence[ssl.SSLSocket],
        incoming: Sequence[ssl.SSLSocket],
        options: ChannelOptions,
    ) -> None:
        super().__init__(peer, session, options.timeout, principal_of(outgoing[0]))
        for connection in (outgoing[0], incoming[0]):
            connection.settimeout(None)
        self._limit = options.message_limit
        self._inbox = Inbox(peer, options.receive_buffer, self._bytes_received)
        self._outbox = Room(options.send_buffer)
        try:
            sealed_out, sealed_in = _sealed(outgoing[1:], incoming[1:])
        except (OSError, TransportError) as error:
            for connection in (*outgoing, *incoming):
                connection.close()
            raise ConnectionLostError(f"{peer} went away before its connections were sealed") from error
        self._alive = encode(FrameType.ALIVE, 0, (0,), 8, 0, session)
        self._outgoing = [OutgoingLane(outgoing[0], self._sending_failed, self._say_alive)]
        self._outgoing += [OutgoingLane(end, self._sending_failed) for end in sealed_out]
        self._incoming = [IncomingLane(end) for end in (incoming[0], *sealed_in)]
        self._quick = self._quick_lane() if options.rounds and len(outgoing) >= _QUICK_FROM else None
        self._quickly = self._waiting = False
        self._astray: float | None = None  # since when an opening lies where nobody looks for it
        self._progress = 0, 0.0
        self._stripe_readers = [StripeReader(lane) for lane in self._incoming[1:]]
        self._connections = (*outgoing, *incoming)
        self._buffers = BufferPool()
        self._landing: tuple[int, Tensor] | None = None  # for the frame of this number
        self._closing = Lock()
        self._closed = False
        self._explained = Event()
        self._reader = Thread(target=self._read, name=f"transport-{peer}", daemon=True)
        self._reader.start()

    def _quick_lane(self) -> QuickLane:
        """The last lane of each direction, which nothing else uses."""
        return QuickLane(self._outgoing.pop(), self._incoming.pop(), self._checked, self._check_patience)

    def exchange(self, payload: Payload, shape: Shape | None = None, width: int = 8, lent: bool = False) -> Tensor:
        size = payload.numel() if isinstance(payload, Tensor) else len(payload)
        # an imitated line counts from a frame's arrival, which only a thread that always reads can tell
        self._quickly = self._quick is not None and size < _AT_ONCE and self.line is None
        try:
            return super().exchange(payload, shape, width, lent)
        finally:
            self._quickly = False

    # Sending

    def _put(self, kind: FrameType, sequence: int, shape: Shape, width: int, payload: Tensor) -> None:
        urgent = kind is FrameType.ABORT  # also says why the channel has just ended
        if not urgent:
            self._check_alive()
        size = payload.numel()
        header = encode(kind, sequence, shape, width, size, self.session)
        data = payload.numpy().data
        if self._quickly and kind is FrameType.OPENING:
            self._put_quickly(header, data)
            return
        parts = stripes(size, len(self._outgoing))
        if size < _AT_ONCE and all(lane.idle for lane in self._outgoing[: len(parts)]):
            self._send_now(header, data, len(parts) - 1)
        else:
            self._outbox.enter(size, urgent)
            if not urgent:
                self._check_alive()
            at_once = kind is FrameType.OPENING and len(parts) > 1 and self._outgoing[0].idle
            (self._send_stripes if at_once else self._post)(header, data, parts)

    def _put_quickly(self, header: bytes, data: memoryview) -> None:
        assert self._quick is not None
        try:
            self._quick.send(header, data)
        except OSError as error:
            self._sending_failed(error)
            self._check_alive()

    def lend(self, kind: FrameType, payload: Tensor, shape: Shape, width: int) -> None:
        self.send(kind, payload, shape, width)

    def flush(self) -> None:
        for lane in self._senders:
            if not lane.flush(self.timeout, self.deadline):
                raise PeerTimeoutError(
                    f"{self.peer} does not take what is sent to it: it hangs, or the line is too slow"
                )

    @property
    def _senders(self) -> list[OutgoingLane]:
        return [*self._outgoing, *([self._quick.outgoing] if self._quick else ())]

    def _send_now(self, header: bytes, data: memoryview, lane: int) -> None:
        """By the caller itself: no other thread has to wake up."""
        send = self._outgoing[0].connection.sendall
        try:
            if len(data) < _JOIN_BELOW:
                send(header + data)
            else:
                send(header)
                self._outgoing[lane].connection.sendall(data)
        except OSError as error:
            self._sending_failed(error)
            self._check_alive()

    def _post(self, header: bytes, data: memoryview, parts: Sequence[slice]) -> None:
        for number, part in enumerate(parts):
            piece = data[part]
            pieces: list[memoryview | bytes] = [piece] if number else [header, piece]
            self._outgoing[number].post(pieces, partial(self._outbox.leave, len(piece)))

    def _send_stripes(self, header: bytes, data: memoryview, parts: Sequence[slice]) -> None:
        """The stripes but one by their lanes' threads. The caller only waits for the answer: it sends the header, for which the
        peer waits, and of the last stripe what the socket takes at once."""
        try:
            self._outgoing[0].connection.sendall(header)
            for number, part in enumerate(parts[1:], 1):
                lane, piece = self._outgoing[number], data[part]
                send = lane.offer if part is parts[-1] else lane.post
                send([piece], partial(self._outbox.leave, len(piece)))
        except OSError as error:
            self._sending_failed(error)
            self._check_alive()

    def _say_alive(self) -> None:
        """From the first lane's thread. Whoever is sending at this moment says enough."""
        if self._inbox.error is None and self._sending.acquire(blocking=False):
            try:
                self._outgoing[0].connection.sendall(self._alive)
            except OSError as error:
                self._sending_failed(error)
            finally:
                self._sending.release()

    def _sending_failed(self, error: OSError) -> None:
        """Also called by the lanes' threads."""
        if current_thread() is not self._reader:
            self._explained.wait(_EXPLANATION)
        self._end(ConnectionLostError(f"{self.peer} went away while a frame was sent ({type(error).__name__})"))

    def _check_alive(self) -> None:
        if self._inbox.error is not None:
            raise self._inbox.error.with_traceback(None)

    # Receiving

    def allow(self, size: int) -> None:
        self._limit = size

    def land(self, place: Tensor) -> None:
        self._landing = self._last_received + 1, place

    def _take(self) -> Frame:
        if self._quickly:
            return self._take_quickly()
        self._waiting = True
        try:
            return self._inbox.take(self.timeout, self.deadline)
        finally:
            self._waiting = False

    def _take_quickly(self) -> Frame:
        assert self._quick is not None
        self._progress = self._bytes_received(), monotonic()
        try:
            return self._quick.take(self._place)
        except FrameError as error:
            self._end(error)
        except (OSError, ConnectionLostError) as error:
            self._explained.wait(_EXPLANATION)
            self._end(error if isinstance(error, TransportError) else _lost(self.peer, error))
        self._check_alive()
        raise AssertionError("a channel that has ended says why")

    def _check_patience(self) -> None:
        """Every second in which an opening does not come by the quick lane."""
        self._check_alive()
        other = self._inbox.peek()
        if other is not None and other.sequence == self._last_received + 1:
            raise FrameError(f"kind: {other.kind.name} instead of a short OPENING, the parties are out of step")
        received, since = self._progress
        if self._bytes_received() != received:
            self._progress = self._bytes_received(), monotonic()
        elif self.timeout is not None and monotonic() - since >= self.timeout:
            raise PeerTimeoutError(
                f"nothing from {self.peer} for {self.timeout:g} s: it hangs, or needs a longer receive timeout"
            )
        if self.deadline is not None and monotonic() >= self.deadline:
            raise PeerTimeoutError(f"{self.peer} did not say in time what it had to say")

    def _check_step(self) -> None:
        """Every second in which the peer has nothing to say. An opening must not lie where nobody looks for it: if it still does
        after a second, everything that was sent before it has come. (Whoever was stopped finds several seconds at once.)"""
        astray = self._quick is not None and self._waiting and not self._inbox.unread and self._quick.ready
        since, now = self._astray, monotonic()
        if astray and since is not None and now - since >= HEARTBEAT / 2:
            raise FrameError("kind: a short OPENING instead of what is expected, the parties are out of step")
        self._astray = (now if since is None else since) if astray else None

    def _checked(self, head: bytearray) -> Header:
        return decode(head, self.session, min(self._limit, _AT_ONCE))

    def _bytes_received(self) -> int:
        lanes = [*self._incoming, *([self._quick.incoming] if self._quick else ())]
        return sum(lane.received for lane in lanes)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._read_frame())
        except TransportError as error:
            self._end(error)
        except OSError as error:
            self._end(_lost(self.peer, error))
        except MemoryError:
            self._end(FrameError(f"length: no memory for a frame from {self.peer}; lower message_limit"))

    def _read_frame(self) -> Frame:
        head = bytearray(HEADER_BYTES)
        while True:
            self._incoming[0].fill(memoryview(head), inside=False)
            arrived = monotonic()
            header = decode(head, self.session, self._limit)
            if header.kind is not FrameType.ALIVE:
                break
            self._check_step()
        self._astray = None
        self._inbox.room.enter(header.length, urgent=header.kind is FrameType.ABORT)
        payload = self._read_payload(header)
        if header.kind is FrameType.ABORT:
            raise peer_aborted(self.peer, payload)
        return Frame(header.kind, header.sequence, header.shape, header.width, payload, arrived)

    def _read_payload(self, header: Header) -> Tensor:
        payload = self._place(header)
        buffer = payload.numpy().data
        first, *others = stripes(header.length, len(self._incoming))
        own = others.pop() if others else first  # read here; the lanes before it by threads of their own
        busy = self._stripe_readers[: len(others)]
        for reader, part in zip(busy, others, strict=True):
            reader.start(buffer[part])
        self._incoming[len(others) + (own is not first)].fill(buffer[own])
        for reader in busy:
            reader.finish()
        return payload

    def _place(self, header: Header) -> Tensor:
        """Where the program wants this frame, or memory of the channel's own. A place is for one frame, never for a later one:
        by then its content may be in use."""
        landing = self._landing
        if landing is not None and (header.sequence, header.length) == (landing[0], landing[1].numel()):
            return landing[1]
        return self._buffers.take(header.length)

    # Ending

    def _end(self, error: TransportError) -> None:
        """No frame goes in or out any more; `error` is why, unless a reason is known already."""
        self._inbox.end(error)
        self._outbox.throw_open()
        self._explained.set()
        if isinstance(error, FrameError) and self._sending.acquire(timeout=_EXPLANATION):
            self._sending.release()
            self.abort(error)
        else:
            self._shut()

    def _shut(self) -> None:
        for connection in self._connections:
            shut(connection)

    @property
    def ended(self) -> TransportError | None:
        return self._inbox.error

    @property
    def unread(self) -> bool:
        return self._inbox.unread

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for lane in self._senders:
            lane.flush(_LINGER)
        self._end(ConnectionLostError(f"the channel to {self.peer} was closed on this side"))
        self._shut()
        for worker in (*self._senders, *self._stripe_readers):
            worker.stop()
        self._reader.join(timeout=1)
        for connection in self._connections:
            connection.close()
        self._buffers.close()


def _sealed(
    outgoing: Sequence[ssl.SSLSocket], incoming: Sequence[ssl.SSLSocket]
) -> tuple[list[Sealing], list[Sealing]]:
    """All but the first connection of each direction, taken out of TLS in the order of their numbers at both sides."""
    sealed_out, sealed_in, deadline = [], [], monotonic() + HANDSHAKE_TIMEOUT
    for out, into in zip(outgoing, incoming, strict=True):
        if out.server_side:
            sealed_in.append(unseal(into, deadline))
            sealed_out.append(seal(out, deadline))
        else:
            sealed_out.append(seal(out, deadline))
            sealed_in.append(unseal(into, deadline))
    return sealed_out, sealed_in


def _lost(peer: str, error: OSError) -> TransportError:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return FrameError(f"record: the encrypted stream from {peer} is damaged ({error.reason})")
    return ConnectionLostError(f"{peer} went away ({type(error).__name__})")

"""The one interface through which parties talk, whatever carries the bytes.

A channel joins two parties for one session. It delivers frames once, in order and unchanged, or raises; it
never delivers half a frame and never waits for a peer that is gone. Both sides may send any amount at the
same moment: somebody always reads.

*A payload is given away.* After `send` or `exchange` the caller must neither change nor reuse the tensor's
memory: in memory the receiver gets that very tensor, and a socket may still be reading it.

Counting. `Counters` count frames as the program sends and receives them, not as threads happen to move
them, so that the cost of an operation is the difference of two readings and can be compared with the ledger
to the byte. Wire bytes are payload and header, exactly as handed to the socket; the hello of a connection
and the TLS records around it all (22 bytes in 16 KiB, 0.13 %) are not counted.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, RLock
from time import perf_counter
from typing import Protocol, Self

import torch
from torch import Tensor

from secformer.errors import (
    DtypeError,
    FrameError,
    PeerAbortedError,
    SecFormerError,
    SettingsError,
    ShapeError,
    TransportError,
)
from secformer.ring import kernels
from secformer.transport.frame import (
    HEADER_BYTES,
    MESSAGE_LIMIT,
    SESSION_BYTES,
    Frame,
    FrameType,
    Shape,
    payload_bytes,
)

__all__ = ["Channel", "ChannelOptions", "Counters", "FrameType", "Payload"]

Payload = Tensor | bytes

_ABORT_TEXT_LIMIT = 300
_FAREWELL = 1.0  # seconds for another thread to tell the peer why


@dataclass(slots=True)
class Counters:
    payload_sent: int = 0
    payload_received: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    rounds: int = 0

    def sent(self, size: int) -> None:
        self.payload_sent += size
        self.wire_sent += size + HEADER_BYTES
        self.messages_sent += 1

    def received(self, size: int) -> None:
        self.payload_received += size
        self.wire_received += size + HEADER_BYTES
        self.messages_received += 1


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    timeout: float | None = None
    """Seconds without a byte from a live peer before `receive` gives up; None waits."""
    message_limit: int = MESSAGE_LIMIT
    """Largest payload a frame may announce, checked before it is allocated."""
    receive_buffer: int | None = None
    """Bytes received ahead of the program before the peer has to wait; None is any number."""
    send_buffer: int = 256 << 20
    """Bytes that may wait to be sent before `send` blocks."""
    rounds: bool = True
    """Whether the parties exchange openings, for which connections may be set aside; both must say the same."""


class Line(Protocol):
    """Holds a frame back until the receiver may have it."""

    def hold(self, frame: Frame) -> None: ...


class Channel(ABC):
    """`timeout`: seconds without a byte from the peer before `receive` gives up; None waits for as long as
    the connection lives, since a peer may compute for long and a dead one is noticed anyway.
    """

    def __init__(self, peer: str, session: bytes, timeout: float | None = None, principal: str = "") -> None:
        if len(session) != SESSION_BYTES:
            raise SettingsError(f"a session is named by {SESSION_BYTES} bytes, not {len(session)}")
        self.peer = peer
        self.session = session
        self.timeout = timeout
        self.deadline: float | None = None
        """When `receive` gives up whatever still dribbles in (time.monotonic); None is never."""
        self.principal = principal or f"unproven:{peer}"
        """Who the peer is: the fingerprint of its certificate, where the carrier has proved one."""
        self.counters = Counters()
        self.round_times: list[tuple[float, float]] | None = None
        """When each round began and ended (time.perf_counter), where somebody wants to know."""
        self.line: Line | None = None
        """A slower line to imitate (shaped.py)."""
        self._sending = Lock()
        self._last_sent = 0
        self._last_received = 0
        self._aborting = RLock()
        self._aborted = False

    @abstractmethod
    def _put(self, kind: FrameType, sequence: int, shape: Shape, width: int, payload: Tensor) -> None:
        """Hand a frame to the carrier; called with the sending lock held."""

    @abstractmethod
    def _take(self) -> Frame:
        """The next frame of the peer, or the error that ended the channel: an ABORT is such an error."""

    @property
    @abstractmethod
    def ended(self) -> TransportError | None:
        """Why nothing arrives any more, or None while the channel lives."""

    @property
    def unread(self) -> bool:
        """Whether frames that came, before the end if there was one, wait to be received; where the carrier can tell."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End the channel, idempotently: what was sent is delivered, blocked threads of both sides wake up."""

    def allow(self, size: int) -> None:  # noqa: B027
        """From now on the peer may send payloads of up to `size` bytes. (In memory nothing is allocated for them.)"""

    def land(self, place: Tensor) -> None:  # noqa: B027
        """The peer's next payload, if it is as long as this memory, is best put here: `receive` then gives `place` itself.

        Only for one that has not begun to arrive; where it is too late, or the carrier has memory of its own, nothing happens.
        """

    def flush(self) -> None:  # noqa: B027
        """Wait until the carrier has taken all that was sent. (In memory it has.)

        Raise PeerTimeoutError if nothing moves for `timeout` seconds, or at the deadline.
        """

    def send(self, kind: FrameType, payload: Payload, shape: Shape | None = None, width: int = 8) -> None:
        """Give a payload away; may return before it is delivered."""
        data = _as_bytes(payload)
        size = data.numel()
        if shape is None:
            shape, width = (size,), 8
        if size != payload_bytes(shape, width):
            raise ShapeError(f"a payload of {size} bytes does not hold shape {shape} of {width}-bit elements")
        with self._sending:
            sequence = self._last_sent + 1
            self._put(kind, sequence, shape, width, data)
            self._last_sent = sequence
            self.counters.sent(size)

    def lend(self, kind: FrameType, payload: Tensor, shape: Shape, width: int) -> None:
        """As `send`, of memory that is the caller's again after `flush`. (What has a carrier of its own reads it there; in memory
        the receiver would get the lender's very tensor, so it is a copy.)"""
        self.send(kind, payload.clone(), shape, width)

    def receive(self, kind: FrameType, shape: Shape | None = None, width: int = 8, limit: int | None = None) -> Tensor:
        """The peer's next payload (uint8, 1-D, CPU), which must be of this kind, width and, if stated, shape.

        `limit` is a bound of this call on top of the channel's own, which holds before memory is allocated.
        """
        frame = self._take()
        if self.line is not None:
            self.line.hold(frame)
        return self._accept(frame, kind, shape, width, limit)

    def exchange(self, payload: Payload, shape: Shape | None = None, width: int = 8, lent: bool = False) -> Tensor:
        """Send an opening and receive the peer's, of the same shape and width: one round.

        This returns when the peer's opening is here. Our own may still be on its way, so by default the caller must not write to
        `payload` again. With `lent` the caller may write to it after `flush`.
        """
        data = _as_bytes(payload)
        if shape is None:
            shape, width = (data.numel(),), 8
        begun = perf_counter()
        (self.lend if lent else self.send)(FrameType.OPENING, data, shape, width)
        received = self.receive(FrameType.OPENING, shape, width)
        self.counters.rounds += 1
        if self.round_times is not None:
            self.round_times.append((begun, perf_counter()))
        return received

    def abort(self, error: BaseException) -> None:
        """Tell the peer, as far as it still listens, that this side stops and why. Then `close`.

        The reader may be telling it already: its word is waited for, since closing would cut it off.
        """
        if not self._aborting.acquire(timeout=_FAREWELL):
            return
        try:
            if not self._aborted:
                self._aborted = True
                with suppress(TransportError):  # the peer may be gone: then there is nobody to tell
                    self.send(FrameType.ABORT, describe_abort(error))
        finally:
            self._aborting.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort(error)
        self.close()

    def _accept(self, frame: Frame, kind: FrameType, shape: Shape | None, width: int, limit: int | None) -> Tensor:
        sequence = self._last_received + 1
        size = frame.payload.numel()
        if (
            frame.kind is not kind
            or frame.sequence != sequence
            or frame.width != width
            or (shape is not None and frame.shape != shape)
            or (limit is not None and size > limit)
        ):
            raise self._refused(frame, kind, shape, width, limit)
        self._last_received = sequence
        self.counters.received(size)
        return frame.payload

    def _refused(self, frame: Frame, kind: FrameType, shape: Shape | None, width: int, limit: int | None) -> FrameError:
        """The error for a frame that is not what the program expects next; the peer is told as well."""
        sequence = self._last_received + 1
        if frame.sequence != sequence:
            problem = f"sequence: {frame.sequence} instead of {sequence}, replayed or reordered"
        elif frame.kind is not kind:
            problem = f"kind: {frame.kind.name} instead of {kind.name}, the parties are out of step"
        elif frame.width != width:
            problem = f"width: {frame.width} bits instead of {width}"
        elif shape is not None and frame.shape != shape:
            problem = f"shape: {frame.shape} instead of {tuple(shape)}"
        else:
            problem = f"length: {frame.payload.numel()} bytes exceed the limit of {limit}"
        error = FrameError(f"{problem} (frame {sequence} from {self.peer})")
        self.abort(error)
        return error


def describe_abort(error: BaseException) -> bytes:
    """Code and text of an error. Texts of foreign exceptions may quote data, so they stay here."""
    if isinstance(error, SecFormerError):
        code, text = error.code, str(error)
    else:
        code, text = "internal", type(error).__name__
    return f"{code}\n{text}".encode()[:_ABORT_TEXT_LIMIT]


def read_abort(payload: bytes) -> tuple[str, str]:
    """Code and text of an ABORT, made safe to print: it comes from outside."""
    code, _, text = payload[:_ABORT_TEXT_LIMIT].decode(errors="replace").partition("\n")
    return (code if re.fullmatch(r"[a-z._]{1,40}", code) else "unknown"), printable(text)


def printable(text: str) -> str:
    """Text from outside on one line, without control characters: fit for a log or a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def peer_aborted(peer: str, payload: Tensor) -> PeerAbortedError:
    return PeerAbortedError(peer, *read_abort(payload[:_ABORT_TEXT_LIMIT].numpy().tobytes()))


def _as_bytes(payload: Payload) -> Tensor:
    if not isinstance(payload, Tensor):
        # frombuffer refuses an empty buffer, and warns about one that cannot be written
        return torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)
    if payload.dtype is not torch.uint8:
        raise DtypeError(f"a payload holds uint8, not {payload.dtype}: pack it first")
    if payload.ndim != 1:
        raise ShapeError(f"a payload is 1-D, not {payload.ndim}-D: its shape travels in the header")
    if payload.is_cpu and payload.is_contiguous():
        return payload
    return kernels.step("to_host", payload.device)(payload.contiguous())

"""A network that is not there: the bandwidth and delay of a LAN or a WAN on top of a fast channel.

The model is a serial link in each direction, as in the papers' `tc` set-ups:

    link_free = max(link_free, arrival) + bytes / bandwidth        the last bit has left
    available = link_free + round_trip / 2                         the receiver may have it

It runs on the receiving side, from the moment the reader saw a frame's first byte, so both directions run at
once, computing overlaps with the line, and the sender never notices. Bytes are payload and header.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, sleep

from torch import Tensor

from secformer.errors import SettingsError, TransportError
from secformer.transport.channel import Channel
from secformer.transport.frame import HEADER_BYTES, Frame, FrameType, Shape

# Linux wakes a sleeper up to ~60 µs late (its timer slack is 50): a good part of the LAN's 100 µs.
_LATE_WAKE_UP = 8e-5


@dataclass(frozen=True, slots=True)
class Profile:
    """`bandwidth` in bits a second, each way; `round_trip` in seconds."""

    bandwidth: float
    round_trip: float

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not self.round_trip >= 0:
            raise SettingsError("a network profile needs a positive bandwidth and a round trip of at least 0")


PROFILES = {"lan": Profile(10e9, 0.2e-3), "wan": Profile(400e6, 40e-3)}


def custom(bandwidth: float, rtt: float) -> Profile:
    """A network of `bandwidth` bits a second and a round trip of `rtt` seconds."""
    return Profile(bandwidth, rtt)


class Shaped(Channel):
    """`channel` behind a slower line; shape both ends, each delays what it receives."""

    def __init__(self, channel: Channel, profile: Profile | str) -> None:
        super().__init__(channel.peer, channel.session, channel.timeout)
        self.profile = _profile(profile)
        self.counters = channel.counters
        self._channel = channel
        self._link_free = 0.0

    def send(self, kind: FrameType, payload: Tensor | bytes, shape: Shape | None = None, width: int = 8) -> None:
        self._channel.send(kind, payload, shape, width)

    def receive(self, kind: FrameType, shape: Shape | None = None, width: int = 8, limit: int | None = None) -> Tensor:
        return self._channel._accept(self._take(), kind, shape, width, limit)

    def allow(self, size: int) -> None:
        self._channel.allow(size)

    def abort(self, error: BaseException) -> None:
        self._channel.abort(error)

    @property
    def ended(self) -> TransportError | None:
        return self._channel.ended

    def close(self) -> None:
        self._channel.close()

    def _put(self, kind: FrameType, sequence: int, shape: Shape, width: int, payload: Tensor) -> None:
        self._channel._put(kind, sequence, shape, width, payload)

    def _take(self) -> Frame:
        self._channel.timeout = self.timeout
        frame = self._channel._take()
        bits = 8 * (frame.payload.numel() + HEADER_BYTES)
        self._link_free = max(self._link_free, frame.arrived) + bits / self.profile.bandwidth
        _sleep_until(self._link_free + self.profile.round_trip / 2)
        return frame


def _profile(profile: Profile | str) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise SettingsError(f"unknown network profile {profile!r}: use {', '.join(PROFILES)} or custom()")
    return PROFILES[profile]


def _sleep_until(moment: float) -> None:
    remaining = moment - monotonic()
    if remaining > _LATE_WAKE_UP:
        sleep(remaining - _LATE_WAKE_UP)
    while monotonic() < moment:
        sleep(0)  # lets other threads run

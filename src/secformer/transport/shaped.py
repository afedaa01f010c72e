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
from typing import TypeVar

from secformer.errors import SettingsError
from secformer.transport.channel import Channel
from secformer.transport.frame import HEADER_BYTES, Frame

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


class SlowLine:
    """One direction of a line, as its receiver sees it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._free = 0.0

    def hold(self, frame: Frame) -> None:
        bits = 8 * (frame.payload.numel() + HEADER_BYTES)
        self._free = max(self._free, frame.arrived) + bits / self.profile.bandwidth
        _sleep_until(self._free + self.profile.round_trip / 2)


AnyChannel = TypeVar("AnyChannel", bound=Channel)


def shaped(channel: AnyChannel, profile: Profile | str) -> AnyChannel:
    """The channel behind such a line; shape both ends, each delays what it receives."""
    if isinstance(profile, str) and profile not in PROFILES:
        raise SettingsError(f"unknown network profile {profile!r}: use {', '.join(PROFILES)} or a Profile")
    channel.line = SlowLine(PROFILES[profile] if isinstance(profile, str) else profile)
    return channel


def _sleep_until(moment: float) -> None:
    remaining = moment - monotonic()
    if remaining > _LATE_WAKE_UP:
        sleep(remaining - _LATE_WAKE_UP)
    while monotonic() < moment:
        sleep(0)  # lets other threads run

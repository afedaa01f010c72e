"""What a server's run of a plan has for itself: its link, its seeds, T's corrections, and the streams that it draws from.

However a run is done, step by step (computing.py) or as a replay (replaying.py), it begins with these. The streams follow from
the seeds and from a name: the session's, or that of what T dealt ahead of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.computing import Corrections, Streams
from secformer.roles import DEALER_LINKS
from secformer.transport.channel import Channel


class Session(NamedTuple):
    """What one run has for itself. S1 takes T's `corrections` in the order of the tape; S0 draws its halves and has none."""

    channel: Channel
    own: Seed
    common: Seed
    corrections: Corrections | None = None
    dealt: bytes | None = None
    """What names T's part of it, where T dealt ahead."""
    ahead: bool = True
    """Whether corrections go to the device as they come, before the run; else they wait in the memory of the CPU for it."""


class Drawn(NamedTuple):
    """What a server draws in a session; `pads` are S0's halves of what T deals."""

    streams: Streams
    pads: Stream | None

    @classmethod
    def of(cls, party: int, session: Session, device: torch.device) -> Drawn:
        name, dealt = session.channel.session, session.dealt
        streams = Streams.of(party, session.own, session.common, name, device, dealt)
        return cls(streams, None if party else Stream(session.own, dealt or name, DEALER_LINKS[0], "pad", device))

    @property
    def keys(self) -> tuple[Tensor, ...]:
        keys = (self.streams.masks.words, self.streams.outputs.words, self.pads.words if self.pads else None)
        return tuple(key for key in keys if key is not None)

"""A plan, recorded: its program is gone through once without data or peer, and written down.

What lies between two exchanges becomes a graph (ring/kernels/graphs.py). Graphs read what is a session's own in places that stay
(places.py); everything else follows from these. What travels is the same byte for byte as in any other run, so one server may
record and the other not. A recording draws what its plan's tape says, from keys that no other session has.

Dealt values depend on no opening: S0 draws its halves, S1 unpacks T's corrections. Those that a segment needs are a graph of
their own, which is done while the exchange before it is under way and the device would have nothing to do.

When a plan is recorded, and how it is run from then on, is said in replaying.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from secformer.crypto.prg import SEED_BYTES, Seed
from secformer.engine.computing import (
    Computing,
    Material,
    drawn_material,
    in_one_piece,
    joined_blocks,
    unpacked_half,
)
from secformer.engine.places import Feed, NoFeed, Places, empty_inputs
from secformer.engine.program import Outputs
from secformer.engine.session import Drawn, Session
from secformer.engine.tape import Dealt
from secformer.engine.tracing import Plan
from secformer.ring.resident import noting
from secformer.transport.channel import Channel
from secformer.transport.frame import SESSION_BYTES

WHOLE = 64
"""Bits of a word."""


class _Segment(NamedTuple):
    """Work up to an exchange: what it sends (nothing, at the end), how many corrections it needs, which scopes it begins."""

    early: Any
    """Lays out this server's halves of what T dealt for it; None: there are none."""
    graph: Any
    outgoing: Tensor | None
    shape: tuple[int, ...]
    width: int
    landing: Tensor
    """Where the answer arrives, in memory that the device reaches."""
    received: Tensor
    """Where the next graph reads it."""
    needed: int
    scopes: tuple[str, ...]


@dataclass
class Recorded:
    """A plan's graphs in their order, and the places that they read and write."""

    party: int
    plan: Plan
    graphs: Any
    places: Places
    segments: list[_Segment] = field(default_factory=list)
    outputs: Outputs = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Tables the graphs read."""

    def feed(self, session: Session) -> Feed | NoFeed:
        if self.party == 0:
            return NoFeed()
        assert session.corrections is not None
        return Feed(self.plan, session.corrections, self.places.corrections, self.graphs.aside())

    def run(self, channel: Channel, feed: Feed | NoFeed, tell: Callable[[Sequence[str]], None]) -> None:
        """Run all segments. Return when every opening has left, so that the buffers are free for another session.

        `tell` hears of the scopes that each segment begins.
        """
        prepared = False
        for segment, following in pairwise((*self.segments, None)):
            assert segment is not None
            tell(segment.scopes)
            if not prepared:
                self._prepare(segment, feed)
            prepared = self._do(segment, following, channel, feed)
        channel.flush()

    def _prepare(self, segment: _Segment, feed: Feed | NoFeed) -> None:
        feed.wait(segment.needed)
        if segment.early is not None:
            segment.early.replay()

    def _do(self, segment: _Segment, following: _Segment | None, channel: Channel, feed: Feed | NoFeed) -> bool:
        """One segment, and the exchange after it; whether the following was prepared meanwhile.

        Two buffers take turns in each direction: the other server sends round n + 1 when it has had all of our round n, which
        leaves when our device has fetched its round n - 1. This holds within a run only: the last openings may still be on their
        way when it ends, so `run` waits for them before the next run may write. The fetching is begun here, not by the next
        graph as its first step, which was measured slower (docs/results/roofline.md).
        """
        if segment.outgoing is not None:
            channel.land(segment.landing)
        segment.graph.replay()
        done = self.graphs.mark()
        # T may be slower than the servers: the other one does not wait for what the following segment needs
        prepared = following is not None and feed.has(following.needed)
        if following is not None and prepared:
            self._prepare(following, feed)
        done.wait()
        if segment.outgoing is not None:
            theirs = channel.exchange(segment.outgoing, segment.shape, segment.width, lent=True)
            if theirs is not segment.landing:
                segment.landing.copy_(theirs)
            segment.received.copy_(segment.landing, non_blocking=True)
        return prepared

    def wipe(self) -> None:
        self.places.wipe()
        self.graphs.wait()


class _Seam:
    """A program's link while it is recorded: at every exchange one graph ends and the next begins."""

    session = bytes(SESSION_BYTES)

    def __init__(self, exchange: Callable[..., Tensor]) -> None:
        self.exchange = exchange


class Recording:
    """A plan, captured segment by segment: nothing is done, so no session is needed, and none fails if something cannot be."""

    def __init__(self, party: int, plan: Plan, graphs: Any) -> None:
        self._recorded = Recorded(party, plan, graphs, Places(party, plan, graphs))
        self._half: Material = self._placed
        self._early: Any = None
        self._laid_out: dict[int, Tensor] = {}
        self._scopes: list[str] = []

    def record(self, wires: Mapping[str, Any]) -> Recorded:
        recorded = self._recorded
        party, plan, graphs, places = recorded.party, recorded.plan, recorded.graphs, recorded.places
        nobody = Seed(bytes(SEED_BYTES))
        seam: Any = _Seam(self._exchange)
        drawn = Drawn.of(party, Session(seam, nobody, nobody), graphs.device)
        places.keys = drawn.keys
        places.inputs = {**empty_inputs(plan, graphs.device), **wires}
        if drawn.pads is not None:
            self._half = drawn_material(drawn.pads)
        runtime = Computing(party, plan, seam, nobody, nobody, self._material, graphs.device, drawn.streams)
        runtime.watcher = self._scopes.append
        with graphs.stream(), noting(recorded.kept.append):
            try:
                self._begin()
                recorded.outputs = runtime.run(places.inputs)
                self._end(None, (), 8)
            except BaseException:
                graphs.drop()
                raise
        recorded.wipe()
        return recorded

    def _begin(self) -> None:
        """The next segment: first what T dealt for it, as a graph of its own, then all the rest. (S1 reads words of 64 bits where
        they lie: there is nothing to do ahead.)"""
        tape, graphs = self._recorded.plan.tape, self._recorded.graphs
        rounds = len(self._recorded.segments)
        entries = tape.dealt[bisect_left(tape.dealt_after, rounds) : bisect_right(tape.dealt_after, rounds)]
        work = [blocks for blocks in joined_blocks(entries) if self._is_work(blocks)]
        self._early = None
        if work:
            graphs.begin()
            self._laid_out = {blocks[0].index: self._half(*blocks) for blocks in work}
            self._early = graphs.end()
        graphs.begin()

    def _is_work(self, blocks: Sequence[Dealt]) -> bool:
        return self._recorded.party == 0 or blocks[0].form.width < WHOLE or len(blocks) > 1

    def _material(self, *blocks: Dealt) -> Tensor:
        laid_out = self._laid_out.pop(blocks[0].index, None)
        return self._half(*blocks) if laid_out is None else laid_out

    def _placed(self, *blocks: Dealt) -> Tensor:
        """S1's half, where its corrections will be."""

        def half(entry: Dealt, out: Tensor | None = None) -> Tensor:
            return unpacked_half(self._recorded.places.corrections[entry.index], entry, out)

        return in_one_piece(half, blocks, self._recorded.graphs.device)

    def _exchange(self, packed: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        received = self._end(packed, shape, width)
        self._begin()
        return received

    def _end(self, packed: Tensor | None, shape: tuple[int, ...], width: int) -> Tensor:
        """Gives the place of the answer."""
        recorded, places = self._recorded, self._recorded.places
        turn, size = len(recorded.segments) % 2, 0 if packed is None else packed.numel()
        outgoing, landing, received = None, places.landing[turn][:size], places.received[:size]
        if packed is not None:
            outgoing = places.outgoing[turn][:size]
            outgoing.copy_(packed, non_blocking=True)
        graph, scopes = recorded.graphs.end(), tuple(self._scopes)
        needed = bisect_right(recorded.plan.tape.dealt_after, len(recorded.segments))
        recorded.segments.append(
            _Segment(self._early, graph, outgoing, shape, width, landing, received, needed, scopes)
        )
        self._scopes.clear()
        return received

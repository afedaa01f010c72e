"""A plan that is run again and again on one GPU: recorded once, then replayed.

A program's steps depend on no data, so between two exchanges a server does the same work, on the same shapes, in every session.
There are hundreds of kernels between them, each begun by the interpreter in tens of microseconds and done in a few.

    first run     as anywhere; makes tables and prepares weights. Only when it has ended well is the next one recorded
    second        the same, but written down: a graph (ring/kernels/graphs.py) for what lies between two exchanges
    from then on  the graphs are replayed, with new content where they read

What is new in a session lies in places that stay: the keys of its streams, the caller's inputs, T's corrections (S1), and what
the other server sent. Everything else follows from these. What travels is the same byte for byte, so one server may record
and the other not. A recording draws what its plan's tape says, from keys that no other session has.

Corrections are put in their places by a thread of their own as they arrive, ahead of the program: on the GPU there is room for
all of them, or the plan is not recorded. When a run has ended, well or not, that thread is stopped and the places are wiped. What
graphs hold between their steps stays on the device until the next run of the plan, or until the plan or its model is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.computing import (
    Computing,
    Material,
    Streams,
    drawn_material,
    received_material,
    unpacked_half,
)
from secformer.engine.program import Inputs, Outputs
from secformer.engine.tape import Dealt
from secformer.engine.tracing import Plan
from secformer.engine.values import Disclosed, Masked, MaskedBits, Value
from secformer.errors import MaterialError, TapeError
from secformer.ring import kernels
from secformer.ring.resident import noting
from secformer.roles import DEALER_LINKS
from secformer.transport.channel import Channel, FrameType

RECORDINGS_KEPT = 2
"""Plans a server holds recordings of: each keeps memory of the GPU."""

ATTEMPTS = 2
"""Runs that may be spoilt by recording: who hangs up in the middle spoils one."""

UNPINNED = 1 << 16
"""Bytes of a frame up to which it may arrive in memory that is not pinned (transport/buffers.py)."""

_ALIGNED = 256
Watcher = Callable[[str], None]


class Session(NamedTuple):
    """What one run has for itself. `dealer` is the link to T."""

    channel: Channel
    dealer: Channel
    own: Seed
    common: Seed


class Recordings:
    """The plans a server has run, and how it runs them next."""

    def __init__(self, party: int, device: torch.device) -> None:
        self._party, self._device = party, device
        self._graphs = kernels.find("graphs", device.type)
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def begin(self, plan: Plan, wires: Inputs, session: Session) -> Computing | Recorded:
        """A run of this plan with these wires of a model; T's corrections may be taken from now on."""
        known = self._recall(plan, wires)
        if known is not None and known.recording is not None:
            self._known.move_to_end(id(plan))
            return _Replay(known.recording, session)
        if self._graphs is not None and known is not None and known.rehearsed and known.attempts < ATTEMPTS:
            known.rehearsed = False  # what hangs up in the middle rehearses again
            known.attempts += 1
            return _Recording(self._party, plan, self._graphs(self._device), session, known)
        if known is None and self._worthwhile(plan):
            known = self._known[id(plan)] = _Known(plan, dict(wires))
            if len(self._known) > RECORDINGS_KEPT:
                self._known.popitem(last=False)
        return self._plainly(plan, session, known)

    def keep(self, used: Callable[[Inputs], bool]) -> None:
        """Forget the plans whose wires are no longer in use: a model that was removed leaves nothing behind."""
        for key, known in list(self._known.items()):
            if not used(known.wires):
                del self._known[key]

    def _recall(self, plan: Plan, wires: Inputs) -> _Known | None:
        """What is known of this plan, unless it was with another version of the model, or with one that was loaded anew."""
        known = self._known.get(id(plan))
        if known is None or all(known.wires.get(name) is wire for name, wire in wires.items()):
            return known
        del self._known[id(plan)]
        return None

    def _worthwhile(self, plan: Plan) -> bool:
        """Results for a caller, not wires that stay; of more than a round; and corrections for which there is room."""
        if self._graphs is None or plan.tape.rounds < 2 or any(form.is_wire for form in plan.outputs.values()):
            return False
        return self._graphs.fits(_room(plan), self._device)

    def _plainly(self, plan: Plan, session: Session, known: _Known | None) -> Computing:
        channel, device = session.channel, self._device
        if self._party == 0:
            pads = Stream(session.own, channel.session, DEALER_LINKS[0], "pad", device)
            material = drawn_material(pads)
        else:
            material = received_material(session.dealer, device)
        given = (self._party, plan, channel, session.own, session.common, material, device)
        return Computing(*given) if known is None else _Rehearsal(known, *given)


@dataclass
class _Known:
    """A plan and its wires (kept, so that their identities stay their own), the recording, and what leads to it."""

    plan: Plan
    wires: dict[str, Any]
    rehearsed: bool = False
    """Whether a run has ended well: then all tables and everything derived from the weights is there, and kept."""
    attempts: int = 0
    recording: _Recorded | None = None
    tables: list[object] = field(default_factory=list)


class _Rehearsal(Computing):
    """The first run. What it makes on the way must be there when the next one is captured: nothing is made while capturing."""

    def __init__(self, known: _Known, *given: Any) -> None:
        super().__init__(*given)
        self._known = known

    def run(self, inputs: Inputs) -> Outputs:
        tables: list[object] = []
        with noting(tables.append):
            outputs = super().run(inputs)
        self._known.tables, self._known.rehearsed = tables, True
        return outputs


# -- places ---------------------------------------------------------------------------------------------------------------


def _room(plan: Plan) -> int:
    """Bytes of all corrections."""
    return sum(_rounded(entry.form.packed_bytes) for entry in plan.tape.dealt)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _largest_round(plan: Plan) -> int:
    sizes: dict[int, int] = {}
    for opening in plan.tape.openings:
        sizes[opening.round] = sizes.get(opening.round, 0) + opening.form.packed_bytes
    return max(sizes.values())


def _correction_places(plan: Plan, device: torch.device) -> list[Tensor]:
    whole = torch.empty(max(1, _room(plan)), dtype=torch.uint8, device=device)
    places, start = [], 0
    for entry in plan.tape.dealt:
        places.append(whole[start : start + entry.form.packed_bytes])
        start += _rounded(entry.form.packed_bytes)
    return places


class _Feed:
    """Puts T's corrections in their places as they arrive."""

    def __init__(self, plan: Plan, dealer: Channel, places: Sequence[Tensor], courier: Any) -> None:
        self._entries, self._dealer, self._places, self._courier = plan.tape.dealt, dealer, places, courier
        self._arrived = 0
        self._stopped, self._placing = False, Lock()
        self._error: BaseException | None = None
        self._changed = Condition()
        self._thread = Thread(target=self._receive, name="corrections", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for entry, place in zip(self._entries, self._places, strict=True):
                form = entry.form
                packed = self._dealer.receive(FrameType.MATERIAL, shape=form.shape, width=form.width)
                with self._placing:
                    if self._stopped:
                        return
                    self._courier.bring(place, packed)
                with self._changed:
                    self._arrived += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def stop(self) -> None:
        """From now on nothing is written. A thread that still waits for T's next word ends with that word, or with the link."""
        with self._placing:
            self._stopped = True

    def wait(self, count: int) -> None:
        """Until so many corrections are there."""
        if self._arrived < count:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or self._arrived >= count)
        if self._arrived < count and self._error is not None:
            raise self._error.with_traceback(None)


class _NoFeed:
    """S0 draws its halves itself."""

    def wait(self, count: int) -> None:
        pass

    def stop(self) -> None:
        pass


# -- what is recorded -----------------------------------------------------------------------------------------------------


class _Segment(NamedTuple):
    """Work up to an exchange: how much it sends (nothing, at the end), how many corrections it needs, which scopes it begins."""

    graph: Any
    size: int
    shape: tuple[int, ...]
    width: int
    needed: int
    scopes: tuple[str, ...]


@dataclass
class _Recorded:
    party: int
    plan: Plan
    graphs: Any
    keys: tuple[Tensor, ...]
    inputs: dict[str, Value]
    corrections: list[Tensor]
    received: Tensor
    landing: Tensor
    outgoing: tuple[Tensor, Tensor]
    segments: list[_Segment] = field(default_factory=list)
    outputs: Outputs = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Tables the graphs read."""
    held: list[Tensor] = field(default_factory=list)
    """What arrived last: its memory is used again when nobody looks at it, and the device may still fetch it."""
    fed: _Feed | _NoFeed = field(default_factory=lambda: _NoFeed())

    def feed(self, session: Session) -> _Feed | _NoFeed:
        """For this session; that of a session which ended before its run began writes no more."""
        self.fed.stop()
        if self.party == 1:
            self.fed = _Feed(self.plan, session.dealer, self.corrections, self.graphs.aside())
        return self.fed

    def do(self, number: int, channel: Channel, feed: _Feed | _NoFeed) -> None:
        """One segment, and the exchange after it.

        Two buffers take turns: when the other server answers with round n + 1, it has had all of round n. What is small does
        not arrive in pinned memory, and is taken there: the device fetches it in a tenth of the time.
        """
        segment = self.segments[number]
        feed.wait(segment.needed)
        segment.graph.replay()
        self.graphs.wait()
        if segment.size == 0:
            return
        theirs = channel.exchange(self.outgoing[number % 2][: segment.size], segment.shape, segment.width)
        landed = theirs
        if segment.size <= len(self.landing):
            landed = self.landing[: segment.size].copy_(theirs)
        self.received[: segment.size].copy_(landed, non_blocking=True)
        self.held[:] = [theirs]

    def wipe(self) -> None:
        """Nothing of a session stays in the places: keys, shares, corrections, what arrived. (What was sent last may still be
        on its way, and the peer has it anyway.)"""
        self.fed.stop()
        self.held.clear()
        shares = [_tensor(value) for value in self.inputs.values() if not _is_wire(value)]
        for place in (*self.keys, *shares, *self.corrections, self.received, self.landing):
            place.zero_()
        self.graphs.wait()


def _placed_inputs(inputs: Inputs) -> dict[str, Value]:
    """The caller's inputs in places of their own; the model's wires lie where they lie."""
    return {name: value if _is_wire(value) else value.map(torch.clone) for name, value in inputs.items()}


def _is_wire(value: Value) -> bool:
    return isinstance(value, Masked | MaskedBits)


def _renewed(outputs: Mapping[str, Any]) -> Outputs:
    """Results that the next replay does not overwrite."""
    return {name: Disclosed(out.value.map(torch.clone)) for name, out in outputs.items()}


class _Seam:
    """A program's link while it is recorded: at every exchange one graph ends and the next begins."""

    def __init__(self, session: bytes, exchange: Callable[..., Tensor]) -> None:
        self.session = session
        self.exchange = exchange


class _Recording:
    """The second run: captured segment by segment, each done as soon as it is captured."""

    def __init__(self, party: int, plan: Plan, graphs: Any, session: Session, known: _Known) -> None:
        self.watcher: Watcher | None = None
        device = graphs.device
        self._party, self._plan, self._session, self._known = party, plan, session, known
        channel = session.channel
        self._streams = Streams.of(party, session.own, session.common, channel.session, device)
        self._pads = Stream(session.own, channel.session, DEALER_LINKS[party], "pad", device)
        size = _largest_round(plan)
        self._recorded = _Recorded(
            party,
            plan,
            graphs,
            _keys(self._streams, self._pads),
            {},
            _correction_places(plan, device) if party else [],
            torch.empty(size, dtype=torch.uint8, device=device),
            graphs.host(min(size, UNPINNED)),
            (graphs.host(size), graphs.host(size)),
        )
        self._feed = self._recorded.feed(session)
        self._needed = 0
        self._scopes: list[str] = []

    def run(self, inputs: Inputs) -> Outputs:
        recorded, graphs, session = self._recorded, self._recorded.graphs, self._session
        recorded.inputs = _placed_inputs(inputs)
        seam = _Seam(session.channel.session, self._exchange)
        runtime = Computing(
            self._party, self._plan, seam, session.own, session.common, self._material(), graphs.device, self._streams
        )
        runtime.watcher = self._begin_scope
        with graphs.stream(), noting(recorded.kept.append):
            graphs.begin()
            try:
                recorded.outputs = runtime.run(recorded.inputs)
                self._end(None, (), 8)
                outputs = _renewed(recorded.outputs)
                graphs.wait()
            except BaseException:
                graphs.drop()
                raise
            finally:
                recorded.wipe()
        self._known.recording = recorded
        return outputs

    def _material(self) -> Material:
        if self._party == 0:
            return drawn_material(self._pads)

        def placed(entry: Dealt) -> Tensor:
            self._needed = entry.index + 1
            return unpacked_half(self._recorded.corrections[entry.index], entry.form)

        return placed

    def _begin_scope(self, name: str) -> None:
        self._scopes.append(name)
        if self.watcher is not None:
            self.watcher(name)

    def _exchange(self, packed: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        self._end(packed, shape, width)
        self._recorded.graphs.begin()
        return self._recorded.received[: packed.numel()]

    def _end(self, packed: Tensor | None, shape: tuple[int, ...], width: int) -> None:
        recorded = self._recorded
        size = 0 if packed is None else packed.numel()
        if packed is not None:
            recorded.outgoing[len(recorded.segments) % 2][:size].copy_(packed, non_blocking=True)
        segment = _Segment(recorded.graphs.end(), size, shape, width, self._needed, tuple(self._scopes))
        self._scopes.clear()
        recorded.segments.append(segment)
        recorded.do(len(recorded.segments) - 1, self._session.channel, self._feed)


class _Replay:
    """A later run: no step of the program is taken by the interpreter."""

    def __init__(self, recorded: _Recorded, session: Session) -> None:
        self.watcher: Watcher | None = None
        self._recorded, self._session = recorded, session
        self._feed = recorded.feed(session)
        self._spent = False

    def run(self, inputs: Inputs) -> Outputs:
        if self._spent:
            raise MaterialError("this session's material is spent: start a new session for every run")
        self._spent = True
        recorded = self._recorded
        recorded.plan.program.check_inputs(inputs)
        with recorded.graphs.stream():
            try:
                self._place(inputs)
                for number, segment in enumerate(recorded.segments):
                    self._tell(segment.scopes)
                    recorded.do(number, self._session.channel, self._feed)
                outputs = _renewed(recorded.outputs)
                recorded.graphs.wait()
            finally:
                recorded.wipe()
        return outputs

    def _place(self, inputs: Inputs) -> None:
        recorded, session = self._recorded, self._session
        device, name = recorded.graphs.device, session.channel.session
        streams = Streams.of(recorded.party, session.own, session.common, name, device)
        pads = Stream(session.own, name, DEALER_LINKS[recorded.party], "pad", device)
        for place, key in zip(recorded.keys, _keys(streams, pads), strict=True):
            place.copy_(key)
        for name, place in recorded.inputs.items():
            given = inputs[name]
            if _is_wire(place):
                if given is not place:
                    raise TapeError(f"the wire {name!r} is not the one that the plan was recorded with")
            else:
                _tensor(place).copy_(_tensor(given))

    def _tell(self, scopes: Sequence[str]) -> None:
        if self.watcher is not None:
            for name in scopes:
                self.watcher(name)


Recorded = _Recording | _Replay
"""A run under a recording."""


def _keys(streams: Streams, pads: Stream) -> tuple[Tensor, ...]:
    keys = (streams.masks.words, streams.outputs.words, pads.words)
    return tuple(key for key in keys if key is not None)


def _tensor(value: Any) -> Tensor:
    return value.share

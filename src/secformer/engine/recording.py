"""A plan that is run again and again on one GPU: recorded once, then replayed.

A program's steps depend on no data, so between two exchanges a server does the same work, on the same shapes, in every session.
There are hundreds of kernels between them, each begun by the interpreter in tens of microseconds and done in a few.

    first run     as anywhere; makes tables and prepares weights. Only when it has ended well is the plan recorded
    recording     the program is gone through once without data or peer, and written down: a graph (ring/kernels/graphs.py) for
                  what lies between two exchanges
    from then on  the graphs are replayed, with new content where they read

What is new in a session lies in places that stay: the keys of its streams, the caller's inputs, T's corrections (S1), and what
the other server sent. Everything else follows from these. What travels is the same byte for byte, so one server may record
and the other not. A recording draws what its plan's tape says, from keys that no other session has. It serves one session at a
time: one that comes meanwhile, in another lane, runs as anywhere. So does every run of a plan that cannot be recorded, and the
log says why.

Corrections are put in their places by a thread of their own as they arrive, ahead of the program: on the GPU there is room for
all of them, or the plan is not recorded. When a run has ended, well or not, that thread is stopped and the places are wiped;
after one that failed the plan is recorded anew, in other places. What graphs hold between their steps stays on the device until
the next run of the plan, or until the plan or its model is forgotten.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.crypto.prg import SEED_BYTES, Seed, Stream
from secformer.engine.computing import (
    Computing,
    Corrections,
    Streams,
    corrected_material,
    drawn_material,
    unpacked_half,
)
from secformer.engine.program import Inputs, Outputs
from secformer.engine.tape import Dealt
from secformer.engine.tracing import Plan
from secformer.engine.values import Disclosed, Masked, MaskedBits, Value, share_of
from secformer.errors import MaterialError, TapeError
from secformer.ring import kernels
from secformer.ring.resident import noting
from secformer.roles import DEALER_LINKS
from secformer.transport.channel import Channel
from secformer.transport.frame import SESSION_BYTES

_log = logging.getLogger(__name__)

RECORDINGS_KEPT = 2
"""Plans a server holds recordings of: each keeps memory of the GPU."""

_ALIGNED = 256
Watcher = Callable[[str], None]


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


class _Drawn(NamedTuple):
    """What a server draws in a session; `pads` are S0's halves of what T deals."""

    streams: Streams
    pads: Stream | None

    @classmethod
    def of(cls, party: int, session: Session, device: torch.device) -> _Drawn:
        name, dealt = session.channel.session, session.dealt
        streams = Streams.of(party, session.own, session.common, name, device, dealt)
        return cls(streams, None if party else Stream(session.own, dealt or name, DEALER_LINKS[0], "pad", device))

    @property
    def keys(self) -> tuple[Tensor, ...]:
        keys = (self.streams.masks.words, self.streams.outputs.words, self.pads.words if self.pads else None)
        return tuple(key for key in keys if key is not None)


class Recordings:
    """The plans a server has run, and how it runs them next."""

    def __init__(self, party: int, device: torch.device) -> None:
        self._party, self._device = party, device
        self._graphs = kernels.find("graphs", device.type)
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._lock = Lock()

    def begin(self, plan: Plan, wires: Inputs, session: Session) -> Run:
        """A run of this plan with these wires of a model; T's corrections may be taken from now on."""
        known = self._claim(plan, wires)
        if known is None:
            return Computing(*_plainly(self._party, plan, session, self._device))
        if known.rehearsed and not known.tried:
            known.tried = True
            known.recording = self._record(known)
        if known.recording is not None:
            return _Replay(known, known.recording, session)
        return _Rehearsal(known, *_plainly(self._party, plan, session, self._device))

    @staticmethod
    def end(run: Run) -> None:
        """The session is over, however that was: a run that never began gives back what it holds."""
        if isinstance(run, _Rehearsal | _Replay):
            run.release()

    def keep(self, used: Callable[[Inputs], bool]) -> None:
        """Forget the plans whose wires are no longer in use: a model that was removed leaves nothing behind."""
        with self._lock:
            for key, known in list(self._known.items()):
                if not used(known.wires):
                    del self._known[key]

    def _claim(self, plan: Plan, wires: Inputs) -> _Known | None:
        """What is known of this plan, for one run alone; None where nothing is to be known, or another run has it."""
        with self._lock:
            known = self._recall(plan, wires)
            if known is None and self._worthwhile(plan):
                known = self._known[id(plan)] = _Known(plan, dict(wires))
                if len(self._known) > RECORDINGS_KEPT:
                    self._known.popitem(last=False)
            if known is None or known.busy:
                return None
            known.busy = True
            self._known.move_to_end(id(plan))
            return known

    def _recall(self, plan: Plan, wires: Inputs) -> _Known | None:
        """Unless it was with another version of the model, or with one that was loaded anew."""
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

    def _record(self, known: _Known) -> _Recorded | None:
        assert self._graphs is not None
        try:
            return _Recording(self._party, known.plan, self._graphs(self._device)).record(known.wires)
        except RuntimeError as error:  # torch's, for whatever cannot be captured
            _log.warning("%s is not recorded, and runs step by step: %s", known.plan.program.name, error)
            return None


@dataclass
class _Known:
    """A plan and its wires (kept, so that their identities stay their own), the recording, and what leads to it."""

    plan: Plan
    wires: dict[str, Any]
    rehearsed: bool = False
    """Whether a run has ended well: then all tables and everything derived from the weights is there, and kept."""
    tried: bool = False
    """Whether it was recorded, or could not be."""
    recording: _Recorded | None = None
    tables: list[object] = field(default_factory=list)
    busy: bool = False
    """Whether a session has it."""


def _plainly(party: int, plan: Plan, session: Session, device: torch.device) -> tuple[Any, ...]:
    """What a run as anywhere is made with."""
    drawn = _Drawn.of(party, session, device)
    if drawn.pads is not None:
        material = drawn_material(drawn.pads)
    else:
        assert session.corrections is not None
        material = corrected_material(session.corrections, device)
    return (party, plan, session.channel, session.own, session.common, material, device, drawn.streams)


class _Rehearsal(Computing):
    """The first run. What it makes on the way must be there when the next one is captured: nothing is made while capturing."""

    def __init__(self, known: _Known, *given: Any) -> None:
        super().__init__(*given)
        self._known = known
        self._released = False

    def run(self, inputs: Inputs) -> Outputs:
        tables: list[object] = []
        try:
            with noting(tables.append):
                outputs = super().run(inputs)
            self._known.tables, self._known.rehearsed = tables, True
        finally:
            self.release()
        return outputs

    def release(self) -> None:
        if not self._released:
            self._released, self._known.busy = True, False


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


def _correction_places(plan: Plan, whole: Tensor) -> list[Tensor]:
    places, start = [], 0
    for entry in plan.tape.dealt:
        places.append(whole[start : start + entry.form.packed_bytes])
        start += _rounded(entry.form.packed_bytes)
    return places


class _Feed:
    """Puts T's corrections in their places as they arrive."""

    def __init__(self, plan: Plan, corrections: Corrections, places: Sequence[Tensor], courier: Any) -> None:
        self._entries, self._corrections, self._places, self._courier = plan.tape.dealt, corrections, places, courier
        self._arrived = 0
        self._stopped, self._placing = False, Lock()
        self._error: BaseException | None = None
        self._changed = Condition()
        self._thread = Thread(target=self._receive, name="corrections", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for entry, place in zip(self._entries, self._places, strict=True):
                packed = self._corrections(entry)
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
    """Work up to an exchange: what it sends (nothing, at the end), how many corrections it needs, which scopes it begins."""

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


class _Places:
    """Where a recording's work reads and writes what is a session's own."""

    def __init__(self, party: int, plan: Plan, graphs: Any) -> None:
        size = _largest_round(plan)
        self.inputs: dict[str, Value] = {}
        self.keys: tuple[Tensor, ...] = ()
        self.material = torch.zeros(max(1, _room(plan)) if party else 0, dtype=torch.uint8, device=graphs.device)
        self.corrections = _correction_places(plan, self.material) if party else []
        self.received = torch.zeros(size, dtype=torch.uint8, device=graphs.device)
        self.landing = (graphs.host(size), graphs.host(size))
        self.outgoing = (graphs.host(size), graphs.host(size))

    def wipe(self) -> None:
        """Nothing of a session stays: keys, shares, corrections, what arrived. (What was sent last may still be on its way, and
        the peer has it anyway.)"""
        shares = [_tensor(value) for value in self.inputs.values() if not _is_wire(value)]
        for place in (*self.keys, *shares, self.material, self.received, *self.landing):
            place.zero_()


@dataclass
class _Recorded:
    party: int
    plan: Plan
    graphs: Any
    places: _Places
    segments: list[_Segment] = field(default_factory=list)
    outputs: Outputs = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Tables the graphs read."""

    def feed(self, session: Session) -> _Feed | _NoFeed:
        if self.party == 0:
            return _NoFeed()
        assert session.corrections is not None
        return _Feed(self.plan, session.corrections, self.places.corrections, self.graphs.aside())

    def do(self, segment: _Segment, channel: Channel, feed: _Feed | _NoFeed) -> None:
        """One segment, and the exchange after it.

        Two buffers take turns in each direction: the other server sends round n + 1 when it has had all of our round n, which
        leaves when our device has fetched its round n - 1. The fetching is begun here, not by the next
        graph as its first step, which was measured slower (docs/results/roofline.md).
        """
        if segment.outgoing is not None:
            channel.land(segment.landing)
        feed.wait(segment.needed)
        segment.graph.replay()
        self.graphs.wait()
        if segment.outgoing is not None:
            theirs = channel.exchange(segment.outgoing, segment.shape, segment.width)
            if theirs is not segment.landing:
                segment.landing.copy_(theirs)
            segment.received.copy_(segment.landing, non_blocking=True)

    def wipe(self) -> None:
        self.places.wipe()
        self.graphs.wait()


def _is_wire(value: Value) -> bool:
    return isinstance(value, Masked | MaskedBits)


def _renewed(outputs: Mapping[str, Any]) -> Outputs:
    """Results that the next replay does not overwrite."""
    return {name: Disclosed(out.value.map(torch.clone)) for name, out in outputs.items()}


class _Seam:
    """A program's link while it is recorded: at every exchange one graph ends and the next begins."""

    session = bytes(SESSION_BYTES)

    def __init__(self, exchange: Callable[..., Tensor]) -> None:
        self.exchange = exchange


class _Recording:
    """A plan, captured segment by segment: nothing is done, so no session is needed, and none fails if something cannot be."""

    def __init__(self, party: int, plan: Plan, graphs: Any) -> None:
        self._recorded = _Recorded(party, plan, graphs, _Places(party, plan, graphs))
        self._needed = 0
        self._scopes: list[str] = []

    def record(self, wires: Mapping[str, Any]) -> _Recorded:
        recorded = self._recorded
        party, plan, graphs, places = recorded.party, recorded.plan, recorded.graphs, recorded.places
        nobody = Seed(bytes(SEED_BYTES))
        seam: Any = _Seam(self._exchange)
        drawn = _Drawn.of(party, Session(seam, nobody, nobody), graphs.device)
        places.keys = drawn.keys
        places.inputs = {**_empty_inputs(plan, graphs.device), **wires}
        material = self._placed if drawn.pads is None else drawn_material(drawn.pads)
        runtime = Computing(party, plan, seam, nobody, nobody, material, graphs.device, drawn.streams)
        runtime.watcher = self._scopes.append
        with graphs.stream(), noting(recorded.kept.append):
            graphs.begin()
            try:
                recorded.outputs = runtime.run(places.inputs)
                self._end(None, (), 8)
            except BaseException:
                graphs.drop()
                raise
        recorded.wipe()
        return recorded

    def _placed(self, entry: Dealt) -> Tensor:
        """S1's half, where its correction will be."""
        self._needed = entry.index + 1
        return unpacked_half(self._recorded.places.corrections[entry.index], entry.form)

    def _exchange(self, packed: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        received = self._end(packed, shape, width)
        self._recorded.graphs.begin()
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
        recorded.segments.append(_Segment(graph, outgoing, shape, width, landing, received, self._needed, scopes))
        self._scopes.clear()
        return received


def _empty_inputs(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Places of what a caller brings; the model's wires lie where they lie."""
    forms = {name: form for name, form in plan.program.inputs.items() if not form.is_wire}
    return {
        name: share_of(form, torch.zeros(form.shape, dtype=torch.int64, device=device)) for name, form in forms.items()
    }


class _Replay:
    """A later run: no step of the program is taken by the interpreter."""

    def __init__(self, known: _Known, recorded: _Recorded, session: Session) -> None:
        self.watcher: Watcher | None = None
        self._known, self._recorded, self._session = known, recorded, session
        self._feed = recorded.feed(session) if session.ahead else None
        self._spent = self._released = False

    def run(self, inputs: Inputs) -> Outputs:
        if self._spent or self._released:
            raise MaterialError("this session's material is spent: start a new session for every run")
        self._spent = True
        recorded = self._recorded
        try:
            recorded.plan.program.check_inputs(inputs)
            with recorded.graphs.stream():
                self._place(inputs)
                feed = self._feed = self._feed or recorded.feed(self._session)
                # unless it ends well: a link that breaks may still be writing where its frame was to be
                self._known.recording, self._known.tried = None, False
                for segment in recorded.segments:
                    self._tell(segment.scopes)
                    recorded.do(segment, self._session.channel, feed)
                outputs = _renewed(recorded.outputs)
                recorded.graphs.wait()
            self._known.recording, self._known.tried = recorded, True
        finally:
            self.release()
        return outputs

    def release(self) -> None:
        """Nothing is written any more, nothing of the session stays, and the next one may have the recording."""
        if not self._released:
            self._released = True
            if self._feed is not None:
                self._feed.stop()
            with self._recorded.graphs.stream():
                self._recorded.wipe()
            self._known.busy = False

    def _place(self, inputs: Inputs) -> None:
        recorded, places = self._recorded, self._recorded.places
        drawn = _Drawn.of(recorded.party, self._session, recorded.graphs.device)
        for place, key in zip(places.keys, drawn.keys, strict=True):
            place.copy_(key)
        for name, place in places.inputs.items():
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


Run = Computing | _Replay
"""A run, recorded or not."""


def _tensor(value: Any) -> Tensor:
    return value.share

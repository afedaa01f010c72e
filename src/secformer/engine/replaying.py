"""A plan that is run again and again on one GPU: recorded once, then replayed.

A program's steps depend on no data, so between two exchanges a server does the same work, on the same shapes, in every session.
There are hundreds of kernels between them, each begun by the interpreter in tens of microseconds and done in a few.

    first run     as anywhere; makes tables and prepares weights. Only when it has ended well is the plan recorded
    recording     the program is gone through once without data or peer, and written down (recording.py)
    from then on  the graphs are replayed, with new content where they read (places.py)

A recording serves one session at a time: one that comes meanwhile, in another lane, runs as anywhere. So does every run of a plan
that cannot be recorded, and the log says why. After a run that failed the plan is recorded anew, in other places. What graphs
hold between their steps stays on the device until the next run of the plan, or until the plan or its model is forgotten.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from secformer.engine.computing import Computing, corrected_material, drawn_material
from secformer.engine.places import room
from secformer.engine.program import Inputs, Outputs
from secformer.engine.recording import Recorded, Recording
from secformer.engine.session import Drawn, Session
from secformer.engine.tracing import Plan
from secformer.engine.values import Disclosed
from secformer.errors import MaterialError
from secformer.ring import kernels
from secformer.ring.resident import noting

_log = logging.getLogger(__name__)

RECORDINGS_KEPT = 2
"""Plans a server holds recordings of: each keeps memory of the GPU."""

Watcher = Callable[[str], None]


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
        return self._graphs.fits(room(plan), self._device)

    def _record(self, known: _Known) -> Recorded | None:
        assert self._graphs is not None
        try:
            return Recording(self._party, known.plan, self._graphs(self._device)).record(known.wires)
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
    recording: Recorded | None = None
    tables: list[object] = field(default_factory=list)
    busy: bool = False
    """Whether a session has it."""


def _plainly(party: int, plan: Plan, session: Session, device: torch.device) -> tuple[Any, ...]:
    """What a run as anywhere is made with."""
    drawn = Drawn.of(party, session, device)
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


class _Replay:
    """A later run: no step of the program is taken by the interpreter."""

    def __init__(self, known: _Known, recorded: Recorded, session: Session) -> None:
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
                recorded.places.put(self._keys(), inputs)
                feed = self._feed = self._feed or recorded.feed(self._session)
                # unless it ends well: a link that breaks may still be writing where its frame was to be
                self._known.recording, self._known.tried = None, False
                recorded.run(self._session.channel, feed, self._tell)
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

    def _keys(self) -> tuple[Tensor, ...]:
        recorded = self._recorded
        return Drawn.of(recorded.party, self._session, recorded.graphs.device).keys

    def _tell(self, scopes: Sequence[str]) -> None:
        if self.watcher is not None:
            for name in scopes:
                self.watcher(name)


def _renewed(outputs: Mapping[str, Any]) -> Outputs:
    """Results that the next replay does not overwrite."""
    return {name: Disclosed(out.value.map(torch.clone)) for name, out in outputs.items()}


Run = Computing | _Replay
"""A run, recorded or not."""

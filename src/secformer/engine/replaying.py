"""A plan that S0 and S1 run again and again on one GPU: recorded once, then replayed (repertoire.py says when).

A program's steps depend on no data, so between two exchanges a server does the same work, on the same shapes, in every session.
There are hundreds of kernels between them, each begun by the interpreter in tens of microseconds and done in a few. How a plan is
written down is said in recording.py, where it finds what is new in a session in places.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from secformer.engine.computing import Computing, corrected_material, drawn_material
from secformer.engine.places import room
from secformer.engine.program import Inputs, Outputs
from secformer.engine.recording import Recorded, Recording
from secformer.engine.repertoire import Known, Repertoire
from secformer.engine.session import Drawn, Session
from secformer.engine.tracing import Plan
from secformer.engine.values import Disclosed
from secformer.errors import MaterialError

Watcher = Callable[[str], None]


class Recordings(Repertoire[Recorded]):
    """The plans a server has run, and how it runs them next."""

    def __init__(self, party: int, device: torch.device) -> None:
        super().__init__(device)
        self._party = party

    def begin(self, plan: Plan, wires: Inputs, session: Session) -> Run:
        """A run of this plan with these wires of a model; T's corrections may be taken from now on."""
        known = self._claim(plan, wires)
        if known is None:
            return Computing(*_plainly(self._party, plan, session, self._device))
        try:
            recorded = self._recording(known)
            if recorded is not None:
                return _Replay(known, recorded, session)
            return _Rehearsal(known, *_plainly(self._party, plan, session, self._device))
        except BaseException:
            known.busy = False
            raise

    @staticmethod
    def end(run: Run) -> None:
        """The session is over, however that was: a run that never began gives back what it holds."""
        if isinstance(run, _Rehearsal | _Replay):
            run.release()

    def _room(self, plan: Plan) -> int:
        return room(plan)

    def _record(self, known: Known[Recorded], graphs: Any) -> Recorded:
        return Recording(self._party, known.plan, graphs).record(known.wires)


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
    """The first run."""

    def __init__(self, known: Known[Recorded], *given: Any) -> None:
        super().__init__(*given)
        self._known = known
        self._released = False

    def run(self, inputs: Inputs) -> Outputs:
        try:
            with self._known.rehearsal():
                return super().run(inputs)
        finally:
            self.release()

    def release(self) -> None:
        if not self._released:
            self._released, self._known.busy = True, False


class _Replay:
    """A later run: no step of the program is taken by the interpreter."""

    def __init__(self, known: Known[Recorded], recorded: Recorded, session: Session) -> None:
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
                with self._known.replay(recorded):
                    recorded.run(self._session.channel, feed, self._tell)
                    outputs = _renewed(recorded.outputs)
                    recorded.graphs.wait()
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

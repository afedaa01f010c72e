"""The plans that a party runs again and again on one GPU, and their recordings.

    first run     as anywhere; makes tables and prepares weights. Only when it has ended well is the plan recorded
    recording     the program is gone through once without data or peer, and written down
    from then on  what was written down is replayed, with new content where it reads

A recording serves one session at a time: one that comes meanwhile, in another lane, runs as anywhere. So does every run of a plan
that cannot be recorded, and the log says why. After a run that failed the plan is recorded anew, in other places. What graphs
hold between their steps stays on the device until the next run of the plan, or until the plan or its model is forgotten.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

import torch

from secformer.engine.program import Inputs
from secformer.engine.tracing import Plan
from secformer.ring import kernels
from secformer.ring.resident import noting

_log = logging.getLogger(__name__)

RECORDINGS_KEPT = 2
"""Plans a party holds recordings of: each keeps memory of the GPU."""

Kept = TypeVar("Kept")
"""A recording, of whatever kind."""


@dataclass(repr=False)
class Known(Generic[Kept]):
    """A plan and its wires (kept, so that their identities stay their own), the recording, and what leads to it."""

    plan: Plan
    wires: dict[str, Any]
    rehearsed: bool = False
    """Whether a run has ended well: then all tables and everything derived from the weights is there, and kept."""
    tried: bool = False
    """Whether it was recorded, or could not be."""
    recording: Kept | None = None
    tables: list[object] = field(default_factory=list)
    busy: bool = False
    """Whether a session has it."""

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """The first run. What it makes on the way must be there when the next is captured: nothing is made while capturing."""
        tables: list[object] = []
        with noting(tables.append):
            yield
        self.tables, self.rehearsed = tables, True

    @contextmanager
    def replay(self, recording: Kept) -> Iterator[None]:
        """A later run. Unless it ends well its places are not used again: a link that breaks may still be reading or writing
        there."""
        self.recording, self.tried = None, False
        yield
        self.recording, self.tried = recording, True


class Repertoire(ABC, Generic[Kept]):
    """What a party knows of the plans it has run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs = kernels.find("graphs", device.type)
        self._known: OrderedDict[int, Known[Kept]] = OrderedDict()
        self._lock = Lock()

    @abstractmethod
    def _room(self, plan: Plan) -> int:
        """Bytes of the device that a recording takes for good."""

    @abstractmethod
    def _record(self, known: Known[Kept], graphs: Any) -> Kept: ...

    def keep(self, used: Callable[[Inputs], bool]) -> None:
        """Forget the plans whose wires are no longer in use: a model that was removed leaves nothing behind."""
        with self._lock:
            for key, known in list(self._known.items()):
                if not used(known.wires):
                    del self._known[key]

    def _claim(self, plan: Plan, wires: Inputs) -> Known[Kept] | None:
        """What is known of this plan, for one run alone; None where nothing is to be known, or another run has it."""
        with self._lock:
            known = self._recall(plan, wires)
            if known is None and self._worthwhile(plan):
                known = self._known[id(plan)] = Known(plan, dict(wires))
                if len(self._known) > RECORDINGS_KEPT:
                    self._known.popitem(last=False)
            if known is None or known.busy:
                return None
            known.busy = True
            self._known.move_to_end(id(plan))
            return known

    def _recall(self, plan: Plan, wires: Inputs) -> Known[Kept] | None:
        """Unless it was with another version of the model, or with one that was loaded anew."""
        known = self._known.get(id(plan))
        if known is None or all(known.wires.get(name) is wire for name, wire in wires.items()):
            return known
        del self._known[id(plan)]
        return None

    def _worthwhile(self, plan: Plan) -> bool:
        """Results for a caller, not wires that stay; of more than a round; and there is room."""
        if self._graphs is None or plan.tape.rounds < 2 or any(form.is_wire for form in plan.outputs.values()):
            return False
        return self._graphs.fits(self._room(plan), self._device)

    def _recording(self, known: Known[Kept]) -> Kept | None:
        """Made when its time has come; None until then, and where it cannot be."""
        if known.rehearsed and not known.tried:
            assert self._graphs is not None
            known.tried = True
            try:
                known.recording = self._record(known, self._graphs(self._device))
            except RuntimeError as error:  # torch's, for whatever cannot be captured
                _log.warning("%s is not recorded, and runs step by step: %s", known.plan.program.name, error)
        return known.recording

"""S0's storekeeper: a thread that sees to it that there is in stock what the operator wishes for.

It works while nobody is served, or, when that takes too long, while nobody waits; one item at a time. It looks when an item was
taken, when one was missing somewhere, and every few seconds. What nobody wishes for any more, since there is a newer version of
its model, is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple

from secformer.errors import MissingModelError, SecFormerError
from secformer.parties.messages import Job
from secformer.parties.restocking import Wish, purpose_of, wished_job
from secformer.parties.stock import Purpose, Stock
from secformer.parties.store import ModelStore

_log = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two looks."""
PATIENCE = 60.0
"""The same after failures, at the most."""
POLITE = 5.0
"""Seconds that callers under way may keep it from its work."""


_BREATH = 0.05  # seconds between two looks at who is here


class Errand(NamedTuple):
    """What to deal, for which version; without a job, only to compare."""

    job: Job | None = None
    version: str | None = None


class Callers(NamedTuple):
    """How many are served, and how many wait."""

    running: int
    waiting: int


class Storekeeper:
    def __init__(
        self,
        wishes: Sequence[Wish],
        stock: Stock,
        models: ModelStore,
        send: Callable[[Errand], None],
        callers: Callable[[], Callers],
    ) -> None:
        self._wishes, self._stock, self._models = wishes, stock, models
        self._send, self._callers = send, callers
        self._wake, self._stopping = Event(), Event()
        self._failures = 0
        self.thread = Thread(target=self._work, name="storekeeper", daemon=True)

    def start(self) -> None:
        if self._wishes or self._stock.notes():
            self.thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def look(self) -> None:
        """Something has changed."""
        self._wake.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            errand = self.next_errand()
            if errand is not None and self._may_begin() and self._try(errand):
                continue
            self._wake.wait(min(PERIOD * 2**self._failures, PATIENCE))
            self._wake.clear()
            self._stopping.wait(min(0.1 * self._failures, 1.0))

    def _may_begin(self) -> bool:
        """As soon as nobody is served; in the end, if nobody waits."""
        deadline = monotonic() + POLITE
        while (callers := self._callers()) != (0, 0):
            if monotonic() > deadline:
                return not callers.waiting
            if self._stopping.wait(_BREATH):
                return False
        return True

    def _try(self, errand: Errand) -> bool:
        try:
            self._send(errand)
        except SecFormerError as error:
            self._failures = min(self._failures + 1, 8)
            if self._failures == 1 and not self._stopping.is_set():
                _log.warning("server0: nothing could be put in stock: [%s] %s", error.code, error)
            return False
        self._failures = 0
        return True

    def next_errand(self) -> Errand | None:
        """None when all is as it should be."""
        wanted = self._wanted()
        stale = [note.id for note in self._stock.notes() if note.purpose not in wanted]
        if stale:
            self._stock.discard(stale)
            self._stock.compared = False
        for purpose, (errand, count) in wanted.items():
            if self._stock.count(purpose) < count:
                return errand
        return None if self._stock.compared else Errand()

    def _wanted(self) -> dict[Purpose, tuple[Errand, int]]:
        found = {}
        for wish in self._wishes:
            try:
                kept = self._models.find(wish.model)
            except MissingModelError:
                continue
            job = wished_job(wish, kept.note.card)
            found[purpose_of(job, kept.note.upload)] = Errand(job, kept.note.upload), wish.count
        return found

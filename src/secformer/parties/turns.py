"""Whose turn it is: callers wait here, in a bounded number, until a lane is free.

A *lane* serves one session at a time; a server has several, threads of one process, which share its models, its plans and this
queue. The next turn is that of the principal with the fewest sessions under way and, among those, of the one that was served
longest ago; its own callers come in their order. So whoever brings many callers waits behind its own, and not before others.

What changes the store (an upload, access, a removal) runs one at a time: those sessions happen in one order at all servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Condition
from typing import Generic, NamedTuple, TypeVar

from secformer.errors import BusyError

Guest = TypeVar("Guest")


class _Seat(NamedTuple):
    guest: object
    principal: str
    alone: bool


class Turns(Generic[Guest]):
    """`limit` callers may wait for one of `lanes`; `gone` tells whether one has hung up meanwhile."""

    def __init__(self, lanes: int, limit: int, gone: Callable[[Guest], bool]) -> None:
        self.lanes, self._limit, self._gone = lanes, limit, gone
        self._changed = Condition()
        self._waiting: list[_Seat] = []
        self._running: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._count = 0
        self._changing = False
        self._closed = False
        self._pace = 1.0  # seconds a session took lately

    @property
    def running(self) -> int:
        with self._changed:
            return self._running.total()

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._waiting)

    def check_room(self, coming: int = 0) -> None:
        """BusyError if nobody else can wait; `coming` are on their way to a seat already."""
        with self._changed:
            waiting = len(self._waiting) + coming
            if waiting >= self._limit + max(self.lanes - self._running.total(), 0):
                again = max(1, round(waiting * self._pace / self.lanes))
                raise BusyError(f"{waiting} callers wait already: come again in {again} s")

    def add(self, guest: Guest, principal: str, alone: bool = False) -> None:
        """`alone`: beside no other of its kind."""
        with self._changed:
            self._waiting.append(_Seat(guest, principal, alone))
            self._changed.notify()

    def take(self) -> tuple[Guest, bool] | None:
        """The next guest, and whether it is served alone; `leave` when it has been. None when there will be no other."""
        with self._changed:
            while True:
                if self._closed:
                    return None
                seat = self._next()
                if seat is not None:
                    return self._seated(seat)
                self._changed.wait()

    def _next(self) -> _Seat | None:
        """Called under the lock."""
        free = [seat for seat in self._waiting if not (seat.alone and self._changing)]
        return min(free, key=lambda seat: self._claim(seat.principal), default=None)

    def _claim(self, principal: str) -> tuple[int, int]:
        return self._running[principal], self._served.get(principal, 0)

    def _seated(self, seat: _Seat) -> tuple[Guest, bool]:
        self._waiting.remove(seat)
        self._count += 1
        self._running[seat.principal] += 1
        self._served[seat.principal] = self._count
        self._changing |= seat.alone
        return seat.guest, seat.alone  # type: ignore[return-value]

    def leave(self, principal: str, alone: bool, seconds: float) -> None:
        """A session is over."""
        with self._changed:
            self._running[principal] -= 1
            if self._running[principal] <= 0:
                del self._running[principal]
            if alone:
                self._changing = False
            self._pace += (seconds - self._pace) / 4
            here = {seat.principal for seat in self._waiting} | set(self._running)
            self._served = {one: when for one, when in self._served.items() if one in here or one == principal}
            self._changed.notify_all()

    def purge(self) -> list[Guest]:
        """Those who hung up while they waited: their seats are free again."""
        with self._changed:
            gone = [seat for seat in self._waiting if self._gone(seat.guest)]  # type: ignore[arg-type]
            self._waiting = [seat for seat in self._waiting if seat not in gone]
            return [seat.guest for seat in gone]  # type: ignore[misc]

    def close(self) -> list[Guest]:
        """Nobody is served any more; gives those who waited."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
            return [seat.guest for seat in waiting]  # type: ignore[misc]

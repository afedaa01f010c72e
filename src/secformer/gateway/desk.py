"""Where texts wait for a session: bounded, fair between requests, and in batches.

A worker that is free takes the request whose turn it is, as many of its texts as share a session (one model, one padded length),
fills up with those of other requests, and puts the request back at the end. Nothing waits for a batch to fill: under load
batches fill by themselves. All texts are one client's, so that which of them share a session tells the servers nothing new.
A text whose application has gone is dropped before it is asked about; one that has been asked about is used once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic
from typing import NamedTuple

from secformer.gateway.answers import Answer
from secformer.gateway.failures import Failure, busy, of_session
from secformer.gateway.offers import Offer
from secformer.models.tokens import Tokens


class Sitting(NamedTuple):
    """One session as the gateway saw it, for metrics and log."""

    texts: int
    seconds: float
    waited: float
    """Seconds that the first text waited for it."""
    answers: Sequence[Answer]
    error: BaseException | None


@dataclass(repr=False)
class Ticket:
    """One text, and where its answer will be."""

    offer: Offer
    row: Tokens
    entered: float = field(default_factory=monotonic)
    future: Future[Answer] = field(default_factory=Future)

    @property
    def kind(self) -> tuple[Offer, int]:
        """Tickets of one kind may share a session."""
        return self.offer, self.offer.padded(self.row)


Order = deque[Ticket]
"""What is left of a request."""


class Desk:
    def __init__(self, queue: int, batch: int, sessions: int, watch: Callable[[Sitting], None]) -> None:
        self.queue, self.batch, self.sessions = queue, batch, sessions
        self.running = 0
        self._watch = watch
        self._orders: deque[Order] = deque()
        self._changed = Condition()
        self._open = True
        self._pace = 1.0  # seconds a session took lately

    def start(self) -> None:
        for number in range(self.sessions):
            Thread(target=self._work, name=f"gateway-session-{number}", daemon=True).start()

    def stop(self) -> None:
        """Whatever waits is told; sessions under way are left to end."""
        with self._changed:
            self._open = False
            waiting, self._orders = self._orders, deque()
            self._changed.notify_all()
        for ticket in (ticket for order in waiting for ticket in order):
            if ticket.future.set_running_or_notify_cancel():
                ticket.future.set_exception(_closing())

    @property
    def waiting(self) -> int:
        with self._changed:
            return self._count()

    def _count(self) -> int:
        return sum(not ticket.future.cancelled() for order in self._orders for ticket in order)

    def submit(self, offer: Offer, rows: Sequence[Tokens]) -> list[Future[Answer]]:
        """All texts of a request, or a Failure that says when to come again."""
        if len(rows) > self.queue:
            raise Failure(413, "input", f"{len(rows)} texts are too many for one request: send at most {self.queue}")
        order = Order(Ticket(offer, row) for row in rows)
        with self._changed:
            if not self._open:
                raise _closing()
            waiting = self._count()
            if waiting + len(rows) > self.queue:
                raise busy(waiting, self._wait_for(waiting))
            self._orders.append(order)
            self._changed.notify(len(rows))
            return [ticket.future for ticket in order]

    def _wait_for(self, texts: int) -> float:
        """Seconds until so many texts are likely to be answered."""
        return texts / self.batch * self._pace / self.sessions

    # Workers

    def _work(self) -> None:
        while tickets := self._next():
            self._sit(tickets)

    def _next(self) -> list[Ticket]:
        """The tickets of the next session; none when the desk is closed."""
        with self._changed:
            while True:
                if not self._open:
                    return []
                if tickets := self._take():
                    self.running += 1
                    return tickets
                self._changed.wait()

    def _take(self) -> list[Ticket]:
        """From the request whose turn it is, then from the others; called under the lock."""
        while self._orders:
            order = self._orders.popleft()
            first = _first_alive(order)
            if first is None:
                continue
            room = min(self.batch, first.offer.room(first.kind[1]))
            taken = [first]
            for other in (order, *self._orders):
                taken += _take_alike(other, first.kind, room - len(taken))
            if order:
                self._orders.append(order)
            return taken
        return []

    def _sit(self, tickets: list[Ticket]) -> None:
        started = monotonic()
        answers: Sequence[Answer] = ()
        error: BaseException | None = None
        try:
            answers = tickets[0].offer.ask([ticket.row for ticket in tickets])
        except BaseException as problem:
            error = problem
        seconds = monotonic() - started
        with self._changed:
            self.running -= 1
            self._pace += (seconds - self._pace) / 4
        self._watch(Sitting(len(tickets), seconds, started - tickets[0].entered, answers, error))
        for place, ticket in enumerate(tickets):
            if error is not None:
                ticket.future.set_exception(of_session(error))
            else:
                ticket.future.set_result(answers[place])


def _first_alive(order: Order) -> Ticket | None:
    while order:
        ticket = order.popleft()
        if ticket.future.set_running_or_notify_cancel():
            return ticket
    return None


def _take_alike(order: Order, kind: tuple[Offer, int], room: int) -> list[Ticket]:
    """Up to `room` tickets of this kind, out of an order; those of other kinds stay, in their order."""
    taken: list[Ticket] = []
    for _ in range(len(order)):
        ticket = order.popleft()
        if len(taken) < room and ticket.kind == kind:
            if ticket.future.set_running_or_notify_cancel():
                taken.append(ticket)
        else:
            order.append(ticket)
    return taken


def _closing() -> Failure:
    return Failure(503, "gateway.closing", "the gateway is being stopped", 5.0)

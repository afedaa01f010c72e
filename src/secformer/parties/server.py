"""What all three servers are: a process that serves sessions, as many at once as it has lanes, until it is stopped.

A session begins when a party in one of the server's `callers` roles has called and said what it wants: one that calls and
says nothing keeps nobody waiting. Whatever goes wrong in a session ends it at every party and nothing else: the next caller
is served. Every line of the log names the session and the caller's fingerprint.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NamedTuple, Self

from secformer.crypto.prg import Seed
from secformer.engine.program import Outputs
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import ConnectionLostError, PeerTimeoutError, SecFormerError, StoreError
from secformer.parties import inquiries
from secformer.parties.access import Meter, check_placing, check_readers, check_use, short
from secformer.parties.disk import hold_folder
from secformer.parties.links import WATCH_PERIOD, Links, original
from secformer.parties.memory import Memory
from secformer.parties.messages import Facts, Job
from secformer.parties.planner import CATALOGUE, Catalogue, Planner
from secformer.parties.restocking import Restocking, purpose_of
from secformer.parties.session import DIAL_TIMEOUT, SessionNames, Visit, agree, reach
from secformer.parties.stock import ItemNote, Stock
from secformer.parties.store import Kept, ModelStore, StoredModel
from secformer.parties.turns import Turns
from secformer.parties.watching import SessionNote, Unwatched, Watch
from secformer.ring.devices import device_named
from secformer.roles import DEALER, SERVER0, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions, printable
from secformer.transport.frame import CONTROL_LIMIT
from secformer.transport.network import Network

_log = logging.getLogger(__name__)

CALLER_BUFFER = 16 << 20
"""Bytes a caller may be ahead of its server."""
SPARE = 1
"""Lanes that S1 and T have beside those for callers: for the session in which S0 fills the stock, or one that is ending."""

_LOG_LIMIT = 1000  # letters of an error that are logged: it may quote what a caller sent
_STOP = 3.0  # seconds for sessions to end when the server is stopped
_BREATH = 0.1  # seconds between two attempts to welcome somebody, should they keep failing


class Arrival(NamedTuple):
    """Somebody who has called; `word` is what it wants, where a server hears that first of all."""

    channel: Channel
    word: Any = None
    at: float = 0.0
    """When it came, by this machine's clock."""


class Outcome(NamedTuple):
    session: bytes
    error: BaseException | None


class Server(ABC):
    role: str
    callers: tuple[str, ...]
    """Roles whose call begins a session here."""
    guests: tuple[str, ...] = ()
    """Roles that call in the course of a session."""

    def __init__(self, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> None:
        self.settings = settings
        self.device = device_named(settings.device)
        self.outcomes: deque[Outcome] = deque(maxlen=16)
        """How the last sessions ended."""
        self.watch: Watch = Unwatched()
        self._network = network
        self.limits = network.limits
        self._planner = Planner(catalogue, self.limits, settings.accepted_suites)
        self._held = hold_folder(settings.data_folder / self.role)
        self._models = ModelStore(settings.data_folder / self.role, self.role, self.device, settings.loaded_models)
        self.stock = Stock(settings.data_folder / self.role / "stock", settings.stock_space)
        self._restocking = Restocking(self.role, self.stock, self._models, self._planner, settings, self.limits)
        self._names = SessionNames()
        self._meter = Meter(self.limits)
        self._heard: set[Channel] = set()
        """Callers that have not said yet what they want."""
        self._counting = Lock()
        self._changing = Lock()
        """Held by a session that changes the store."""
        lanes = settings.lanes if self.role == SERVER0 else settings.lanes + SPARE
        self._turns: Turns[Arrival] = Turns(lanes, settings.queue, lambda arrival: arrival.channel.ended is not None)
        self._sessions: set[Links] = set()
        self._memory = Memory()
        self._stopping = Event()
        self._threads = [
            Thread(target=self._serve_all, name=f"{self.role}-lane-{number}", daemon=True) for number in range(lanes)
        ]
        self._listening = network.listen((*self.callers, *self.guests))

    @property
    def waiting(self) -> int:
        """Callers that wait for their turn."""
        return self._turns.waiting

    @property
    def running(self) -> int:
        """Sessions under way."""
        return self._turns.running

    @property
    def address(self) -> str:
        return self._listening.address

    def start(self) -> Self:
        """Begin to serve, in a thread."""
        for role in self.callers:
            Thread(target=self._welcome, args=(role,), name=f"{self.role}-welcome", daemon=True).start()
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End the sessions under way, tell their peers and whoever waits, and serve no other."""
        self._stopping.set()
        self._listening.close()
        waiting = [arrival.channel for arrival in self._turns.close()]
        with self._counting:
            sessions, heard = list(self._sessions), list(self._heard)
        ends = [Thread(target=links.fail, args=(self._being_stopped(),), daemon=True) for links in sessions]
        for thread in ends:
            thread.start()
        for channel in (*heard, *waiting):
            turn_away(channel, self._being_stopped())
        deadline = monotonic() + _STOP
        for thread in (*ends, *(thread for thread in self._threads if thread.is_alive())):
            thread.join(max(deadline - monotonic(), 0.0))
        self._memory.close()
        if not any(thread.is_alive() for thread in self._threads):
            self.stock.close()
            self._held.close()

    def _being_stopped(self) -> ConnectionLostError:
        return ConnectionLostError(f"{self.role} is being stopped")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Callers

    def _welcome(self, role: str) -> None:
        while not self._stopping.is_set():
            try:
                channel = self.accept(role, None, timeout=None)
            except SecFormerError as error:
                if not self._stopping.wait(_BREATH):
                    _log.warning("a caller did not get in: %s", error)
                continue
            Thread(target=self._receive, args=(channel,), name=f"{self.role}-receive", daemon=True).start()

    def _receive(self, channel: Channel) -> None:
        """Let a caller in, if there is room for one of its kind, and hear what it wants."""
        try:
            self._let_in(channel)
        except SecFormerError as error:
            self.watch.refused(error)
            turn_away(channel, error)
            return
        try:
            arrival = Arrival(channel, self._first_word(channel), monotonic())
            self._turns.add(arrival, channel.principal, changes_store(arrival.word))
            if self._stopping.is_set():  # between the two: nobody else would tell it
                raise self._being_stopped()
        except Exception as error:
            self._meter.leave(channel.principal)
            reason = original(error)
            self.watch.refused(reason)
            _log.warning(
                "[%s] %s: %s %s did not begin: %s",
                channel.session.hex()[:8],
                self.role,
                channel.peer,
                short(channel.principal),
                describe(reason),
            )
            self.outcomes.append(Outcome(channel.session, without_frames(reason)))
            turn_away(channel, reason)
        finally:
            with self._counting:
                self._heard.discard(channel)

    def _first_word(self, channel: Channel) -> Any:
        """What a caller wants, where it says so before its turn comes."""
        return None

    def _let_in(self, channel: Channel) -> None:
        for gone in self._turns.purge():
            self._leave(gone)
        self._network.check_session(channel.session)
        with self._counting:
            if self._stopping.is_set():
                raise self._being_stopped()
            self._turns.check_room(len(self._heard))
            if channel.peer not in SERVERS:  # how many S0 sends on is bounded by its lanes
                self._meter.enter(channel.principal)
            self._heard.add(channel)

    def _leave(self, arrival: Arrival) -> None:
        """It hung up before its turn came."""
        self._meter.leave(arrival.channel.principal)
        self.watch.refused(ConnectionLostError("the caller hung up before its turn came"))
        arrival.channel.close()

    def accept(self, role: str, session: bytes | None, timeout: float | None) -> Channel:
        return self._listening.accept(role, session, timeout=timeout, options=self._options(role))

    def expect(self, links: Links, role: str, patience: float) -> Channel:
        """Wait for a guest of this session, but no longer than the session lives."""
        deadline = monotonic() + patience
        while True:
            try:
                return links.add(self.accept(role, links.session, WATCH_PERIOD))
            except PeerTimeoutError:
                links.check()
                if monotonic() > deadline:
                    raise

    def dial(self, links: Links, role: str) -> Channel:
        options = self._options(role)
        return links.add(self._network.connect(role, links.session, timeout=DIAL_TIMEOUT, options=options))

    def _options(self, role: str) -> ChannelOptions:
        """Openings are asked for at once; what a dealer or a caller sends may come faster than it is used.

        A caller may send no more than its job until it is told to send inputs: many callers wait, and each is read.
        """
        timeout, limit, ahead = self.settings.receive_timeout, self.settings.message_limit, self.settings.receive_buffer
        if role not in SERVERS:
            return ChannelOptions(timeout, min(limit, CONTROL_LIMIT), min(ahead, CALLER_BUFFER))
        rounds = DEALER not in (role, self.role)
        return ChannelOptions(timeout, limit, ahead if role == DEALER else None, rounds=rounds)

    # Sessions

    def _serve_all(self) -> None:
        """One lane."""
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """One session; False when there is none any more."""
        turn = self._turns.take()
        if turn is None:
            return False
        arrival, alone = turn
        channel, started = arrival.channel, monotonic()
        links = Links(channel.session, self._network.trusts, self.settings.session_timeout)
        links.add(channel)
        with self._under_way(links):
            if channel.ended is not None:
                self._leave(arrival)
            else:
                self._serve_one(links, arrival)
                self._meter.leave(channel.principal)
        self._turns.leave(channel.principal, alone, monotonic() - started)
        return True

    @contextmanager
    def _under_way(self, links: Links) -> Iterator[None]:
        """A session that ends when the server is stopped."""
        self._memory.session_begun()
        with self._counting:
            self._sessions.add(links)
        if self._stopping.is_set():
            links.fail(self._being_stopped())
        try:
            yield
        finally:
            with self._counting:
                self._sessions.discard(links)
            self._memory.session_ended()

    def _serve_one(self, links: Links, arrival: Arrival) -> None:
        caller = arrival.channel
        note = SessionNote(self.role, links.session.hex(), caller.peer, short(caller.principal))
        note.phase("queue", arrival.at)
        note.phase("gather")
        self._account(links, note, lambda: self._serve(links, arrival, note))

    def _account(self, links: Links, note: SessionNote, serve: Callable[[], str]) -> BaseException | None:
        """A session as log and metrics hear of it; gives why it failed, if it did."""
        about = f"[{links.session.hex()[:8]}] {self.role}: {note.caller} {note.fingerprint}"
        _log.info("%s: called", about)
        self.watch.begun()
        reason: BaseException | None = None
        try:
            self._names.claim(links.session)
            links.watch()
            what = serve()
        except Exception as error:
            reason = links.fail(error)
            note.end(links, reason)
            fields = {"fields": note.fields()}
            _log.warning("%s: failed%s: %s", about, note.whom, describe(reason), extra=fields)
            reason = without_frames(reason)
            error.__traceback__ = None  # where it is another one: a channel still has it
        else:
            links.close()
            note.end(links, None)
            _log.info("%s: %s%s in %.3f s", about, what, note.whom, note.seconds, extra={"fields": note.fields()})
        finally:
            links.afterwards.close()
        self.watch.ended(note)
        self.outcomes.append(Outcome(links.session, reason))
        return reason

    @abstractmethod
    def _serve(self, links: Links, arrival: Arrival, note: SessionNote) -> str:
        """One session, from the call to the end; gives back what it was, for the log."""

    # Models

    def _for(self, note: SessionNote, visit: Visit) -> Visit:
        """Every line of the log from now on names the caller, and what it wants."""
        job = visit.job
        note.whom = f" for {visit.caller} {short(visit.principal)}"
        note.caller, note.fingerprint = visit.caller, short(visit.principal)
        note.program = (
            job.program if job.program in inquiries.INQUIRIES or self._planner.knows(job.program) else "unknown"
        )
        note.model = job.uses or (job.stores.name if job.stores else "")
        given = {name: job.parameters.get(name) for name in ("batch", "tokens")}
        note.shape = {name: value for name, value in given.items() if isinstance(value, int)}
        return visit

    def _in_order(self, links: Links, job: Job) -> None:
        """What changes the store waits here for the one before it, which may be ending in another lane."""
        if changes_store(job):
            links.afterwards.enter_context(self._changing)

    def _admit(self, visit: Visit) -> Kept | None:
        """Whether this caller may have this job done, from notes and sizes alone; gives the model that it uses."""
        job, kept = visit.job, None
        if job.uses is not None:
            kept = self._models.find(job.uses, visit.version)
            check_use(kept, visit.caller, visit.principal)
        if job.stores is not None:
            check_readers(job.stores.readers)
            check_placing(self._models, job.stores, visit.caller, visit.principal, self.limits)
        self._planner.check(job, kept.note.card if kept else "")
        return kept

    def _model(self, note: SessionNote, kept: Kept | None) -> StoredModel | None:
        if kept is None:
            return None
        note.model = kept.reference
        return self._models.get(kept.note.name, kept.note.upload)

    def _claim(self, links: Links, visit: Visit, model: StoredModel | None, plan: Plan) -> ItemNote | None:
        """The item that S0 took from the stock for this session, burned here too; None where it cannot be used here."""
        item = visit.item
        if not item or model is None:
            return None
        links.afterwards.callback(self.stock.give_up, item)
        if self.role != SERVER0 and self.stock.is_burned(item):
            _log.error(
                "%s: server0 offers an item of the stock that was burned: was it restored from a back-up?", self.role
            )
            return None
        try:
            return self.stock.claim(item, purpose_of(visit.job, model.origin.hex()), plan.tape.digest())
        except StoreError as error:  # what cannot be burned is not used; the session goes on without
            _log.error("%s: an item of the stock cannot be burned: %s", self.role, error)
            return None

    def _keep(
        self, links: Links, peers: Sequence[str], visit: Visit, seeds: tuple[Seed, ...], plan: Plan, outputs: Outputs
    ) -> None:
        """Put what was opened on the disk; with the last piece of a model, make it the newest version at all servers."""
        placing = visit.job.stores
        if placing is None:
            reach(links, peers, "done")
            return
        wires = {name: wire for name, wire in outputs.items() if isinstance(wire, Masked | MaskedBits)}
        card = str(visit.job.parameters.get("card", ""))
        self._models.stage(placing, visit.principal, card, links.session, seeds, plan, wires)
        reach(links, peers, "done")
        if placing.finish:
            agree(links, peers, Facts({"pieces of the upload": self._models.manifest(placing.upload)}))
            self._models.seal(placing.upload, self._planner.stored_forms(visit.job))
            reach(links, peers, "sealed")
            self._models.commit(placing.upload)


def changes_store(job: Job | None) -> bool:
    return job is not None and (job.stores is not None or job.program in inquiries.CHANGES)


def turn_away(channel: Channel, error: BaseException) -> None:
    channel.abort(error)
    channel.close()


def describe(error: BaseException) -> str:
    """For the log. Texts of foreign exceptions may quote data: they are named by type and place."""
    if isinstance(error, SecFormerError):
        return f"[{error.code}] {printable(str(error)[:_LOG_LIMIT])}"
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" at {trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"[internal] {type(error).__name__}{place}"


def without_frames(error: BaseException) -> BaseException:
    """A copy of the error alone: the frames it passed through hold the session's seeds and shares, and would keep them alive.
    The error itself may still be raised in another thread of the session, which gives it frames again."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    alone = type(error).__new__(type(error), *error.args)
    alone.__dict__.update(error.__dict__)
    return alone

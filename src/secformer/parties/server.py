"""What all three servers are: a process that serves sessions one after another until it is stopped.

A session begins when a party in one of the server's `callers` roles has called and said what it wants: one that calls and
says nothing keeps nobody waiting. Whatever goes wrong in a session ends it at every party and nothing else: the next caller
is served. Every line of the log names the session and the caller's fingerprint.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, NamedTuple, Self

import torch

from secformer.crypto.prg import Seed
from secformer.engine.program import Outputs
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import ConnectionLostError, PeerTimeoutError, SecFormerError, TransportError
from secformer.parties.access import Meter, check_placing, check_readers, check_use, short
from secformer.parties.links import WATCH_PERIOD, Links, original
from secformer.parties.messages import Facts
from secformer.parties.planner import CATALOGUE, Catalogue, Planner
from secformer.parties.session import DIAL_TIMEOUT, SessionNames, Visit, agree, reach
from secformer.parties.store import Kept, ModelStore, StoredModel
from secformer.roles import DEALER, SERVERS
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions, printable
from secformer.transport.frame import CONTROL_LIMIT
from secformer.transport.network import Network

_log = logging.getLogger(__name__)

CALLER_BUFFER = 16 << 20
"""Bytes a caller may be ahead of its server."""
WAITING_LIMIT = 64
"""Callers that may wait for their turn."""

_LOG_LIMIT = 1000  # letters of an error that are logged: it may quote what a caller sent
_BREATH = 0.1  # seconds between two attempts to welcome somebody, should they keep failing


class Arrival(NamedTuple):
    """Somebody who has called; `word` is what it wants, where a server hears that first of all."""

    channel: Channel
    word: Any = None


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
        self.device = torch.device(settings.device)
        self.outcomes: deque[Outcome] = deque(maxlen=16)
        """How the last sessions ended."""
        self._network = network
        self.limits = network.limits
        self._planner = Planner(catalogue, self.limits)
        self._models = ModelStore(settings.data_folder / self.role, self.role, self.device, settings.loaded_models)
        self._names = SessionNames()
        self._meter = Meter(self.limits)
        self._waiting = 0
        self._heard: set[Channel] = set()
        """Callers that have not said yet what they want."""
        self._counting = Lock()
        self._arrivals: SimpleQueue[Arrival | None] = SimpleQueue()
        self._links: Links | None = None
        self._stopping = Event()
        self._thread = Thread(target=self._serve_all, name=f"{self.role}-sessions", daemon=True)
        self._listening = network.listen((*self.callers, *self.guests))

    @property
    def address(self) -> str:
        return self._listening.address

    def start(self) -> Self:
        """Begin to serve, in a thread."""
        for role in self.callers:
            Thread(target=self._welcome, args=(role,), name=f"{self.role}-welcome", daemon=True).start()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the session under way, tell its peers and whoever waits, and serve no other."""
        self._stopping.set()
        self._listening.close()
        links = self._links
        if links is not None:
            links.fail(self._being_stopped())
        with self._counting:
            heard = list(self._heard)
        for channel in heard:
            turn_away(channel, self._being_stopped())
        self._arrivals.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=3)

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
            turn_away(channel, error)
            return
        try:
            self._arrivals.put(Arrival(channel, self._first_word(channel)))
        except Exception as error:
            self._let_out(channel.principal)
            reason = original(error)
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
        with self._counting:
            if self._stopping.is_set():
                raise self._being_stopped()
            if self._waiting >= WAITING_LIMIT:
                raise TransportError(f"{self.role} has too many callers waiting: try again later")
            self._meter.enter(channel.principal)
            self._waiting += 1
            self._heard.add(channel)

    def _let_out(self, principal: str) -> None:
        with self._counting:
            self._waiting -= 1
            self._meter.leave(principal)

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
        return ChannelOptions(timeout, limit, ahead if role == DEALER else None)

    # Sessions

    def _serve_all(self) -> None:
        while self._serve_next():
            give_back_memory()

    def _serve_next(self) -> bool:
        """One session, of which nothing is held when this returns; False when there is none any more."""
        arrival = self._arrivals.get()
        if arrival is None:
            return False
        channel = arrival.channel
        if self._stopping.is_set():
            turn_away(channel, self._being_stopped())
        else:
            self._links = Links(channel.session, self._network.trusts, self.settings.session_timeout)
            self._links.add(channel)
            self._serve_one(self._links, arrival)
            self._links = None
        self._let_out(channel.principal)
        return True

    def _serve_one(self, links: Links, arrival: Arrival) -> None:
        caller, started = arrival.channel, monotonic()
        about = f"[{links.session.hex()[:8]}] {self.role}: {caller.peer} {short(caller.principal)}"
        _log.info("%s: called", about)
        try:
            self._names.claim(links.session)
            links.watch()
            what = self._serve(links, arrival)
        except Exception as error:
            reason = links.fail(error)
            _log.warning("%s: failed%s: %s", about, links.whom, describe(reason))
            self.outcomes.append(Outcome(links.session, without_frames(reason)))
        else:
            links.close()
            self.outcomes.append(Outcome(links.session, None))
            _log.info("%s: %s%s in %.3f s", about, what, links.whom, monotonic() - started)

    @abstractmethod
    def _serve(self, links: Links, arrival: Arrival) -> str:
        """One session, from the call to the end; gives back what it was, for the log."""

    # Models

    def _for(self, links: Links, visit: Visit) -> Visit:
        """Every line of the log from now on names the caller."""
        links.whom = f" for {visit.caller} {short(visit.principal)}"
        return visit

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

    def _model(self, visit: Visit, kept: Kept | None) -> StoredModel | None:
        return self._models.get(kept.note.name, kept.note.upload) if kept is not None else None

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


def turn_away(channel: Channel, error: BaseException) -> None:
    channel.abort(error)
    channel.close()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """What hands freed memory back to the system, where the C library has it (glibc)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def give_back_memory() -> None:
    """Queries of many shapes leave holes of many sizes: without this a server holds on to what it once needed."""
    trim = _trim()
    if trim is not None:
        trim(0)


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
    """The error alone: the frames it passed through hold the session's seeds and shares, and would keep them alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

"""What all three servers are: a process that serves sessions one after another until it is stopped.

A session begins when a party in one of the server's `callers` roles calls. Whatever goes wrong in it ends the
session at every party and nothing else: the next caller is served.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple, Self

import torch

from secformer.errors import ConnectionLostError, PeerTimeoutError, SecFormerError, TransportError
from secformer.parties.links import WATCH_PERIOD, Links
from secformer.parties.planner import CATALOGUE, Catalogue, Planner
from secformer.parties.session import DIAL_TIMEOUT, SessionNames
from secformer.parties.store import ModelStore
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
        self._planner = Planner(catalogue)
        self._models = ModelStore()
        self._names = SessionNames()
        self._arrivals: SimpleQueue[Channel | None] = SimpleQueue()
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
        if self._links is not None:
            self._links.fail(self._being_stopped())
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
            if self._stopping.is_set():
                turn_away(channel, self._being_stopped())
            elif self._arrivals.qsize() < WAITING_LIMIT:
                self._arrivals.put(channel)
            else:
                turn_away(channel, TransportError(f"{self.role} has too many callers waiting: try again later"))

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
        while (channel := self._arrivals.get()) is not None:
            if self._stopping.is_set():
                turn_away(channel, self._being_stopped())
                continue
            self._links = Links(channel.session)
            self._links.add(channel)
            self._serve_one(self._links, channel)
            self._links = None

    def _serve_one(self, links: Links, caller: Channel) -> None:
        name, started = links.session.hex()[:8], monotonic()
        _log.info("[%s] %s: called by %s", name, self.role, caller.peer)
        try:
            self._names.claim(links.session)
            links.watch()
            what = self._serve(links, caller)
        except Exception as error:
            reason = links.fail(error)
            _log.warning("[%s] %s: failed: %s", name, self.role, describe(reason))
            self.outcomes.append(Outcome(links.session, without_frames(reason)))
        else:
            links.close()
            self.outcomes.append(Outcome(links.session, None))
            _log.info("[%s] %s: %s in %.3f s", name, self.role, what, monotonic() - started)

    @abstractmethod
    def _serve(self, links: Links, caller: Channel) -> str:
        """One session, from the call to the end; gives back what it was, for the log."""


def turn_away(channel: Channel, error: TransportError) -> None:
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
    """The error alone: the frames it passed through hold the session's seeds and shares, and would keep them alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

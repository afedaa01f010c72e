"""What the servers of a session do alike: agree, take seeds, and pass points together.

    S0                        S1                        T
    job from the caller: may it?
    calls S1 and T            is there                  is there
    invites all               job: may it? calls T      job and caller from both: may it?
    plans                     plans                     plans
    ------- each pair compares version, settings, job, caller, model and tape: nothing secret has moved -------
    seed from T               seed from T               two fresh seeds from the OS
    S0 gives S1 a seed of their own, for new shares of the outputs
    inputs from the caller    inputs from the caller    waits until both have them
    computes                  computes                  deals ahead
    outputs to the caller     outputs to the caller
    ------------------------- each pair says that it is done; only now is a model stored -------------------------

A session's name is 16 random bytes that the caller chose. A server takes each name once, whether the session
succeeded or not. (Were an old name to come back after a restart, nothing would repeat either: the seeds are new.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from threading import Lock
from time import monotonic
from typing import NamedTuple

from secformer.crypto.prg import SEED_BYTES, Seed
from secformer.deployment import Limits
from secformer.engine.tape import Tape
from secformer.engine.tracing import Plan
from secformer.errors import AgreementError, MaterialError, SettingsError
from secformer.parties import messages
from secformer.parties.links import Links
from secformer.parties.messages import Facts, Invitation, Job, Reached
from secformer.parties.store import StoredModel
from secformer.roles import DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Channel, Counters, FrameType
from secformer.version import PROTOCOL_VERSION

SHARED_SETTINGS = ("connections", "network", "deal_first")
"""Settings that must be the same at all servers: a link behaves as both its ends say."""

NAMES_KEPT = 1 << 20

DIAL_TIMEOUT = 2.0
"""Seconds to reach another server within a session: all of them run already, and 5 s are promised in all."""


class SessionNames:
    """The sessions a server has seen, each of which it takes once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def claim(self, session: bytes) -> None:
        with self._lock:
            if session in self._seen:
                raise MaterialError("this session was here before: material is used once, so begin a new session")
            self._seen[session] = None
            if len(self._seen) > NAMES_KEPT:
                self._seen.popitem(last=False)


def follow(leader: Channel) -> Invitation:
    """S1, T: be there, and learn from S0 who will call."""
    messages.send(leader, Reached("present"))
    return messages.receive(leader, Invitation)


class Visit(NamedTuple):
    """What a session is about: who asks for what, and which upload of a model S0 has chosen for it."""

    job: Job
    caller: str
    principal: str
    version: str | None = None
    item: str = ""
    """What S0 has taken from the stock."""


def facts_of(
    settings: Settings, limits: Limits, visit: Visit, model: StoredModel | None, tape: str, item: str = ""
) -> Facts:
    shared = {name: str(getattr(settings, name)) for name in SHARED_SETTINGS}
    return Facts(
        {
            "protocol version": str(PROTOCOL_VERSION),
            **{f"setting {name}": value for name, value in shared.items()},
            **{f"limit {limit.name}": str(getattr(limits, limit.name)) for limit in fields(limits)},
            "job": visit.job.digest(),
            "caller": f"{visit.caller} {visit.principal}",
            "upload of the model": model.origin.hex() if model else "none",
            "tape": tape,
        },
        item,
    )


def agree(links: Links, peers: Sequence[str], own: Facts) -> bool:
    """Compare with every peer; AgreementError names the peer and what differs. Gives whether all have one item of the stock: each
    hears the same three words, so all decide alike."""
    for peer in peers:
        messages.send(links[peer], own)
    items = {own.item}
    for peer in peers:
        said = messages.receive(links[peer], Facts)
        theirs = said.entries
        items.add(said.item)
        different = [name for name in {**own.entries, **theirs} if own.entries.get(name) != theirs.get(name)]
        if different:
            raise AgreementError(
                f"{peer} and this server differ in: {', '.join(different)}. "
                "Use the same release and settings everywhere, and upload the model again"
            )
    return items == {own.item} and bool(own.item)


def send_seed(channel: Channel, seed: Seed) -> None:
    channel.send(FrameType.CONTROL, seed.bytes)


def receive_seed(channel: Channel) -> Seed:
    return Seed(channel.receive(FrameType.CONTROL, shape=(SEED_BYTES,)).numpy().tobytes())


def reach(links: Links, peers: Sequence[str], point: str) -> None:
    """Go on when all peers have come to the same point, however long that takes a living peer."""
    for peer in peers:
        messages.send(links[peer], Reached(point))
    for peer in peers:
        theirs = messages.receive(links[peer], Reached).point
        if theirs != point:
            raise AgreementError(f"{peer} is at {theirs!r}, this server at {point!r}: the servers are out of step")


@contextmanager
def within(channel: Channel, seconds: float) -> Iterator[None]:
    """What the peer has to say must be said by then, however alive it is: others wait behind it."""
    channel.deadline = monotonic() + seconds
    try:
        yield
    finally:
        channel.deadline = None


def since(before: Counters, now: Counters) -> Counters:
    """What was counted between two readings."""
    return Counters(**{field.name: getattr(now, field.name) - getattr(before, field.name) for field in fields(now)})


def by_operation(tape: Tape, times: Sequence[float], end: float) -> dict[str, float]:
    """Seconds by operation: of each round from the end of the one before it, of the last also what follows. `times` begins with
    the beginning."""
    scopes = {opening.round: opening.scope for opening in reversed(tape.openings)}
    rounds = [scopes[number].split("/")[-1] or "other" for number in sorted(scopes)] or ["other"]
    spent = dict.fromkeys(rounds, 0.0)
    for name, before, after in zip(rounds, times[: len(rounds)], [*times[1 : len(rounds)], end], strict=True):
        spent[name] += after - before
    return spent


def wait_until_dealt(links: Links, settings: Settings, plan: Plan, party: int) -> None:
    """Where the phases are timed apart: begin when T has dealt. It tells S0, and S0 tells S1, whose link to T is full."""
    if not settings.deal_first:
        return
    if plan.cost.dealer_bytes > settings.receive_buffer:
        raise SettingsError(
            f"deal_first needs a receive_buffer of {plan.cost.dealer_bytes} bytes, it has {settings.receive_buffer}"
        )
    messages.receive(links[SERVER0 if party else DEALER], Reached)
    if party == 0:
        messages.send(links[SERVER1], Reached("dealt"))

"""Who may do what, and how much of it.

A principal is a certificate, called by its fingerprint. A model name belongs to the provider that pushed it first, and to
whom that one makes an owner beside it; nobody else can replace, share or remove it. Clients, and other providers, may use
it if they are listed. All three servers check this by themselves, before anything is allocated, traced or dealt.

How often a principal comes, and how much it moves, is counted at S0, which takes the callers.
"""

from __future__ import annotations

from collections import Counter, deque
from threading import Lock
from time import monotonic

from secformer.deployment import Limits
from secformer.errors import AccessError, InputError, LimitError
from secformer.parties.messages import ANYBODY, Placing
from secformer.parties.store import Kept, ModelStore
from secformer.roles import CLIENT, PROVIDER

MINUTE = 60.0
SHORT = 16
"""Letters of a fingerprint that name it in a log."""


def short(principal: str) -> str:
    return principal[:SHORT]


def owns(kept: Kept, principal: str) -> bool:
    return principal in kept.access.owners


def may_use(kept: Kept, role: str, principal: str) -> bool:
    if owns(kept, principal) or principal in kept.access.readers:
        return True
    return role == CLIENT and ANYBODY in kept.access.readers


def check_use(kept: Kept, role: str, principal: str) -> None:
    if not may_use(kept, role, principal):
        raise AccessError(
            f"model {kept.note.name!r} does not list this certificate: ask its owner to run "
            f"`secformer access {kept.note.name} --allow {principal}`"
        )


def check_ownership(kept: Kept, principal: str) -> None:
    if not owns(kept, principal):
        raise AccessError(f"model {kept.note.name!r} belongs to another certificate than {short(principal)}")


def check_placing(store: ModelStore, placing: Placing, role: str, principal: str, limits: Limits) -> None:
    """Whether this caller may bring a model under this name."""
    if role != PROVIDER:
        raise AccessError(f"a {role} cannot store a model: the provider does that")
    existing = store.newest(placing.name)
    if existing is not None:
        check_ownership(existing, principal)
        return
    owned = {kept.note.name for kept in store.all() if owns(kept, principal)}
    if len(owned) >= limits.models:
        raise LimitError(f"this certificate owns {len(owned)} models, and may not own more: remove one")


class Meter:
    """What each principal has asked for within the last minute, and how many of its calls are here now."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._begun: dict[str, deque[float]] = {}
        self._moved: dict[str, deque[tuple[float, int]]] = {}
        self._here: Counter[str] = Counter()

    def enter(self, principal: str) -> None:
        """A call comes in; `leave` when it is over."""
        with self._lock:
            if self._here[principal] >= self._limits.sessions:
                raise LimitError(
                    f"{self._here[principal]} calls with this certificate are here already: wait for one to end"
                )
            self._here[principal] += 1

    def leave(self, principal: str) -> None:
        with self._lock:
            self._here[principal] -= 1
            if self._here[principal] <= 0:
                del self._here[principal]

    def begin(self, principal: str) -> None:
        """A session begins."""
        now = monotonic()
        with self._lock:
            self._forget(now)
            begun = self._begun.setdefault(principal, deque())
            if len(begun) >= self._limits.queries_a_minute:
                again = MINUTE - (now - begun[0])
                raise LimitError(f"{len(begun)} sessions within a minute are the limit: try again in {again:.0f} s")
            begun.append(now)

    def move(self, principal: str, size: int) -> None:
        """This session will move so many bytes between the servers."""
        now = monotonic()
        with self._lock:
            self._forget(now)
            moved = self._moved.setdefault(principal, deque())
            total = size + sum(count for _, count in moved)
            if total > self._limits.bytes_a_minute:
                raise LimitError(
                    f"{total:,} bytes between the servers within a minute exceed the limit of "
                    f"{self._limits.bytes_a_minute:,}: send less, or later"
                )
            moved.append((now, size))

    def _forget(self, now: float) -> None:
        for principal, times in list(self._begun.items()):
            while times and now - times[0] > MINUTE:
                times.popleft()
            if not times:
                del self._begun[principal]
        for principal, sizes in list(self._moved.items()):
            while sizes and now - sizes[0][0] > MINUTE:
                sizes.popleft()
            if not sizes:
                del self._moved[principal]


def check_readers(readers: list[str]) -> None:
    """Fingerprints in full: a beginning might fit somebody else."""
    for reader in readers:
        if reader != ANYBODY and not reader.startswith("memory:") and len(reader) != 64:
            raise InputError(f"{reader!r} is no fingerprint of 64 digits: copy it from `secformer keys show`")

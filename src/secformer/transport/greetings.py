"""Who is being greeted at a door: bounded in all, and for each address.

Whoever comes when there is no place left takes that of the one that has dawdled longest, of the same address first. So
a crowd of silent connections displaces itself, and a party that does its handshake at once gets through. Who has shown
a pinned certificate is counted by that certificate from then on, and no longer by address.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from threading import Lock

from secformer.transport.connection import shut

IN_ALL = 256
OF_ONE = 32
"""Greetings at once: of everybody, and of one address or certificate."""


@dataclass(eq=False)
class Greeting:
    """`raw` is replaced by the TLS connection around it."""

    raw: socket.socket
    whose: str
    proven: bool = field(default=False)


class Greetings:
    """In the order in which they began."""

    def __init__(self, in_all: int = IN_ALL, of_one: int = OF_ONE) -> None:
        self._in_all, self._of_one = in_all, of_one
        self._lock = Lock()
        self._current: list[Greeting] = []

    def begin(self, raw: socket.socket, address: str) -> Greeting:
        greeting = Greeting(raw, address)
        with self._lock:
            self._make_room(address)
            self._current.append(greeting)
        return greeting

    def prove(self, greeting: Greeting, principal: str) -> None:
        """From now on it counts for its certificate."""
        with self._lock:
            greeting.whose, greeting.proven = principal, True
            self._make_room(principal, spare=greeting)

    def end(self, greeting: Greeting) -> None:
        with self._lock:
            if greeting in self._current:
                self._current.remove(greeting)

    def _make_room(self, whose: str, spare: Greeting | None = None) -> None:
        mine = [one for one in self._current if one.whose == whose and one is not spare]
        if len(mine) >= self._of_one:
            self._push_out(mine[0])
        elif len(self._current) >= self._in_all:
            crowd = [one for one in self._current if not one.proven] or self._current
            self._push_out(crowd[0])

    def _push_out(self, greeting: Greeting) -> None:
        self._current.remove(greeting)
        shut(greeting.raw)

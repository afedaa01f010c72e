"""What may be written down of a session: who asked for what, how long its parts took, how many bytes went where, how it ended.

All of it is public by the threat model. One `SessionNote` is kept while a session runs; log and metrics are made from it. Parts:

    queue     the caller waits for its turn
    gather    the other servers, and the caller at S1, come together
    plan      the program is built and traced, or found among the last ones
    agree     each pair compares, seeds are taken
    inputs    the caller sends its shares
    compute   S0 and S1 run the program; T, that deals, calls it so, too
    finish    results leave, a model is stored
    answer    an inquiry: what is asked beside programs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from secformer.errors import SecFormerError
from secformer.transport.channel import Channel

PHASES = ("queue", "gather", "plan", "agree", "inputs", "compute", "finish", "answer")
GOOD = "ok"


@dataclass
class SessionNote:
    role: str
    session: str
    caller: str
    """Who called: at S1 and T that is another server, until it has said for whom."""
    fingerprint: str
    program: str = ""
    model: str = ""
    shape: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes by peer, headers included."""
    received: dict[str, int] = field(default_factory=dict)
    stocked: str = ""
    """The item of the stock that the session used, if it did."""
    outcome: str = ""
    """`ok`, or the code of the error that ended it."""
    whom: str = ""
    """For whom the session is, once that is known: for the log's text."""
    _part: str = ""
    _since: float = 0.0

    def phase(self, name: str, now: float | None = None) -> None:
        """This part begins now, or at `now`; the one before is over."""
        assert name in PHASES or not name, name
        now = monotonic() if now is None else now
        if self._part:
            self.phases[self._part] = self.phases.get(self._part, 0.0) + now - self._since
        self._part, self._since = name, now

    def end(self, channels: Iterable[Channel], error: BaseException | None) -> None:
        self.phase("")
        for channel in channels:
            self.sent[channel.peer] = channel.counters.wire_sent
            self.received[channel.peer] = channel.counters.wire_received
        self.outcome = GOOD if error is None else code_of(error)

    @property
    def seconds(self) -> float:
        """In all, the wait for its turn apart."""
        return sum(seconds for name, seconds in self.phases.items() if name != "queue")

    def fields(self) -> dict[str, Any]:
        """For a log that machines read."""
        phases = {name: round(seconds, 6) for name, seconds in self.phases.items()}
        return {
            "event": "session",
            "role": self.role,
            "session": self.session,
            "caller": self.caller,
            "fingerprint": self.fingerprint,
            "program": self.program,
            "model": self.model,
            "shape": self.shape,
            "stocked": self.stocked,
            "phases": phases,
            "seconds": round(self.seconds, 6),
            "sent": self.sent,
            "received": self.received,
            "outcome": self.outcome,
        }


def code_of(error: BaseException) -> str:
    return error.code if isinstance(error, SecFormerError) else "internal"


class Watch(Protocol):
    """Who hears of sessions as they begin and end, and of callers that did not get so far."""

    def begun(self) -> None: ...

    def ended(self, note: SessionNote) -> None: ...

    def refused(self, error: BaseException) -> None: ...


class Unwatched:
    """Nobody does."""

    def begun(self) -> None:
        pass

    def ended(self, note: SessionNote) -> None:
        pass

    def refused(self, error: BaseException) -> None:
        pass

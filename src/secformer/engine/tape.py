"""The tape: the ordered list of what is opened, what T must deal and what is disclosed, with every draw that it takes.

A tape is fixed by the program, the forms and the settings, never by data:

    opening n      S0 and S1 each draw their half of the mask: index n of the stream `mask` they share with T
    dealt n        S0 draws its half (the pad): index n of the stream `pad` it shares with T; T sends S1 the correction
    disclosed n    S0 and S1 draw a common number, which one adds and the other subtracts: index n of their stream `output`

Streams take nothing but these draws, and a `Cursor` hands them out one after the other while a run follows the tape step by
step: a program that strays from it stops at once. That a mask has the shape and width of what it hides is asserted where it
is used, in `open` (computing.py). `digest` is what the three servers compare before anything secret moves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeVar

from secformer.crypto.prg import Draw
from secformer.engine.form import Form
from secformer.errors import AgreementError
from secformer.roles import DEALER_LINKS, SERVER_LINK
from secformer.version import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Opening:
    """One value sent to the other server under a fresh mask, the sum of `draws`."""

    index: int
    round: int
    scope: str
    form: Form
    draws: tuple[Draw, ...]

    @property
    def name(self) -> str:
        return f"opening {self.index}"


@dataclass(frozen=True, slots=True)
class Dealt:
    """One tensor T shares, a function (`gate`) of the masks named in `sources`."""

    index: int
    scope: str
    gate: str
    sources: tuple[str, ...]
    form: Form
    pad: Draw
    block: int = field(default=0, repr=False)
    """Which block of rows, where a gate is applied to rows in blocks."""

    @property
    def kind(self) -> str:
        """The gate without its parameters."""
        return self.gate.partition("(")[0]


@dataclass(frozen=True, slots=True)
class Disclosure:
    """One result that leaves for the caller, its shares made anew with `draw`."""

    index: int
    scope: str
    form: Form
    draw: Draw


@dataclass
class Tape:
    """Everything one run consumes, in order. `inputs` names the static wires whose masks come from elsewhere."""

    program: str
    inputs: tuple[str, ...] = ()
    openings: list[Opening] = field(default_factory=list)
    dealt: list[Dealt] = field(default_factory=list)
    disclosed: list[Disclosure] = field(default_factory=list)
    rounds: int = 0
    dealt_after: list[int] = field(default_factory=list)
    """How many rounds lie before the use of each dealt value: what a server may prepare while a round is under way."""

    def add_opening(self, scope: str, form: Form) -> Opening:
        index = len(self.openings)
        draws = tuple(Draw(pair, "mask", index, form.shape, form.width) for pair in DEALER_LINKS)
        self.openings.append(Opening(index, self.rounds, scope, form, draws))
        return self.openings[-1]

    def add_dealt(self, scope: str, gate: str, sources: tuple[str, ...], form: Form, block: int = 0) -> Dealt:
        index = len(self.dealt)
        pad = Draw(DEALER_LINKS[0], "pad", index, form.shape, form.width)
        self.dealt.append(Dealt(index, scope, gate, sources, form, pad, block))
        self.dealt_after.append(self.rounds)
        return self.dealt[-1]

    def add_disclosure(self, scope: str, form: Form) -> Disclosure:
        index = len(self.disclosed)
        draw = Draw(SERVER_LINK, "output", index, form.shape, form.width)
        self.disclosed.append(Disclosure(index, scope, form, draw))
        return self.disclosed[-1]

    def digest(self) -> str:
        """SHA-256 over the protocol version, the program with its settings, and every entry."""
        state = hashlib.sha256(f"secformer tape {PROTOCOL_VERSION}\n{self.program}\n{self.inputs}\n".encode())
        for entry in (*self.openings, *self.dealt, *self.disclosed):
            state.update(f"{entry!r}\n".encode())
        return state.hexdigest()


Entry = TypeVar("Entry", Opening, Dealt, Disclosure)


class Cursor:
    """Walks a tape during a run; any step that is not the next one on the tape is an error."""

    def __init__(self, tape: Tape) -> None:
        self._lists = {Opening: tape.openings, Dealt: tape.dealt, Disclosure: tape.disclosed}
        self._places = dict.fromkeys(self._lists, 0)

    def next(self, kind: type[Entry], form: Form) -> Entry:
        """The next entry of this kind, which must be of this form."""
        entries, place = self._lists[kind], self._places[kind]
        if place >= len(entries) or entries[place].form != form:
            raise AgreementError(f"the program diverged from its tape at {kind.__name__} {place}: trace it again")
        self._places[kind] = place + 1
        return entries[place]  # type: ignore[return-value]

    def finish(self) -> None:
        if any(self._places[kind] != len(entries) for kind, entries in self._lists.items()):
            raise AgreementError("the program ended before its tape did: trace it again")

"""The tape: the ordered list of what is opened, what T must deal and what is disclosed, with every draw that it takes.

A tape is fixed by the program, the forms and the settings, never by data:

    opening n      S0 and S1 each draw their half of the mask: index n of the stream `mask` they share with T
    dealt n        S0 draws its half (the pad): index n of the stream `pad` it shares with T; T sends S1 the correction
    disclosed n    S0 and S1 draw a common number, which one adds and the other subtracts: index n of their stream `output`

Streams take nothing but these draws, and a `Cursor` hands them out one after the other while a run follows the tape step by
step: a program that strays from it stops at once. `digest` is what the three servers compare before anything secret moves.
`verify` looks for an entry that no trace of ours makes; that a mask has the shape and width of what it hides is asserted
where it is used, in `open` (computing.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeVar

from secformer.crypto.prg import DRAW_LIMIT_BYTES, Draw
from secformer.engine.form import Form
from secformer.errors import AgreementError, TapeError
from secformer.ring.keystream import stream_bytes
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

    def add_opening(self, scope: str, form: Form) -> Opening:
        index = len(self.openings)
        draws = tuple(Draw(pair, "mask", index, form.shape, form.width) for pair in DEALER_LINKS)
        self.openings.append(Opening(index, self.rounds, scope, form, draws))
        return self.openings[-1]

    def add_dealt(self, scope: str, gate: str, sources: tuple[str, ...], form: Form) -> Dealt:
        index = len(self.dealt)
        pad = Draw(DEALER_LINKS[0], "pad", index, form.shape, form.width)
        self.dealt.append(Dealt(index, scope, gate, sources, form, pad))
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

    def verify(self) -> None:
        """Raise TapeError unless every rule holds."""
        _check_each_range_once(self)
        for opening in self.openings:
            _check_mask(opening)
        known = {opening.name for opening in self.openings} | set(self.inputs)
        for dealt in self.dealt:
            _check_dealt(dealt, known)
        for disclosure in self.disclosed:
            _check_draw(f"disclosed {disclosure.index}", disclosure.draw, disclosure.form, SERVER_LINK, "output")


def _check_each_range_once(tape: Tape) -> None:
    seen: set[tuple[str, str, int]] = set()
    masks = [draw for opening in tape.openings for draw in opening.draws]
    for draw in (*masks, *(dealt.pad for dealt in tape.dealt), *(one.draw for one in tape.disclosed)):
        key = (draw.pair, draw.purpose, draw.index)
        if key in seen:
            raise TapeError(f"range {key} of a stream is consumed twice: a mask or pad would repeat")
        seen.add(key)
        if stream_bytes(Form("shared", draw.shape).elements, draw.width) > DRAW_LIMIT_BYTES:
            raise TapeError(f"range {key} is longer than one ChaCha20 nonce covers: split the tensor")


def _check_mask(opening: Opening) -> None:
    name = f"{opening.name} in {opening.scope!r}"
    if {draw.pair for draw in opening.draws} != set(DEALER_LINKS):
        raise TapeError(f"{name}: one server alone could compute its mask")
    for draw in opening.draws:
        _check_draw(name, draw, opening.form, draw.pair, "mask")


def _check_dealt(dealt: Dealt, known: set[str]) -> None:
    name = f"dealt {dealt.index} ({dealt.gate})"
    if not dealt.sources:
        raise TapeError(f"{name} depends on no mask: its wires come from no opening")
    missing = [source for source in dealt.sources if source not in known]
    if missing:
        raise TapeError(f"{name} uses masks that no opening has: {missing}")
    _check_draw(name, dealt.pad, dealt.form, DEALER_LINKS[0], "pad")


def _check_draw(name: str, draw: Draw, form: Form, pair: str, purpose: str) -> None:
    if (draw.pair, draw.purpose) != (pair, purpose):
        raise TapeError(f"{name}: what hides it must come from the stream {purpose!r} of {pair}")
    if (draw.shape, draw.width) != (form.shape, form.width):
        raise TapeError(f"{name}: every bit needs a bit of its own to hide it, of the same shape and width")


Entry = TypeVar("Entry", Opening, Dealt, Disclosure)


class Cursor:
    """Walks a verified tape during a run; any step that is not the next one on the tape is an error."""

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

"""The tape: the ordered list of what is opened and what T must deal, and the rules it has to keep.

A tape is fixed by the program, the shapes and the settings, never by data. Every draw from every stream is on it:

    opening n   S0 and S1 each draw their half of the mask: index n of the stream `mask` they share with T
    dealt n     S0 draws its half (the pad): index n of the stream `pad` it shares with T; T sends S1 the correction

`verify` checks what docs/threat-model.md demands; `digest` is what the three servers compare before anything secret
moves; a `Cursor` makes a run follow the tape step by step, so that a diverging program stops at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from secformer.engine.gate import Material
from secformer.errors import AgreementError, TapeError
from secformer.version import PROTOCOL_VERSION

STREAM_LIMIT_BYTES = 1 << 38
"""One ChaCha20 nonce covers 2^32 blocks of 64 bytes."""

SERVER_LINKS = ("assistant-server0", "assistant-server1")


@dataclass(frozen=True, slots=True)
class Draw:
    """A range of a stream: the whole of index `index` of (link, purpose)."""

    link: str
    purpose: str
    index: int
    shape: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Opening:
    """One value sent to the other server under a fresh mask, the sum of `draws`."""

    index: int
    round: int
    scope: str
    shape: tuple[int, ...]
    width: int
    boolean: bool
    draws: tuple[Draw, ...]

    @property
    def name(self) -> str:
        return f"opening {self.index}"

    @property
    def content(self) -> Material:
        return Material(self.shape, self.width, self.boolean)


@dataclass(frozen=True, slots=True)
class Dealt:
    """One tensor T shares, a function (`gate`) of the masks named in `sources`."""

    index: int
    scope: str
    gate: str
    sources: tuple[str, ...]
    material: Material
    pad: Draw


def mask_draws(index: int, shape: tuple[int, ...], width: int) -> tuple[Draw, ...]:
    return tuple(Draw(link, "mask", index, shape, width) for link in SERVER_LINKS)


def pad_draw(index: int, material: Material) -> Draw:
    return Draw(SERVER_LINKS[0], "pad", index, material.shape, material.width)


@dataclass
class Tape:
    """Everything one run consumes, in order. `inputs` names the static wires whose masks come from elsewhere."""

    program: str
    inputs: tuple[str, ...] = ()
    openings: list[Opening] = field(default_factory=list)
    dealt: list[Dealt] = field(default_factory=list)
    rounds: int = 0

    def add_opening(self, scope: str, content: Material) -> Opening:
        index = len(self.openings)
        draws = mask_draws(index, content.shape, content.width)
        opening = Opening(index, self.rounds, scope, content.shape, content.width, content.boolean, draws)
        self.openings.append(opening)
        return opening

    def add_dealt(self, scope: str, gate: str, sources: tuple[str, ...], material: Material) -> Dealt:
        index = len(self.dealt)
        dealt = Dealt(index, scope, gate, sources, material, pad_draw(index, material))
        self.dealt.append(dealt)
        return dealt

    def digest(self) -> str:
        """SHA-256 over the protocol version, the program with its settings, and every entry."""
        state = hashlib.sha256(f"secformer tape {PROTOCOL_VERSION}\n{self.program}\n{self.inputs}\n".encode())
        for entry in (*self.openings, *self.dealt):
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


def _check_each_range_once(tape: Tape) -> None:
    seen: set[tuple[str, str, int]] = set()
    for draw in _all_draws(tape):
        key = (draw.link, draw.purpose, draw.index)
        if key in seen:
            raise TapeError(f"range {key} of a stream is consumed twice: a mask or pad would repeat")
        seen.add(key)
        if Material(draw.shape, 64).packed_bytes > STREAM_LIMIT_BYTES:
            raise TapeError(f"range {key} is longer than one ChaCha20 nonce covers: split the tensor")


def _all_draws(tape: Tape) -> list[Draw]:
    masks = [draw for opening in tape.openings for draw in opening.draws]
    return masks + [dealt.pad for dealt in tape.dealt]


def _check_mask(opening: Opening) -> None:
    if any((draw.shape, draw.width) != (opening.shape, opening.width) for draw in opening.draws):
        raise TapeError(f"{opening.name} in {opening.scope!r}: its mask has another shape or width")
    if {draw.link for draw in opening.draws} != set(SERVER_LINKS):
        raise TapeError(f"{opening.name} in {opening.scope!r}: one server alone could compute its mask")
    if any(draw.purpose != "mask" for draw in opening.draws):
        raise TapeError(f"{opening.name} in {opening.scope!r}: its mask comes from a stream of another purpose")


def _check_dealt(dealt: Dealt, known: set[str]) -> None:
    if not dealt.sources:
        raise TapeError(f"dealt {dealt.index} ({dealt.gate}) depends on no mask: its wires come from no opening")
    missing = [source for source in dealt.sources if source not in known]
    if missing:
        raise TapeError(f"dealt {dealt.index} ({dealt.gate}) uses masks that no opening has: {missing}")
    pad, material = dealt.pad, dealt.material
    if (pad.link, pad.purpose) != (SERVER_LINKS[0], "pad"):
        raise TapeError(f"dealt {dealt.index} ({dealt.gate}): its pad must come from S0's stream `pad`")
    if (pad.shape, pad.width) != (material.shape, material.width):
        raise TapeError(f"dealt {dealt.index} ({dealt.gate}): every correction bit needs a pad bit of its own")


class Cursor:
    """Walks a verified tape during a run; any step that is not the next one on the tape is an error."""

    def __init__(self, tape: Tape) -> None:
        self._openings = [opening.content for opening in tape.openings]
        self._materials = [dealt.material for dealt in tape.dealt]
        self._opening = 0
        self._dealt = 0

    def next_opening(self, content: Material) -> int:
        index = self._opening
        if index >= len(self._openings) or self._openings[index] != content:
            raise AgreementError(f"the program diverged from its tape at opening {index}: trace it again")
        self._opening += 1
        return index

    def next_dealt(self, material: Material) -> int:
        index = self._dealt
        if index >= len(self._materials) or self._materials[index] != material:
            raise AgreementError(f"the program diverged from its tape at dealt item {index}: trace it again")
        self._dealt += 1
        return index

    def finish(self) -> None:
        if (self._opening, self._dealt) != (len(self._openings), len(self._materials)):
            raise AgreementError("the program ended before its tape did: trace it again")

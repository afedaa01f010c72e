"""The model provider: brings the weights once, in shares; they stay with the servers as wires.

A large model is brought in pieces, a session each, so that no party ever holds more than a piece beside the model. A piece
whose session breaks is brought again in a new one; what has arrived stays. An upload that is given up altogether leaves the
version before in its place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import sleep

from secformer.engine.form import Form
from secformer.engine.sharing import Encoded
from secformer.errors import BusyError, TransportError
from secformer.models.system import Card
from secformer.parties import inquiries
from secformer.parties.caller import Caller, Progress, Result
from secformer.parties.messages import FileNote, Job, Placing
from secformer.parties.planner import UPLOAD, Piece, piece_name, pieces_of
from secformer.transport.frame import SESSION_BYTES

ATTEMPTS = 3
PAUSE = 2.0
"""Times a piece is tried, and seconds between."""

Fold = Callable[[str], Encoded]
"""One tensor of the model, folded when it is asked for."""


@dataclass(frozen=True)
class Uploaded:
    version: str
    results: Sequence[Result]
    """Of the sessions, one a piece."""

    @property
    def rounds(self) -> int:
        return sum(result.rounds for result in self.results)


class Provider(Caller):
    def upload(
        self,
        name: str,
        card: Card,
        folded: Mapping[str, Encoded] | Fold,
        readers: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        progress: Progress = lambda step: None,
    ) -> Uploaded:
        """Share the folded weights (`card.fold`) and leave them with the servers as a new version of the model `name`.

        `readers` are the fingerprints of those who may query the model, by this card and by nothing else; `*` is every
        client. `files` are handed out to them.
        """
        fold = folded if callable(folded) else folded.__getitem__
        forms = card.static_forms()
        if not callable(folded) and set(folded) != set(forms):
            forms = {part: encoded.form for part, encoded in folded.items()}
        upload, sessions = os.urandom(SESSION_BYTES).hex(), pieces_of(forms)
        notes, contents = _notes(files or {}), list((files or {}).values())
        results = []
        for number, pieces in enumerate(sessions):
            last = number == len(sessions) - 1
            placing = Placing(name, upload, list(readers), last, notes if last else [])
            parameters = {"card": card.to_json()} | ({"pieces": pieces} if len(sessions) > 1 else {})
            progress(f"uploading piece {number + 1} of {len(sessions)}")
            job, shares = Job(UPLOAD, parameters, stores=placing), _shares(fold, pieces, forms)
            for trio in self.trios:  # each masks the weights anew; to all of them it is the same version
                results.append(self._bring(job, shares, contents if last else [], progress, trio))
        return Uploaded(upload, results)

    def _bring(
        self, job: Job, shares: Mapping[str, Encoded], files: Sequence[bytes], progress: Progress, trio: int
    ) -> Result:
        """One session; where the line or a server fails, or is busy, another one."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return self.run(job, shares, files=files, trio=trio)
            except (TransportError, BusyError) as error:
                if not left:
                    raise
                progress(f"{error}; trying again")
                sleep(error.retry_after if isinstance(error, BusyError) else PAUSE)
        raise AssertionError("the last attempt raises")

    def share(
        self,
        name: str,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        own: Sequence[str] = (),
        disown: Sequence[str] = (),
    ) -> None:
        """Change who may use a model of one's own, and who owns it, at all three servers."""
        changes = {"allow": list(allow), "deny": list(deny), "own": list(own), "disown": list(disown)}
        for trio in self.trios:
            self.consult(Job(inquiries.SHARE, changes, uses=name), _nothing, trio)

    def remove(self, name: str) -> None:
        """Make all three servers forget a model of one's own, in every version."""
        for trio in self.trios:
            self.consult(Job(inquiries.REMOVE, uses=name), _nothing, trio)


def _nothing(channel: object) -> None:
    return None


def _shares(fold: Fold, pieces: Sequence[Piece], forms: Mapping[str, Form]) -> dict[str, Encoded]:
    """The rows of a session's pieces, to be shared."""
    found = {}
    for piece in pieces:
        encoded = fold(piece.tensor)
        form = encoded.form.as_share()
        if (piece.start, piece.stop) == (0, form.shape[0]):
            found[piece_name(piece, forms)] = Encoded(form, encoded.ring)
        else:
            rows = form._replace(shape=(piece.stop - piece.start, *form.shape[1:]))
            found[piece_name(piece, forms)] = Encoded(rows, encoded.ring[piece.start : piece.stop])
    return found


def _notes(files: Mapping[str, bytes]) -> list[FileNote]:
    return [FileNote(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()]

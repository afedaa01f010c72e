"""Models that stay with the servers: the wires a provider's uploads opened, on disk, and in memory while they are used.

    <data folder>/<role>/models/<name>/<upload>/    a model in one version
    <data folder>/<role>/staging/<upload>/          one that is still coming

        model.json     what is public: card, pieces with their forms and sessions, files; written last
        access.json    owners and readers
        seeds.json     one seed a session at S0 and S1, two at T: the masks are drawn from them again
        0000.wire …    the masked weights x + r, packed to their width, at S0 and S1; T has none
        files/         what is handed out to clients, a tokenizer's files

A mask belongs to one tensor: its stream is named by the session that opened the tensor and keyed by seeds that T took from
the operating system for that session alone. What is stored only draws the same masks for the same tensors again, so a store
that is restored from a back-up, however old, can never put a mask on a second tensor.

An upload is *sealed* when all of it is on the disk, and *committed* when all three servers have said that they sealed it. A
server that dies in between finds a sealed upload when it is back, and commits it as soon as another server asks for that
version: the other can only know it because everybody had sealed it.

Whoever may choose the program may choose what it tells about the weights: one layer's output, a row of a table, the
same model under another calibration. So a model keeps the card it was uploaded with, and is queried by that card alone.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock

import torch
from msgspec import Struct
from torch import Tensor

from secformer.crypto.prg import Draw, Seed, Stream
from secformer.engine.form import Form
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits, form_of, wire_of
from secformer.errors import MissingModelError, StoreError
from secformer.parties.disk import (
    make_folder,
    move_folder,
    read_file,
    read_note,
    remove_folder,
    write_file,
    write_note,
)
from secformer.parties.messages import FileNote, Placing
from secformer.ring.packing import pack, unpack
from secformer.roles import COMPUTING, DEALER, DEALER_LINKS

_log = logging.getLogger(__name__)

Wires = Mapping[str, Masked | MaskedBits]

VERSION_DIGITS = 12
"""Digits of an upload that people see as a version."""
STALE = 86400.0
"""Seconds after which an upload that nobody went on with is thrown away."""
MODEL, ACCESS, SEEDS, FILES = "model.json", "access.json", "seeds.json", "files"


def card_digest(card: str) -> str:
    """What names a card in a job: SHA-256 of its text."""
    return hashlib.sha256(card.encode()).hexdigest()


@dataclass(frozen=True)
class StoredModel:
    """A model as a session uses it; its wires are loaded when they are needed."""

    origin: bytes
    """The upload that made it."""
    forms: Mapping[str, Form]
    card: str
    load: Callable[[], Wires] = dict
    name: str = ""
    _loading: Lock = field(default_factory=Lock, repr=False, compare=False)

    @property
    def wires(self) -> Wires:
        """Loaded once, whichever lane asks first."""
        with self._loading:
            if "_wires" not in self.__dict__:
                self.__dict__["_wires"] = self.load()
            return self.__dict__["_wires"]

    @property
    def loaded(self) -> Wires | None:
        """The wires, if they are in memory already."""
        return self.__dict__.get("_wires")

    @cached_property
    def digest(self) -> str:
        return card_digest(self.card)

    @property
    def reference(self) -> str:
        """How people call it: name@version."""
        return f"{self.name}@{self.origin.hex()[:VERSION_DIGITS]}"


# What lies on the disk


class PieceNote(Struct, frozen=True):
    """Rows of a tensor that were opened in one session: opening `index` there."""

    tensor: str
    start: int
    form: Form
    session: str
    index: int
    file: str = ""
    sha256: str = ""


class ModelNote(Struct, frozen=True, dict=True):
    name: str
    upload: str
    number: int
    """Counts the uploads of this server: the newest version has the greatest."""
    created: float
    card: str
    pieces: list[PieceNote]
    files: list[FileNote]

    @cached_property
    def forms(self) -> dict[str, Form]:
        return joined_forms(self.pieces)


class AccessNote(Struct, frozen=True):
    owners: list[str]
    readers: list[str]


class SeedsNote(Struct, frozen=True):
    by_session: dict[str, list[str]]

    def __repr__(self) -> str:
        return "SeedsNote(hidden)"


def _inherited(staged: AccessNote, before: AccessNote) -> AccessNote:
    """A new version has the owners that its name has now, and its readers too, unless it was pushed with others."""
    return AccessNote(before.owners, staged.readers or before.readers)


def joined_forms(pieces: list[PieceNote]) -> dict[str, Form]:
    """The tensors that pieces add up to; StoreError where rows are missing or there twice."""
    forms: dict[str, Form] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.tensor, piece.start)):
        before = forms.get(piece.tensor)
        rows = before.shape[0] if before else 0
        if piece.start != rows or (before and before[2:] != piece.form[2:]):
            raise StoreError(f"the pieces of {piece.tensor!r} do not fit together")
        shape = (rows + piece.form.shape[0], *piece.form.shape[1:]) if piece.form.shape else ()
        forms[piece.tensor] = piece.form._replace(shape=shape)
    return forms


@dataclass(frozen=True)
class Kept:
    """One version of one model, as its notes say."""

    folder: Path
    note: ModelNote
    access: AccessNote

    @property
    def reference(self) -> str:
        return f"{self.note.name}@{self.note.upload[:VERSION_DIGITS]}"


class ModelStore:
    """The models of one server. `keep` of them are held in memory, those used last."""

    def __init__(self, folder: Path, role: str, device: torch.device, keep: int = 4) -> None:
        self._role, self._device, self._keep = role, device, keep
        self._models = make_folder(folder / "models")
        self._staging = make_folder(folder / "staging")
        self._lock = RLock()
        self._kept: dict[str, list[Kept]] = {}
        self._damaged: dict[str, str] = {}
        self._loaded: OrderedDict[str, StoredModel] = OrderedDict()
        self._read_all()

    def _read_all(self) -> None:
        """Notes only: a model's weights are checked when it is used."""
        for folder in sorted(self._models.glob("*/*")):
            try:
                self._add(self._read(folder))
            except StoreError as error:
                self._damaged[folder.parent.name] = f"{folder.parent.name}@{folder.name[:VERSION_DIGITS]}: {error}"
                _log.error("%s: a stored model is left out: %s", self._role, self._damaged[folder.parent.name])
        for folder in self._staging.iterdir():
            if time.time() - folder.stat().st_mtime > STALE:
                remove_folder(folder)

    @staticmethod
    def _read(folder: Path) -> Kept:
        return Kept(folder, read_note(folder / MODEL, ModelNote), read_note(folder / ACCESS, AccessNote))

    def _add(self, kept: Kept) -> None:
        versions = self._kept.setdefault(kept.note.name, [])
        versions.append(kept)
        versions.sort(key=lambda one: one.note.number)

    # Finding

    def all(self) -> Iterator[Kept]:
        """Every model in every version, oldest first."""
        with self._lock:
            return iter([kept for name in sorted(self._kept) for kept in self._kept[name]])

    def newest(self, name: str) -> Kept | None:
        with self._lock:
            versions = self._kept.get(name)
            return versions[-1] if versions else None

    def find(self, reference: str, upload: str | None = None) -> Kept:
        """A model by name or name@version, in the version `upload` if another server has chosen it."""
        name, _, version = reference.partition("@")
        with self._lock:
            if upload is not None:
                self._commit_sealed(name, upload)
            for kept in reversed(self._kept.get(name, [])):
                if kept.note.upload.startswith(upload or version):
                    return kept
            if name in self._damaged:
                raise StoreError(
                    f"{self._role}: model {self._damaged[name]}: restore it from a back-up, or push it again"
                )
            known = self.newest(name)
        if known is not None:
            wanted = (upload or version)[:VERSION_DIGITS]
            raise MissingModelError(
                f"{self._role} has no version {wanted} of model {name!r}, its newest is {known.reference}"
            )
        raise MissingModelError(f"no model {name!r} is stored here: the provider must upload it first")

    def _commit_sealed(self, name: str, upload: str) -> None:
        """Another server knows this version, so all had sealed it: what is sealed here belongs to it."""
        folder = self._staging / upload
        if (folder / MODEL).is_file() and self._read(folder).note.name == name:
            self._commit(folder)

    # Using

    def get(self, reference: str, upload: str | None = None) -> StoredModel:
        kept = self.find(reference, upload)
        with self._lock:
            model = self._loaded.get(kept.note.upload)
            if model is None:
                note = kept.note
                origin = bytes.fromhex(note.upload)
                model = StoredModel(origin, note.forms, note.card, lambda: self._load(kept), note.name)
                self._loaded[note.upload] = model
            self._loaded.move_to_end(kept.note.upload)
            while len(self._loaded) > self._keep:
                self._loaded.popitem(last=False)
            return model

    def holds(self, wires: Mapping[str, object]) -> bool:
        """Whether these are wires of a model that is loaded."""
        with self._lock:
            loaded = [model.loaded for model in self._loaded.values()]
        return any(own is not None and all(own.get(name) is wire for name, wire in wires.items()) for own in loaded)

    def _load(self, kept: Kept) -> Wires:
        """Every wire: what is public about it from its file, the mask from its seed."""
        try:
            seeds = read_note(kept.folder / SEEDS, SeedsNote).by_session
            public = {name: self._room(form) for name, form in kept.note.forms.items()}
            mask = {
                name: torch.empty(form.shape, dtype=torch.int64, device=self._device)
                for name, form in kept.note.forms.items()
            }
            for piece in kept.note.pieces:
                rows = slice(piece.start, piece.start + piece.form.shape[0]) if piece.form.shape else ...
                if piece.file:
                    content = read_file(kept.folder / piece.file, piece.sha256)
                    public[piece.tensor][rows] = self._unpacked(content, piece.form)
                mask[piece.tensor][rows] = self._mask(piece, seeds[piece.session])
        except (StoreError, KeyError, ValueError) as error:
            reason = str(error) if isinstance(error, StoreError) else "its notes contradict each other"
            raise StoreError(
                f"{self._role}: model {kept.reference}: {reason}: restore it from a back-up, or push it again"
            ) from None
        return {name: wire_of(form, public[name], mask[name]).as_static() for name, form in kept.note.forms.items()}

    def _room(self, form: Form) -> Tensor:
        """T sees no opening: there its place is empty."""
        return form.empty() if self._role == DEALER else torch.empty(form.shape, dtype=torch.int64, device=self._device)

    def _unpacked(self, content: bytes, form: Form) -> Tensor:
        packed = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self._device)
        return unpack(packed, form.elements, form.width).reshape(form.shape)

    def _mask(self, piece: PieceNote, seeds: list[str]) -> Tensor:
        """This server's part of the mask, drawn as it was in the session that opened the piece."""
        pairs = DEALER_LINKS if self._role == DEALER else (DEALER_LINKS[COMPUTING.index(self._role)],)
        session, form = bytes.fromhex(piece.session), piece.form
        parts = []
        for pair, seed in zip(pairs, seeds, strict=True):
            stream = Stream(Seed(bytes.fromhex(seed)), session, pair, "mask", self._device)
            parts.append(stream.draw(Draw(pair, "mask", piece.index, form.shape, form.width)))
        if len(parts) == 1:
            return parts[0]
        return parts[0].bitwise_xor_(parts[1]) if form.boolean else parts[0].add_(parts[1])

    # Taking in

    def begin(self, placing: Placing, owner: str) -> None:
        """Make room for an upload, if there is none yet."""
        with self._lock:
            self._begun(placing, owner)

    def stage(
        self, placing: Placing, owner: str, card: str, session: bytes, seeds: tuple[Seed, ...], plan: Plan, wires: Wires
    ) -> None:
        """Put what a session opened beside what came before in the same upload; on the disk when this returns."""
        with self._lock:
            folder = self._begun(placing, owner)
            note = read_note(folder / "begun.json", ModelNote)
            fresh = [self._piece(folder, name, wire, session, plan, seeds) for name, wire in sorted(wires.items())]
            places = {(piece.tensor, piece.start) for piece in fresh}
            kept = [piece for piece in note.pieces if (piece.tensor, piece.start) not in places]
            if note.card not in ("", card):
                raise StoreError("one upload has one card: begin another")
            known = read_note(folder / SEEDS, SeedsNote).by_session
            known[session.hex()] = [seed.bytes.hex() for seed in seeds]
            write_note(folder / SEEDS, SeedsNote(known))
            files = placing.files or note.files
            changed = ModelNote(note.name, note.upload, note.number, note.created, card, kept + fresh, files)
            write_note(folder / "begun.json", changed)

    def _begun(self, placing: Placing, owner: str) -> Path:
        folder = self._staging / placing.upload
        if not folder.exists():
            self._forget_others(placing, owner)
            make_folder(folder / FILES)
            write_note(folder / SEEDS, SeedsNote({}))
            number = 1 + max((kept.note.number for kept in self.all()), default=0)
            write_note(folder / "begun.json", ModelNote(placing.name, placing.upload, number, time.time(), "", [], []))
        before = self.newest(placing.name)
        owners = before.access.owners if before is not None else [owner]
        write_note(folder / ACCESS, AccessNote(owners, list(placing.readers)))
        return folder

    def _forget_others(self, placing: Placing, owner: str) -> None:
        """A new upload of a name throws away one that was broken off."""
        for folder in self._staging.iterdir():
            try:
                name = read_note(folder / "begun.json", ModelNote).name
                mine = owner in read_note(folder / ACCESS, AccessNote).owners
            except StoreError:
                continue
            if mine and name == placing.name and not (folder / MODEL).is_file():
                remove_folder(folder)

    def _piece(
        self, folder: Path, name: str, wire: Masked | MaskedBits, session: bytes, plan: Plan, seeds: tuple[Seed, ...]
    ) -> PieceNote:
        tensor, _, start = name.partition("#")
        index = sorted(plan.outputs).index(name)
        piece = PieceNote(tensor, int(start or 0), form_of(wire), session.hex(), index)
        again = self._mask(piece, [seed.bytes.hex() for seed in seeds])
        if not torch.equal(again, wire.mask):
            raise StoreError(f"the mask of {name!r} cannot be drawn again: this program does not open it first of all")
        if self._role == DEALER:
            return piece
        file = f"{hashlib.sha256(name.encode()).hexdigest()[:12]}-{session.hex()[:8]}.wire"
        packed = pack(wire.public, wire.width).cpu().numpy().data
        return PieceNote(tensor, piece.start, piece.form, piece.session, index, file, write_file(folder / file, packed))

    def stage_file(self, placing: Placing, note: FileNote, content: bytes) -> None:
        """A file to be handed out; S0 and S1 have them."""
        if hashlib.sha256(content).hexdigest() != note.sha256 or len(content) != note.size:
            raise StoreError(f"the file {note.name!r} arrived damaged: push again")
        write_file(make_folder(self._staging / placing.upload / FILES) / note.name, content)

    def manifest(self, upload: str) -> str:
        """What all three servers must have alike of an upload: which piece was opened in which session."""
        pieces = read_note(self._staging / upload / "begun.json", ModelNote).pieces
        listed = sorted((piece.tensor, piece.start, tuple(piece.form), piece.session, piece.index) for piece in pieces)
        return hashlib.sha256(repr(listed).encode()).hexdigest()

    def seal(self, upload: str, expected: Mapping[str, Form] | None) -> None:
        """All of it is here: from now on it survives a crash."""
        folder = self._staging / upload
        note = read_note(folder / "begun.json", ModelNote)
        forms = joined_forms(note.pieces)
        if expected is not None and forms != dict(expected):
            raise StoreError("the upload is incomplete: push again")
        write_note(folder / MODEL, note)

    def commit(self, upload: str) -> None:
        """All three servers have sealed it: it is the newest version. (A query in another lane may have said so first.)"""
        with self._lock:
            if not any(kept.note.upload == upload for kept in self.all()):
                self._commit(self._staging / upload)

    def _commit(self, folder: Path) -> None:
        note = read_note(folder / MODEL, ModelNote)
        target = self._models / note.name / note.upload
        before = self._kept.get(note.name)
        if before:
            write_note(folder / ACCESS, _inherited(read_note(folder / ACCESS, AccessNote), before[-1].access))
        move_folder(folder, target)
        (target / "begun.json").unlink(missing_ok=True)
        self._damaged.pop(note.name, None)
        self._add(self._read(target))

    # Changing

    def share(self, name: str, access: AccessNote) -> None:
        """New owners and readers, for all versions."""
        with self._lock:
            for place, kept in enumerate(self._kept.get(name, [])):
                write_note(kept.folder / ACCESS, access)
                self._kept[name][place] = Kept(kept.folder, kept.note, access)

    def remove(self, name: str, upload: str | None = None) -> None:
        """All versions, or one of them."""
        with self._lock:
            versions = self._kept.pop(name, [])
            stay = [kept for kept in versions if upload not in (None, kept.note.upload)]
            if stay:
                self._kept[name] = stay
            for kept in versions:
                if kept not in stay:
                    self._forget(kept)

    def prune(self, name: str, upload: str) -> None:
        """Versions before the one before this, now that all three servers are known to have this one."""
        with self._lock:
            versions = self._kept.get(name, [])
            place = next((place for place, kept in enumerate(versions) if kept.note.upload == upload), 0)
            for kept in versions[: max(place - 1, 0)]:
                versions.remove(kept)
                self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        self._loaded.pop(kept.note.upload, None)
        remove_folder(kept.folder)
        with suppress(OSError):  # other versions are there
            kept.folder.parent.rmdir()

    def file(self, kept: Kept, name: str) -> bytes:
        """A file that is handed out with a model."""
        for note in kept.note.files:
            if note.name == name:
                return read_file(kept.folder / FILES / name, note.sha256)
        raise MissingModelError(f"model {kept.reference} has no file {name!r}")

"""Material that T dealt ahead of demand: items, each for one run of one program, which wait at all three servers.

    <data folder>/<role>/stock/
        epoch.json       how many items the three servers have taken in together
        burned           ids of items that were used or given up, a line each; on the disk before the item is used
        <id>.json        what an item is for; at S0 and S1 with the seed of its streams, at T without
        <id>.material    at S1: the corrections, packed, in the order of the tape

What is dealt depends on the tape, on the masks of the model's weights and on seeds; not on an input. So an item is bound to a
version of a model, a job and a tape, which the protocol version is part of, and its streams are named by its id instead of by a
session. T forgets an item's seeds when it has dealt it.

*Once.* An item is burned at S0 when a session takes it, at S1 and T when they hear of it; each writes its id to the disk first,
and then removes the item's files. An item that one of the three lacks, or has burned, is not used: T deals for the session as if
there were no stock. Whatever dies in between, an item is lost and none is used twice.

*Rolled back.* A server that restarts uses no stock until the three have compared their epochs and what they have. One whose epoch
is behind was restored from a back-up: it is refused. Of all others only items that all three have stay; the rest is burned.
An epoch is raised in two steps, like the version of a model: an item is *staged* at all three, then *committed*, so that one that
died in between is behind by an item that it has, and catches up.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from secformer.crypto.prg import Seed
from secformer.engine.tape import Dealt, Tape
from secformer.errors import LimitError, MaterialError, StoreError
from secformer.parties.disk import make_folder, read_note, refusals_of, sync_folder, write_note
from secformer.version import PROTOCOL_VERSION

EPOCH, BURNED = "epoch.json", "burned"
NOTE, STAGED, MATERIAL = ".json", ".staged", ".material"
ITEMS_LIMIT = 4096
"""Items that a server keeps: their ids fit one message."""
BURNED_KEPT = 1 << 16
"""Lines of the ledger after which those that no file can contradict are left out."""
_LINE = 16 * 2 + 1 + 16 + 1  # id, epoch in hexadecimal digits, and what is between and behind


class Purpose(NamedTuple):
    """What an item can be used for."""

    upload: str
    """The version of the model."""
    job: str
    """Digest of program and parameters."""


class ItemNote(Struct, frozen=True):
    id: str
    upload: str
    job: str
    tape: str
    protocol: int
    epoch: int
    seed: str = ""
    size: int = 0
    sha256: str = ""
    """Of the corrections."""

    @property
    def purpose(self) -> Purpose:
        return Purpose(self.upload, self.job)

    @property
    def streams(self) -> bytes:
        return stream_name(self.id)

    def own_seed(self) -> Seed:
        return Seed(bytes.fromhex(self.seed))

    def __repr__(self) -> str:  # the seed is secret
        return f"ItemNote({self.id})"


class EpochNote(Struct, frozen=True):
    number: int
    before: int = 0
    """Whatever is of an earlier epoch than this is burned, and has left the ledger."""


def stream_name(item: str) -> bytes:
    """What names an item's streams: longer than a session's name, so that the two are never the same."""
    return b"stock" + bytes.fromhex(item)


class Burned:
    """The ledger of one server: a line is on the disk when `add` returns. Half a line is of a server that died before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._epochs: dict[str, int] = {}
        with refusals_of(path):
            content = path.read_bytes() if path.exists() else b""
            whole = content[: len(content) // _LINE * _LINE]
            for start in range(0, len(whole), _LINE):
                item, epoch = _read_line(whole[start : start + _LINE])
                self._epochs[item] = epoch
            self._file = self._opened(len(whole))

    def _opened(self, size: int) -> BinaryIO:
        file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0)
        file.truncate(size)
        file.seek(size)
        os.fsync(file.fileno())
        sync_folder(self._path.parent)
        return file

    def __contains__(self, item: str) -> bool:
        return item in self._epochs

    def __len__(self) -> int:
        return len(self._epochs)

    def add(self, item: str, epoch: int) -> None:
        with refusals_of(self._path):
            before = self._file.tell()
            try:
                if self._file.write(_line(item, epoch)) != _LINE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._file.fileno())
            except OSError:  # a part of a line would make all behind it unreadable
                self._file.truncate(before)
                self._file.seek(before)
                raise
        self._epochs[item] = epoch

    def forget_before(self, epoch: int) -> None:
        """Leave out items whose files are gone for good: no note of so early an epoch is taken any more."""
        self._epochs = {item: when for item, when in self._epochs.items() if when >= epoch}
        part = self._path.with_name(f".{BURNED}.part")
        with refusals_of(self._path):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(_line(item, when) for item, when in self._epochs.items())
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            os.replace(part, self._path)
            self._file = self._opened(len(self._epochs) * _LINE)

    def close(self) -> None:
        self._file.close()


def _line(item: str, epoch: int) -> bytes:
    return f"{item} {epoch:016x}\n".encode()


def _read_line(line: bytes) -> tuple[str, int]:
    match = re.fullmatch(rb"([0-9a-f]{32}) ([0-9a-f]{16})\n", line)
    if match is None:
        raise StoreError("the ledger of the stock is damaged: remove the folder `stock` from this server's data folder")
    return match[1].decode(), int(match[2], 16)


class Stock:
    """The items of one server. `limit` bounds the bytes of corrections."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = make_folder(folder), limit
        self._lock = Lock()
        self.fresh = not (folder / EPOCH).is_file()
        """Whether it knows of no epoch: it has nothing that could be used twice."""
        known = EpochNote(0) if self.fresh else read_note(folder / EPOCH, EpochNote)
        self.epoch, self._before = known.number, known.before
        self.compared = False
        """Whether the three servers have compared what they have since this one was started."""
        self._burned = Burned(folder / BURNED)
        self._items: dict[str, ItemNote] = {}
        self._taken: dict[str, ItemNote] = {}
        self._in_use: set[str] = set()
        """Items of sessions under way, burned here; another server may not have heard of that yet."""
        self._staged: ItemNote | None = None
        self._read_all()

    def _read_all(self) -> None:
        for path in self._folder.glob("*.part"):
            path.unlink(missing_ok=True)
        for path in sorted((*self._folder.glob(f"*{NOTE}"), *self._folder.glob(f"*{STAGED}"))):
            if path.name == EPOCH:
                continue
            item = path.name.partition(".")[0]
            try:
                note = read_note(path, ItemNote)
            except StoreError:
                self._remove(item)
                continue
            if (
                note.id != item
                or item in self._burned
                or note.epoch < self._before
                or note.protocol != PROTOCOL_VERSION
            ):
                self._remove(item)
            elif path.name.endswith(STAGED):
                self._staged = note
            else:
                self._items[item] = note
        known = {*self._items, *([self._staged.id] if self._staged else [])}
        for path in self._folder.glob(f"*{MATERIAL}"):
            if path.name.partition(".")[0] not in known:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._burned.close()

    # What there is

    def inventory(self) -> list[str]:
        """What this server has, or has in use."""
        with self._lock:
            return [*self._items, *self._in_use]

    def notes(self) -> list[ItemNote]:
        with self._lock:
            return list(self._items.values())

    def count(self, purpose: Purpose) -> int:
        with self._lock:
            return sum(note.purpose == purpose for note in self._items.values())

    @property
    def size(self) -> int:
        """Bytes of corrections that wait here."""
        with self._lock:
            return sum(note.size for note in self._items.values())

    def check_room(self, size: int) -> None:
        if self.size + size > self._limit or len(self.notes()) >= ITEMS_LIMIT:
            raise LimitError(f"the stock of this server has no room for {size} bytes more: see its setting stock_space")

    # Using

    def take(self, purpose: Purpose) -> str:
        """S0: an item for a session, burned here from now on; empty where there is none."""
        with self._lock:
            if not self.compared:
                return ""
            note = next((note for note in self._items.values() if note.purpose == purpose), None)
            if note is None:
                return ""
            self._burn(note)
            self._taken[note.id] = note
            self._in_use.add(note.id)
            return note.id

    def claim(self, item: str, purpose: Purpose, tape: str) -> ItemNote | None:
        """The item that S0 took, burned here as well; None where it is not here, or is for something else."""
        with self._lock:
            note = self._taken.pop(item, None)
            if note is None and self.compared and item in self._items:
                note = self._items[item]
                self._burn(note)
                self._in_use.add(item)
            if note is None or note.purpose != purpose or note.tape != tape:
                return None
            return note

    def is_burned(self, item: str) -> bool:
        with self._lock:
            return item in self._burned

    def give_up(self, item: str) -> None:
        """A session that took an item, or would have, is over, however it ended."""
        with self._lock:
            self._taken.pop(item, None)
            self._in_use.discard(item)
        self._material(item).unlink(missing_ok=True)

    def discard(self, items: Iterable[str]) -> None:
        with self._lock:
            for item in items:
                if item in self._items:
                    self._burn(self._items[item])
                    self._material(item).unlink(missing_ok=True)

    def _burn(self, note: ItemNote) -> None:
        """Called under the lock. The corrections stay until they are open."""
        self._burned.add(note.id, note.epoch)
        del self._items[note.id]
        self._note(note.id).unlink(missing_ok=True)
        if len(self._burned) > BURNED_KEPT:
            self._before = min([self.epoch, *(note.epoch for note in self._items.values())])
            self._raise_epoch(self.epoch)
            self._burned.forget_before(self._before)

    def material(self, note: ItemNote) -> SpooledCorrections:
        """S1: the corrections of an item that was claimed; nothing of them is left on the disk."""
        path = self._material(note.id)
        with refusals_of(path):
            file = path.open("rb")
            path.unlink()
            if os.fstat(file.fileno()).st_size != note.size:
                raise StoreError("a part of an item of the stock is missing")
        return SpooledCorrections(file, note.sha256)

    # Comparing

    def compare(self, role: str, epochs: Iterable[int], common: Iterable[str]) -> None:
        """The others have these epochs, and all three have `common`: catch up, and give up the rest."""
        top = max([self.epoch, *epochs])
        if self.epoch < top and not self.fresh and not self._commit_staged(top):
            raise MaterialError(
                f"{role}: its stock is at epoch {self.epoch}, the others' at {top}: it was restored from a back-up. "
                "Remove the folder `stock` from its data folder, and start it again"
            )
        if self.epoch < top or self.fresh:
            with self._lock:
                self._raise_epoch(top)
        common = set(common)
        self.discard([note.id for note in self.notes() if note.id not in common])

    def _commit_staged(self, epoch: int) -> bool:
        """Whether what is missing is an item that was staged here, or committed, when this server died."""
        if self._staged is not None and self._staged.epoch == epoch:
            self.commit(self._staged.id)
            return True
        with self._lock:
            return any(note.epoch == epoch for note in self._items.values())

    def _raise_epoch(self, number: int) -> None:
        write_note(self._folder / EPOCH, EpochNote(number, self._before))
        self.epoch, self.fresh = number, False

    # Taking in

    def receive(self, item: str, tape: Tape, receive: Callable[[Dealt], Tensor]) -> tuple[int, str]:
        """S1: write what T deals to the disk; gives size and SHA-256."""
        path, size, state = self._material(item), 0, hashlib.sha256()
        part = path.with_name(f"{path.name}.part")
        with refusals_of(path):
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for entry in tape.dealt:
                    content = receive(entry).numpy().data
                    file.write(content)
                    state.update(content)
                    size += len(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            sync_folder(self._folder)
        return size, state.hexdigest()

    def stage(self, note: ItemNote) -> None:
        """It is all here; one that was staged before and never committed is given up."""
        with self._lock:
            before, self._staged = self._staged, note
            if before is not None:
                self._remove(before.id)
            write_note(self._folder / f"{note.id}{STAGED}", note)

    def commit(self, item: str) -> None:
        """All three have staged it."""
        with self._lock:
            note, self._staged = self._staged, None
            assert note is not None and note.id == item
            with refusals_of(self._folder):
                os.replace(self._folder / f"{item}{STAGED}", self._note(item))
                sync_folder(self._folder)
            self._raise_epoch(note.epoch)
            self._items[item] = note

    # Files

    def _note(self, item: str) -> Path:
        return self._folder / f"{item}{NOTE}"

    def _material(self, item: str) -> Path:
        return self._folder / f"{item}{MATERIAL}"

    def _remove(self, item: str) -> None:
        for ending in (NOTE, STAGED, MATERIAL):
            (self._folder / f"{item}{ending}").unlink(missing_ok=True)


class SpooledCorrections:
    """S1's corrections from the disk, in the order of the tape; `finish` tells whether they are what T dealt."""

    def __init__(self, file: BufferedReader, sha256: str) -> None:
        self._file, self._expected = file, sha256
        self._state = hashlib.sha256()

    def __call__(self, entry: Dealt) -> Tensor:
        content = bytearray(entry.form.packed_bytes)
        with refusals_of(Path(MATERIAL)):
            if self._file.readinto(content) != len(content):
                raise StoreError("the stock of server1 is damaged: ask again")
        self._state.update(content)
        return torch.frombuffer(content, dtype=torch.uint8)

    def finish(self) -> None:
        """Before any result leaves: damaged corrections would make it wrong."""
        if self._state.hexdigest() != self._expected:
            raise StoreError("the stock of server1 is damaged: ask again")

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

"""Files as a store needs them: written whole or not at all, private, and checked when they are read.

A file is written under another name, forced to the disk, and renamed; a folder's own change is forced, too. So after a crash
there is the old content or the new, never half of either. Whatever the system refuses is a StoreError that says what to do.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from msgspec import Struct

from secformer.errors import StoreError

MARGIN = 64 << 20
"""Bytes of a disk that are left free."""

Note = TypeVar("Note", bound=Struct)


def make_folder(path: Path) -> Path:
    """A folder nobody else may look into, and those above it that are not there yet."""
    if not path.is_dir():
        make_folder(path.parent)
        with refusals_of(path):
            path.mkdir(mode=0o700, exist_ok=True)
    return path


def hold_folder(path: Path) -> IO[bytes]:
    """This process alone uses the folder until what is given back is closed, or the process ends."""
    with refusals_of(path):
        file = os.fdopen(os.open(make_folder(path) / ".held", os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StoreError(f"another server uses the data folder of this {path.name}: give each its own") from None
    return file


def write_file(path: Path, content: bytes | memoryview) -> str:
    """All or nothing, mode 0600; gives the SHA-256 of what was written."""
    part = path.with_name(f".{path.name}.part")
    with refusals_of(path):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return hashlib.sha256(content).hexdigest()


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, sha256: str) -> bytes:
    """The content, if it is what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StoreError(f"{path.name} is damaged")
    return content


def write_note(path: Path, note: Struct) -> None:
    """A record in JSON, its SHA-256 on a line behind it."""
    content = msgspec.json.encode(note)
    write_file(path, content + b"\n" + hashlib.sha256(content).hexdigest().encode() + b"\n")


def read_note(path: Path, kind: type[Note]) -> Note:
    try:
        content, _, digest = path.read_bytes().rstrip(b"\n").rpartition(b"\n")
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise StoreError(f"{path.name} is damaged")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError:
        raise StoreError(f"{path.name} is of another release of SecFormer") from None


def move_folder(source: Path, target: Path) -> None:
    """A whole folder takes its place at once."""
    make_folder(target.parent)
    with refusals_of(target):
        os.rename(source, target)
        sync_folder(target.parent)
        sync_folder(source.parent)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def check_space(folder: Path, size: int) -> None:
    """Raise before anything is written that would not fit."""
    with refusals_of(folder):
        free = shutil.disk_usage(folder).free
    if free < size + MARGIN:
        raise StoreError(
            f"the disk of this server has {free >> 20} MiB free, this needs {(size + MARGIN) >> 20}: "
            "free some, or remove old models; nothing was changed"
        )


@contextmanager
def refusals_of(path: Path) -> Iterator[None]:
    """The system's refusals as errors of ours, without the path: callers hear them."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "the disk of this server is full: free some space; what was stored before is intact"
        else:
            reason = f"the disk of this server refuses ({error.strerror}): see to its data folder"
        raise StoreError(reason) from error

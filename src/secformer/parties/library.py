"""What a client fetches from the servers: which models it may use, and one model's card and tokenizer.

S0 and S1 are asked both, and must say the same; a file comes from S0, and must have the digest that both have told. So one
server by itself can neither hide a model nor make the client use another card, tokenizer or label. What was fetched is kept
in the cache, by its digest.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from secformer.errors import AgreementError, InputError
from secformer.models.system import Card
from secformer.models.tokens import load_tokenizer
from secformer.parties import messages
from secformer.parties.caller import Caller
from secformer.parties.inquiries import DESCRIBE, LIST, Description, Listed, Listing, Wanted
from secformer.parties.messages import Job
from secformer.parties.store import VERSION_DIGITS
from secformer.systems import card_from_json
from secformer.transport.channel import Channel, FrameType

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "preprocessor_config.json",
)
"""What is handed out of a checkpoint folder: text and tables, nothing that is executed."""


def tokenizer_files(folder: Path, family: str) -> dict[str, bytes]:
    """The files of a checkpoint that its clients need, and the family for transformers to read them by."""
    found = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    return {**found, "config.json": f'{{"model_type": "{family}"}}'.encode()}


class Fetched:
    """One version of a model as its clients know it."""

    def __init__(self, description: Description, folder: Path) -> None:
        self.name = f"{description.name}@{description.upload[:VERSION_DIGITS]}"
        self.owners = description.owners
        self.card: Card = card_from_json(description.card)
        self._folder = folder

    def tokenizer(self) -> Any:
        return load_tokenizer(self._folder, self.card.config)


class Library(Caller):
    def models(self) -> list[Listed]:
        """The models this party may use, in every version, the same at both servers."""
        zero, one = self.consult(Job(LIST), lambda channel: messages.receive(channel, Listing))
        names = [{(model.name, model.upload) for model in listing.models} for listing in (zero, one)]
        both = names[0] & names[1]
        return [model for model in zero.models if (model.name, model.upload) in both]

    def fetch(self, name: str) -> Fetched:
        """Card and files of a model, in the cache when this returns."""
        heard: list[Description] = []
        folder = Path(self.settings.cache_folder) / "models"

        def talk(channel: Channel) -> Description:
            heard.append(messages.receive(channel, Description))
            messages.send(channel, Wanted(self._missing(folder, heard[0]) if len(heard) == 1 else []))
            if len(heard) == 1:
                self._receive(channel, folder, heard[0])
            return heard[-1]

        zero, one = self.consult(Job(DESCRIBE, uses=name), talk)
        if zero != one:
            raise AgreementError(f"server0 and server1 describe {name} differently: use neither, and ask its owner")
        return Fetched(zero, _place(folder, zero))

    def _missing(self, folder: Path, description: Description) -> list[str]:
        place = _place(folder, description)
        return [note.name for note in description.files if not _intact(place / note.name, note.sha256)]

    def _receive(self, channel: Channel, folder: Path, description: Description) -> None:
        place = _place(folder, description)
        wanted = self._missing(folder, description)
        for note in description.files:
            if note.name not in wanted:
                continue
            content = channel.receive(FrameType.OUTPUT, shape=(note.size,)).numpy().tobytes()
            if hashlib.sha256(content).hexdigest() != note.sha256:
                raise AgreementError(f"the file {note.name!r} is not the one that was announced")
            _write(place / note.name, content)


def _place(folder: Path, description: Description) -> Path:
    listed = repr(sorted((note.name, note.sha256) for note in description.files))
    return folder / hashlib.sha256(listed.encode()).hexdigest()[:32]


def _intact(path: Path, sha256: str) -> bool:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    return False


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError as error:
        raise InputError(
            f"the tokenizer cannot be kept in {path.parent}: {error.strerror}; name another cache_folder"
        ) from None


def select(models: Sequence[Listed], name: str) -> list[Listed]:
    """All versions of one model, oldest first."""
    return [model for model in models if model.name == name]

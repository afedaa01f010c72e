"""Models that stay with the servers from one session to the next: the wires a provider's upload opened.

S0 and S1 keep the masked weights with their halves of the masks, T keeps the masks. They belong together only if
all three come from the same upload, so a model remembers the session that made it, and the servers compare that
before they use it. A second upload under the same name has masks of its own and replaces the first.

Whoever may choose the program may choose what it tells about the weights: one layer's output, a row of a table, the
same model under another calibration. So a model keeps the card it was uploaded with, and is queried by that card alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from secformer.engine.form import Form
from secformer.engine.values import Masked, MaskedBits, form_of
from secformer.errors import InputError

Wires = Mapping[str, Masked | MaskedBits]


def card_digest(card: str) -> str:
    """What names a card in a job: SHA-256 of its text."""
    return hashlib.sha256(card.encode()).hexdigest()


@dataclass(frozen=True)
class StoredModel:
    origin: bytes
    """The session of the upload."""
    wires: Wires
    card: str

    @cached_property
    def forms(self) -> dict[str, Form]:
        return {name: form_of(wire) for name, wire in self.wires.items()}

    @cached_property
    def digest(self) -> str:
        return card_digest(self.card)


class ModelStore:
    """In memory: a server that restarts has forgotten its models, and the provider uploads them again."""

    def __init__(self) -> None:
        self._models: dict[str, StoredModel] = {}

    def get(self, name: str) -> StoredModel:
        if name not in self._models:
            raise InputError(f"no model {name!r} is stored here: the provider must upload it first")
        return self._models[name]

    def put(self, name: str, origin: bytes, wires: Wires, card: str) -> None:
        static = {key: wire.as_static() for key, wire in wires.items()}
        self._models[name] = StoredModel(origin, static, card)

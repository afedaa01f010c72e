"""Models that stay with the servers from one session to the next: the wires a provider's upload opened.

S0 and S1 keep the masked weights with their halves of the masks, T keeps the masks. They belong together only if
all three come from the same upload, so a model remembers the session that made it, and the servers compare that
before they use it. A second upload under the same name has masks of its own and replaces the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secformer.engine.program import InputSpec
from secformer.engine.values import Masked, MaskedBits, Wire
from secformer.errors import InputError


@dataclass(frozen=True)
class StoredModel:
    origin: bytes
    """The session of the upload."""
    wires: Mapping[str, Wire]

    @property
    def forms(self) -> dict[str, InputSpec]:
        return {name: InputSpec.of(wire) for name, wire in self.wires.items()}


NO_MODEL = StoredModel(b"", {})


class ModelStore:
    """In memory: a server that restarts has forgotten its models, and the provider uploads them again."""

    def __init__(self) -> None:
        self._models: dict[str, StoredModel] = {}

    def get(self, name: str | None) -> StoredModel:
        if name is None:
            return NO_MODEL
        if name not in self._models:
            raise InputError(f"no model {name!r} is stored here: the provider must upload it first")
        return self._models[name]

    def put(self, name: str, origin: bytes, wires: Mapping[str, Masked | MaskedBits]) -> None:
        self._models[name] = StoredModel(origin, {key: wire.as_static() for key, wire in wires.items()})

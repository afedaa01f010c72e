"""Models that stay with the servers from one session to the next: the wires a provider's upload opened.

S0 and S1 keep the masked weights with their halves of the masks, T keeps the masks. They belong together only if
all three come from the same upload, so a model remembers the session that made it, and the servers compare that
before they use it. A second upload under the same name has masks of its own and replaces the first.

Whoever may choose the program may choose what it tells about the weights: one layer's output, a row of a table, the
same model under another calibration. So a model also remembers what its provider lets it be used for, and each of the
three servers refuses everything else, whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secformer.engine.program import InputSpec
from secformer.engine.values import Masked, MaskedBits, Wire
from secformer.errors import InputError
from secformer.parties.messages import Job


@dataclass(frozen=True)
class StoredModel:
    origin: bytes
    """The session of the upload."""
    wires: Mapping[str, Wire]
    serves: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the provider's job named: program, and the parameters it must have."""

    @property
    def forms(self) -> dict[str, InputSpec]:
        return {name: InputSpec.of(wire) for name, wire in self.wires.items()}

    def check_use(self, job: Job) -> None:
        """Raise unless the provider allowed this program with these parameters."""
        fixed = self.serves.get(job.program)
        if fixed is None:
            raise InputError(f"the model {job.uses!r} was not uploaded for {job.program}: its provider must allow it")
        wrong = [name for name, value in fixed.items() if job.parameters.get(name) != value]
        if wrong:
            raise InputError(
                f"the model {job.uses!r} serves {job.program} with another {', '.join(sorted(wrong))}: "
                "take the provider's"
            )


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

    def used_by(self, job: Job) -> StoredModel:
        """The model a job works on, if the job may."""
        model = self.get(job.uses)
        if model is not NO_MODEL:
            model.check_use(job)
        return model

    def put(self, job: Job, origin: bytes, wires: Mapping[str, Masked | MaskedBits]) -> None:
        """Keep what a job made, under the name and for the uses it states."""
        assert job.stores is not None
        static = {key: wire.as_static() for key, wire in wires.items()}
        self._models[job.stores] = StoredModel(origin, static, job.serves)

"""The state of a training run on disk: one safetensors file, written aside and renamed, so that it is whole or not there.

It carries a fingerprint of everything that defines the run. A run of other settings never takes it up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from secformer.errors import InputError, SettingsError

FILE = "checkpoint.safetensors"


def fingerprint(definition: Mapping[str, Any]) -> str:
    """The same for equal definitions."""
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def write(folder: Path, identity: str, stage: int, state: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    aside = folder / f"{FILE}.{os.getpid()}.part"
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    try:
        save_file(tensors, aside, metadata={"fingerprint": identity, "stage": str(stage)})
        aside.replace(folder / FILE)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise InputError(f"no checkpoint can be kept in '{folder}': {error.strerror or error}") from None


def read(folder: Path, identity: str) -> tuple[int, dict[str, Tensor]] | None:
    """Stage and state of a run that was broken off, or None; SettingsError where it is another run's."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found, stage = metadata["fingerprint"], int(metadata["stage"])
    except (OSError, SafetensorError, KeyError, ValueError):
        raise SettingsError(f"'{path}' is damaged: remove it to start anew") from None
    if found != identity:
        raise SettingsError(f"'{path}' belongs to a run with other settings or data: remove it or name another folder")
    return stage, state


def remove(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)

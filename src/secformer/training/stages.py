"""Runs that survive a kill: stages one after the other with checkpoints, and the choice among several settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from secformer.training import checkpoints
from secformer.training.trainer import Trainer

SCORES_FILE = "scores.json"
ASK_EVERY = 50
"""Steps after which the mean loss is asked for: a GPU is waited for then."""


class Progress(NamedTuple):
    stage: str
    step: int
    steps: int
    loss: float
    """Mean over the last steps."""


class Watch(Protocol):
    def __call__(self, progress: Progress) -> None: ...


def ignore(progress: Progress) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Stage:
    name: str
    trainer: Callable[[], Trainer]
    """Made when the stage begins: it changes the weights that the one before left."""


@dataclass(frozen=True)
class Keeping:
    """Where a run keeps its state, what it is a state of, and how often."""

    folder: Path
    definition: Mapping[str, Any]
    every: int = 500
    """Steps between two checkpoints."""


def run_stages(stages: Sequence[Stage], keeping: Keeping | None, watch: Watch = ignore) -> dict[str, float]:
    """Train to the end, from the last checkpoint where there is one; gives the last mean loss of every stage run."""
    identity = checkpoints.fingerprint(keeping.definition) if keeping else ""
    kept = checkpoints.read(keeping.folder, identity) if keeping else None
    first, state = kept if kept else (0, None)
    losses = {}
    for index in range(first, len(stages)):
        name, trainer = stages[index].name, _begun(stages[index], state)
        losses[name], state = _run(name, index, trainer, keeping, identity, watch), None
        del trainer  # with what it holds of a GPU, before the next one is made
    return losses


def _begun(stage: Stage, state: Mapping[str, Tensor] | None) -> Trainer:
    trainer = stage.trainer()
    if state is not None:
        trainer.restore(state)
    return trainer


def _run(name: str, index: int, trainer: Trainer, keeping: Keeping | None, identity: str, watch: Watch) -> float:
    loss = 0.0
    for step in trainer.run():
        if step % ASK_EVERY == 0 or step == trainer.steps:
            loss = trainer.mean_loss()
            watch(Progress(name, step, trainer.steps, loss))
        if keeping and (step % keeping.every == 0 or step == trainer.steps):
            checkpoints.write(keeping.folder, identity, index, trainer.state())
    return loss


def choose(names: Sequence[str], folder: Path, attempt: Callable[[int, Path], float]) -> tuple[int, dict[str, float]]:
    """The candidate that scores highest, and every score. `attempt` trains one, with its own folder for checkpoints; a
    score once found is kept, so that a kill costs no more than the attempt it falls into."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SCORES_FILE
    scores: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    for index, name in enumerate(names):
        if name in scores:
            continue
        place = folder / str(index)
        place.mkdir(exist_ok=True)
        scores[name] = attempt(index, place)
        file.write_text(json.dumps(scores))
        shutil.rmtree(place)
    found = {name: scores[name] for name in names}
    return max(range(len(names)), key=lambda index: found[names[index]]), found

"""The networks of a study as model folders, one a run: MODELS/TASK-ROW-SEED, in float16, with a card.

`secformer eval` measures them like any model. A folder is whole or not there.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from secformer.training.cards import write_card
from secformer.training.folders import read_base, read_folder, save_folder
from secformer.training.network import Network
from secformer.training.tasks import TASKS, task_named


@dataclass(frozen=True)
class Shelf:
    folder: Path
    base: Path
    device: str
    longest: int
    """Tokens at which texts were cut."""

    def place(self, name: str) -> Path:
        return self.folder / name.replace(" ", "-")

    def keep(self, name: str, network: Network) -> None:
        """Under the name of its run; of recipes that are only compared nothing is kept."""
        task, _, rest = name.partition(" ")
        if task not in TASKS:
            return
        kind, _, seed = rest.partition(" ")
        place, aside = self.place(name), self.place(f"{name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_folder(aside, read_base(self.base, task_named(task), int(seed), 0.0), network, torch.float16)
        card = {
            "title": f"{self.base.name} on {task}: row {kind} of the accuracy table, seed {seed}",
            "summary": "Made by `secformer glue train`.",
            "task": task,
            "made_from": {"base": self.base.name},
            "settings": {"row": kind, "seed": int(seed), "longest": self.longest, **asdict(network.swaps)},
            "evaluations": [],
        }
        write_card(aside, card)
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)

    def kept(self, name: str) -> Network | None:
        place = self.place(name)
        return read_folder(place).network.to(self.device) if place.is_dir() else None

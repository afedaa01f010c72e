"""`secformer finetune`: an encoder and a task's examples in, a classifier out.

With Softmax or GeLU replaced from the start this is the paper's row "without distillation".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from secformer.training import checkpoints
from secformer.training.batches import Rows, encode
from secformer.training.cards import write_card
from secformer.training.examples import Examples, split
from secformer.training.folders import Folder, prepare, read_base, save_folder
from secformer.training.losses import TaskLoss
from secformer.training.network import Dropout, Network, Swaps
from secformer.training.scoring import score_on
from secformer.training.stages import Keeping, Stage, Watch, choose, ignore, run_stages
from secformer.training.trainer import Schedule, Trainer

HELD_OUT = 0.1
CHOOSING = "choosing"


@dataclass(frozen=True)
class FinetuneSettings:
    schedules: tuple[Schedule, ...]
    """One, or several to choose from on a part of the training examples."""
    swaps: Swaps
    dropout: float = 0.1
    longest: int = 128
    """Tokens; longer texts are cut."""
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 500
    half: bool = False
    """Save the weights in float16."""


def finetune(
    base: Path, out: Path, train: Examples, dev: Examples, settings: FinetuneSettings, watch: Watch = ignore
) -> dict[str, Any]:
    """Train, save and describe; gives the card."""
    prepare(out)
    source = read_base(base, train.task, settings.seed, sum(train.targets) / len(train))
    start = replace(source.network, swaps=settings.swaps, config=settings.swaps.config(source.network.config))
    definition = _definition(start, train, settings)
    chosen, scores = _choice(out, source, start, train, settings, definition, watch)
    rows = encode(source.tokenizer, start.config, train, settings.longest).to(settings.device)
    keeping = Keeping(out, {**definition, "schedule": asdict(chosen)}, settings.checkpoint_every)
    network = train_on_task(start.to(settings.device), rows, chosen, settings, keeping, watch)
    measured = encode(source.tokenizer, start.config, dev, settings.longest).to(settings.device)
    value = score_on(network, measured, train.task)
    save_folder(out, source, network, torch.float16 if settings.half else torch.float32)
    card = _card(base, train, dev, settings, chosen, scores, value)
    write_card(out, card)
    checkpoints.remove(out)
    return card


def train_on_task(
    start: Network,
    rows: Rows,
    schedule: Schedule,
    settings: FinetuneSettings,
    keeping: Keeping | None = None,
    watch: Watch = ignore,
) -> Network:
    network = start.trainable()
    run_stages([task_stage(network, rows, schedule, settings)], keeping, watch)
    return network.copy()


def task_stage(network: Network, rows: Rows, schedule: Schedule, settings: FinetuneSettings) -> Stage:
    def trainer() -> Trainer:
        dropout = Dropout(settings.dropout, settings.seed, network.device)
        loss = TaskLoss(network, network.config.head == "regression", dropout)
        return Trainer(network.weights.tensors, rows, loss, schedule, settings.seed, {"dropout": dropout.generator})

    return Stage("fine-tuning", trainer)


def _choice(
    out: Path,
    source: Folder,
    start: Network,
    train: Examples,
    settings: FinetuneSettings,
    definition: Mapping[str, Any],
    watch: Watch,
) -> tuple[Schedule, dict[str, float] | None]:
    """The schedule that does best on a tenth of the training examples after training on the others."""
    schedules = settings.schedules
    if len(schedules) == 1:
        return schedules[0], None
    parts = split(train, HELD_OUT, settings.seed)
    rows, held_out = (
        encode(source.tokenizer, start.config, part, settings.longest).to(settings.device) for part in parts
    )

    def attempt(index: int, folder: Path) -> float:
        keeping = Keeping(folder, {**definition, "choosing": asdict(schedules[index])}, settings.checkpoint_every)
        network = train_on_task(start.to(settings.device), rows, schedules[index], settings, keeping, watch)
        return score_on(network, held_out, train.task)

    best, scores = choose([schedule_name(schedule) for schedule in schedules], out / CHOOSING, attempt)
    return schedules[best], scores


def schedule_name(schedule: Schedule) -> str:
    return f"{schedule.epochs} epochs, rate {schedule.learning_rate:g}, batch {schedule.batch}"


def _definition(start: Network, train: Examples, settings: FinetuneSettings) -> dict[str, Any]:
    """All that decides the result, but the schedule."""
    found = asdict(replace(settings, schedules=(), checkpoint_every=0))
    return {"what": "finetune", "base": start.weights.digest, "data": train.digest, "settings": found}


def _card(
    base: Path,
    train: Examples,
    dev: Examples,
    settings: FinetuneSettings,
    schedule: Schedule,
    scores: dict[str, float] | None,
    value: float,
) -> dict[str, Any]:
    task, swaps = train.task, settings.swaps
    chosen = {"chosen_on_a_tenth_of_train": scores} if scores else {}
    return {
        "title": f"{base.name} fine-tuned on {task.name}",
        "summary": f"Softmax: {swaps.softmax}; GeLU: {swaps.gelu}. Made by `secformer finetune`.",
        "task": task.name,
        "made_from": {"base": base.name, "train_examples": len(train), "train_sha256": train.digest},
        "settings": {
            **asdict(schedule),
            **asdict(swaps),
            "dropout": settings.dropout,
            "longest": settings.longest,
            "seed": settings.seed,
            **chosen,
        },
        "evaluations": [plain_row(task.metric, value, len(dev))],
    }


def plain_row(metric: str, value: float, examples: int) -> dict[str, Any]:
    """A row of a card: the model as it was trained, on dev."""
    return {"mode": "plain", "suite": "", "data": "dev", "examples": examples, "metric": metric, "value": value}


def schedules(epochs: int, rates: Sequence[float], batch: int) -> tuple[Schedule, ...]:
    """One for every learning rate."""
    return tuple(Schedule(epochs, rate, batch) for rate in rates)

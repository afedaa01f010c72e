"""`secformer glue train`, `trim`, `merge` and `report`: the paper's accuracy table, measured and written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from secformer.errors import InputError
from secformer.ring.devices import device_named
from secformer.training.batches import Rows, encode, joined
from secformer.training.examples import find_file, read_examples
from secformer.training.finetune import HELD_OUT
from secformer.training.folders import read_base
from secformer.training.jobs import run_jobs
from secformer.training.merging import merge_folder
from secformer.training.network import Network
from secformer.training.page import document
from secformer.training.plans import PLANS, TaskPlan
from secformer.training.plots import draw
from secformer.training.results import known_rows, read_rows
from secformer.training.runs import chosen_runs
from secformer.training.shelf import Shelf
from secformer.training.study import Lessons, Study, held_out, ordered
from secformer.training.tasks import task_named
from secformer.training.transfer import other_texts, others
from secformer.training.vocabulary import trim_encoder

LONGEST = 128


@dataclass(frozen=True)
class Asked:
    """What is trained, of all there is where a part is empty."""

    tasks: Sequence[str] = ()
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    share: float = 1.0
    """Of the epochs of every plan."""
    penalty: float | None = None
    """Of `fast`, where the ablation is not to choose."""
    sums: float = 0.0
    """How much row sums of `fast` count."""
    choices: Path | None = None
    """FOLDER/BASE of another encoder, whose choices of learning rates are taken."""


def train(
    base: Path,
    data: Path,
    out: Path,
    models: Path | None,
    asked: Asked,
    device: str,
    slots: int,
    seconds: float | None,
    began: float,
) -> None:
    """Train the rows of the table that do not stand in `out` yet and write them down as they come. `seconds` count from
    `began` (of time.monotonic)."""
    notes = Console(stderr=True)
    computing = device_named(device)
    lessons = {task: _lessons(base, data, task, device) for task in asked.tasks or PLANS}
    means = {task: float(rows.train.targets.mean()) for task, rows in lessons.items()}

    def start(task: str, seed: int) -> Network:
        return read_base(base, task_named(task), seed, means[task]).network.to(device)

    plans = {task: plan.shortened(asked.share) for task, plan in PLANS.items()}
    study = Study(base.name, start, lessons, out, plans, penalty=asked.penalty, sums=asked.sums)
    study.rows += _known(out, base.name) + _choices(asked.choices, base.name)
    if models is not None:
        shelf = Shelf(models, base, device, LONGEST)
        study.keep, study.kept = shelf.keep, shelf.kept
    deadline = None if seconds is None else began + seconds
    jobs = ordered(study.jobs(chosen_runs(asked.rows, asked.seeds)), asked.rows)
    notes.print(f"{time.monotonic() - began:6.1f} s  examples read, {len(jobs)} runs to do")
    done = run_jobs(jobs, computing, slots, deadline, notes.print, began)
    notes.print(f"{time.monotonic() - began:6.1f} s  {len(done)} of {len(jobs)} runs done; rows in {out}")
    if study.failed:
        raise InputError(
            f"{', '.join(study.failed)}: the loss is not a number any more; nothing that failed here is kept"
        )


def _known(folder: Path, base: str) -> list[dict[str, Any]]:
    return [dict(row) for row in known_rows(folder) if row["base"] == base]


def _choices(given: Path | None, base: str) -> list[dict[str, Any]]:
    """Learning rates as another encoder's held-out examples chose them."""
    if given is None:
        return []
    found = [{**row, "base": base} for row in _known(given.parent, given.name) if row["part"] == "choice"]
    if not found:
        raise InputError(f"there are no choices of '{given.name}' among the rows in '{given.parent}'")
    return found


def _lessons(base: Path, data: Path, task: str, device: str) -> Lessons:
    """Its own rows; those of other tasks, whichever are trained as well, are read when a plan wants some."""
    source = read_base(base, task_named(task), 0, 0.0)

    @cache
    def rows(name: str, part: str) -> Rows:
        examples = read_examples(find_file(data, name, part), task_named(name))
        return encode(source.tokenizer, source.network.config, examples, LONGEST)

    own, dev = rows(task, "train"), rows(task, "dev")
    most, rest = held_out(own, HELD_OUT, 0)

    @cache
    def more(plan: TaskPlan) -> list[Rows]:
        names = [task, *others(task, PLANS, plan.apart)] if plan.more else []
        trains = {name: rows(name, "train") for name in names}
        found = other_texts(task, trains, plan.more * len(own), plan.longest, plan.apart)
        return [each.to(device) for each in found]

    return Lessons(own.to(device), dev.to(device), most.to(device), rest.to(device), more)


def trim(base: Path, data: Path, out: Path, tasks: Sequence[str], words: int | None, half: bool) -> None:
    """The encoder with the words that the texts of these tasks, training and dev, are made of."""
    source = read_base(base, task_named("sst2"), 0, 0.0)
    examples = [
        read_examples(find_file(data, task, part), task_named(task))
        for task in tasks or PLANS
        for part in ("train", "dev")
    ]
    rows = joined([encode(source.tokenizer, source.network.config, some, LONGEST) for some in examples])
    kept = trim_encoder(base, out, rows, words, half)
    size = sum(path.stat().st_size for path in out.iterdir())
    before = source.network.config.vocabulary
    Console(stderr=True).print(f"{kept:,} of {before:,} words, {size / 2**20:.1f} MiB in {out}")


def merge(runs: Sequence[Path], into: Path, rows: Sequence[str]) -> None:
    notes = Console(stderr=True)
    for run in runs:
        found = merge_folder(run, into, rows)
        if not found:
            raise InputError(f"there are no measured rows in '{run}'")
        for name, each in found.items():
            notes.print(f"{name}: {each.new} rows, {each.replaced} replaced, {each.marked} marked as of another run")


def report(results: Path, out: Path) -> None:
    """The page and its plots, from the rows that were measured."""
    rows = read_rows(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    plots = draw(rows, out.parent)
    out.write_text(document(rows, plots), encoding="utf-8")
    Console(stderr=True).print(f"{len(rows)} rows: {out} and {len(plots)} plots")

"""`secformer glue train` and `glue report`: the paper's accuracy table, measured and written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console

from secformer.ring.devices import device_named
from secformer.training.batches import Rows, encode
from secformer.training.examples import find_file, read_examples
from secformer.training.finetune import HELD_OUT
from secformer.training.folders import read_base
from secformer.training.jobs import run_jobs
from secformer.training.network import Network
from secformer.training.page import document
from secformer.training.plots import draw
from secformer.training.results import read_rows
from secformer.training.shelf import Shelf
from secformer.training.study import PLANS, Lessons, Study, TaskPlan, chosen_runs, held_out
from secformer.training.tasks import task_named
from secformer.training.transfer import other_texts, others

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


def train(
    base: Path,
    data: Path,
    out: Path,
    models: Path | None,
    asked: Asked,
    device: str,
    slots: int,
    seconds: float | None,
) -> None:
    """Train the rows of the table that do not stand in `out` yet and write them down as they come."""
    began, notes = time.monotonic(), Console(stderr=True)
    computing = device_named(device)
    lessons = {task: _lessons(base, data, task, device) for task in asked.tasks or PLANS}
    means = {task: float(rows.train.targets.mean()) for task, rows in lessons.items()}

    def start(task: str, seed: int) -> Network:
        return read_base(base, task_named(task), seed, means[task]).network.to(device)

    plans = {task: plan.shortened(asked.share) for task, plan in PLANS.items()}
    study = Study(base.name, start, lessons, out, plans, penalty=asked.penalty, sums=asked.sums)
    if any(out.glob("*.json")):
        study.rows += [dict(row) for row in read_rows(out) if row["base"] == base.name]
    if models is not None:
        shelf = Shelf(models, base, device, LONGEST)
        study.keep, study.kept = shelf.keep, shelf.kept
    deadline = None if seconds is None else began + seconds
    jobs = study.jobs(chosen_runs(asked.rows, asked.seeds))
    notes.print(f"{time.monotonic() - began:6.1f} s  examples read, {len(jobs)} runs to do")
    done = run_jobs(jobs, computing, slots, deadline, notes.print, began)
    notes.print(f"{time.monotonic() - began:6.1f} s  {len(done)} of {len(jobs)} runs done; rows in {out}")


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


def report(results: Path, out: Path) -> None:
    """The page and its plots, from the rows that were measured."""
    rows = read_rows(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    plots = draw(rows, out.parent)
    out.write_text(document(rows, plots), encoding="utf-8")
    Console(stderr=True).print(f"{len(rows)} rows: {out} and {len(plots)} plots")

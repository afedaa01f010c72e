"""`secformer glue train` and `glue report`: the paper's accuracy table, measured and written down."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from secformer.ring.devices import device_named
from secformer.training.batches import Rows, encode
from secformer.training.examples import find_file, read_examples
from secformer.training.finetune import HELD_OUT
from secformer.training.folders import read_base
from secformer.training.jobs import run_jobs
from secformer.training.network import Network
from secformer.training.plots import draw
from secformer.training.results import document, read_rows
from secformer.training.study import PLANS, Lessons, Study, held_out, other_texts
from secformer.training.tasks import task_named

LONGEST = 128


def train(base: Path, data: Path, out: Path, tasks: list[str], device: str, slots: int, seconds: float | None) -> None:
    """Train every row of the table and write them down as they come."""
    began, notes = time.monotonic(), Console(stderr=True)
    computing = device_named(device)
    parts = {task: _parts(base, data, task, device) for task in tasks or PLANS}
    trains = {task: train for task, (train, _) in parts.items()}
    lessons = {
        task: Lessons(train, dev, *held_out(train, HELD_OUT, 0), other_texts(task, trains, PLANS[task]))
        for task, (train, dev) in parts.items()
    }
    means = {task: float(rows.train.targets.mean()) for task, rows in lessons.items()}

    def start(task: str, seed: int) -> Network:
        return read_base(base, task_named(task), seed, means[task]).network.to(device)

    study = Study(base.name, start, lessons, out)
    deadline = None if seconds is None else began + seconds
    jobs = study.jobs()
    done = run_jobs(jobs, computing, slots, deadline, notes.print)
    notes.print(f"{len(done)} of {len(jobs)} runs done; rows in {out}")


def _parts(base: Path, data: Path, task: str, device: str) -> tuple[Rows, Rows]:
    """Train and dev."""
    chosen = task_named(task)
    source = read_base(base, chosen, 0, 0.0)

    def rows(part: str) -> Rows:
        examples = read_examples(find_file(data, task, part), chosen)
        return encode(source.tokenizer, source.network.config, examples, LONGEST).to(device)

    return rows("train"), rows("dev")


def report(results: Path, out: Path) -> None:
    """The page and its plots, from the rows that were measured."""
    rows = read_rows(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    plots = draw(rows, out.parent)
    out.write_text(document(rows, plots), encoding="utf-8")
    Console(stderr=True).print(f"{len(rows)} rows: {out} and {len(plots)} plots")

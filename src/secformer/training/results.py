"""Measured rows as JSON files, and what they come to: metrics and losses against plain text, over seeds and tasks.

A row is an object: base, task, row (study.py lists them), seed, part (`dev`; `choice`, `ablation` and `recipe` are on held-out
training examples), mode (plain, twin, simulate, secure), suite, metric, value, examples and, where they were counted, agreeing
and flagged. A row with `copied` was entered by hand from the output of the run it names; one with `other_run` is of another run
than its neighbours, and has the metric of that run's `teacher` if it has one.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secformer.errors import InputError

TASKS = ("qnli", "cola", "stsb", "mrpc", "rte", "sst2")
"""In the paper's order; it has no SST-2."""

Row = Mapping[str, Any]
NEEDED = ("base", "task", "row", "seed", "part", "mode", "metric", "value", "examples")


def read_rows(folder: Path) -> list[Row]:
    """Every row of every JSON file of a folder; there must be some."""
    found = known_rows(folder)
    if not found:
        raise InputError(f"there are no measured rows in '{folder}'")
    return found


def known_rows(folder: Path) -> list[Row]:
    found: list[Row] = []
    for path in sorted(folder.glob("*.json")):
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            if not all(set(NEEDED) <= set(row) for row in rows):
                raise KeyError(f"every row needs {', '.join(NEEDED)}")
            found += rows
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"'{path}' is no file of measured rows ({type(error).__name__}: {error})") from None
    return found


SAME = ("base", "task", "row", "seed", "part", "mode", "suite", "examples")


def kind(row: Row) -> tuple[Any, ...]:
    """What two measurements of the same thing share; attempts at a learning rate have that as well."""
    rate = row.get("settings", {}).get("rate") if row["part"] == "choice" else None
    return (*(row.get(key) for key in SAME), rate)


@contextmanager
def changing(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, to be changed in place. One process at a time has the files of a folder; readers see the old rows or
    the new ones, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        yield rows
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    finally:
        os.close(folder)


def add_row(path: Path, row: Row) -> None:
    """Into a file, in place of an older one of the same kind."""
    with changing(path) as rows:
        rows[:] = [*(old for old in rows if kind(old) != kind(row)), dict(row)]


def remove_rows(path: Path, unwanted: Callable[[Row], bool]) -> None:
    if path.is_file():
        with changing(path) as rows:
            rows[:] = [row for row in rows if not unwanted(row)]


@dataclass(frozen=True)
class Cell:
    """One row of the table on one task: every seed's value."""

    values: Sequence[float]
    missing: int = 0
    """Seeds whose run gave no number."""
    mark: str = ""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    def __str__(self) -> str:
        if not self.values:
            return f"fails{self.mark}" if self.missing else ""
        spread = f" ± {statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        failed = f" ({self.missing} of {self.missing + len(self.values)} fail)" if self.missing else ""
        return f"{tenths(self.mean)}{spread}{self.mark}{failed}"


def tenths(value: float) -> str:
    """Without a sign on nought."""
    return f"{round(value, 1) + 0.0:.1f}"


def mark(row: Row) -> str:
    return (" †" if row.get("copied") else "") + (" ‡" if row.get("other_run") else "")


def measured(rows: Sequence[Row], base: str, task: str, method: str, mode: str) -> list[Row]:
    """On the whole dev set, seed by seed."""
    wanted = (base, task, method, mode, "dev")
    found = [row for row in rows if tuple(row[key] for key in ("base", "task", "row", "mode", "part")) == wanted]
    return [row for row in found if _is_whole(rows, row)]


def _is_whole(rows: Sequence[Row], row: Row) -> bool:
    """Whether it was measured on as much of its part as any other."""
    same = [each["examples"] for each in rows if all(each[key] == row[key] for key in ("base", "task", "part"))]
    return row["examples"] >= max(same, default=0)


def cell(rows: Sequence[Row], base: str, task: str, method: str, mode: str) -> Cell:
    found = measured(rows, base, task, method, mode)
    values = [row["value"] for row in found if row["value"] is not None]
    return Cell(values, len(found) - len(values), "".join(sorted({mark(row) for row in found})))


def lost(rows: Sequence[Row], row: Row) -> float | None:
    """Plain text of the same seed on as many examples, less this row; of another run, what its own teacher came to on all of
    dev."""
    if "teacher" in row:
        return row["teacher"] - row["value"] if row["value"] is not None and _is_whole(rows, row) else None
    same = ("base", "task", "seed", "part", "examples")
    kinds = [each for each in rows if (each["row"], each["mode"]) == ("plain", "plain")]
    plain = [each["value"] for each in kinds if all(each[key] == row[key] for key in same)]
    return plain[0] - row["value"] if plain and row["value"] is not None else None


@dataclass(frozen=True)
class Loss:
    """What a row loses against plain text, task by task, over the seeds both have."""

    tasks: Mapping[str, Cell]

    @property
    def mean(self) -> Cell:
        """Over the tasks that have a number, one value a seed; a task with fewer seeds counts with the mean of those."""
        found = [each for each in self.tasks.values() if each.values]
        seeds = max((len(each.values) for each in found), default=0)
        return Cell([statistics.fmean(_of_seed(each, seed, seeds) for each in found) for seed in range(seeds)])

    @property
    def counted(self) -> int:
        return sum(bool(each.values) for each in self.tasks.values())

    @property
    def failed(self) -> list[str]:
        """Tasks on which no seed gave a number."""
        return [task for task, each in self.tasks.items() if each.missing and not each.values]


def _of_seed(found: Cell, seed: int, seeds: int) -> float:
    return found.values[seed] if len(found.values) == seeds else found.mean


def loss(rows: Sequence[Row], base: str, method: str, mode: str) -> Loss:
    found = {}
    for task in TASKS:
        seeds = measured(rows, base, task, method, mode)
        values = [value for value in (lost(rows, row) for row in seeds) if value is not None]
        failed = sum(row["value"] is None for row in seeds)
        found[task] = Cell(values, failed, "".join(sorted({mark(row) for row in seeds})))
    return Loss(found)

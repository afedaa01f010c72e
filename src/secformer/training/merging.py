"""Rows of a run into those of earlier ones: what it measured takes the place of what they had, and what then stands beside rows
of another run says so (`other_run`), with the metric of its own teacher where it had one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secformer.training.results import Row, changing, kind, known_rows

Group = tuple[str, str, int]
"""Base, task and seed: what has one teacher."""


class Merged(NamedTuple):
    rows: list[Row]
    new: int
    replaced: int
    marked: int


def merged(old: Sequence[Row], run: Sequence[Row], only: Sequence[str] = ()) -> Merged:
    """`only`: of the run no other rows than these."""
    taken = [row for row in run if not only or row["row"] in only]
    subjects = {_subject(row) for row in taken}
    kept = [row for row in old if _subject(row) not in subjects]
    before, after = _teachers(old), _teachers(run)
    other = {group for group in before.keys() & after.keys() if before[group] != after[group]}
    stands = other & _teachers(taken).keys()  # the run's teacher is now the one in the rows
    rows = [_marked(row, "an earlier run", before) if _group(row) in stands else row for row in kept]
    rows += [_marked(row, "a later run", after) if _group(row) in other - stands else row for row in taken]
    marked = sum("other_run" in row for row in rows) - sum("other_run" in row for row in (*kept, *taken))
    return Merged(sorted(rows, key=_place), len(taken), len(old) - len(kept), marked)


def merge_folder(run: Path, into: Path, only: Sequence[str] = ()) -> dict[str, Merged]:
    """Every file of rows in `run` into that of the same name."""
    known_rows(run)  # what is no file of rows is found before anything is changed
    found = {}
    for path in sorted(run.glob("*.json")):
        own = json.loads(path.read_text(encoding="utf-8"))
        with changing(into / path.name) as rows:
            found[path.name] = merged(rows, own, only)
            rows[:] = map(dict, found[path.name].rows)
    return found


def _subject(row: Row) -> tuple[Any, ...]:
    """What was measured, on however many examples."""
    return kind({**row, "examples": None})


def _group(row: Row) -> Group:
    """Of a comparison on held-out examples the seed is its own."""
    return row["base"], row["task"], row["seed"] if row["part"] == "dev" else -1


def _teachers(rows: Iterable[Row]) -> dict[Group, list[Any]]:
    """What the teachers of each group came to, on all of dev last; of a comparison, one a learning rate."""
    found: dict[Group, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["examples"]):
        if (row["row"], row["mode"]) == ("plain", "plain") and row["part"] in ("dev", "choice"):
            found.setdefault(_group(row), []).append(row["value"])
    return found


def _marked(row: Row, run: str, teachers: dict[Group, list[Any]]) -> Row:
    """A mark that a row has already stays."""
    if "other_run" in row or row["part"] == "choice":
        return row
    if row["part"] != "dev":
        return {**row, "other_run": f"{run}; its teacher, fine-tuned anew, is another"}
    if row["row"].endswith("_bare"):
        return {**row, "other_run": f"{run}; it needs no teacher"}
    teacher = teachers[_group(row)][-1]
    return {**row, "other_run": f"{run}; its teacher came to {teacher}", "teacher": teacher}


def _place(row: Row) -> tuple[str, ...]:
    rate = row.get("settings", {}).get("rate", "")
    names = ("base", "row", "seed", "part", "mode")
    return (*(str(row[name]) for name in names), row.get("suite", ""), f"{row['examples']:9}", str(rate))

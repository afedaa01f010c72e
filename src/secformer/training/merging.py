"""Rows of a run into those of earlier ones: what it measured takes the place of what they had, and what then stands beside rows
of another run says so (`other_run`), with the metric of its own teacher where it had one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secformer.training.results import Row, changing, kind, known_rows

Group = tuple[str, str, int]
"""Base, task and seed: what has one teacher."""
Model = tuple[Group, str]
"""And the row that it was trained for."""
BY_TEACHER = ("plain", "puma", "exact")
"""Rows whose model is the teacher; so are those that are only swapped."""


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
    before, after = _models(old), _models(run)
    other = {model for model in before.keys() & after.keys() if _differ(before[model], after[model])}
    new = other & _models(taken).keys()  # now the ones in the rows
    stands = {group for group, row in new if row == "plain"}
    earlier, later = _teachers(old), _teachers(run)
    rows = [
        _marked(row, "an earlier run", earlier) if _group(row) in stands or _model(row) in new else row for row in kept
    ]
    others = {group for group, row in other if row == "plain"} - stands
    rows += [_marked(row, "a later run", later) if _group(row) in others else row for row in taken]
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


def add_rows(path: Path, run: Sequence[Row]) -> None:
    """What a run measured of one model, in the place of what it had, at once; what it measured of another one is marked."""
    with changing(path) as rows:
        rows[:] = map(dict, merged(rows, run).rows)


def _subject(row: Row) -> tuple[Any, ...]:
    """What was measured, on however many examples."""
    return kind({**row, "examples": None})


def _group(row: Row) -> Group:
    """Of a comparison on held-out examples the seed is its own."""
    return row["base"], row["task"], row["seed"] if row["part"] == "dev" else -1


def _model(row: Row) -> Model:
    swapped = row["row"] in BY_TEACHER or row["row"].endswith("_swapped")
    return _group(row), "plain" if swapped else row["row"]


def _models(rows: Iterable[Row]) -> dict[Model, dict[tuple[Any, ...], Any]]:
    """What each model came to when it was trained: the teacher with functions swapped too, since two may have one metric; of
    a comparison, at every learning rate."""
    found: dict[Model, dict[tuple[Any, ...], Any]] = {}
    for row in rows:
        if row["mode"] == "plain" and row["part"] in ("dev", "choice") and "other_run" not in row:
            found.setdefault(_model(row), {})[kind(row)] = row["value"]
    return found


def _differ(one: Mapping[tuple[Any, ...], Any], other: Mapping[tuple[Any, ...], Any]) -> bool:
    """In anything that both were measured on."""
    return any(one[key] != other[key] for key in one.keys() & other.keys())


def _teachers(rows: Iterable[Row]) -> dict[Group, Any]:
    """What the teacher of each group came to, on all of dev."""
    ordered = sorted(rows, key=lambda row: row["examples"])
    return {_group(row): row["value"] for row in ordered if (row["row"], row["mode"]) == ("plain", "plain")}


def _marked(row: Row, run: str, teachers: Mapping[Group, Any]) -> Row:
    """A mark that a row has already stays."""
    if "other_run" in row or row["part"] == "choice":
        return row
    if row["row"].endswith("_bare"):
        return {**row, "other_run": f"{run}; it needs no teacher"}
    teacher = teachers.get(_group(row)) if row["part"] == "dev" else None
    if teacher is None:
        return {**row, "other_run": f"{run}; its teacher, fine-tuned anew, is another"}
    return {**row, "other_run": f"{run}; its teacher came to {teacher}", "teacher": teacher}


def _place(row: Row) -> tuple[str, ...]:
    rate = row.get("settings", {}).get("rate", "")
    names = ("base", "row", "seed", "part", "mode")
    return (*(str(row[name]) for name in names), row.get("suite", ""), f"{row['examples']:9}", str(rate))

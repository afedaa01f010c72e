"""The names of runs, and which of them stand in the rows that were written.

TASK ROW SEED           a row of the table
choice TASK ROW RATE    a learning rate, tried on held-out examples
ablation TASK NAME      a weighting, compared there
recipe TASK NAME        a plan, compared there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COMPARED = ("ablation ", "recipe ")
"""How the names of runs begin that only compare."""


def rows_file(folder: Path, base: str, task: str) -> Path:
    return folder / f"{base}-{task}.json"


def chosen_runs(rows: Sequence[str], seeds: Sequence[int]) -> Callable[[str], bool]:
    """Which runs are of one of these rows (also `ablation`, or a recipe of it) and seeds; none given: all."""

    def asked(name: str) -> bool:
        first, _, rest = name.partition(" ")
        if first in ("ablation", "choice", "recipe"):
            kind = rest.partition(" ")[2]
            return not rows or first in rows or kind in rows
        kind, seed = rest.split()
        return (not rows or kind in rows) and (not seeds or int(seed) in seeds)

    return asked


def standing(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The runs that wrote down all they had to."""
    return {run_of(row) for row in rows if _ends_run(row)}


def run_of(row: Mapping[str, Any]) -> str:
    """The name of the run that writes this row."""
    task, kind = row["task"], row["row"]
    if row["part"] == "choice":
        return choice_name(task, kind, row["settings"]["rate"])
    if row["part"] in ("ablation", "recipe"):
        return f"{row['part']} {task} {kind}"
    by_teacher = kind in ("plain", "puma") or kind.endswith("_swapped")
    return f"{task} {'plain' if by_teacher else kind} {row['seed']}"


def _ends_run(row: Mapping[str, Any]) -> bool:
    """Whether a run writes nothing after this row."""
    kind = row["row"]
    if row["part"] != "dev" or kind == "quad_swapped":
        return True
    if kind in ("plain", "puma") or kind.endswith("_swapped"):
        return False
    return row["mode"] == ("twin" if kind.startswith(("secformer", "mpcformer")) else "plain")


def choice_name(task: str, kind: str, rate: float) -> str:
    return f"choice {task} {kind} {rate:g}"

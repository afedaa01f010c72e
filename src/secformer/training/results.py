"""Measured rows as JSON files, and what is made of them: docs/results/glue.md and its plots.

A row is an object: base, task, row (study.py lists them), seed, part (`dev`; `choice` and `ablation` are on held-out training
examples), mode (plain, twin, simulate, secure), suite, metric, value, examples and, where they were counted, agreeing and
flagged. Nothing is shown that is not in a file.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secformer.errors import InputError

TASKS = ("qnli", "cola", "stsb", "mrpc", "rte", "sst2")
"""In the paper's order; it has no SST-2."""
METHODS: Mapping[str, tuple[str, str, str]] = {
    "plain": ("plain text", "exact", "exact"),
    "puma": ("PUMA", "exact", "exact"),
    "mpcformer_swapped": ("MPCFormer, swapped only", "2Quad", "Quad"),
    "mpcformer_bare": ("MPCFormer without distillation", "2Quad", "Quad"),
    "mpcformer": ("MPCFormer", "2Quad", "Quad"),
    "secformer_swapped": ("SecFormer, swapped only", "2Quad", "exact"),
    "secformer_bare": ("SecFormer without distillation", "2Quad", "exact"),
    "secformer": ("SecFormer", "2Quad", "exact"),
    "exact": ("ours, `exact`, no retraining", "exact", "exact"),
    "fast": ("ours, `fast`, distilled", "2Quad", "exact"),
    "quad_swapped": ("Quad alone, swapped only", "exact", "Quad"),
    "quad_bare": ("Quad alone without distillation", "exact", "Quad"),
    "quad": ("Quad alone, distilled", "exact", "Quad"),
}
"""Row → its name, Softmax and GeLU."""
PAPER: Mapping[str, Mapping[str, float]] = {
    "plain": {"qnli": 91.7, "cola": 57.8, "stsb": 89.1, "mrpc": 90.3, "rte": 69.7},
    "puma": {"qnli": 91.7, "cola": 57.8, "stsb": 89.1, "mrpc": 90.3, "rte": 69.7},
    "mpcformer_bare": {"qnli": 69.8, "cola": 0.0, "stsb": 36.1, "mrpc": 81.2, "rte": 52.7},
    "mpcformer": {"qnli": 90.6, "cola": 52.6, "stsb": 80.3, "mrpc": 88.7, "rte": 64.9},
    "secformer_bare": {"qnli": 89.3, "cola": 57.0, "stsb": 86.2, "mrpc": 83.8, "rte": 63.2},
    "secformer": {"qnli": 91.2, "cola": 57.1, "stsb": 87.4, "mrpc": 89.2, "rte": 69.0},
}
"""The paper's accuracy table for BERT-base."""

Row = Mapping[str, Any]
NEEDED = ("base", "task", "row", "seed", "part", "mode", "metric", "value", "examples")


def read_rows(folder: Path) -> list[Row]:
    """Every row of every JSON file of a folder."""
    found: list[Row] = []
    for path in sorted(folder.glob("*.json")):
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            if not all(set(NEEDED) <= set(row) for row in rows):
                raise KeyError(f"every row needs {', '.join(NEEDED)}")
            found += rows
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"'{path}' is no file of measured rows ({type(error).__name__}: {error})") from None
    if not found:
        raise InputError(f"there are no measured rows in '{folder}'")
    return found


def add_row(path: Path, row: Row) -> None:
    """Into a file, in place of an older one of the same kind."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    same = ("base", "task", "row", "seed", "part", "mode", "suite", "examples")
    kept = [old for old in rows if any(old.get(key) != row.get(key) for key in same)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*kept, dict(row)], indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Cell:
    """One row of the table on one task: every seed's value."""

    values: Sequence[float]
    missing: int = 0
    """Seeds whose run gave no number."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    def __str__(self) -> str:
        if not self.values:
            return "fails" if self.missing else ""
        spread = f" ± {statistics.stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread}"


def cell(rows: Iterable[Row], base: str, task: str, method: str, mode: str, part: str = "dev") -> Cell:
    wanted = (base, task, method, mode, part)
    found = [row for row in rows if tuple(row[key] for key in ("base", "task", "row", "mode", "part")) == wanted]
    return Cell([row["value"] for row in found if row["value"] is not None], sum(row["value"] is None for row in found))


def document(rows: Sequence[Row], plots: Sequence[str]) -> str:
    """docs/results/glue.md."""
    lines = [
        "# GLUE: what private inference costs in accuracy",
        "",
        "Made by `secformer glue report` from the JSON files in `glue/`; nothing here was typed in. Dev sets; every row of",
        "a table on the same teachers; mean ± standard deviation over seeds where there were several. Metrics: CoLA Matthews,",
        "MRPC F1, STS-B mean of Pearson and Spearman, else accuracy. QNLI is trained on a sample: 20,484 of 104,743 examples.",
        "Settings were chosen on a tenth of train, never on dev.",
        "",
    ]
    for base in sorted({row["base"] for row in rows}):
        lines += [f"## {base}", ""]
        lines += _accuracy(rows, base)
        lines += _losses(rows, base)
        lines += _by_mode(rows, base)
        lines += _ablation(rows, base)
    lines += _paper()
    for plot in plots:
        lines += [f"![{plot}]({plot})", ""]
    return "\n".join(lines)


def _accuracy(rows: Sequence[Row], base: str) -> list[str]:
    lines = ["### As trained, in the clear", "", _heading(("row", "Softmax", "GeLU", *TASKS))]
    lines.append("|---" * (3 + len(TASKS)) + "|")
    for method, (name, softmax, gelu) in METHODS.items():
        cells = [str(cell(rows, base, task, method, "plain")) for task in TASKS]
        if any(cells):
            lines.append(_heading((name, softmax, gelu, *cells)))
    seeds = {task: len(cell(rows, base, task, "plain", "plain").values) for task in TASKS}
    counted = ", ".join(f"{task} {count}" for task, count in seeds.items() if count)
    return [*lines, "", f"Seeds: {counted}.", ""]


def _losses(rows: Sequence[Row], base: str) -> list[str]:
    """What each row loses against plain text, on the tasks it has, on average."""
    lines = [
        "### Points lost against plain text",
        "",
        _heading(("row", *TASKS, "mean")),
        "|---" * (2 + len(TASKS)) + "|",
    ]
    for method, (name, _, _) in METHODS.items():
        lost = {}
        for task in TASKS:
            reference, found = (cell(rows, base, task, kind, "plain") for kind in ("plain", method))
            if method != "plain" and reference.values and found.values:
                lost[task] = reference.mean - found.mean
        if lost:
            shown = [f"{lost[task]:.1f}" if task in lost else "" for task in TASKS]
            lines.append(_heading((name, *shown, f"{statistics.fmean(lost.values()):.1f}")))
    return [*lines, ""]


def _by_mode(rows: Sequence[Row], base: str) -> list[str]:
    """Twins, simulations and secure runs, each with its own number of examples."""
    found = [row for row in rows if row["base"] == base and row["part"] == "dev" and row["mode"] != "plain"]
    if not found:
        return []
    lines = [
        "### By twins, in fixed point, between servers",
        "",
        "`twin`: the suite's approximations in float64, its constants from training texts; `simulate`: the servers' fixed point;",
        '`secure`: three servers. "Fails": the suite\'s approximation diverges on this model.',
        "",
        _heading(("task", "row", "suite", "mode", "seed", "examples", "value", "labels as in plain", "flagged")),
        "|---" * 9 + "|",
    ]
    order = {method: place for place, method in enumerate(METHODS)}
    found.sort(key=lambda row: (row["task"], order.get(row["row"], 99), row["mode"], row.get("suite", ""), row["seed"]))
    for row in found:
        value = "fails" if row["value"] is None else f"{row['value']:.1f}"
        counts = ["" if row.get(key) is None else str(row[key]) for key in ("agreeing", "flagged")]
        what = (row["task"], row["row"], row.get("suite", ""), row["mode"], row["seed"], row["examples"])
        lines.append(_heading((*what, value, *counts)))
    return [*lines, ""]


def _ablation(rows: Sequence[Row], base: str) -> list[str]:
    found = [row for row in rows if row["base"] == base and row["part"] == "ablation"]
    if not found:
        return []
    tasks = [task for task in TASKS if any(row["task"] == task for row in found)]
    names = list(dict.fromkeys(row["row"] for row in found))
    heads = [part for task in tasks for part in (task, f"{task}: row sums, largest ratio", f"{task}: largest score")]
    lines = [
        "### Ablation of the distillation",
        "",
        "On a tenth of train that neither teacher nor student saw. `hidden` matches hidden states alone, `scores` attention",
        "scores too; the others change one thing in `hidden`. c = 5 where nothing else is said. The ratio of the largest to the",
        "smallest row sum Σ (S + c)² of a layer is what a reciprocal has to span.",
        "",
        _heading(("recipe", *heads)),
        "|---" * (1 + len(heads)) + "|",
    ]
    for name in names:
        cells: list[str] = []
        for task in tasks:
            row = next((row for row in found if (row["row"], row["task"]) == (name, task)), None)
            cells += _ablated(row) if row else ["", "", ""]
        lines.append(_heading((name, *cells)))
    return [*lines, ""]


def _ablated(row: Row) -> list[str]:
    ranges = row["settings"]["ranges"]
    ratio = max(high / low for low, high in ranges["row_sums"])
    largest = max(abs(end) for pair in ranges["scores"] for end in pair)
    return [f"{row['value']:.1f}", f"{ratio:.0f}", f"{largest:.0f}"]


def _paper() -> list[str]:
    lines = ["## The paper's figures, for BERT-base", "", _heading(("row", *TASKS[:-1])), "|---" * len(TASKS) + "|"]
    for method, values in PAPER.items():
        lines.append(_heading((METHODS[method][0], *(f"{values[task]:.1f}" for task in TASKS[:-1]))))
    return [*lines, ""]


def _heading(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"

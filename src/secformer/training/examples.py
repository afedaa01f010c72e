"""Labelled texts from files, of every format that models/texts.py reads.

GLUE's own files need nothing said. Of a user's table the texts are recognised or named, and the labels are in the column
`label` or the one that is named. Whatever is wrong with a file is a `TableError` that names file and line.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from secformer.errors import InputError, TableError
from secformer.models.columns import read_table
from secformer.models.tables import refusal
from secformer.models.texts import Texts, read_texts
from secformer.training.tasks import Task, with_labels

LONGEST_TEXT = 100_000
"""Characters: what is longer is no text but a file with the wrong line ends."""
KINDS = (".tsv", ".csv", ".jsonl")
LABEL = "label"


@dataclass(frozen=True)
class Columns:
    texts: tuple[str, ...] = ()
    """One, or two for pairs; none: they are recognised."""
    label: str = LABEL


@dataclass(frozen=True, repr=False)
class Examples:
    """`targets` are places among the task's labels, or scores."""

    task: Task
    texts: Sequence[str]
    pairs: Sequence[str] | None
    targets: Sequence[float]
    digest: str
    """SHA-256 of the file."""

    def __repr__(self) -> str:
        return f"Examples({len(self.texts)} of task {self.task.name})"

    def __len__(self) -> int:
        return len(self.texts)

    def chosen(self, places: Sequence[int]) -> Examples:
        pairs = [self.pairs[place] for place in places] if self.pairs is not None else None
        texts, targets = ([part[place] for place in places] for part in (self.texts, self.targets))
        return replace(self, texts=texts, pairs=pairs, targets=targets)


def split(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """All but a share of the examples, and that share: settings are chosen on the second part, never on dev."""
    if not 0 < share < 1:
        raise InputError(f"the part held out must be between 0 and 1, not {share}")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    count = max(1, round(share * len(examples)))
    return examples.chosen(sorted(order[count:])), examples.chosen(sorted(order[:count]))


def find_file(data: Path, task: str, part: str) -> Path:
    """`part` ("train", "dev") of a task: DATA/TASK/PART.tsv, DATA/PART.tsv, or DATA itself where that is a file."""
    if data.is_file():
        return data
    for folder in (data / task, data):
        for kind in KINDS:
            for ending in (kind, f"{kind}.gz"):
                if (folder / f"{part}{ending}").is_file():
                    return folder / f"{part}{ending}"
    raise InputError(
        f"there is no {part} part of task {task} under '{data}': put it at '{data / task / part}' with an ending of "
        f"{', '.join(KINDS)}, each also with .gz"
    )


def read_examples(path: Path, task: Task, columns: Columns | None = None) -> Examples:
    """Every example of a file. A task of labels that has none yet takes the file's."""
    columns = columns or Columns()
    labels = read_table(path, named=(columns.label, *columns.texts)).column(columns.label).fields
    texts = read_texts(path, columns.texts)
    _check_texts(path, texts, task)
    read = [_label(path, line, columns.label, label) for line, label in zip(texts.lines, labels, strict=True)]
    task = with_labels(task, read)
    if not task.score and len(task.names) < 2:
        raise TableError(f"'{path}' has one label only, '{_short(read[0])}': there is nothing to learn")
    targets = [_target(path, line, task, label) for line, label in zip(texts.lines, read, strict=True)]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Examples(task, texts.first, texts.second, targets, digest)


def _check_texts(path: Path, texts: Texts, task: Task) -> None:
    if task.pairs is not None and task.pairs != (texts.second is not None):
        wanted, found = ("pairs of texts", "one text a row") if task.pairs else ("one text a row", "pairs of texts")
        raise TableError(f"'{path}' line {texts.lines[0]}: task {task.name} needs {wanted}, this has {found}")
    for group in (texts.first, texts.second or ()):
        for line, text in zip(texts.lines, group, strict=False):
            if len(text) > LONGEST_TEXT:
                raise refusal(path, line, f"a text of {len(text):,} characters, {LONGEST_TEXT:,} are allowed")


def _label(path: Path, line: int, name: str, label: str | None) -> str:
    if label is None or not label.strip():
        raise refusal(path, line, f"no label in column {name!r}")
    return label.strip()


def _target(path: Path, line: int, task: Task, label: str) -> float:
    if not task.score:
        index = task.index(label)
        if index is None:
            known = ", ".join((*task.names, *task.keys))
            raise refusal(
                path, line, f"label '{_short(label)}' is none of task {task.name}'s ({known}): the right task?"
            )
        return index
    try:
        score = float(label)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise refusal(path, line, f"'{_short(label)}' is no score: is {task.name} the right task?")
    return score


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"

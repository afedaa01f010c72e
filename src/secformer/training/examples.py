"""Labelled texts from files: TSV without quotes as GLUE has it, CSV, JSON lines; plain or gzipped.

A table needs a header, and every row a text, a label and, for pairs, a second text, in the columns `sentence1`, `label`
and `sentence2` or those that `Columns` names. Whatever is wrong with a file is an `InputError` that names file and line.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from secformer.errors import InputError
from secformer.training.tasks import Task, with_labels

LONGEST_LINE = 100_000
"""Characters: what is longer is no sentence but a file with the wrong line ends."""
KINDS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class Columns:
    text: str = "sentence1"
    pair: str = "sentence2"
    label: str = "label"


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
    content = _content(path)
    rows = list(_rows(path, content))
    if not rows:
        raise InputError(f"'{path}' holds no example")
    pairs = columns.pair in rows[0][1] if task.pairs is None else task.pairs
    needed = [columns.text, *([columns.pair] if pairs else []), columns.label]
    read = [_fields(path, line, row, needed) for line, row in rows]
    task = with_labels(task, (row[-1] for row in read))
    if not task.score and len(task.names) < 2:
        raise InputError(f"'{path}' has one label only, '{read[0][-1]}': there is nothing to learn")
    targets = [_target(path, line, task, row[-1]) for (line, _), row in zip(rows, read, strict=True)]
    seconds = [row[1] for row in read] if pairs else None
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Examples(task, [row[0] for row in read], seconds, targets, digest)


def _content(path: Path) -> str:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"'{path}', line {line}: not UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from None
    if not text.strip():
        raise InputError(f"'{path}' is empty")
    for number, line in enumerate(io.StringIO(text, newline=""), 1):
        if len(line) > LONGEST_LINE:
            raise InputError(f"'{path}', line {number}: {len(line):,} characters, {LONGEST_LINE:,} are allowed")
    return text


def _rows(path: Path, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line number and fields by column."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind == ".jsonl":
        yield from _json_rows(path, content)
    elif kind in (".tsv", ".csv"):
        yield from _table_rows(path, content, kind)
    else:
        raise InputError(f"'{path}' is of no kind that is read: {', '.join(KINDS)}, each also with .gz")


def _json_rows(path: Path, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"'{path}', line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"'{path}', line {number}: not a JSON object")
        yield number, row


def _table_rows(path: Path, content: str, kind: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = io.StringIO(content, newline="")
    if kind == ".tsv":
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    header: list[str] = []
    try:
        for row in reader:
            if not header:
                header = row
            elif row:
                if len(row) != len(header):
                    what = f"{len(row)} fields, the header has {len(header)}"
                    raise InputError(f"'{path}', line {reader.line_num}: {what}")
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(f"'{path}', line {reader.line_num}: {error}") from None


def _fields(path: Path, line: int, row: Mapping[str, Any], needed: Sequence[str]) -> list[str]:
    found = []
    for name in needed:
        if name not in row:
            has = ", ".join(map(str, row))
            raise InputError(f"'{path}', line {line}: there is no column '{name}'; there are {has}")
        value = row[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"'{path}', line {line}: '{name}' is neither text nor a number")
        if not str(value).strip():
            raise InputError(f"'{path}', line {line}: '{name}' is empty")
        found.append(str(value))
    return found


def _target(path: Path, line: int, task: Task, label: str) -> float:
    if not task.score:
        index = task.index(label)
        if index is None:
            raise InputError(
                f"'{path}', line {line}: label '{_short(label)}' is none of task {task.name}'s "
                f"({', '.join((*task.names, *task.keys))}): is it the right task?"
            )
        return index
    try:
        score = float(label)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"'{path}', line {line}: '{_short(label)}' is no score: is {task.name} the right task?")
    return score


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"

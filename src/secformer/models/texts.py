"""Texts from files, for everybody who reads any: calibration, measurements, training, queries.

    read_texts("reviews.csv")                                the one column that holds text
    read_texts("mrpc/train.tsv.gz")                          two columns that go together: pairs
    read_texts("export.csv", columns=("title", "body"))      what the user says

tables.py knows the formats, columns.py what is text and what is a label. A file that could be read in two ways is refused,
with what to say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secformer.errors import SettingsError, TableError
from secformer.models.columns import OTHER_NAMES, PAIRS, Column, Table, read_table
from secformer.models.tables import refusal

MOST_COLUMNS = 2


@dataclass(frozen=True, repr=False)
class Texts:
    """Texts, or pairs of them, and where they come from. Their content may be private."""

    source: Path
    first: tuple[str, ...]
    second: tuple[str, ...] | None
    columns: tuple[str, ...]
    """Names of the columns they were; numbers from 1 where a table has no header."""
    lines: tuple[int, ...]
    """Where in the file each begins."""
    ids: tuple[str, ...] = ()
    """By which the user knows them, where a column with identifiers was named."""
    choices: tuple[tuple[str, ...], ...] | None = None
    """Of questions, instead of a second text: for each as many."""

    def __len__(self) -> int:
        return len(self.first)

    def in_pairs(self) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Texts and second texts; a question stands once for each of its choices."""
        if self.choices is None:
            return self.first, self.second
        both = [(text, choice) for text, given in zip(self.first, self.choices, strict=True) for choice in given]
        return tuple(text for text, _ in both), tuple(choice for _, choice in both)

    def __repr__(self) -> str:
        return f"Texts({len(self)} {'texts' if self.second is None else 'pairs'} of '{self.source}')"


def read_texts(
    path: str | Path,
    columns: Sequence[str] = (),
    limit: int | None = None,
    *,
    format: str | None = None,
    header: bool | None = None,
    identifier: str | None = None,
    choices: Sequence[str] = (),
) -> Texts:
    """The first `limit` texts of a file, all without one; of the `columns` named, two of them for pairs. `identifier` is a
    column that names each row. `choices` are columns with a choice each, or one with lists of them in JSON."""
    if choices and len(columns) != 1:
        raise SettingsError("choices belong to a question: name its column, one, beside theirs")
    if len(columns) > MOST_COLUMNS or len(set(columns)) != len(columns):
        raise SettingsError(f"name one column of texts, or two different ones for pairs, not {', '.join(columns)}")
    named = (*columns, *choices, *([identifier] if identifier else []))
    table = read_table(path, format, header, named, choices[:1] if len(choices) == 1 else ())
    chosen = [_usable(table, table.column(name)) for name in columns] or _recognised(table)
    parts = [_texts(table, column, limit) for column in chosen]
    return Texts(
        source=table.path,
        first=parts[0],
        second=parts[1] if len(parts) > 1 else None,
        columns=tuple(column.name for column in chosen),
        lines=table.lines[:limit],
        ids=_identifiers(table, table.column(identifier), limit) if identifier else (),
        choices=_choices(table, [table.column(name) for name in choices], limit) if choices else None,
    )


def _choices(table: Table, columns: Sequence[Column], limit: int | None) -> tuple[tuple[str, ...], ...]:
    """The same number for every question."""
    if len(columns) > 1:
        return tuple(zip(*(_texts(table, column, limit) for column in columns), strict=True))
    found: list[tuple[str, ...]] = []
    for line, field in zip(table.lines[:limit], columns[0].fields[:limit], strict=True):
        given = _list(field)
        if given is None or len(given) < 2 or not all(isinstance(text, str) and text.strip() for text in given):
            raise refusal(table.path, line, f'column {columns[0].name!r} needs a list of two texts or more: ["…", "…"]')
        if found and len(given) != len(found[0]):
            raise refusal(table.path, line, f"{len(given)} choices, where line {table.lines[0]} has {len(found[0])}")
        found.append(tuple(given))
    return tuple(found)


def _list(field: str | None) -> list[Any] | None:
    try:
        given = json.loads(field or "")
    except ValueError:
        return None
    return given if isinstance(given, list) else None


def _identifiers(table: Table, column: Column, limit: int | None) -> tuple[str, ...]:
    """One for every row, none twice."""
    found: dict[str, int] = {}
    for line, field in zip(table.lines[:limit], column.fields[:limit], strict=True):
        if not field:
            raise refusal(table.path, line, f"column {column.name!r} has no identifier here")
        if field in found:
            raise refusal(table.path, line, f"column {column.name!r} has {field!r} already, in line {found[field]}")
        found[field] = line
    return tuple(found)


def _usable(table: Table, column: Column) -> Column:
    content = {"number": "numbers", "nested": "lists or objects", "empty": "nothing"}.get(column.kind)
    if content is not None:
        raise TableError(f"'{table.path}': column {column.name!r} holds {content}, not texts")
    return column


def _recognised(table: Table) -> list[Column]:
    """The columns of a usual pair, or the only one with texts."""
    if len(table.columns) == 1 and table.columns[0].key not in OTHER_NAMES:
        return [_usable(table, table.columns[0])]
    texts = [column for column in table.columns if column.is_text]
    by_key = {column.key: column for column in texts}
    for pair in PAIRS:
        if all(name in by_key for name in pair):
            return [by_key[name] for name in pair]
    if len(texts) == 1:
        return texts
    trouble = "several columns may be the text" if texts else "no column is surely text"
    described = ", ".join(f"{column.name!r} ({column.kind})" for column in table.columns)
    raise TableError(f"'{table.path}': {trouble}: {described}; name it with --column, or two of them for pairs")


def _texts(table: Table, column: Column, limit: int | None) -> tuple[str, ...]:
    found = []
    for line, field in zip(table.lines[:limit], column.fields[:limit], strict=True):
        if field is None or not field.strip():
            raise refusal(table.path, line, f"no text in column {column.name!r}: remove the row or fill it")
        if not field.isascii() and any("\ud800" <= letter <= "\udfff" for letter in field):
            raise refusal(table.path, line, f"column {column.name!r} is not valid Unicode")
        found.append(field)
    return tuple(found)

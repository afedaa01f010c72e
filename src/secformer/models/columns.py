"""What the columns of a table are: its header, and which of them hold texts.

Labels and identifiers are no text. A column is taken for one of

    empty     nothing in any row
    nested    lists or objects of JSON
    number    no letter in any row: numbers, dates, times
    label     few values, all of them short, again and again
    code      one word of ASCII in every row: identifiers, addresses, names of classes
    text      everything else

by its contents, and by its name where that is a usual one. What could be read in two ways is left to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from secformer.errors import TableError
from secformer.models.tables import DELIMITERS, Row, Rows, read_rows, refusal

Kind = Literal["empty", "nested", "number", "label", "code", "text"]

PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "document"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("text", "text_pair"),
    ("#1 string", "#2 string"),
)
"""Columns that go together, as GLUE and its like name them."""


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


TEXT_NAMES = (
    _words("text sentence question premise hypothesis query passage document review comment content body message")
    | _words("utterance")
    | {name for pair in PAIRS for name in pair}
)

OTHER_NAMES = (
    _words("label labels gold_label label_text target class category score rating stars sentiment intent is_duplicate")
    | _words(
        "quality id idx index guid uuid uid qid pairid promptid genre filename file year date time timestamp split"
    )
    | _words("lang language url user author source")
)
"""Never text, whatever they hold."""

USUAL_NAMES = TEXT_NAMES | OTHER_NAMES

MANY = 8
"""From so many rows on a value that is not repeated stands out."""
FEW = 200
LABEL_LENGTH = 60
SENTENCE_WORDS = 5
"""From so many words on a field is no name of a column."""


@dataclass(frozen=True, repr=False)
class Column:
    name: str
    fields: tuple[str | None, ...]

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {len(self.fields)} fields)"

    @property
    def key(self) -> str:
        return _key(self.name)

    @cached_property
    def kind(self) -> Kind:
        return _kind(self.fields)

    @property
    def is_text(self) -> bool:
        """By its contents or its name, without doubt."""
        if self.key in TEXT_NAMES:
            return self.kind in ("text", "code", "label", "empty")
        return self.kind == "text" and self.key not in OTHER_NAMES


@dataclass(frozen=True, repr=False)
class Table:
    path: Path
    columns: tuple[Column, ...]
    lines: tuple[int, ...]
    """Where in the file each row begins."""

    def __repr__(self) -> str:
        return f"Table({len(self.lines)} rows of '{self.path}')"

    def column(self, name: str) -> Column:
        """By its name in any case, or in a table without a header by its number from 1."""
        exact = [column for column in self.columns if column.name == name]
        found = exact or [column for column in self.columns if column.key == _key(name)]
        if len(found) != 1:
            trouble = "several columns" if found else "no column"
            have = ", ".join(repr(column.name) for column in self.columns)
            raise TableError(f"'{self.path}' has {trouble} {name!r}; its columns are {have}")
        return found[0]


def read_table(
    path: str | Path,
    format: str | None = None,
    header: bool | None = None,
    named: Sequence[str] = (),
    lists: Sequence[str] = (),
) -> Table:
    """A file as columns. `header` says whether the first row has their names, None leaves that to be found out; a column
    that is asked for by name (`named`) shows that it has. `lists` may hold lists of JSON."""
    read = read_rows(path, format, lists)
    if read.format == "lines" and format is None:
        _check_lines(read)
    names, rows = _take_header(read, header, named)
    if not rows:
        raise TableError(f"'{read.path}' holds a header and no text")
    if names is None:
        names = tuple(str(number) for number in range(1, len(rows[0].fields) + 1))
    columns = tuple(Column(name, tuple(row.fields[place] for row in rows)) for place, name in enumerate(names))
    return Table(read.path, columns, tuple(row.line for row in rows))


# -- headers -----------------------------------------------------------------------------------------------------------


def _take_header(
    read: Rows, header: bool | None, named: Sequence[str]
) -> tuple[tuple[str, ...] | None, tuple[Row, ...]]:
    if read.format == "jsonl":
        return read.names, read.rows
    if header is None:
        first = {_key(field or "") for field in read.rows[0].fields}
        header = True if any(_key(name) in first for name in named) else _has_header(read)
    if header is None:
        complaint = "this may be a header or the first text: say --header or --no-header (header=True or False)"
        raise refusal(read.path, read.rows[0].line, complaint)
    if not header:
        return None, read.rows
    return tuple((field or "").strip() for field in read.rows[0].fields), read.rows[1:]


def _has_header(read: Rows) -> bool | None:
    """Whether the first row names the columns; None if that cannot be told."""
    if read.format == "lines":
        return False
    rows = read.rows
    first = [(field or "").strip() for field in rows[0].fields]
    columns = [tuple(row.fields[place] for row in rows[1:]) for place in range(len(first))]
    given = [field for field in first if field]
    usual = [_key(field) in USUAL_NAMES for field in given]
    if all(usual) or given == [str(number) for number in range(len(given))]:  # the latter as pandas names columns
        return True
    if any(field and field in column for field, column in zip(first, columns, strict=True)):
        return False
    if any(_is_number(field) and any(map(str.isdigit, field)) for field in given):
        return None if any(usual) else False
    if any(usual):
        return True
    kinds = [_kind(column) for column in columns]
    if "number" in kinds or ("label" in kinds and len(rows) > MANY):  # and the first row has another value there
        return True
    return False if any(len(field.split()) >= SENTENCE_WORDS for field in given) else None


def _check_lines(read: Rows) -> None:
    """A table that is read as lines would be measured with its header, labels and braces."""
    lines = [row.fields[0] or "" for row in read.rows]
    tabs = {line.count("\t") for line in lines}
    if all(line.lstrip().startswith('{"') for line in lines):
        found = "JSON"
    elif len(lines) > 1 and len(tabs) == 1 and tabs != {0}:
        found = "a table with tabs"
    elif len(lines) > 1 and any(_names_only(lines[0], mark) for mark in DELIMITERS):
        found = "a table with a header"
    else:
        return
    complaint = f"this looks like {found}, not like a text a line: say its --format (csv, tsv, jsonl or lines)"
    raise refusal(read.path, read.rows[0].line, complaint)


def _names_only(line: str, delimiter: str) -> bool:
    return all(_key(field.strip().strip('"')) in USUAL_NAMES for field in line.split(delimiter))


# -- contents ----------------------------------------------------------------------------------------------------------


def _kind(fields: Sequence[str | None]) -> Kind:
    if any(field is None for field in fields):
        return "nested"
    given = [field.strip() for field in fields if field and field.strip()]
    if not given:
        return "empty"
    if all(map(_is_number, given)):
        return "number"
    if _few_values(given):
        return "label"
    if all(field.isascii() and len(field.split()) == 1 for field in given):
        return "code"
    return "text"


def _is_number(field: str) -> bool:
    """Without a letter, or with those of 1e-5 or nan."""
    if not any(map(str.isalpha, field)):
        return True
    try:
        float(field)
    except ValueError:
        return False
    return True


def _few_values(fields: Sequence[str]) -> bool:
    count = len(fields)
    most = count // 2 if count < 20 else min(count // 4, FEW)
    values = set(fields)
    return len(values) <= most and max(map(len, values)) <= LABEL_LENGTH


def _key(name: str) -> str:
    return name.strip().casefold()

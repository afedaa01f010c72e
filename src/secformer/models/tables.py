"""Rows of a text file, whatever its format, each with the line it begins on.

    format   ends in                  what it is
    lines    .txt, or anything else   a text a line
    csv      .csv                     commas (or semicolons, or tabs), fields quoted where they need it
    tsv      .tsv .tab                tabs, unquoted as GLUE has it: a " is a character like any other
    jsonl    .jsonl .ndjson .json     an object a line, or a string a line

`.gz` behind any of them is read as well. Text is UTF-8, with a byte order mark or without. A tab-separated file that is
quoted throughout, as spreadsheets and pandas write it, is read so: that shows by fields that cannot be anything else.

A broken file is refused with its line. Nothing is guessed: what is left out of a table changes what is measured on it.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from secformer.errors import SettingsError, TableError

Format = Literal["lines", "csv", "tsv", "jsonl"]
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
FOREIGN = {
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"PK\x03\x04": "a zip or a spreadsheet: export it as CSV",
    b"PAR1": "Parquet: export it as CSV or JSONL",
}
DELIMITERS = (",", ";", "\t")
QUOTED = re.compile(r'"(?:[^"]|"")*"')  # a whole field in quotes, those inside doubled


class Row(NamedTuple):
    line: int
    fields: tuple[str | None, ...]
    """None: a list or an object of JSON."""


@dataclass(frozen=True, repr=False)
class Rows:
    """What a file holds, before anybody knows which column is what."""

    path: Path
    format: Format
    rows: tuple[Row, ...]
    names: tuple[str, ...] | None
    """Of the columns, where the format itself has names."""

    def __repr__(self) -> str:  # texts may be private
        return f"Rows({len(self.rows)} of '{self.path}')"


def read_rows(path: str | Path, format: str | None = None, lists: Sequence[str] = ()) -> Rows:
    """All rows of a file, rectangular and not empty. Columns named in `lists` may hold lists of JSON, and are left as JSON."""
    path = Path(path)
    chosen = _format(path, format)
    lines = _lines(path)
    if not any(line.strip() for line in lines):
        raise TableError(f"'{path}' holds no text")
    names = None
    if chosen == "jsonl":
        names, rows = _json_rows(path, lines, lists)
    elif chosen == "lines":
        rows = [Row(number, (line,)) for number, line in enumerate(lines, 1) if line.strip()]
    else:
        rows = _delimited_rows(path, lines) if chosen == "csv" else _tab_rows(path, lines)
    if not rows:
        raise TableError(f"'{path}' holds no text")
    return Rows(path, chosen, tuple(rows), names)


def refusal(path: Path, line: int, complaint: str) -> TableError:
    return TableError(f"'{path}' line {line}: {complaint}")


def _format(path: Path, asked: str | None) -> Format:
    if asked is None:
        stem = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        return ENDINGS.get(stem.suffix.lower(), "lines")
    if asked not in get_args(Format):
        raise SettingsError(f"unknown format '{asked}': known are {', '.join(get_args(Format))}")
    return asked  # type: ignore[return-value]


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    """Decoded lines without their ends. Only \\n and \\r\\n end a line: texts may hold any other separator of Unicode."""
    content = _content(path)
    for mark, kind in FOREIGN.items():
        if content.startswith(mark):
            raise TableError(f"'{path}' is {kind}")
    parts = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [_decoded(path, number, part.removesuffix(b"\r")) for number, part in enumerate(parts, 1)]


def _content(path: Path) -> bytes:
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"'{path}' cannot be read as text: {reason}") from None


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        complaint = f"byte {error.start + 1} is not UTF-8: save the file as UTF-8"
        raise refusal(path, number, complaint) from None
    if "\0" in text:
        raise refusal(path, number, "a NUL byte: this is no text file")
    if "\r" in text:
        raise refusal(path, number, "a carriage return inside a line: save the file with line feeds")
    return text


# -- delimited ---------------------------------------------------------------------------------------------------------


def _delimited_rows(path: Path, lines: Sequence[str]) -> list[Row]:
    """CSV; the delimiter is the first of `,` `;` and tab that divides the first row."""
    delimiter = next((mark for mark in DELIMITERS if len(_first(path, lines, mark)) > 1), DELIMITERS[0])
    return _rectangular(path, _quoted_rows(path, lines, delimiter))


def _first(path: Path, lines: Sequence[str], delimiter: str) -> tuple[str | None, ...]:
    first = next(_quoted_rows(path, lines, delimiter), None)
    return () if first is None else first.fields


def _quoted_rows(path: Path, lines: Sequence[str], delimiter: str) -> Iterator[Row]:
    """Rows of quoted fields, which may go on over several lines."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            complaint = f"quotes that do not match ({error}): a quote inside a quoted field is written twice"
            raise refusal(path, begin, complaint) from None
        if fields is None:
            return
        if any(field.strip() for field in fields):
            yield Row(begin, tuple(fields))


def _tab_rows(path: Path, lines: Sequence[str]) -> list[Row]:
    if _is_quoted(path, lines):
        return list(_quoted_rows(path, lines, "\t"))
    return _rectangular(path, _split_rows(lines))


def _split_rows(lines: Sequence[str]) -> Iterator[Row]:
    return (Row(number, tuple(line.split("\t"))) for number, line in enumerate(lines, 1) if line.strip())


def _is_quoted(path: Path, lines: Sequence[str]) -> bool:
    """Every quote is in its place, and at least one field is written as only a quoting program would write it: with a tab
    or a line feed in it, with its quotes doubled, or with the whole first row in quotes."""
    if not any('"' in line for line in lines):
        return False
    try:
        rows = _rectangular(path, _quoted_rows(path, lines, "\t"))
    except TableError:
        return False
    fields = (field or "" for row in rows for field in row.fields)
    if any("\t" in field or "\n" in field for field in fields):
        return True
    split = list(_split_rows(lines))
    if all(QUOTED.fullmatch(field or "") for field in split[0].fields):
        return True
    return any(QUOTED.fullmatch(field) and '""' in field[1:-1] for row in split for field in row.fields if field)


def _rectangular(path: Path, rows: Iterable[Row]) -> list[Row]:
    found = list(rows)
    for row in found:
        if len(row.fields) != len(found[0].fields):
            complaint = f"{len(row.fields)} fields, where line {found[0].line} has {len(found[0].fields)}: "
            raise refusal(path, row.line, complaint + "every row needs as many as the first")
    return found


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json_rows(path: Path, lines: Sequence[str], lists: Sequence[str] = ()) -> tuple[tuple[str, ...] | None, list[Row]]:
    """Columns are the keys of all objects. A string a line is a column without a name."""
    values = [(number, _json_value(path, number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    objects = [(number, value) for number, value in values if isinstance(value, dict)]
    if not objects:
        return None, [Row(number, (str(value),)) for number, value in values]
    for number, value in values:
        if isinstance(value, dict) != isinstance(values[0][1], dict):
            raise refusal(path, number, f"not the same kind of value as in line {values[0][0]}")
    names = tuple(dict.fromkeys(name for _, value in objects for name in value))
    return names, [
        Row(number, tuple(_json_field(value.get(name), name in lists) for name in names)) for number, value in objects
    ]


def _json_value(path: Path, number: int, line: str) -> dict[str, Any] | str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        complaint = 'not JSON: every line must be an object such as {"sentence": "…", "label": 1}'
        raise refusal(path, number, complaint) from None
    if not isinstance(value, dict | str):
        raise refusal(path, number, "neither an object nor a string: write one object a line")
    return value


def _json_field(value: object, listed: bool) -> str | None:
    if value is None:
        return ""
    if isinstance(value, dict) or (isinstance(value, list) and not listed):
        return None
    return value if isinstance(value, str) else json.dumps(value)

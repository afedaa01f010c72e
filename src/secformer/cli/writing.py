"""Answers as lines of text, JSON or CSV, on standard output or in a file that a later run can go on with.

A row has the text's id (its number, or what the user's own column says), what the model's head gives, whether ranges were left,
and which model answered. The text itself only if it is asked for.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from secformer.cli.asking import Asked
from secformer.cli.output import note
from secformer.errors import InputError, OutputError
from secformer.models.answers import Answer
from secformer.models.config import ModelConfig

FORMATS = ("text", "json", "csv")
ENDINGS = {".csv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".txt": "text"}
WINDOW = 32
"""Texts whose answers are written together, in their order: what a kill can cost."""


@dataclass(frozen=True)
class Manner:
    """How answers are written."""

    format: str
    out: Path | None = None
    resume: bool = False
    scores: bool = False
    """Of all labels."""
    texts: bool = False
    """The private texts beside their answers."""


def manner(
    format: str | None, default: str, out: Path | None, resume: bool = False, scores: bool = False, texts: bool = False
) -> Manner:
    """Checked before anybody is asked for texts. Without a format, the file's ending says it."""
    chosen = format or (ENDINGS.get(out.suffix.lower()) if out else None) or default
    known = tuple(dict.fromkeys((default, *FORMATS)))
    if chosen not in known:
        raise InputError(f"unknown format {chosen!r}: choose {', '.join(known)}")
    if resume and (out is None or chosen not in ("json", "csv")):
        raise InputError("--resume goes on with a file: name it with --out, as CSV or JSON lines")
    if out is not None and chosen == "table":
        raise InputError("a table is for people: for a file choose --format csv, json or text, or such an ending")
    if out is not None and out.is_dir():
        raise InputError(f"'{out}' is a folder: name a file in it")
    if out is not None and out.exists() and not resume and out.stat().st_size:
        raise InputError(f"'{out}' exists: go on with it by --resume, remove it, or name another file")
    return Manner(chosen, out, resume, scores, texts)


class Sheet:
    """Where the answers to some texts are written, in their order. `done` of them are there."""

    def __init__(self, how: Manner, config: ModelConfig, asked: Asked, model: str) -> None:
        self._how, self._asked, self._model = how, asked, model
        self._columns = columns(config, how, asked.second is not None)
        self._file: IO[str] | None = None
        self.done = 0

    def __enter__(self) -> Self:
        out = self._how.out
        if out is not None:
            try:
                self._file = open(out, "a+", encoding="utf-8", newline="", opener=_private)
                self.done = self._go_on(out, self._file) if self._how.resume else 0
            except (OSError, UnicodeDecodeError) as error:
                raise OutputError(f"the answers cannot be written to '{out}': {_reason(error)}") from None
        if self._how.format == "csv" and not self.done:
            self._put(_csv_line(self._columns))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.done and self._how.format in ("json", "csv") and self._file is not None:
            note(f"note: {self.done} answers are in '{self._how.out}': the same command with --resume goes on")
        if self._file is not None:
            with suppress(OSError):  # a full disk has been told of
                self._file.close()

    def write(self, start: int, answers: Sequence[Answer]) -> None:
        """The answers to the texts from `start` on."""
        rows = (self._row(start + place, answer) for place, answer in enumerate(answers))
        self._put("".join(self._line(row) for row in rows))
        self.done = start + len(answers)

    def _put(self, lines: str) -> None:
        out, file = self._how.out, self._file or sys.stdout
        try:
            file.write(lines)
            file.flush()
        except OSError as error:
            if out is None:
                raise
            advice = "then go on with --resume" if self._how.format in ("json", "csv") else "and run it again"
            raise OutputError(f"'{out}' cannot be written: {_reason(error)}: make room, {advice}") from None

    def _row(self, place: int, answer: Answer) -> dict[str, Any]:
        texts = {}
        if self._how.texts:
            texts["text"] = self._asked.first[place]
            if self._asked.second is not None:
                texts["text_pair"] = self._asked.second[place]
        numbers = {} if answer.logits is None else {"result": answer.logits.tolist()}
        told = answer.to_dict(self._how.scores)
        return {"id": self._asked.ids[place], **texts, **told, **numbers, "model": self._model}

    def _line(self, row: dict[str, Any]) -> str:
        if self._how.format == "json":
            return json.dumps(row, ensure_ascii=False) + "\n"
        if self._how.format == "csv":
            return _csv_line([_cell(row, column) for column in self._columns])
        return one_line(shown(row) + ("\tmarked" if row["marked"] else "")) + "\n"

    # -- going on ---------------------------------------------------------------------------------------------------------

    def _go_on(self, out: Path, file: IO[str]) -> int:
        """How many answers of an earlier run are whole. What is behind them is cut off."""
        source = self._asked.source
        if source is not None and out.stat().st_size and source.stat().st_mtime_ns > out.stat().st_mtime_ns:
            raise InputError(f"'{source}' was changed after '{out}' was written: its answers would not go together")
        file.seek(0)
        ends = [0]
        for found, end in self._whole_rows(file.read()):
            self._check_row(out, len(ends) - 1, found)
            ends.append(end)
        count = len(ends) - 1
        done = count if count == len(self._asked.ids) else count - count % WINDOW
        file.truncate(ends[done] if done else 0)
        file.seek(0, os.SEEK_END)
        return done

    def _check_row(self, out: Path, place: int, row: dict[str, Any]) -> None:
        """An answer of this run's model to this run's text?"""
        expected = self._asked.ids[place] if place < len(self._asked.ids) else None
        found = (str(row.get("id")), row.get("model"), tuple(row) if self._how.format == "csv" else self._columns)
        if found != (expected, self._model, self._columns):
            raise InputError(f"'{out}' holds answers of another run, from row {place + 1} on: name another file")

    def _whole_rows(self, content: str) -> Iterator[tuple[dict[str, Any], int]]:
        """Rows with the byte each ends at."""
        if self._how.format == "csv":
            yield from self._whole_csv_rows(content)
            return
        end = 0
        for line in _lines(content):
            end += len(line.encode())
            if line.endswith("\n"):
                yield _object(line), end

    def _whole_csv_rows(self, content: str) -> Iterator[tuple[dict[str, Any], int]]:
        kept = _lines(content)
        reader = csv.reader(kept)
        header = next(reader, None)
        for fields in reader:
            read = kept[: reader.line_num]
            if len(fields) != len(header or ()) or not read[-1].endswith("\n"):
                return
            yield dict(zip(header or (), fields, strict=True)), sum(len(line.encode()) for line in read)


def columns(config: ModelConfig, how: Manner, pairs: bool) -> tuple[str, ...]:
    """Of a CSV."""
    texts = (("text", "text_pair") if pairs else ("text",)) if how.texts else ()
    scores = tuple(f"score {label}" for label in config.labels) if how.scores else ()
    given = {
        "classification": (*(("labels",) if config.multi_label else ()), "label", "score", *scores),
        "tokens": ("entities",),
        "question": ("answer", "score", "start", "end"),
        "choice": ("choice", "score"),
        "masked": ("words",),
        "regression": ("value",),
    }
    return ("id", *texts, *given.get(config.head, ("vector",)), "marked", "model")


def _cell(row: dict[str, Any], column: str) -> str:
    if column.startswith("score ") and column not in row:
        return str(row["scores"][column.removeprefix("score ")])
    value = row.get(column, "")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def shown(row: dict[str, Any]) -> str:
    """What a row says, for people."""
    if "labels" in row:
        return ", ".join(row["labels"]) or "none"
    if "label" in row:
        return f"{row['label']}\t{row['score']:.4f}"
    if "entities" in row:
        return "; ".join(f"{entity['word']} ({entity['entity_group']})" for entity in row["entities"]) or "no entity"
    if "answer" in row:
        return f"{row['answer']}\t{row['score']:.4f}"
    if "choice" in row:
        return f"choice {row['choice']}\t{row['score']:.4f}"
    if "words" in row:
        return " ".join(word["token"] for word in row["words"])
    if "value" in row:
        return f"{row['value']:.4f}"
    return " ".join(f"{number:.5f}" for number in row.get("vector", ()))


def one_line(text: str) -> str:
    """Without what would move a terminal's cursor: texts and labels come from outside."""
    return "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in text)


def _csv_line(fields: Sequence[str]) -> str:
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def _lines(content: str) -> list[str]:
    """With their ends; only a line feed ends one."""
    parts = content.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _private(path: str, flags: int) -> int:
    """Answers are readable by their owner alone."""
    return os.open(path, flags, 0o600)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is not UTF-8"

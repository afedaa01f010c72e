"""Which texts a command asks about: from a file, from standard input, or from a person who types them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from secformer.errors import InputError
from secformer.models.texts import read_texts


class Asked(NamedTuple):
    """Private texts, or pairs of them, each with what its answer will be known by."""

    first: Sequence[str]
    second: Sequence[str] | None
    ids: Sequence[str]
    source: Path | None = None

    def __repr__(self) -> str:
        return f"Asked({len(self.first)} texts, hidden)"


def asked(
    file: Path | None,
    columns: Sequence[str] = (),
    header: bool | None = None,
    pairs: bool = False,
    *,
    format: str | None = None,
    identifier: str | None = None,
    limit: int | None = None,
) -> Asked:
    """From a file, or else from standard input; answers are known by a column of the file, or by number from 1."""
    if file is None:
        if columns or header is not None or identifier or format:
            raise InputError(
                "--column, --id, --read-as and --header are for a --file: standard input has a text a line"
            )
        return numbered(*_asked_here(pairs, limit))
    if pairs:
        raise InputError("--pairs is for standard input: pairs in a --file are two columns, named by --column")
    texts = read_texts(file, columns, limit, format=format, header=header, identifier=identifier)
    found = numbered(texts.first, texts.second)
    return found._replace(ids=texts.ids or found.ids, source=texts.source)


def numbered(first: Sequence[str], second: Sequence[str] | None) -> Asked:
    return Asked(first, second, [str(number) for number in range(1, len(first) + 1)])


def _asked_here(pairs: bool, limit: int | None) -> tuple[list[str], list[str] | None]:
    """A text a line, from what is piped in or a person who is asked; in pairs, two with a tab between."""
    try:
        lines = list(_typed()) if sys.stdin.isatty() else sys.stdin.read().split("\n")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8") from None
    texts = [line.removesuffix("\r") for line in lines if line.strip()][:limit]
    if not texts:
        raise InputError("no text was given: pipe one in, a line each, or name a --file")
    return _split(texts) if pairs else (texts, None)


def _typed() -> Iterator[str]:
    print("a private text a line; an empty line ends:", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            return
        yield line.removesuffix("\n")


def _split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    halves = [text.split("\t") for text in texts]
    wrong = [number for number, half in enumerate(halves, 1) if len(half) != 2]
    if wrong:
        raise InputError(f"line {wrong[0]} is no pair: write two texts with a tab between")
    return [half[0] for half in halves], [half[1] for half in halves]

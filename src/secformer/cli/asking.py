"""Which texts a command asks about: from a file, from standard input, or from a person who types them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secformer.errors import InputError
from secformer.models.images import Images, holds_images, read_images
from secformer.models.texts import Texts, read_texts


class Asked(NamedTuple):
    """Private texts, pairs of them, questions with choices, or images, each with what its answer will be known by."""

    first: Sequence[str]
    """Of images, the names of their files."""
    second: Sequence[str] | Sequence[Sequence[str]] | None
    ids: Sequence[str]
    source: Path | None = None
    images: Sequence[Any] | None = None

    @property
    def given(self) -> Sequence[Any]:
        """What the model takes."""
        return self.first if self.images is None else self.images

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
    choices: Sequence[str] = (),
) -> Asked:
    """From a file, or else from standard input; answers are known by a column of the file, or by number from 1. Of images, by
    the names of their files."""
    named = columns or header is not None or identifier or format or choices
    if file is None:
        if named:
            raise InputError(
                "--column, --choices, --id, --read-as and --header are for a --file: standard input has a text a line"
            )
        return numbered(*_asked_here(pairs, limit))
    if holds_images(file):
        if named or pairs:
            raise InputError(
                f"'{file}' is no table: leave out --column, --choices, --id, --read-as, --header and --pairs"
            )
        images = read_images(file, limit)
        return Asked(images.names, None, images.names, file, images.pixels)
    if pairs:
        raise InputError("--pairs is for standard input: pairs in a --file are two columns, named by --column")
    texts = read_texts(file, columns, limit, format=format, header=header, identifier=identifier, choices=choices)
    found = numbered(texts.first, texts.choices or texts.second)
    return found._replace(ids=texts.ids or found.ids, source=texts.source)


def to_measure(data: Path | None, columns: Sequence[str], limit: int, **options: Any) -> Texts | Images | None:
    """What a calibration is made on, by the same rules; None is the built-in sample."""
    if data is None:
        return None
    return read_images(data, limit) if holds_images(data) else read_texts(data, columns, limit, **options)


def numbered(first: Sequence[str], second: Sequence[str] | Sequence[Sequence[str]] | None) -> Asked:
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

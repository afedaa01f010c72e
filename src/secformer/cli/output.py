"""How commands talk: tables on stdout that fit the terminal, notes and progress on stderr. Users' text is never markup.

Piped, a table is plain text as wide as it needs to be, and progress is silent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.box import ASCII, HEAVY_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

WIDTH_OF_A_FILE = 170
Item = TypeVar("Item")


def console() -> Console:
    """Standard output."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=WIDTH_OF_A_FILE, highlight=False, no_color=True)


def notes() -> Console:
    """Standard error; lines are as long as they are."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def note(text: str) -> None:
    """A line on standard error, as it is."""
    print(" ".join(text.split()), file=sys.stderr)


def table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    """Columns of text, those in `numbers` to the right; long texts are folded, never cut."""
    box = HEAVY_HEAD if sys.stdout.isatty() else ASCII
    made = Table(title=Text(title) if title else None, title_justify="left", box=box)
    for name in columns:
        made.add_column(Text(name), overflow="fold", justify="right" if name in numbers else "left")
    return made


def add_row(to: Table, *cells: str) -> None:
    """Cells are what they are: `[red]` is five characters."""
    to.add_row(*(Text(cell) for cell in cells))


def show(made: Table) -> None:
    """A table made elsewhere, too: nothing in it is cut, and piped it is plain."""
    for column in made.columns:
        column.overflow = "fold"
    made.box = made.box if sys.stdout.isatty() else ASCII
    console().print(made)


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def _quietly(console: Console) -> dict[str, Any]:
    """Progress where somebody watches, gone when it is over; what is piped elsewhere keeps its way."""
    return dict(transient=True, disable=not console.is_terminal, redirect_stdout=sys.stdout.isatty())


@contextmanager
def steps(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done now, with the time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, **_quietly(console)) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=step)


@contextmanager
def counter(console: Console, what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """How many of all are done; call it with `done`, `total` or `step`, what is being done now."""
    columns = (
        TextColumn(what, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, **_quietly(console)) as bar:
        task = bar.add_task("", total=total)

        def update(done: int | None = None, total: int | None = None, step: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=step)

        yield update


def progressing(cases: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The cases one by one, with a bar on stderr, if somebody watches."""
    with counter(notes(), "measuring", len(cases)) as update:
        for done, case in enumerate(cases):
            update(done, step=name(case))
            yield case

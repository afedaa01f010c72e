"""Many texts asked about, some at a time, their answers written as they come: what `run` and `query` do alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from secformer.cli.asking import Asked
from secformer.cli.output import counter, note, notes
from secformer.cli.writing import WINDOW, Manner, Sheet
from secformer.models.config import ModelConfig
from secformer.models.tokens import Tokens
from secformer.parties.caller import Result, added
from secformer.parties.prediction import Prediction

Ask = Callable[[Sequence[Tokens], Callable[[str], None]], Prediction]


class Done(NamedTuple):
    """Of the texts that were asked about now."""

    texts: int
    marked: int
    outcome: Result | None


def answer_all(ask: Ask, rows: Sequence[Tokens], texts: Asked, how: Manner, config: ModelConfig, model: str) -> Done:
    """Ask about all texts that have no answer yet, and write each as it comes."""
    outcomes: list[Result] = []
    marked = 0
    with Sheet(how, config, texts, model) as sheet, counter(notes(), "texts", len(rows)) as update:
        there = sheet.done
        if there:
            note(f"{there} of {len(rows)} answers are there already")
        for start in range(there, len(rows), WINDOW):
            update(start)
            part = ask(rows[start : start + WINDOW], lambda step: update(step=step))
            sheet.write(start, part.answers)
            tell_marks(texts.ids[start:], part)
            marked += sum(part.marked)
            outcomes += [part.outcome] if part.outcome is not None else []
        return Done(len(rows) - there, marked, added(outcomes))


def tell_marks(ids: Sequence[str], answered: Prediction) -> None:
    """A line for every answer that may be wrong."""
    for place, answer in enumerate(answered.answers):
        if answer.marked and answered.evidence is not None:
            note(f"note: text {ids[place]}: {answered.evidence.describe(place)}")

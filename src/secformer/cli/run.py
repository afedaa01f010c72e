"""`secformer run`: a checkpoint folder and private texts in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from secformer.cli.answering import Done, answer_all, tell_marks
from secformer.cli.asking import Asked
from secformer.cli.calibrate import measured
from secformer.cli.costs import beside_estimate, cost_table
from secformer.cli.output import add_row, console, note, notes, print_json, show, steps, table
from secformer.cli.writing import Manner, one_line, shown
from secformer.errors import CalibrationError, InputError
from secformer.models.answers import DIGITS
from secformer.models.batches import MEMORY
from secformer.models.tokens import Tokens
from secformer.parties.prediction import Prediction
from secformer.secure_model import Mode, SecureModel
from secformer.version import __version__

SHOWN_NUMBERS = 6
SHOWN_LETTERS = 60
MIB = 1 << 20
KINDS: dict[Mode, str] = {"secure": "secure", "simulate": "simulated", "plain": "plain"}
"""Label of a result by the mode that computed it: only servers give a secure result."""


@dataclass(frozen=True)
class Question:
    """What is done with the texts."""

    mode: Mode = "secure"
    prompt: str | None = None
    truncate: bool = False
    memory: int = MEMORY // MIB
    """MiB."""


def mode_named(mode: str) -> Mode:
    if mode not in get_args(Mode):
        raise InputError(f"unknown mode {mode!r}: choose plain, simulate or secure")
    return mode  # type: ignore[return-value]


def run(
    folder: Path,
    texts: Asked,
    suite: str | None,
    calibration: Path | None,
    question: Question,
    how: Manner,
    as_json: bool,
) -> None:
    """Predict in three processes over TLS. As a table, or as one JSON document, with the plaintext result and the cost."""
    model = SecureModel.from_pretrained(folder, suite, calibration=calibration)
    rows = model.tokens(texts.given, texts.second, prompt=question.prompt, truncate=question.truncate)
    if question.mode != "plain" and not model.calibrated:  # after the texts: it may take minutes
        first_calibration(model, notes())
    name = ":".join([model.name, model.system.name, *([] if question.mode == "secure" else [question.mode])])
    ask = partial(model.predict_tokens, mode=question.mode, memory=question.memory * MIB)
    with model:
        if how.format == "table" or as_json:
            _compare(model, rows, texts, how, ask, as_json, KINDS[question.mode])
            return
        done = answer_all(
            lambda part, progress: ask(part, alike=True, progress=progress), rows, texts, how, model.config, name
        )
    tell_done(done, question.mode)
    if done.outcome is not None:
        note(beside_estimate(done.outcome, model.system.name, model.settings))


def tell_done(done: Done, mode: str) -> None:
    """What a run over many texts came to, on standard error."""
    marked = f", {done.marked} marked" if done.marked else ""
    cost = done.outcome
    spent = f", {cost.online_seconds:.1f} s online, {cost.online_bytes / 1e6:,.1f} MB" if cost else ""
    note(f"{done.texts} texts answered ({mode}){marked}{spent}")


def first_calibration(model: SecureModel, notes: Console) -> None:
    """On the built-in sample. A record that cannot be kept still serves this run."""
    note(
        "No calibration for these weights: measuring ranges on built-in sample texts. "
        "`secformer calibrate` with texts like yours makes a better one."
    )
    try:
        measured(model, None, notes)
    except CalibrationError as error:
        if not model.calibrated:
            raise
        note(f"note: {error}; it serves this run only")


# -- beside plaintext -----------------------------------------------------------------------------------------------------


def _compare(
    model: SecureModel,
    rows: Sequence[Tokens],
    texts: Asked,
    how: Manner,
    ask: Callable[..., Prediction],
    as_json: bool,
    kind: str,
) -> None:
    expected = model.predict_tokens(rows, mode="plain")
    with steps(notes()) as progress:
        found = ask(rows, progress=progress)
    error = float((found.result - expected.result).abs().max())
    if as_json:
        print_json({**_document(model, texts, how, found), "max_error": error})
        return
    out = console()
    show(_table(texts, how, found, expected, kind))
    tell_marks(texts.ids, found)
    out.print(f"largest difference from the plaintext model: {error:.1e}")
    if found.outcome is not None:
        show(cost_table({model.system.name: found.outcome}))
        out.print(beside_estimate(found.outcome, model.system.name, model.settings))


def _document(model: SecureModel, texts: Asked, how: Manner, found: Prediction) -> dict[str, Any]:
    """One object: the answers, what answered, what it cost, and the raw numbers."""
    rows = [
        {"id": name, **_texts(texts, how, place), **answer.to_dict(how.scores)}
        for place, (name, answer) in enumerate(zip(texts.ids, found.answers, strict=True))
    ]
    told: dict[str, Any] = {"version": __version__, "suite": model.system.name, "model": model.name}
    told |= {"answers": rows, "labels": found.labels}
    cost = found.outcome.to_dict() if found.outcome is not None else {}
    told["evidence"] = [row["evidence"] for row in rows]
    return {**told, "marked": found.marked, "result": found.result.tolist(), **cost}


def _texts(texts: Asked, how: Manner, place: int) -> dict[str, Any]:
    if not how.texts:
        return {}
    pair = {} if texts.second is None else {"text_pair": texts.second[place]}
    return {"text": texts.first[place], **pair}


def _table(texts: Asked, how: Manner, found: Prediction, expected: Prediction, kind: str) -> Any:
    """A row a text, its pair below it."""
    made = table(f"{kind} result beside the plaintext result", "text", kind, "plaintext")
    for place, name in enumerate(texts.ids):
        given = [text for part in _texts(texts, how, place).values() for text in _several(part)]
        what = "\n".join(one_line(_short(text)) for text in given) or name
        answers = (_shown(each, place, how.scores) for each in (found, expected))
        add_row(made, what, *answers)
    return made


def _shown(prediction: Prediction, place: int, scores: bool) -> str:
    row = prediction[place].to_dict(scores)
    if "vector" in row:
        numbers = row["vector"]
        rest = f"  … ({len(numbers)} numbers)" if len(numbers) > SHOWN_NUMBERS else ""
        return "  ".join(f"{number:+.4f}" for number in numbers[:SHOWN_NUMBERS]) + rest
    lines = [shown(row).replace("\t", "  ")]
    lines += [f"  {label}  {score:.{DIGITS - 2}f}" for label, score in row.get("scores", {}).items()]
    return "\n".join(one_line(line) for line in lines + ["marked: may be wrong"] * row["marked"])


def _several(part: str | Sequence[str]) -> Sequence[str]:
    """Choices, or one text."""
    return [part] if isinstance(part, str) else part


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"

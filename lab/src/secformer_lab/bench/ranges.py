"""`secformer-lab bench ranges`: a model calibrated on one kind of text, asked with others; every result right or flagged.

Calibrated on 256 SST-2 sentences; asked with texts of GLUE's other tasks and with documents of 256 tokens up to the model's
length, joined from them. All go through the simulation, which gives what the servers would give; the worst of them and others
through a secure run as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from rich.table import Table

from secformer.errors import InputError, ModelError
from secformer.models.bundled import bundled_model
from secformer.models.texts import read_texts
from secformer.secure_model import Mode, SecureModel

CALIBRATED, CALIBRATED_ON = 256, "sst2"
FOREIGN = ("cola", "mrpc", "rte", "stsb", "qnli")
ALLOWED_ERROR = 2e-3
SHORTEST_DOCUMENT = 256
MOST_TOKENS = 2048
"""Of a batch under simulation."""
WORST = 3
"""One in three of the texts that are also asked securely: those that are marked, then those with the largest errors."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One model. An error is the largest of a text's result, relative to the largest entry if that is above one; `absolute` is
    the largest as it is, and `above` how many of those are above the same bound, none of them flagged."""

    model: str
    texts: int
    documents: int
    flagged: int
    wrong_unflagged: int
    worst_unflagged_error: float
    worst_unflagged_absolute: float
    above_unflagged_absolute: int
    secure_checked: int
    secure_flagged: int
    secure_wrong_unflagged: int
    secure_worst_unflagged_error: float
    secure_worst_unflagged_absolute: float
    disagreements: int  # flagged by one of the two alone


@dataclass(frozen=True)
class Answer:
    text: str
    error: float
    absolute: float
    marked: bool

    @property
    def wrong_unflagged(self) -> bool:
        return not self.marked and not self.error <= ALLOWED_ERROR


def default_models(data: Path) -> list[Path]:
    """The sentence encoder that the demonstration uses, and those under `models`."""
    found = [bundled_model()]
    folder = data / "models"
    return found + (sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else [])


def measure_ranges(
    folder: Path, data: Path, texts: int, documents: int, secure: int, progress: Progress = lambda step: None
) -> Row:
    """`data` holds GLUE's files as glue/TASK/dev.tsv.gz."""
    model = _calibrated(folder, data, progress)
    asked = foreign_texts(data, texts)
    asked += foreign_documents(model, asked, documents)
    answers = list(_answers(model, asked, "simulate", MOST_TOKENS, progress))
    worst = sorted(answers, key=lambda answer: (answer.marked, answer.error), reverse=True)
    chosen = worst[: secure // WORST]
    chosen += Random(1).sample(worst[secure // WORST :], min(secure - len(chosen), len(worst) - len(chosen)))
    with model:
        secured = list(_answers(model, [answer.text for answer in chosen], "secure", 1, progress))
    simulated = {answer.text: answer for answer in answers}
    return Row(
        model=folder.name,
        texts=len(answers),
        documents=documents,
        flagged=sum(answer.marked for answer in answers),
        wrong_unflagged=sum(answer.wrong_unflagged for answer in answers),
        worst_unflagged_error=_worst(answers),
        worst_unflagged_absolute=_worst_absolute(answers),
        above_unflagged_absolute=sum(not answer.marked and answer.absolute > ALLOWED_ERROR for answer in answers),
        secure_checked=len(secured),
        secure_flagged=sum(answer.marked for answer in secured),
        secure_wrong_unflagged=sum(answer.wrong_unflagged for answer in secured),
        secure_worst_unflagged_error=_worst(secured),
        secure_worst_unflagged_absolute=_worst_absolute(secured),
        disagreements=sum(answer.marked != simulated[answer.text].marked for answer in secured),
    )


def _worst(answers: Sequence[Answer]) -> float:
    return max((answer.error for answer in answers if not answer.marked), default=0.0)


def _worst_absolute(answers: Sequence[Answer]) -> float:
    return max((answer.absolute for answer in answers if not answer.marked), default=0.0)


def _calibrated(folder: Path, data: Path, progress: Progress) -> SecureModel:
    """A new calibration each time, and none that is left behind; texts of the whole length are allowed."""
    model = SecureModel.from_pretrained(folder, "exact", uncalibrated=True)
    model.config = replace(model.config, max_tokens=0)
    progress(f"{folder.name}: calibrating")
    with tempfile.TemporaryDirectory() as private:
        model.calibrate(shuffled(data, CALIBRATED_ON, "train", CALIBRATED), out=os.path.join(private, "record"))
    return model


def shuffled(data: Path, task: str, part: str, count: int) -> list[str]:
    """Texts of one of GLUE's files, a pair as one, in an order of their own."""
    path = data / "glue" / task / f"{part}.tsv.gz"
    if not path.is_file():
        raise InputError(f"there is no '{path}': --data names a folder with GLUE's files as glue/TASK/PART.tsv.gz")
    table = read_texts(path)
    pairs = table.second or [""] * len(table.first)
    found = list(dict.fromkeys(f"{first} {second}".strip() for first, second in zip(table.first, pairs, strict=True)))
    Random(0).shuffle(found)
    return found[:count]


def foreign_texts(data: Path, count: int) -> list[str]:
    """As many of each task, and more of the larger ones where a task has too few."""
    found = sorted((shuffled(data, task, "dev", count) for task in FOREIGN), key=len)
    each = [min(len(texts), _fair_part(found, count)) for texts in found]
    return [text for texts, size in zip(found, each, strict=True) for text in texts[:size]][:count]


def _fair_part(tasks: Sequence[Sequence[str]], count: int) -> int:
    """The least number a task may give so that all of them give `count` together; they are sorted by size."""
    for index, texts in enumerate(tasks):
        part = -(-count // (len(tasks) - index))
        if len(texts) >= part:
            return part
        count -= len(texts)
    return max(map(len, tasks), default=0)


def foreign_documents(model: SecureModel, texts: Sequence[str], count: int) -> list[str]:
    """Sentences joined, as many as fit into a length between 256 tokens and the model's."""
    longest, random = model.config.positions, Random(2)
    if longest < SHORTEST_DOCUMENT and count:
        raise ModelError(f"this model takes {longest} tokens: no documents of {SHORTEST_DOCUMENT}")
    return [_document(model, texts, random.randint(SHORTEST_DOCUMENT, longest), random) for _ in range(count)]


def _document(model: SecureModel, texts: Sequence[str], tokens: int, random: Random) -> str:
    found = ""
    while True:
        longer = f"{found} {random.choice(texts)}".strip()
        if len(model.tokenizer(longer, verbose=False)["input_ids"]) > tokens:
            return found or longer
        found = longer


def _answers(model: SecureModel, texts: Sequence[str], mode: Mode, most: int, progress: Progress) -> Iterator[Answer]:
    """Short texts first, together as far as `most` tokens allow."""
    lengths = {text: len(model.tokenizer(text, verbose=False)["input_ids"]) for text in texts}
    order, done = sorted(texts, key=lengths.__getitem__), 0
    while done < len(order):
        size = 1
        while done + size < len(order) and (size + 1) * lengths[order[done + size]] <= most:
            size += 1
        part = order[done : done + size]
        progress(f"{model.config.family}: {mode} {done + size} of {len(order)} texts")
        found, expected = model.predict(part, mode=mode), model.predict(part, mode="plain").result
        absolute = (found.result - expected).abs().flatten(1).amax(1)
        errors = absolute / expected.abs().flatten(1).amax(1).clamp(min=1.0)
        columns = (part, errors.tolist(), absolute.tolist(), found.marked)
        yield from (Answer(*item) for item in zip(*columns, strict=True))
        done += size


SHOWN: dict[str, Callable[[Row], float]] = {
    "texts": lambda row: row.texts,
    "of them documents": lambda row: row.documents,
    "flagged": lambda row: row.flagged,
    "wrong and not flagged": lambda row: row.wrong_unflagged,
    "worst error, not flagged": lambda row: row.worst_unflagged_error,
    "  in absolute numbers": lambda row: row.worst_unflagged_absolute,
    f"  above {ALLOWED_ERROR:g} in absolute numbers": lambda row: row.above_unflagged_absolute,
    "secure: checked": lambda row: row.secure_checked,
    "secure: flagged": lambda row: row.secure_flagged,
    "secure: wrong and not flagged": lambda row: row.secure_wrong_unflagged,
    "secure: worst error, not flagged": lambda row: row.secure_worst_unflagged_error,
    "  in absolute numbers, secure": lambda row: row.secure_worst_unflagged_absolute,
    "flagged by one alone": lambda row: row.disagreements,
}


def table(rows: Sequence[Row]) -> Table:
    found = Table("quantity", *(row.model for row in rows), title="ranges", title_justify="left")
    for name, value in SHOWN.items():
        found.add_row(name, *(_shown(value(row)) for row in rows))
    return found


def _shown(value: float) -> str:
    return f"{value:.1e}" if isinstance(value, float) else f"{value:,}"

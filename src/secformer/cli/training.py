"""`secformer finetune`, `distill` and `eval`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from secformer.cli.output import print_json, show
from secformer.errors import CalibrationError, InputError, SettingsError
from secformer.ring.devices import device_named
from secformer.training.cards import add_evaluation, read_card
from secformer.training.distill import DistillSettings
from secformer.training.distill import distill as train_student
from secformer.training.evaluate import Evaluation, check_modes
from secformer.training.evaluate import evaluate as measure
from secformer.training.examples import Columns, Examples, find_file, read_examples
from secformer.training.finetune import FinetuneSettings
from secformer.training.finetune import finetune as train_model
from secformer.training.folders import read_settings
from secformer.training.results import add_row
from secformer.training.stages import Progress as Step
from secformer.training.tasks import Task, task_named


def finetune(base: Path, out: Path, task: str, data: Path, columns: Columns, settings: FinetuneSettings) -> None:
    device_named(settings.device)
    train, dev = _both(task_named(task), data, columns)
    with _bar() as watch:
        card = train_model(base, out, train, dev, settings, watch)
    _say(out, card)


def distill(
    teacher: Path, out: Path, task: str, data: Path, columns: Columns, settings: DistillSettings, also: list[str]
) -> None:
    device_named(settings.device)
    train, dev = _both(_of_model(task_named(task), teacher), data, columns)
    others = [_train(task_named(name), data, Columns()) for name in also]
    with _bar() as watch:
        card = train_student(teacher, out, train, dev, settings, watch, others)
    _say(out, card)


def evaluate(
    folder: Path,
    task: str,
    data: Path,
    columns: Columns,
    modes: str,
    suite: str,
    limit: int | None,
    device: str | None,
    as_json: bool,
    record: bool,
    results: Path | None,
    row: str | None,
) -> None:
    chosen = _of_model(task_named(task), folder)
    examples = read_examples(find_file(data, task, "dev"), chosen, columns)
    names = check_modes(modes.split(","))
    train = None if set(names) <= {"plain"} or data.is_file() else _train(chosen, data, columns)
    identity = None if results is None else _identity(folder, row)

    def told(evaluation: Evaluation) -> None:
        if record:
            add_evaluation(folder, evaluation.as_dict())
        if results is not None and identity is not None:
            add_row(results, _row(identity, evaluation))

    with _counter() as progress:
        try:
            found = measure(
                folder, examples, train, suite, names, limit=limit, device=device, progress=progress, told=told
            )
        except CalibrationError as error:
            if results is not None and identity is not None:
                count = min(limit or len(examples), len(examples))
                for mode in [name for name in names if name != "plain"]:
                    add_row(results, _refused(identity, chosen, mode, suite, count, error))
            raise
    if as_json:
        print_json([evaluation.as_dict() for evaluation in found])
    else:
        show(_table(found))


def _of_model(task: Task, folder: Path) -> Task:
    """A task of the user's own has the labels of the model that was trained for it."""
    if task.score or task.names:
        return task
    _, config, _ = read_settings(folder)
    if config.head != "classification":
        raise SettingsError(f"'{folder}' has head '{config.head}': it is no model of task {task.name}")
    return replace(task, names=config.labels)


def _both(task: Task, data: Path, columns: Columns) -> tuple[Examples, Examples]:
    """The training part first: it decides the labels of a task that has none."""
    train = _train(task, data, columns)
    return train, read_examples(find_file(data, task.name, "dev"), train.task, columns)


def _train(task: Task, data: Path, columns: Columns) -> Examples:
    if data.is_file():
        raise InputError(f"'{data}' is a file: give the folder that holds the train and dev parts")
    return read_examples(find_file(data, task.name, "train"), task, columns)


def _identity(folder: Path, row: str | None) -> dict[str, Any]:
    """What a measured row, as study.py writes them, says of the model."""
    card = read_card(folder)
    if row is None or card is None:
        raise SettingsError("--results needs --row, and a model that finetune or distill made")
    return {"base": card["made_from"]["base"], "row": row, "seed": card["settings"]["seed"], "part": "dev"}


def _row(identity: dict[str, Any], evaluation: Evaluation) -> dict[str, Any]:
    found = evaluation.as_dict()
    return {**identity, "part": found.pop("data"), **found}


def _refused(
    identity: dict[str, Any], task: Task, mode: str, suite: str, examples: int, error: CalibrationError
) -> dict[str, Any]:
    """A row without a number, which says why."""
    what = {"mode": mode, "suite": suite, "task": task.name, "examples": examples, "metric": task.metric}
    return {**identity, **what, "value": None, "settings": {"refused": f"{type(error).__name__}: {error}"}}


def _say(out: Path, card: dict[str, Any]) -> None:
    row = card["evaluations"][0]
    Console(stderr=True).print(
        f"{row['metric']} on dev: {row['value']:.2f} ({row['examples']} examples); saved in {out}"
    )


def _table(rows: list[Evaluation]) -> Table:
    table = Table(title="flagged results count as wrong; error: the largest of the others", title_justify="left")
    headings = ("mode", "suite", "examples", "metric", "value", "labels as plain", "flagged", "error", "s")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        agreeing = "" if row.agreeing is None else str(row.agreeing)
        cells = (row.mode, row.suite, str(row.examples), row.metric, f"{row.value:.2f}", agreeing)
        table.add_row(*cells, str(row.flagged), f"{row.largest_error:.1e}", f"{row.seconds:.1f}")
    return table


@contextmanager
def _bar() -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
    )
    stderr = Console(stderr=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("starting", total=None, loss=0.0)

        def watch(progress: Step) -> None:
            bar.update(
                task, description=progress.stage, completed=progress.step, total=progress.steps, loss=progress.loss
            )

        yield watch


@contextmanager
def _counter() -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("plain", total=None)
        yield lambda mode, done, total: bar.update(task, description=mode, completed=done, total=total)

"""`glue …`: the paper's accuracy table, trained, measured and written down."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.training import Device, Half

glue = typer.Typer(help="The paper's accuracy table on GLUE.", no_args_is_help=True)

Encoder = Annotated[Path, typer.Argument(help="an encoder's checkpoint folder")]
Examples = Annotated[Path, typer.Option("--data", help="folder with TASK/train.tsv and TASK/dev.tsv")]
Tasks = Annotated[Optional[list[str]], typer.Option("--task", help="may be given several times; else all")]  # noqa: UP045
Seeds = Annotated[Optional[list[int]], typer.Option("--seed", help="may be given several times; else all")]  # noqa: UP045
Share = Annotated[float, typer.Option(min=0.0, max=1.0, help="of a plan's epochs, where time is short")]
Penalty = Annotated[Optional[float], typer.Option(help="of `fast`; else what the ablation chose")]  # noqa: UP045
RowSums = Annotated[float, typer.Option(min=0.0, help="how much row sums beyond c² to 1000c² count in `fast`")]
Seconds = Annotated[Optional[float], typer.Option(help="stop after so long, with the rows there are")]  # noqa: UP045
RatesOf = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="FOLDER/BASE of rows of another encoder: its learning rates are taken, not chosen anew"),
]


@glue.command("train")
def glue_train(
    base: Encoder,
    data: Examples,
    out: Annotated[Path, typer.Option(help="folder for the rows")] = Path("docs/results/glue"),
    models: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="folder for the models; a later run takes its teachers there"),
    ] = None,
    task: Tasks = None,
    row: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="plain, fast, secformer, ..., ablation, recipe; several are trained in this order; else all"),
    ] = None,
    seed: Seeds = None,
    share: Share = 1.0,
    penalty: Penalty = None,
    row_sums: RowSums = 0.0,
    choices: RatesOf = None,
    device: Device = "cpu",
    slots: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
    seconds: Seconds = None,
) -> None:
    """Train the rows of the table that are missing in OUT, on the same teachers, seed by seed."""
    began = time.monotonic()  # what is imported below takes seconds
    from secformer.cli.glue import Asked, train

    asked = Asked(task or (), row or (), seed or (), share, penalty, row_sums, choices)
    train(base, data, out, models, asked, device, slots, seconds, began)


@glue.command("table")
def glue_table(
    base: Encoder,
    data: Examples,
    out: Annotated[Path, typer.Option(help="folder for the rows; logs go to OUT/logs")],
    models: Annotated[Path, typer.Option(help="folder for the models; a later call goes on with its teachers")],
    task: Tasks = None,
    row: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="plain, fast, secformer, ...; several are trained in this order; else all"),
    ] = None,
    seed: Seeds = None,
    secure: Annotated[int, typer.Option(min=0, help="examples that are also asked about between servers")] = 0,
    share: Share = 1.0,
    penalty: Penalty = None,
    row_sums: RowSums = 0.0,
    choices: RatesOf = None,
    device: Device = "cpu",
    slots: Annotated[Optional[int], typer.Option(min=1, help="runs at a time in each process")] = None,  # noqa: UP045
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="processes that train at a time; on a GPU one a task"),
    ] = None,
    evaluators: Annotated[Optional[int], typer.Option(min=1, help="processes that evaluate at a time")] = None,  # noqa: UP045
    seconds: Seconds = None,
) -> None:
    """Train the missing rows of an encoder and evaluate what is trained, side by side, in the order of their importance."""
    began = time.monotonic()
    from dataclasses import replace

    from secformer.cli.table import Places, check_names, make_table, means_for
    from secformer.training.plans import PLANS
    from secformer.training.table import ROWS, Table

    check_names(task or (), row or ())
    tasks = task or list(PLANS)
    given = {"slots": slots, "workers": workers, "evaluators": evaluators, "seconds": seconds, "share": share}
    means = replace(
        means_for(device, len(tasks)), **{name: value for name, value in given.items() if value is not None}
    )
    table = Table(
        base.name, out, models, tasks, row or ROWS, seed or (), row_sums, penalty, secure, choices is not None
    )
    make_table(table, Places(base, data, out, models, choices), means, began)


@glue.command("trim")
def glue_trim(
    base: Encoder,
    data: Examples,
    out: Annotated[Path, typer.Option(help="folder for the smaller encoder")],
    task: Tasks = None,
    words: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="words that stay, the most used; else all that the tasks use"),
    ] = None,
    half: Half = False,
) -> None:
    """Make an encoder smaller that has to travel: with the words of the tasks alone."""
    from secformer.cli.glue import trim

    trim(base, data, out, task or (), words, half)


@glue.command("merge")
def glue_merge(
    rows: Annotated[list[Path], typer.Argument(help="folders with the rows of a run, the latest last")],
    into: Annotated[Path, typer.Option(help="folder with the rows of earlier runs")] = Path("docs/results/glue"),
    row: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="of the runs these alone; may be given several times"),
    ] = None,
) -> None:
    """Put the rows of a run in the place of earlier ones; those that then stand beside rows of another run are marked."""
    from secformer.cli.glue import merge

    merge(rows, into, row or ())


@glue.command("report")
def glue_report(
    results: Annotated[Path, typer.Option(help="folder with the rows")] = Path("docs/results/glue"),
    out: Annotated[Path, typer.Option(help="the page")] = Path("docs/results/glue.md"),
) -> None:
    """Write the page and its plots from the rows that were measured."""
    from secformer.cli.glue import report

    report(results, out)

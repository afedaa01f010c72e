"""`finetune`, `distill`, `eval`: students, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.options import Columns, Json, Suite

app = typer.Typer(no_args_is_help=True)


Task = Annotated[str, typer.Option(help="cola, sst2, mrpc, stsb, qnli, rte; labels or score for data of your own")]
Examples = Annotated[
    Path, typer.Option("--data", help="folder with TASK/train.tsv and dev.tsv, or train and dev in it")
]
LabelColumn = Annotated[str, typer.Option(help="the column with the labels")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Seed = Annotated[int, typer.Option(help="of batches, dropout and a new head")]
Longest = Annotated[int, typer.Option(min=3, help="tokens; longer texts are cut")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="steps between two checkpoints")]
Half = Annotated[bool, typer.Option("--half", help="save the weights in float16")]
Softmax = Annotated[str, typer.Option(help="exact or 2quad")]
Gelu = Annotated[str, typer.Option(help="exact or quad")]
Shift = Annotated[float, typer.Option(help="c of 2Quad")]


@app.command()
def finetune(
    base: Annotated[Path, typer.Argument(help="an encoder's checkpoint folder")],
    task: Task,
    data: Examples,
    out: Annotated[Path, typer.Option(help="folder for the model; one with a checkpoint in it is resumed")],
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    learning_rate: Annotated[
        Optional[list[float]],  # noqa: UP045
        typer.Option(help="given several times: the best on a tenth of train is taken"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1)] = 32,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.9)] = 0.1,
    softmax: Softmax = "exact",
    gelu: Gelu = "exact",
    shift: Shift = 5.0,
    column: Columns = None,
    label_column: LabelColumn = "label",
    longest: Longest = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    checkpoint_every: CheckpointEvery = 500,
    half: Half = False,
) -> None:
    """Train a classifier on a task: the teacher of a distillation."""
    from secformer.cli.training import finetune as train
    from secformer.training.examples import Columns
    from secformer.training.finetune import FinetuneSettings, schedules
    from secformer.training.network import swaps_named

    settings = FinetuneSettings(
        schedules=schedules(epochs, learning_rate or [5e-5], batch),
        swaps=swaps_named(softmax, shift, gelu),
        dropout=dropout,
        longest=longest,
        seed=seed,
        device=device,
        checkpoint_every=checkpoint_every,
        half=half,
    )
    train(base, out, task, data, Columns(tuple(column or ()), label_column), settings)


@app.command()
def distill(
    teacher: Annotated[Path, typer.Argument(help="a fine-tuned model's folder")],
    task: Task,
    data: Examples,
    out: Annotated[Path, typer.Option(help="folder for the student; one with a checkpoint in it is resumed")],
    softmax: Softmax = "2quad",
    gelu: Gelu = "exact",
    shift: Annotated[Optional[list[float]], typer.Option(help="c of 2Quad; several: the best is taken")] = None,  # noqa: UP045
    penalty: Annotated[
        Optional[list[float]],  # noqa: UP045
        typer.Option(help="on scores beyond c - 0.5; several: the best on a tenth of train is taken"),
    ] = None,
    row_sums: Annotated[float, typer.Option(min=0.0, help="how much row sums beyond c² to 1000c² count")] = 0.0,
    attention: Annotated[float, typer.Option(help="how much attention scores count in stage one")] = 1.0,
    hidden: Annotated[float, typer.Option(help="how much stage one counts in stage two")] = 0.1,
    inside_epochs: Annotated[int, typer.Option(min=0, help="of stage one")] = 20,
    inside_rate: Annotated[float, typer.Option(help="its learning rate")] = 1e-4,
    prediction_epochs: Annotated[int, typer.Option(min=0, help="of stage two")] = 5,
    prediction_rate: Annotated[float, typer.Option(help="its learning rate")] = 5e-5,
    batch: Annotated[int, typer.Option(min=1)] = 32,
    layers: Annotated[Optional[int], typer.Option(min=1, help="of the student; else the teacher's")] = None,  # noqa: UP045
    vocabulary: Annotated[Optional[int], typer.Option(help="words the student keeps")] = None,  # noqa: UP045
    also: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            help="another task under DATA whose training texts stage one takes too; may be given several times"
        ),
    ] = None,
    altered: Annotated[
        int, typer.Option(min=0, help="how often stage one takes each text with a word changed, besides as it is")
    ] = 0,
    both: Annotated[bool, typer.Option("--both", help="stage two takes those texts as well")] = False,
    column: Columns = None,
    label_column: LabelColumn = "label",
    longest: Longest = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    checkpoint_every: CheckpointEvery = 500,
    half: Half = False,
) -> None:
    """Make a student with cheaper functions from a fine-tuned teacher."""
    from secformer.cli.training import distill as train
    from secformer.training.distill import DistillSettings, recipes
    from secformer.training.examples import Columns
    from secformer.training.losses import Weighting
    from secformer.training.network import swaps_named
    from secformer.training.trainer import Schedule

    settings = DistillSettings(
        recipes=recipes(
            [swaps_named(softmax, c, gelu) for c in shift or [5.0]],
            [Weighting(attention, hidden, each, row_sums) for each in penalty or [0.0]],
            Schedule(inside_epochs, inside_rate, batch),
            Schedule(prediction_epochs, prediction_rate, batch),
            both,
        ),
        layers=layers,
        vocabulary=vocabulary,
        altered=altered,
        longest=longest,
        seed=seed,
        device=device,
        checkpoint_every=checkpoint_every,
        half=half,
    )
    train(teacher, out, task, data, Columns(tuple(column or ()), label_column), settings, also or [])


@app.command("eval")
def evaluate(
    folder: Annotated[Path, typer.Argument(help="a model's folder")],
    task: Task,
    data: Examples,
    mode: Annotated[str, typer.Option(help="plain, twin, simulate, secure, or several with commas")] = "plain",
    suite: Suite = "fast",
    limit: Annotated[Optional[int], typer.Option(min=1, help="examples at the most")] = None,  # noqa: UP045
    device: Annotated[Optional[str], typer.Option(help="cpu or cuda; else as SECFORMER_DEVICE says")] = None,  # noqa: UP045
    column: Columns = None,
    label_column: LabelColumn = "label",
    record: Annotated[bool, typer.Option("--record", help="write the result into the model's card")] = False,
    results: Annotated[Optional[Path], typer.Option(help="add it to this file of measured rows")] = None,  # noqa: UP045
    row: Annotated[Optional[str], typer.Option(help="as which row of the table")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """A model's metric in the clear, by a suite's twin, in fixed point, and between servers."""
    from secformer.cli.training import evaluate as measure
    from secformer.training.examples import Columns

    columns = Columns(tuple(column or ()), label_column)
    measure(folder, task, data, columns, mode, suite, limit, device, json, record, results, row)

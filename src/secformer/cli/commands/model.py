"""`demo`, `run`, `plan`, `calibrate`: a checkpoint folder on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.options import (
    Choices,
    Columns,
    Data,
    Few,
    File,
    Header,
    Identifier,
    Json,
    Limit,
    Memory,
    Out,
    OwnSuite,
    Pairs,
    Prompt,
    Resume,
    Scores,
    Truncate,
    WithText,
)

app = typer.Typer(no_args_is_help=True)


@app.command()
def demo(
    question: Annotated[Optional[str], typer.Option(help="your own private question")] = None,  # noqa: UP045
    text: Annotated[Optional[list[str]], typer.Option(help="a document; may be given several times")] = None,  # noqa: UP045
    folder: Annotated[Optional[Path], typer.Option(help="another sentence encoder's checkpoint")] = None,  # noqa: UP045
    sentiment: Annotated[
        bool, typer.Option("--sentiment", help="classify the texts by a distilled model instead")
    ] = False,
) -> None:
    """A real model answers a private question: three servers over TLS, the result and what it cost."""
    from secformer.cli.demo import demo as show
    from secformer.cli.sentiment import sentiment as classify

    if sentiment:
        classify(text, folder)
        return
    show(question, text, folder)


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    text: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="a text, may be given several times; every user of this machine can see it, unlike a --file"),
    ] = None,
    text_pair: Annotated[Optional[list[str]], typer.Option(help="the second text of a pair")] = None,  # noqa: UP045
    file: File = None,
    column: Columns = None,
    choices: Choices = None,
    header: Header = None,
    read_as: Annotated[Optional[str], typer.Option(help="lines, csv, tsv or jsonl; else by the file's ending")] = None,  # noqa: UP045
    identifier: Identifier = None,
    pairs: Pairs = False,
    limit: Annotated[Optional[int], typer.Option(min=1, help="texts that are read at the most")] = None,  # noqa: UP045
    suite: OwnSuite = None,
    mode: Annotated[str, typer.Option(help="secure; simulate: the same fixed point in the clear; plain")] = "secure",
    prompt: Prompt = None,
    truncate: Truncate = False,
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record")] = None,  # noqa: UP045
    output: Annotated[
        str | None, typer.Option("--format", help="table, json (lines), csv or text; else by --out")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    scores: Scores = False,
    with_text: WithText = False,
    memory: Memory = 2048,
    json: Json = False,
) -> None:
    """Predict privately: three server processes over TLS. A table has the plaintext result and the cost beside it.

    Texts come from standard input, a --file or --text. Of a file, texts of like length share a session.
    """
    from secformer.cli.asking import asked, numbered
    from secformer.cli.run import Question, mode_named
    from secformer.cli.run import run as predict
    from secformer.cli.writing import manner
    from secformer.errors import InputError

    how = manner(output, "table", out, resume, scores, with_text or bool(text))
    question = Question(mode_named(mode), prompt, truncate, memory)
    if json and (output or out):
        raise InputError("--json prints one document: leave out --format and --out, or --json")
    if text and file:
        raise InputError("texts come from --text or from a --file, not from both")
    if text:
        texts = numbered(text, text_pair)
    else:
        more = (column or (), header, pairs)
        texts = asked(file, *more, format=read_as, identifier=identifier, limit=limit, choices=choices or ())
    predict(folder, texts, suite, calibration, question, how, json)


@app.command()
def plan(
    model: Annotated[
        str, typer.Argument(help="a checkpoint folder, or a published shape: bert-base and those of docs/models.md")
    ],
    tokens: Annotated[int, typer.Option(help="padded length")] = 128,
    batch: Annotated[int, typer.Option(help="texts in a query")] = 1,
    suite: OwnSuite = None,
    seconds: Annotated[bool, typer.Option(help="estimate seconds too, from speeds measured here once")] = True,
    json: Json = False,
) -> None:
    """What a query costs in rounds, bytes and about how many seconds, without running it."""
    from secformer.cli.costs import plan as show

    show(model, tokens, batch, suite, seconds, json)


@app.command()
def calibrate(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    data: Data = None,
    column: Columns = None,
    choices: Choices = None,
    format: Annotated[Optional[str], typer.Option(help="lines, csv, tsv or jsonl; else by the file's ending")] = None,  # noqa: UP045
    header: Header = None,
    limit: Limit = 1000,
    add: Annotated[bool, typer.Option("--add", help="widen the record there is, instead of making a new one")] = False,
    few: Few = False,
    suite: OwnSuite = None,
    out: Annotated[Optional[Path], typer.Option(help="where to keep the record instead of the cache")] = None,  # noqa: UP045
) -> None:
    """Measure a model's ranges on texts like those to come."""
    from secformer.cli.asking import to_measure
    from secformer.cli.calibrate import calibrate as measure

    texts = to_measure(data, column or (), limit, format=format, header=header, choices=choices or ())
    measure(folder, suite, texts, add, few, out)

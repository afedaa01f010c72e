"""`secformer-lab bench …` and `secformer-lab paper …`: the commands and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secformer.cli.commands.options import Json, Suite

bench = typer.Typer(help="Measure protocols, transport, layers and whole models.", no_args_is_help=True)
paper = typer.Typer(help="Make the paper's tables and figures again.", no_args_is_help=True)


@bench.command("protocols")
def bench_protocols(
    json: Json = False,
    rows: Annotated[int, typer.Option(min=1, help="rows of the matrices")] = 64,
    columns: Annotated[int, typer.Option(min=1, help="columns of the matrices")] = 64,
    repetitions: Annotated[int, typer.Option(min=1, help="runs of which the fastest counts")] = 3,
) -> None:
    """Rounds, bits, time and error of every protocol, ours beside the paper's."""
    from secformer_lab.cli.bench import protocols

    protocols(json, rows, columns, repetitions)


@paper.command("functions")
def paper_functions(
    json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="draw the paper's five figures into this folder")] = None,
    size: Annotated[list[int] | None, typer.Option(min=1, help="elements; may be given several times")] = None,
    only: Annotated[list[str] | None, typer.Option(help="a function; may be given several times")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="runs of which the fastest counts")] = 1,
) -> None:
    """GeLU, Softmax, LayerNorm, division: every system's variant over a range of sizes."""
    from secformer_lab.cli.paper import functions

    functions(json, plot, size, only, repetitions)


@paper.command("tables")
def paper_tables(json: Json = False) -> None:
    """The paper's accuracy table and its traffic, recounted, beside its algorithms as written."""
    from secformer_lab.cli.paper import tables

    tables(json)


@paper.command("plan")
def paper_plan(
    model: Annotated[
        str, typer.Argument(help="a checkpoint folder, or a published shape such as bert-base")
    ] = "bert-base",
    tokens: Annotated[int, typer.Option(min=1, help="padded length")] = 512,
    suite: Suite = "secformer",
    json: Json = False,
) -> None:
    """Count what the paper's public scripts would send."""
    from secformer_lab.cli.paper import plan_as_published

    plan_as_published(model, tokens, suite, json)


@bench.command("layer")
def bench_layer(
    tokens: Annotated[int, typer.Option(min=1, help="padded length")] = 128,
    suite: Suite = "fast",
    repetitions: Annotated[int, typer.Option(min=1, help="runs of which the fastest counts")] = 3,
    json: Json = False,
) -> None:
    """One BERT-base layer between three processes: online and dealer seconds, rounds, bytes, error."""
    from secformer_lab.cli.bench import layer

    layer(json, tokens, suite, repetitions)


@bench.command("model")
def bench_model(
    model: Annotated[str, typer.Argument(help="a published shape of texts, such as bert-base")] = "bert-base",
    tokens: Annotated[str, typer.Option(help="padded lengths, such as 128,512")] = "128",
    suite: Annotated[str, typer.Option(help="suites, such as exact,fast")] = "fast",
    on: Annotated[str, typer.Option("--device", help="torch device of all three servers")] = "cpu",
    network: Annotated[str, typer.Option(help="networks to imitate, such as none,lan,wan")] = "none",
    material: Annotated[
        str, typer.Option(help="what is dealt waits on the device or the host, or is streamed: device,host,streamed")
    ] = "device",
    connections: Annotated[
        int | None, typer.Option(min=1, help="between two servers, each way; the setting's if none")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="runs of which the fastest and the median count")] = 3,
    out: Annotated[Path | None, typer.Option(help="add every row to this file as it comes, a line of JSON")] = None,
    json: Json = False,
) -> None:
    """A whole inference between three processes: online and dealer seconds, rounds, bytes by operation, error."""
    from secformer_lab.cli.bench import Where
    from secformer_lab.cli.bench import model as whole

    whole(json, model, tokens, suite, Where(on, network, material, connections, runs), out)


@bench.command("ranges")
def bench_ranges(
    folders: Annotated[list[Path] | None, typer.Argument(help="checkpoint folders; the models at hand if none")] = None,
    data: Annotated[
        Path, typer.Option(envvar="SECFORMER_DATA", help="folder with glue/TASK/PART.tsv.gz, and models/")
    ] = Path("data"),
    texts: Annotated[int, typer.Option(min=1, help="texts of other tasks than the one calibrated on")] = 2000,
    documents: Annotated[int, typer.Option(min=1, help="documents of 256 tokens and more")] = 100,
    secure: Annotated[int, typer.Option(min=0, help="of all these, how many go through a secure run, too")] = 50,
    json: Json = False,
) -> None:
    """Foreign texts and long documents: every result within 2e-3 of plain, or marked."""
    from secformer_lab.cli.bench import ranges

    ranges(folders or [], data, texts, documents, secure, json)


@bench.command("opening")
def bench_opening(
    json: Json = False,
    connections: Annotated[int, typer.Option(min=1, help="TLS connections in each direction")] = 2,
    mebibytes: Annotated[int, typer.Option(min=1, help="size of the large opening")] = 64,
) -> None:
    """What an opening costs beside bare queues in memory and bare TLS sockets."""
    from secformer_lab.cli.bench import opening

    opening(json, connections, mebibytes)

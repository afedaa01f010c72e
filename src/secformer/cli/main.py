"""The command `secformer`. Every command imports what it needs when it runs, so that `--help` is quick.

An error of ours ends with one line, `error [code]: text`, and exit code 2; docs/errors.md lists the codes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.errors import SecFormerError

app = typer.Typer(
    name="secformer",
    help="Private Transformer inference between two servers and a dealer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="Keys and certificates of this machine.", no_args_is_help=True)
app.add_typer(keys, name="keys")
bench = typer.Typer(help="Measure protocols and transport.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]


@app.command()
def serve(
    role: Annotated[str, typer.Option(help="dealer, server0 or server1")],
    host: Annotated[Optional[str], typer.Option(help="address the servers listen on")] = None,  # noqa: UP045
    identity_folder: Annotated[Optional[Path], typer.Option(help="keys and certificates")] = None,  # noqa: UP045
    threads: Annotated[Optional[int], typer.Option(help="threads of the arithmetic")] = None,  # noqa: UP045
    device: Annotated[Optional[str], typer.Option(help="torch device, such as cuda:0")] = None,  # noqa: UP045
    network: Annotated[Optional[str], typer.Option(help="none, lan or wan")] = None,  # noqa: UP045
) -> None:
    """Run one of the three servers until it is told to stop."""
    from secformer.parties import serve as process
    from secformer.settings import load_settings

    flags = {"host": host, "identity_folder": identity_folder, "threads": threads, "device": device}
    process.serve(role, load_settings(network=network, **flags))
    process.end(0)


@app.command()
def demo(
    question: Annotated[Optional[str], typer.Option(help="your own private question")] = None,  # noqa: UP045
    text: Annotated[Optional[list[str]], typer.Option(help="a document; may be given several times")] = None,  # noqa: UP045
    folder: Annotated[Optional[Path], typer.Option(help="another sentence encoder's checkpoint")] = None,  # noqa: UP045
) -> None:
    """A real model answers a private question: three servers over TLS, the result and what it cost."""
    from secformer.cli.demo import demo as show

    show(question, text, folder)


Role = Annotated[str, typer.Argument(help="client, provider, server0, server1 or dealer")]
Days = Annotated[float, typer.Option(min=1, help="days until the certificate ends")]


@keys.command("create")
def keys_create(
    role: Role,
    days: Days = 365,
    certificate: Annotated[Optional[Path], typer.Option(help="a certificate of your own, in PEM")] = None,  # noqa: UP045
    key: Annotated[Optional[Path], typer.Option(help="its private key, in PEM")] = None,  # noqa: UP045
) -> None:
    """Make a key, which stays here, and its certificate; or take both from your own PEM files."""
    from secformer.cli.keys import create
    from secformer.settings import load_settings

    create(role, load_settings(), days, certificate, key)


@keys.command("show")
def keys_show() -> None:
    """Every certificate here, with its fingerprint and end."""
    from secformer.cli.keys import show
    from secformer.settings import load_settings

    show(load_settings())


@keys.command("export")
def keys_export(
    role: Role,
    out: Annotated[Optional[Path], typer.Option(help="a file instead of standard output")] = None,  # noqa: UP045
    next: Annotated[bool, typer.Option("--next", help="the one a rotation has prepared")] = False,
) -> None:
    """The certificate of a role, to be given to the others. Never the key."""
    from secformer.cli.keys import export
    from secformer.settings import load_settings

    export(role, load_settings(), out, next)


@keys.command("trust")
def keys_trust(
    certificate: Annotated[Path, typer.Argument(help="somebody's certificate, in PEM")],
    role: Annotated[Optional[str], typer.Option(help="the role, where the certificate names none")] = None,  # noqa: UP045
) -> None:
    """Pin somebody's certificate; running servers notice by themselves."""
    from secformer.cli.keys import trust
    from secformer.settings import load_settings

    trust(certificate, load_settings(), role)


@keys.command("distrust")
def keys_distrust(fingerprint: Annotated[str, typer.Argument(help="the beginning of its fingerprint")]) -> None:
    """Take a pin out; running servers refuse it within a second."""
    from secformer.cli.keys import distrust
    from secformer.settings import load_settings

    distrust(fingerprint, load_settings())


@keys.command("rotate")
def keys_rotate(
    role: Role,
    days: Days = 365,
    finish: Annotated[bool, typer.Option("--finish", help="the others trust the new certificate: use it")] = False,
) -> None:
    """Replace a key in two steps, so that nobody is refused in between."""
    from secformer.cli.keys import rotate
    from secformer.settings import load_settings

    rotate(role, load_settings(), days, finish)


Suite = Annotated[str, typer.Option(help="crypten, puma, mpcformer, secformer, fast or exact")]


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    text: Annotated[list[str], typer.Option(help="a private text; may be given several times")],
    text_pair: Annotated[Optional[list[str]], typer.Option(help="the second text of a pair")] = None,  # noqa: UP045
    suite: Suite = "exact",
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Predict privately: three server processes over TLS, the plaintext result and the cost beside."""
    from secformer.cli.model import run as predict

    predict(folder, text, text_pair, suite, calibration, json)


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="a checkpoint folder, bert-base or bert-large")],
    tokens: Annotated[int, typer.Option(help="padded length")] = 128,
    batch: Annotated[int, typer.Option(help="texts in a query")] = 1,
    suite: Suite = "exact",
    as_published: Annotated[bool, typer.Option(help="count as the paper's public scripts do")] = False,
    json: Json = False,
) -> None:
    """What a query costs, traced in seconds without running it."""
    from secformer.cli.model import plan as show

    show(model, tokens, batch, suite, as_published, json)


@app.command()
def calibrate(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    data: Annotated[Optional[Path], typer.Option(help="texts: a line each, or a table with sentence1")] = None,  # noqa: UP045
    suite: Suite = "exact",
    limit: Annotated[int, typer.Option(min=1, help="texts that are read at the most")] = 1000,
    out: Annotated[Optional[Path], typer.Option(help="where to keep the record instead of the cache")] = None,  # noqa: UP045
) -> None:
    """Measure a model's ranges on texts like those to come."""
    from secformer.cli.model import calibrate as measure

    measure(folder, data, suite, limit, out)


@bench.command("protocols")
def bench_protocols(
    json: Json = False,
    rows: Annotated[int, typer.Option(help="rows of the matrices")] = 64,
    columns: Annotated[int, typer.Option(help="columns of the matrices")] = 64,
    repetitions: Annotated[int, typer.Option(help="runs of which the fastest counts")] = 3,
) -> None:
    """Rounds, bits, time and error of every protocol, ours beside the paper's."""
    from secformer.cli.bench import protocols

    protocols(json, rows, columns, repetitions)


@bench.command("functions")
def bench_functions(
    json: Json = False,
    plot: Annotated[Optional[Path], typer.Option(help="draw the paper's five figures into this folder")] = None,  # noqa: UP045
    size: Annotated[Optional[list[int]], typer.Option(help="elements; may be given several times")] = None,  # noqa: UP045
    only: Annotated[Optional[list[str]], typer.Option(help="a function; may be given several times")] = None,  # noqa: UP045
    repetitions: Annotated[int, typer.Option(help="runs of which the fastest counts")] = 1,
) -> None:
    """GeLU, Softmax, LayerNorm, division: every system's variant over a range of sizes."""
    from secformer.cli.paper import functions

    functions(json, plot, size, only, repetitions)


@bench.command("paper")
def bench_paper(json: Json = False) -> None:
    """The paper's accuracy table and its traffic, recounted, beside its algorithms as written."""
    from secformer.cli.paper import paper

    paper(json)


@bench.command("layer")
def bench_layer(
    tokens: Annotated[int, typer.Option(help="padded length")] = 128,
    suite: Suite = "fast",
    repetitions: Annotated[int, typer.Option(help="runs of which the fastest counts")] = 3,
    json: Json = False,
) -> None:
    """One BERT-base layer between three processes: online and dealer seconds, rounds, bytes, error."""
    from secformer.cli.bench import layer

    layer(json, tokens, suite, repetitions)


@bench.command("attention")
def bench_attention(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    data: Annotated[Path, typer.Option(help="texts: a line each, or a table with sentence1")],
    tokens: Annotated[int, typer.Option(help="tokens of a document")] = 512,
    rows: Annotated[int, typer.Option(help="rows of each head compared on a document; 0: all")] = 64,
    json: Json = False,
) -> None:
    """True Softmax in shares on a model's real attention scores: error and cost, layer by layer."""
    from secformer.cli.bench import attention

    attention(folder, data, tokens, rows, json)


@bench.command("opening")
def bench_opening(
    json: Json = False,
    connections: Annotated[int, typer.Option(help="TLS connections in each direction")] = 2,
    mebibytes: Annotated[int, typer.Option(help="size of the large opening")] = 64,
) -> None:
    """What an opening costs beside bare queues in memory and bare TLS sockets."""
    from secformer.cli.bench import opening

    opening(json, connections, mebibytes)


def main() -> None:
    """Errors of ours are one line, not a traceback."""
    try:
        app()
    except SecFormerError as error:
        print(f"error [{error.code}]: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

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


Setting = Annotated[Optional[Path], typer.Option(help="the deployment file (default: deployment.toml)")]  # noqa: UP045
Folder = Annotated[Optional[Path], typer.Option("--identity", help="the folder with keys and certificates")]  # noqa: UP045
As = Annotated[str, typer.Option("--as", help="the role whose key is used")]
Prints = Annotated[Optional[list[str]], typer.Option(help="a fingerprint; may be given several times")]  # noqa: UP045


@app.command()
def serve(
    role: Annotated[str, typer.Argument(help="server0, server1 or dealer")],
    deployment: Setting = None,
    identity: Folder = None,
    data: Annotated[Optional[Path], typer.Option(help="the folder in which models are kept")] = None,  # noqa: UP045
    listen_callers: Annotated[Optional[str], typer.Option(help="host:port on this machine for callers")] = None,  # noqa: UP045
    listen_servers: Annotated[Optional[str], typer.Option(help="host:port on this machine for servers")] = None,  # noqa: UP045
    threads: Annotated[Optional[int], typer.Option(help="threads of the arithmetic")] = None,  # noqa: UP045
    device: Annotated[Optional[str], typer.Option(help="torch device, such as cuda:0")] = None,  # noqa: UP045
) -> None:
    """Run one of the three servers until it is told to stop."""
    from secformer.parties import serve as process
    from secformer.settings import load_settings

    listening = {"listen_callers": listen_callers, "listen_servers": listen_servers}
    flags = {"deployment": deployment, "identity_folder": identity, "data_folder": data, "threads": threads}
    process.serve(role, load_settings(device=device, **listening, **flags))
    process.end(0)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="the file to be written")] = Path("deployment.toml"),
    name: Annotated[str, typer.Option(help="what to call the deployment")] = "example",
    server0: Annotated[Optional[str], typer.Option(help="host of S0")] = None,  # noqa: UP045
    server1: Annotated[Optional[str], typer.Option(help="host of S1")] = None,  # noqa: UP045
    dealer: Annotated[Optional[str], typer.Option(help="host of T")] = None,  # noqa: UP045
) -> None:
    """Write a commented deployment file."""
    from secformer.cli.deployment import init as write

    write(file, name, {"server0": server0, "server1": server1, "dealer": dealer})


@app.command()
def doctor(
    role: Annotated[str, typer.Argument(help="the role of this machine")],
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Check keys, clocks, addresses, TLS, releases and disk, and say what to do."""
    from secformer.cli.deployment import doctor as check
    from secformer.settings import load_settings

    if not check(role, load_settings(deployment=deployment, identity_folder=identity)):
        raise typer.Exit(1)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    name: Annotated[str, typer.Option(help="what the model is called")],
    data: Annotated[Optional[Path], typer.Option(help="texts to calibrate on, like those to come")] = None,  # noqa: UP045
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record instead")] = None,  # noqa: UP045
    allow: Annotated[Optional[list[str]], typer.Option(help="fingerprint of who may use it; * is every client")] = None,  # noqa: UP045
    suite: Annotated[str, typer.Option(help="exact, fast, or one of the paper's")] = "exact",
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Bring a model to the servers, in shares, as a new version of its name. Run it again after a break."""
    from secformer.cli.remote import push as bring
    from secformer.settings import load_settings

    settings = load_settings(deployment=deployment, identity_folder=identity)
    bring(folder, name, settings, suite, data, calibration, allow or [])


@app.command()
def models(as_: As = "client", json: Json = False, deployment: Setting = None, identity: Folder = None) -> None:
    """The models this party may use."""
    from secformer.cli.remote import models as show
    from secformer.settings import load_settings

    show(as_, load_settings(deployment=deployment, identity_folder=identity), json)


@app.command()
def access(
    name: Annotated[str, typer.Argument(help="a model of yours")],
    allow: Prints = None,
    deny: Prints = None,
    own: Prints = None,
    disown: Prints = None,
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Change who may use a model of yours, and who owns it."""
    from secformer.cli.remote import access as change
    from secformer.settings import load_settings

    changes = {"allow": allow or [], "deny": deny or [], "own": own or [], "disown": disown or []}
    change(name, load_settings(deployment=deployment, identity_folder=identity), changes)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="a model of yours")], deployment: Setting = None, identity: Folder = None
) -> None:
    """Make all three servers forget a model of yours."""
    from secformer.cli.remote import remove as forget
    from secformer.settings import load_settings

    forget(name, load_settings(deployment=deployment, identity_folder=identity))


@app.command()
def query(
    name: Annotated[str, typer.Argument(help="a model, or model@version")],
    file: Annotated[Optional[Path], typer.Option(help="texts, a line each, instead of standard input")] = None,  # noqa: UP045
    pairs: Annotated[bool, typer.Option("--pairs", help="every line is two texts with a tab between")] = False,
    output: Annotated[str, typer.Option("--format", help="text, json (lines) or csv")] = "text",
    out: Annotated[Optional[Path], typer.Option(help="a file instead of standard output")] = None,  # noqa: UP045
    as_: As = "client",
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Ask a model about private texts: from standard input, a file or a prompt; nobody else sees them or the answers."""
    from secformer.cli.remote import query as ask
    from secformer.settings import load_settings

    ask(name, load_settings(deployment=deployment, identity_folder=identity), as_, file, pairs, output, out)


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

"""The command `secformer`. Every command imports what it needs when it runs, so that `--help` is quick.

An error of ours ends with one line, `error [code]: text`, and exit code 2; docs/errors.md lists the codes.
"""

from __future__ import annotations

import sys
import warnings
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
glue = typer.Typer(help="The paper's accuracy table on GLUE.", no_args_is_help=True)
app.add_typer(glue, name="glue")

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Data = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="texts: a line each (.txt), or a table (.csv, .tsv, .jsonl); also .gz"),
]
Columns = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--column", help="the column with the texts; given twice, those of pairs"),
]
Header = Annotated[Optional[bool], typer.Option(help="whether the first row names the columns")]  # noqa: UP045
Few = Annotated[bool, typer.Option("--few", help="fewer than 32 texts are meant, for a test")]
Limit = Annotated[int, typer.Option(min=1, help="texts that are read at the most")]
Prompt = Annotated[Optional[str], typer.Option(help="one of a sentence encoder's own prompts, by name")]  # noqa: UP045
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
    data: Data = None,
    column: Columns = None,
    header: Header = None,
    limit: Limit = 1000,
    few: Few = False,
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record instead")] = None,  # noqa: UP045
    allow: Annotated[Optional[list[str]], typer.Option(help="fingerprint of who may use it; * is every client")] = None,  # noqa: UP045
    suite: Annotated[str, typer.Option(help="exact, fast, or one of the paper's")] = "exact",
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Bring a model to the servers, in shares, as a new version of its name. Run it again after a break.

    It is calibrated on --data, if that is given, else by the record there is or on built-in texts.
    """
    from secformer.cli.remote import push as bring
    from secformer.models.texts import read_texts
    from secformer.settings import load_settings

    settings = load_settings(deployment=deployment, identity_folder=identity)
    texts = read_texts(data, column or (), limit, header=header) if data else None
    bring(folder, name, settings, suite, texts, few, calibration, allow or [])


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
    name: Annotated[str, typer.Argument(help="a model of yours, or one version of it: model@version")],
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Make all three servers forget a model of yours, with all its versions or one of them."""
    from secformer.cli.remote import remove as forget
    from secformer.settings import load_settings

    forget(name, load_settings(deployment=deployment, identity_folder=identity))


@app.command()
def query(
    name: Annotated[str, typer.Argument(help="a model, or model@version")],
    typed: Annotated[Optional[list[str]], typer.Argument(hidden=True)] = None,  # noqa: UP045
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="texts instead of standard input: a line each (.txt), or a table (.csv, .tsv, .jsonl)"),
    ] = None,
    column: Columns = None,
    header: Header = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="every line of standard input is two texts with a tab between")
    ] = False,
    prompt: Prompt = None,
    output: Annotated[str, typer.Option("--format", help="text, json (lines) or csv")] = "text",
    out: Annotated[Optional[Path], typer.Option(help="a file instead of standard output")] = None,  # noqa: UP045
    as_: As = "client",
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Ask a model about private texts: from standard input, a file or a prompt; nobody else sees them or the answers."""
    from secformer.cli.remote import asked, check_format
    from secformer.cli.remote import query as ask
    from secformer.errors import InputError
    from secformer.settings import load_settings

    check_format(output)
    if typed:
        raise InputError(
            "texts are not taken from the command line, where every user of this machine can read them: pipe them in, or "
            "name a --file"
        )
    texts = asked(file, column or (), header, pairs)
    ask(name, load_settings(deployment=deployment, identity_folder=identity), as_, texts, prompt, output, out)


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
    prompt: Prompt = None,
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Predict privately: three server processes over TLS, the plaintext result and the cost beside."""
    from secformer.cli.model import run as predict

    predict(folder, text, text_pair, suite, prompt, calibration, json)


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
    data: Data = None,
    column: Columns = None,
    format: Annotated[Optional[str], typer.Option(help="lines, csv, tsv or jsonl; else by the file's ending")] = None,  # noqa: UP045
    header: Header = None,
    limit: Limit = 1000,
    add: Annotated[bool, typer.Option("--add", help="widen the record there is, instead of making a new one")] = False,
    few: Few = False,
    suite: Suite = "exact",
    out: Annotated[Optional[Path], typer.Option(help="where to keep the record instead of the cache")] = None,  # noqa: UP045
) -> None:
    """Measure a model's ranges on texts like those to come."""
    from secformer.cli.calibrate import calibrate as measure
    from secformer.models.texts import read_texts

    texts = read_texts(data, column or (), limit, format=format, header=header) if data else None
    measure(folder, suite, texts, add, few, out)


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
            [Weighting(attention, hidden, each) for each in penalty or [0.0]],
            Schedule(inside_epochs, inside_rate, batch),
            Schedule(prediction_epochs, prediction_rate, batch),
        ),
        layers=layers,
        vocabulary=vocabulary,
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
    measure(folder, task, data, columns, mode, suite, limit, json, record, results, row)


@glue.command("train")
def glue_train(
    base: Annotated[Path, typer.Argument(help="an encoder's checkpoint folder")],
    data: Annotated[Path, typer.Option(help="folder with TASK/train.tsv and TASK/dev.tsv")],
    out: Annotated[Path, typer.Option(help="folder for the rows")] = Path("docs/results/glue"),
    task: Annotated[Optional[list[str]], typer.Option(help="may be given several times; else all")] = None,  # noqa: UP045
    device: Device = "cpu",
    slots: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
    seconds: Annotated[Optional[float], typer.Option(help="stop after so long, with the rows there are")] = None,  # noqa: UP045
) -> None:
    """Train every row of the table on the same teachers, seed by seed."""
    from secformer.cli.glue import train

    train(base, data, out, task or [], device, slots, seconds)


@glue.command("report")
def glue_report(
    results: Annotated[Path, typer.Option(help="folder with the rows")] = Path("docs/results/glue"),
    out: Annotated[Path, typer.Option(help="the page")] = Path("docs/results/glue.md"),
) -> None:
    """Write the page and its plots from the rows that were measured."""
    from secformer.cli.glue import report

    report(results, out)


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


@bench.command("model")
def bench_model(
    model: Annotated[str, typer.Argument(help="bert-base or bert-large")] = "bert-base",
    tokens: Annotated[str, typer.Option(help="padded lengths, such as 128,512")] = "128",
    suite: Suite = "fast",
    on: Annotated[str, typer.Option("--device", help="torch device of all three servers")] = "cpu",
    network: Annotated[str, typer.Option(help="networks to imitate, such as none,lan,wan")] = "none",
    connections: Annotated[
        int | None, typer.Option(help="between two servers, each way; the setting's if none")
    ] = None,
    runs: Annotated[int, typer.Option(help="runs of which the fastest and the median count")] = 3,
    json: Json = False,
) -> None:
    """A whole inference between three processes: online and dealer seconds, rounds, bytes by operation, error."""
    from secformer.cli.bench import model as whole

    whole(json, model, tokens, suite, on, network, connections, runs)


@bench.command("ranges")
def bench_ranges(
    folders: Annotated[list[Path] | None, typer.Argument(help="checkpoint folders; the models at hand if none")] = None,
    data: Annotated[
        Path, typer.Option(envvar="SECFORMER_DATA", help="folder with glue/TASK/PART.tsv.gz, and models/")
    ] = Path("data"),
    texts: Annotated[int, typer.Option(help="texts of other tasks than the one calibrated on")] = 2000,
    documents: Annotated[int, typer.Option(help="documents of 256 tokens and more")] = 100,
    secure: Annotated[int, typer.Option(help="of all these, how many go through a secure run, too")] = 50,
    json: Json = False,
) -> None:
    """Foreign texts and long documents: every result within 2e-3 of plain, or marked."""
    from secformer.cli.bench import ranges

    ranges(folders or [], data, texts, documents, secure, json)


@bench.command("opening")
def bench_opening(
    json: Json = False,
    connections: Annotated[int, typer.Option(help="TLS connections in each direction")] = 2,
    mebibytes: Annotated[int, typer.Option(help="size of the large opening")] = 64,
) -> None:
    """What an opening costs beside bare queues in memory and bare TLS sockets."""
    from secformer.cli.bench import opening

    opening(json, connections, mebibytes)


def note(message: Warning | str, *_: object) -> None:
    """A warning as one line, without the source it came from."""
    print(f"note: {' '.join(str(message).split())}", file=sys.stderr)


def main() -> None:
    """Errors of ours are one line, not a traceback; so are warnings."""
    warnings.showwarning = note
    try:
        app()
    except SecFormerError as error:
        print(f"error [{error.code}]: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

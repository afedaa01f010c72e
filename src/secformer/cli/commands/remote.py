"""`push`, `models`, `access`, `remove`, `query`, `gateway`: a deployment from the side of providers and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.options import (
    As,
    Choices,
    Columns,
    Data,
    Few,
    File,
    Folder,
    Header,
    Identifier,
    Json,
    Limit,
    LogFormat,
    Memory,
    Out,
    OwnSuite,
    Pairs,
    Prints,
    Prompt,
    Resume,
    Scores,
    Setting,
    Truncate,
    WithText,
)

app = typer.Typer(no_args_is_help=True)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="a checkpoint folder as transformers saves it")],
    name: Annotated[str, typer.Option(help="what the model is called")],
    data: Data = None,
    column: Columns = None,
    choices: Choices = None,
    header: Header = None,
    limit: Limit = 1000,
    few: Few = False,
    calibration: Annotated[Optional[Path], typer.Option(help="a calibration record instead")] = None,  # noqa: UP045
    allow: Annotated[Optional[list[str]], typer.Option(help="fingerprint of who may use it; * is every client")] = None,  # noqa: UP045
    suite: OwnSuite = None,
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Bring a model to the servers, in shares, as a new version of its name. Run it again after a break.

    It is calibrated on --data, if that is given, else by the record there is or on built-in texts.
    """
    from secformer.cli.asking import to_measure
    from secformer.cli.remote import push as bring
    from secformer.settings import load_settings

    settings = load_settings(deployment=deployment, identity_folder=identity)
    texts = to_measure(data, column or (), limit, header=header, choices=choices or ())
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
    file: File = None,
    column: Columns = None,
    choices: Choices = None,
    header: Header = None,
    identifier: Identifier = None,
    pairs: Pairs = False,
    prompt: Prompt = None,
    truncate: Truncate = False,
    output: Annotated[Optional[str], typer.Option("--format", help="text, json (lines) or csv; else by --out")] = None,  # noqa: UP045
    out: Out = None,
    resume: Resume = False,
    scores: Scores = False,
    with_text: WithText = False,
    memory: Memory = 2048,
    as_: As = "client",
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Ask a model about private texts: from standard input, a file or a prompt; nobody else sees them or the answers."""
    from secformer.cli.asking import asked
    from secformer.cli.remote import query as ask
    from secformer.cli.run import Question
    from secformer.cli.writing import manner
    from secformer.errors import InputError
    from secformer.settings import load_settings

    how = manner(output, "text", out, resume, scores, with_text)
    if typed:
        raise InputError(
            "texts are not taken from the command line, where every user of this machine can read them: pipe them in, or "
            "name a --file"
        )
    texts = asked(file, column or (), header, pairs, identifier=identifier, choices=choices or ())
    question = Question(prompt=prompt, truncate=truncate, memory=memory)
    ask(name, load_settings(deployment=deployment, identity_folder=identity), as_, texts, question, how)


@app.command()
def gateway(
    names: Annotated[Optional[list[str]], typer.Argument(help="models to offer: a name, or name@version")] = None,  # noqa: UP045
    listen: Annotated[Optional[str], typer.Option(help="host:port for applications (default: loopback)")] = None,  # noqa: UP045
    token: Annotated[Optional[Path], typer.Option(help="the file with the token they must show")] = None,  # noqa: UP045
    certificate: Annotated[Optional[Path], typer.Option(help="a certificate for HTTPS, in PEM")] = None,  # noqa: UP045
    key: Annotated[Optional[Path], typer.Option(help="its private key, in PEM")] = None,  # noqa: UP045
    new_token: Annotated[Optional[Path], typer.Option(help="write a new token to this file, and end")] = None,  # noqa: UP045
    log_format: LogFormat = None,
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """HTTP for applications: embeddings and predictions as others have them, computed privately. Runs at the client's."""
    from secformer.cli.gateway import gateway as serve_applications
    from secformer.settings import load_settings

    files = {"gateway_token": token, "gateway_certificate": certificate, "gateway_key": key}
    given = {name: str(path) for name, path in files.items() if path is not None}
    flags = {"gateway_listen": listen, "log_format": log_format, "deployment": deployment, "identity_folder": identity}
    serve_applications(names or [], load_settings(**given, **flags), new_token)

"""`keys …`: keys and certificates of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.options import Folder

keys = typer.Typer(help="Keys and certificates of this machine.", no_args_is_help=True)


Role = Annotated[str, typer.Argument(help="client, provider, server0, server1 or dealer")]
Days = Annotated[float, typer.Option(min=1, help="days until the certificate ends")]


@keys.command("create")
def keys_create(
    role: Role,
    days: Days = 365,
    certificate: Annotated[Optional[Path], typer.Option(help="a certificate of your own, in PEM")] = None,  # noqa: UP045
    key: Annotated[Optional[Path], typer.Option(help="its private key, in PEM")] = None,  # noqa: UP045
    identity: Folder = None,
) -> None:
    """Make a key, which stays here, and its certificate; or take both from your own PEM files."""
    from secformer.cli.keys import create
    from secformer.settings import load_settings

    create(role, load_settings(identity_folder=identity), days, certificate, key)


@keys.command("show")
def keys_show(identity: Folder = None) -> None:
    """Every certificate here, with its fingerprint and end."""
    from secformer.cli.keys import show_all
    from secformer.settings import load_settings

    show_all(load_settings(identity_folder=identity))


@keys.command("export")
def keys_export(
    role: Role,
    out: Annotated[Optional[Path], typer.Option(help="a file instead of standard output")] = None,  # noqa: UP045
    next: Annotated[bool, typer.Option("--next", help="the one a rotation has prepared")] = False,
    identity: Folder = None,
) -> None:
    """The certificate of a role, to be given to the others. Never the key."""
    from secformer.cli.keys import export
    from secformer.settings import load_settings

    export(role, load_settings(identity_folder=identity), out, next)


@keys.command("trust")
def keys_trust(
    certificate: Annotated[Path, typer.Argument(help="somebody's certificate, in PEM")],
    role: Annotated[Optional[str], typer.Option(help="the role, where the certificate names none")] = None,  # noqa: UP045
    identity: Folder = None,
) -> None:
    """Pin somebody's certificate; running servers notice by themselves."""
    from secformer.cli.keys import trust
    from secformer.settings import load_settings

    trust(certificate, load_settings(identity_folder=identity), role)


@keys.command("distrust")
def keys_distrust(
    fingerprint: Annotated[str, typer.Argument(help="the beginning of its fingerprint")],
    identity: Folder = None,
) -> None:
    """Take a pin out; running servers refuse it within a second."""
    from secformer.cli.keys import distrust
    from secformer.settings import load_settings

    distrust(fingerprint, load_settings(identity_folder=identity))


@keys.command("rotate")
def keys_rotate(
    role: Role,
    days: Days = 365,
    finish: Annotated[bool, typer.Option("--finish", help="the others trust the new certificate: use it")] = False,
    identity: Folder = None,
) -> None:
    """Replace a key in two steps, so that nobody is refused in between."""
    from secformer.cli.keys import rotate
    from secformer.settings import load_settings

    rotate(role, load_settings(identity_folder=identity), days, finish)

"""The command `secformer`. Its commands and their flags are in commands/, a file a group.

An error of ours ends with one line, `error [code]: text`, and exit code 2; docs/errors.md lists the codes.
"""

from __future__ import annotations

import sys
import warnings

import typer

from secformer.cli.commands import bench, keys, model, remote, servers, training
from secformer.errors import SecFormerError

app = typer.Typer(
    name="secformer",
    help="Private Transformer inference between two servers and a dealer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (model.app, servers.app, remote.app, training.app):
    app.add_typer(group)
app.add_typer(keys.keys, name="keys")
app.add_typer(bench.bench, name="bench")


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

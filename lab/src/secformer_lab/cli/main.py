"""The command `secformer-lab`; errors and signals are handled as in `secformer`."""

from __future__ import annotations

import typer

from secformer.cli.main import main as run
from secformer_lab.cli import commands

app = typer.Typer(
    name="secformer-lab",
    help="The SecFormer paper reproduced, and everything we measure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(commands.bench, name="bench")
app.add_typer(commands.paper, name="paper")


def main() -> None:
    """Run the command line."""
    run(app, "secformer-lab")


if __name__ == "__main__":
    main()

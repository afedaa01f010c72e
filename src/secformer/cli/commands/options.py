"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Data = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="texts: a line each (.txt), or a table (.csv, .tsv, .jsonl), also .gz; images: their folder"),
]
Columns = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--column", help="the column with the texts; given twice, those of pairs"),
]
Choices = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--choices", help="a column with lists of choices (JSON); given several times, those with one each"),
]
Header = Annotated[Optional[bool], typer.Option(help="whether the first row names the columns")]  # noqa: UP045
Few = Annotated[bool, typer.Option("--few", help="fewer than 32 texts are meant, for a test")]
Limit = Annotated[int, typer.Option(min=1, help="texts that are read at the most")]
Prompt = Annotated[Optional[str], typer.Option(help="one of a sentence encoder's own prompts, by name")]  # noqa: UP045
Setting = Annotated[Optional[Path], typer.Option(help="the deployment file (default: deployment.toml)")]  # noqa: UP045
LogFormat = Annotated[Optional[str], typer.Option(help="text, or json: an object a line")]  # noqa: UP045
Folder = Annotated[Optional[Path], typer.Option("--identity", help="the folder with keys and certificates")]  # noqa: UP045
As = Annotated[str, typer.Option("--as", help="the role whose key is used")]
Prints = Annotated[Optional[list[str]], typer.Option(help="a fingerprint; may be given several times")]  # noqa: UP045
OwnSuite = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--suite",
        help="exact, fast, or one that an installed package brings; by default exact, or fast for a model distilled for it",
    ),
]
Suite = Annotated[str, typer.Option(help="exact, fast, or one that an installed package brings")]

# Texts to ask about, and what is done with the answers.
File = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        help="texts instead of standard input: a line each (.txt), or a table (.csv, .tsv, .jsonl), also .gz; or an image, "
        "or a folder of them"
    ),
]
Identifier = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--id", help="the column of the file that names each row; else answers are numbered from 1"),
]
Pairs = Annotated[bool, typer.Option("--pairs", help="every line of standard input is two texts with a tab between")]
Truncate = Annotated[bool, typer.Option("--truncate", help="cut texts that are too long instead of refusing them")]
Out = Annotated[Optional[Path], typer.Option(help="a file instead of standard output")]  # noqa: UP045
Resume = Annotated[bool, typer.Option("--resume", help="go on with the --out of a run that was broken off")]
Scores = Annotated[bool, typer.Option("--scores", help="the scores of all labels, not of the likeliest alone")]
WithText = Annotated[bool, typer.Option("--with-text", help="the private texts beside their answers")]
Memory = Annotated[int, typer.Option(min=1, help="MiB a server may need for a session: how many texts share one")]

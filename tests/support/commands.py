"""The command line in this process: exit code, output and error as a shell would see them."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run `secformer ARGUMENTS`. What the tests themselves printed before is dropped."""
    from secformer.cli.main import main

    capfd.readouterr()
    monkeypatch.setattr(sys, "argv", ["secformer", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    return Outcome(code, *capfd.readouterr())

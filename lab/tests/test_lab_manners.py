"""`secformer-lab`: an error is one line with a code and exit status 2; a table fits 80 columns."""

from __future__ import annotations

import pytest

from secformer_lab.cli.main import main

BAD = [
    ("bench", "layer", "--tokens", "0"),
    ("bench", "layer", "--suite", "quick"),
    ("bench", "layer", "--repetitions", "0"),
    ("bench", "protocols", "--rows", "0"),
    ("paper", "functions", "--only", "none"),
    ("paper", "functions", "--size", "0"),
    ("bench", "model", "--tokens", "0"),
    ("bench", "model", "--tokens", "x"),
    ("bench", "model", "bert-tiny"),
    ("bench", "model", "--device", "bogus"),
    ("bench", "ranges", "nowhere", "--data", "nowhere"),
    ("bench", "opening", "--connections", "0"),
    ("paper", "plan", "--suite", "exact"),
    ("nonsense",),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_an_error_is_one_line(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["secformer-lab", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr().err.strip().splitlines()
    assert caught.value.code == 2 and said[-1].startswith("error [") and "[internal]" not in said[-1]


def test_the_table_of_protocols_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["bench", "protocols", "--rows", "2", "--columns", "4", "--repetitions", "1"]
    monkeypatch.setattr("sys.argv", ["secformer-lab", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and "less_than" in shown and "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80

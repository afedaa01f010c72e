"""`secformer-lab bench protocols`: rows, table, JSON, and errors as one line."""

import io
import json

import pytest
from declared import declared
from rich.console import Console
from typer.testing import CliRunner

from secformer_lab.bench.cases import COUNTERPARTS, catalogue
from secformer_lab.bench.protocols import measure, measure_protocols, table
from secformer_lab.cli import main as command_line

KEYS = {"protocol", "flavour", "rounds", "online_bits", "dealer_bits", "seconds", "max_error"}


@pytest.fixture(scope="module")
def rows():
    return measure_protocols(3, 5, repetitions=1)


def test_a_row_for_every_case_in_order(rows):
    cases = catalogue(3, 5)
    assert [(row.flavour, row.protocol) for row in rows] == [(case.flavour, case.protocol) for case in cases]
    for row, case in zip(rows, cases, strict=True):
        assert row.max_error <= case.bound
        cost = declared(case.flavour, case.protocol, 3, 5)
        assert row.rounds == cost.rounds
        assert row.online_bits == pytest.approx(2 * cost.opened_bits / case.elements, abs=1e-3)
        assert row.dealer_bits == pytest.approx(cost.dealer_bits / case.elements, abs=1e-3)


def test_the_paper_stands_beside(rows):
    theirs = {row.protocol: row for row in rows if row.flavour == "table1"}
    assert set(theirs) == set(COUNTERPARTS.values())
    assert set(COUNTERPARTS) <= {row.protocol for row in rows if row.flavour == "wire"}
    assert (theirs["lt"].rounds, theirs["lt"].paper_rounds, theirs["lt"].online_bits) == (8, 7, 3456)


def test_the_table_shows_every_protocol_on_wires(rows):
    console = Console(file=io.StringIO(), width=200)
    console.print(table(rows))
    text = console.file.getvalue()
    assert all(row.protocol in text for row in rows if row.flavour == "wire")
    assert "10,368" in text


def test_repeated_runs_keep_the_fastest():
    (case,) = [case for case in catalogue(4, 4) if case.protocol == "square" and case.flavour == "wire"]
    assert 0 < measure(case, 3).seconds < 10


def test_json_is_a_list_of_rows():
    done = CliRunner().invoke(
        command_line.app, ["bench", "protocols", "--json", "--rows", "2", "--columns", "2", "--repetitions", "1"]
    )
    assert done.exit_code == 0
    measured = json.loads(done.stdout)
    assert len(measured) == len(catalogue(2, 2))
    assert all(set(row) >= KEYS for row in measured)
    assert {row["flavour"] for row in measured} == {"wire", "table1"}


def test_an_error_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["secformer-lab", "bench", "protocols", "--rows", "0"])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("error [usage]: ")
    assert captured.err.count("\n") == 1

"""`secformer query` at its own end: which texts it asks about, and how answers are written, marked ones above all."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from commands import command

from secformer.cli import remote
from secformer.models.evidence import RangeEvidence
from secformer.parties.prediction import Prediction

PLACES = (("layer 0", "scores"), ("layer 1", "activation"))
MARK = "ranges were left (layer 1, activation: 3 rows): this result may be wrong"


class FakeClient:
    """Answers every text with its length; a text that holds `far` left a range."""

    asked: ClassVar[list[tuple[Any, ...]]] = []
    evident = True

    def __init__(self, *given: Any) -> None:
        FakeClient.asked.clear()

    def predict(self, texts, pairs, progress, *, prompt):
        self.asked.append((list(texts), pairs and list(pairs), prompt))
        counts = torch.tensor([[0, 3 if "far" in text else 0] for text in texts])
        result = torch.tensor([[float(len(text)), 0.5] for text in texts])
        found = Prediction(result, ["good"] * len(texts), SimpleNamespace(model="m@1"))  # type: ignore[arg-type]
        return replace(found, evidence=RangeEvidence(counts, PLACES)) if self.evident else found


@pytest.fixture
def query(monkeypatch, capfd):
    fetched = SimpleNamespace(name="m@1", card=None, tokenizer=lambda: None)
    monkeypatch.setattr(remote, "TlsNetwork", lambda *_: None)
    monkeypatch.setattr(remote, "Library", lambda *_: SimpleNamespace(fetch=lambda name: fetched))
    monkeypatch.setattr(remote, "Client", FakeClient)

    def run(*arguments: object, text: str = ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return command(monkeypatch, capfd, "query", "m", *arguments)

    return run


def test_a_marked_answer_says_so_in_every_format(query):
    text = "near\nfar away\n"
    said = query(text=text)
    assert said.out == "good\ngood\tmarked\n"
    assert f"note: text 2: {MARK}" in said.err and "text 1" not in said.err and "away" not in said.err
    rows = [json.loads(line) for line in query("--format", "json", text=text).out.splitlines()]
    assert [row["marked"] for row in rows] == [False, True]
    assert [row["evidence"] for row in rows] == [{}, {"layer 1, activation": 3}]
    table = list(csv.DictReader(io.StringIO(query("--format", "csv", text=text).out)))
    assert [row["marked"] for row in table] == ["False", "True"]


def test_marks_are_counted_over_all_batches(query):
    said = query(text="near\n" * remote.BATCH + "far\n")
    assert f"note: text {remote.BATCH + 1}: {MARK}" in said.err and len(FakeClient.asked) == 2


def test_a_suite_without_evidence_marks_nothing(query, monkeypatch):
    monkeypatch.setattr(FakeClient, "evident", False)
    (row,) = [json.loads(line) for line in query("--format", "json", text="far").out.splitlines()]
    assert row["marked"] is False and row["evidence"] is None


def test_texts_pairs_and_prompts_reach_the_client(query, tmp_path):
    query("--pairs", "--prompt", "ask", text="a cat\ta dog\n\nb\tc\n")
    assert FakeClient.asked == [(["a cat", "b"], ["a dog", "c"], "ask")]
    table = tmp_path / "rows.csv"
    table.write_text('number,title,body\n1,one cat,"two, dogs"\n2,three cats,four\n')
    query("--file", table, "--column", "title", "--column", "body")
    assert FakeClient.asked == [(["one cat", "three cats"], ["two, dogs", "four"], None)]
    query("--file", table, "--column", "title")
    assert FakeClient.asked == [(["one cat", "three cats"], None, None)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pairs"], "[input]: line 2 is no pair"),
        (["--pairs", "--file", "texts.tsv"], "[input]: --pairs is for standard input"),
        (["--column", "title"], "[input]: --column and --header are for a --file"),
        (["--no-header"], "[input]: --column and --header are for a --file"),
        (["--file", "missing.txt"], "[input.table]: 'missing.txt' cannot be read"),
        (["--format", "xml"], "[input]: unknown format 'xml'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anybody_is_called(query, monkeypatch, arguments, complaint):
    monkeypatch.setattr(remote, "Library", lambda *_: pytest.fail("a server was called"))
    said = query(*arguments, text="a\tb\nc\n")
    assert said.code == 2 and said.out == "" and f"error {complaint}" in said.err

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
from secformer.cli.writing import WINDOW
from secformer.models.evidence import RangeEvidence
from secformer.models.shapes import PRESETS
from secformer.models.tokens import Batch
from secformer.parties.prediction import prediction

CONFIG = replace(PRESETS["bert-base"], labels=("good", "bad"))
PLACES = (("layer 0", "scores"), ("layer 1", "activation"))
MARK = "ranges were left (layer 1, activation: 3 rows): this result may be wrong"


class FakeClient:
    """Answers every text with its length; a text that holds `far` left a range."""

    asked: ClassVar[list[tuple[Any, ...]]] = []
    evident = True

    def __init__(self, *given: Any) -> None:
        FakeClient.asked.clear()

    def tokens(self, texts, pairs, *, prompt, truncate):
        self.asked.append((list(texts), pairs and list(pairs), prompt))
        return list(texts)

    def predict_tokens(self, rows, *, memory, alike, progress):
        counts = torch.tensor([[0, 3 if "far" in text else 0] for text in rows])
        result = torch.tensor([[float(len(text)), 0.5] for text in rows])
        batch = Batch(*[torch.ones(len(rows), 1)] * 3)
        return prediction(CONFIG, batch, result, evidence=RangeEvidence(counts, PLACES) if self.evident else None)


@pytest.fixture
def query(monkeypatch, capfd):
    fetched = SimpleNamespace(name="m@1", card=SimpleNamespace(config=CONFIG), tokenizer=lambda: None)
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
    assert said.out == "good\t0.9707\ngood\t0.9994\tmarked\n"
    assert f"note: text 2: {MARK}" in said.err and "text 1" not in said.err and "away" not in said.err
    rows = [json.loads(line) for line in query("--format", "json", text=text).out.splitlines()]
    assert [row["marked"] for row in rows] == [False, True]
    assert [row["evidence"] for row in rows] == [{}, {"layer 1, activation": 3}]
    table = list(csv.DictReader(io.StringIO(query("--format", "csv", text=text).out)))
    assert [row["marked"] for row in table] == ["False", "True"]


def test_marks_are_counted_over_all_batches(query):
    said = query(text="near\n" * WINDOW + "far\n")
    assert f"note: text {WINDOW + 1}: {MARK}" in said.err and "33 texts answered (by m@1), 1 marked" in said.err


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
        (["--column", "title"], "[input]: --column, --choices, --id, --read-as and --header are for a --file"),
        (["--no-header"], "[input]: --column, --choices, --id, --read-as and --header are for a --file"),
        (["--file", "missing.txt"], "[input.table]: 'missing.txt' cannot be read"),
        (["--format", "xml"], "[input]: unknown format 'xml'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anybody_is_called(query, monkeypatch, arguments, complaint):
    monkeypatch.setattr(remote, "Library", lambda *_: pytest.fail("a server was called"))
    said = query(*arguments, text="a\tb\nc\n")
    assert said.code == 2 and said.out == "" and f"error {complaint}" in said.err

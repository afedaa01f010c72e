"""`secformer demo --sentiment`: labels under two suites beside the plain ones, and what each costs."""

from __future__ import annotations

import io

import pytest
from checkpoints import build_checkpoint
from commands import command

from secformer.models import bundled
from secformer.training.cards import as_text, read_card


@pytest.mark.long  # six processes, two suites
def test_labels_and_costs_of_both_suites(tmp_path, monkeypatch, capfd):
    build_checkpoint(tmp_path / "student", "bert", "classification", labels=2, softmax="2quad", quad_shift=5.0)
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    arguments = ("--text", "it was a good film", "--text", "the dog ran home")
    found = command(monkeypatch, capfd, "demo", "--sentiment", "--folder", tmp_path / "student", *arguments)
    assert found.code == 0, found.err
    for word in ("plaintext", "fast", "secformer", "LABEL_", "rounds"):
        assert word in found.out


@pytest.mark.long  # the notebook (tests/test_site.py) calibrates it on the sample, too
def test_the_example_classifier_answers_at_the_first_try(tmp_path, monkeypatch, capfd):
    """Without a calibration of anybody's own."""
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("A warm, funny film.\nTwo hours that nobody will give back.\n"))
    asked = ("run", bundled.example_classifier(), "--mode", "simulate", "--format", "text")
    found = command(monkeypatch, capfd, *asked)
    assert found.code == 0 and "built-in sample" in found.err, found.err
    assert [line.split("\t")[0] for line in found.out.splitlines()] == ["positive", "negative"]
    assert "marked" not in found.out + found.err


def test_the_example_classifier_has_a_whole_card():
    folder = bundled.example_classifier()
    card = read_card(folder)
    assert card is not None and (folder / "README.md").read_text(encoding="utf-8") == as_text(card)
    measured = {(row["mode"], row["suite"]) for row in card["evaluations"]}
    assert measured >= {("plain", ""), ("simulate", "fast"), ("secure", "fast"), ("secure", "secformer")}
    assert {"made_from", "settings", "ranges", "cost"} <= set(card)


@pytest.mark.parametrize("head", ["embedding", None])
def test_what_cannot_be_classified_with(tmp_path, monkeypatch, capfd, head):
    folder = ()
    if head:
        build_checkpoint(tmp_path / "model", "bert", head)
        folder = ("--folder", tmp_path / "model")
    monkeypatch.setattr(bundled, "__file__", str(tmp_path / "site-packages" / "secformer" / "models" / "bundled.py"))
    found = command(monkeypatch, capfd, "demo", "--sentiment", *folder)
    assert found.code == 2
    assert ("has head 'embedding'" if head else "name its folder with --folder") in found.err

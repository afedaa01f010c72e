"""`secformer run` over files: every format, texts that look like markup, and a run that is killed and goes on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from checkpoints import TEXTS, WORDS, build_checkpoint
from commands import command

from secformer.cli.writing import WINDOW
from secformer.secure_model import SecureModel
from secformer.settings import Settings

COUNT = 200


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A calibrated classifier, its cache, and a table of 200 texts."""
    folder = tmp_path_factory.mktemp("run")
    build_checkpoint(folder / "model", "bert", "classification", layers=1)
    SecureModel.from_pretrained(folder / "model", settings=Settings(cache_folder=folder / "cache")).calibrate(
        TEXTS, few=True
    )
    rows = [(f"row-{index}", f"{TEXTS[index % 4]} {WORDS[index % 16]}") for index in range(COUNT)]
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("key", "text"), *rows])
    return folder


@pytest.fixture
def run(monkeypatch, capfd, place):
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(place / "cache"))

    def go(*arguments: object, text: str = ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return command(monkeypatch, capfd, "run", place / "model", "--mode", "simulate", *arguments)

    return go


def read(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def started(place, *arguments: object, **options) -> subprocess.Popen:
    """The command as a process of its own."""
    environment = {
        **os.environ,
        "SECFORMER_CACHE_FOLDER": str(place / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    line = [sys.executable, "-m", "secformer.cli.main", "run", str(place / "model"), *map(str, arguments)]
    return subprocess.Popen(line, env=environment, **options)


def ended_in_the_middle(process: subprocess.Popen, out, number: int) -> int:
    """A signal once the first window is there; gives the exit code."""
    while process.poll() is None and (not out.exists() or len(read(out)) < WINDOW):
        time.sleep(0.002)
    process.send_signal(number)
    return process.wait()


def asking(place) -> tuple[object, ...]:
    return "--file", place / "texts.csv", "--column", "text", "--id", "key"


def test_killed_and_resumed_gives_the_same_rows(run, place, tmp_path):
    table = asking(place)
    said = run(*table, "--out", tmp_path / "whole.csv")
    assert said.code == 0 and "200 texts answered (simulate)" in said.err, said.err
    whole = (tmp_path / "whole.csv").read_text()
    assert [row["id"] for row in read(tmp_path / "whole.csv")] == [f"row-{index}" for index in range(COUNT)]
    process = started(place, "--mode", "simulate", *table, "--out", tmp_path / "broken.csv")
    assert ended_in_the_middle(process, tmp_path / "broken.csv", signal.SIGKILL) == -signal.SIGKILL
    there = len(read(tmp_path / "broken.csv"))
    assert WINDOW <= there < COUNT
    said = run(*table, "--out", tmp_path / "broken.csv")
    assert said.code == 2 and "exists: go on with it by --resume" in said.err
    with (tmp_path / "broken.csv").open("a") as file:
        file.write('row-999,"half a r')  # what a kill in the middle of a write would leave
    said = run(*table, "--out", tmp_path / "broken.csv", "--resume")
    assert said.code == 0 and "of 200 answers are there already" in said.err, said.err
    assert (tmp_path / "broken.csv").read_text() == whole
    said = run(*table, "--out", tmp_path / "broken.csv", "--resume")
    assert said.code == 0 and "200 of 200 answers" in said.err and (tmp_path / "broken.csv").read_text() == whole
    assert (tmp_path / "broken.csv").stat().st_mode & 0o077 == 0  # answers are private


MASKS_APART = 2e-3
"""By which two secure scores of one text may differ: each is that near to the plain one's, and its masks are fresh."""


@pytest.fixture(scope="module")
def secure_whole(place):
    """200 texts through three servers over TLS, undisturbed."""
    out = place / "secure.csv"
    assert started(place, *asking(place), "--scores", "--out", out).wait() == 0
    return read(out)


@pytest.mark.long  # servers are started five times
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)], ids=["kill", "term"])
def test_a_secure_run_that_is_ended_and_resumed_gives_the_same_rows(place, secure_whole, tmp_path, number, code):
    out = tmp_path / "broken.csv"
    process = started(place, *asking(place), "--scores", "--out", out)
    assert ended_in_the_middle(process, out, number) == code
    before = read(out)
    assert WINDOW <= len(before) < COUNT
    said = started(place, *asking(place), "--scores", "--out", out, "--resume", stderr=subprocess.PIPE, text=True)
    assert "of 200 answers are there already" in said.communicate()[1] and said.returncode == 0
    rows = read(out)
    whole_windows = len(before) - len(before) % WINDOW
    assert rows[:whole_windows] == before[:whole_windows] and len(rows) == COUNT
    numbers = [name for name in rows[0] if name.startswith("score")]
    assert len(numbers) == 4  # of the label, and of all three
    for found, expected in zip(rows, secure_whole, strict=True):
        assert {**found, **dict.fromkeys(numbers)} == {**expected, **dict.fromkeys(numbers)}  # id, label, mark, model
        assert all(abs(float(found[name]) - float(expected[name])) <= MASKS_APART for name in numbers)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_what_cannot_be_gone_on_with(run, tmp_path, ending):
    out = tmp_path / f"answers.{ending}"
    (tmp_path / "texts.txt").write_text("the cat\na dog\n")
    table = ("--file", tmp_path / "texts.txt", "--out", out, "--resume")
    assert run(*table).code == 0
    whole = out.read_text()
    out.write_text(whole.replace("simulate", "secure"))
    said = run(*table)
    assert said.code == 2 and "holds answers of another run, from row 1 on" in said.err
    out.write_text(whole)
    (tmp_path / "texts.txt").write_text("the cat\nanother dog\n")
    os.utime(tmp_path / "texts.txt", ns=(2**62, 2**62))
    said = run(*table)
    assert said.code == 2 and "was changed after" in said.err and out.read_text() == whole


def test_formats_and_scores(run):
    rows = run("--format", "csv", text="the cat\na dog\n").out
    found = list(csv.DictReader(io.StringIO(rows)))
    assert [row["id"] for row in found] == ["1", "2"] and list(found[0]) == ["id", "label", "score", "marked", "model"]
    assert "cat" not in rows
    rows = run("--format", "csv", "--scores", "--with-text", text="the cat\n").out
    (found,) = csv.DictReader(io.StringIO(rows))
    assert found["text"] == "the cat" and float(found["score"]) == max(
        float(found[f"score LABEL_{i}"]) for i in range(3)
    )
    (line,) = run("--format", "json", "--with-text", "--pairs", text="the cat\ta dog\n").out.splitlines()
    found = json.loads(line)
    assert (found["text"], found["text_pair"]) == ("the cat", "a dog") and found["model"].endswith(":exact:simulate")
    assert found["label"].startswith("LABEL_") and 0 < found["score"] <= 1
    said = run("--format", "text", text="the cat")
    assert said.out.split("\t")[0].startswith("LABEL_")


def test_jsonl_with_a_named_column(run, tmp_path):
    table = tmp_path / "rows.jsonl"
    table.write_text('{"name": "a", "body": "the cat", "n": 3}\n{"name": "b", "body": "a dog", "n": 4}\n')
    said = run("--file", table, "--column", "body", "--id", "name", "--format", "json")
    assert [json.loads(line)["id"] for line in said.out.splitlines()] == ["a", "b"]
    table.write_text('{"name": "a", "body": "the cat"}\n{"name": "a", "body": "a dog"}\n')
    said = run("--file", table, "--column", "body", "--id", "name")
    assert said.code == 2 and "line 2: column 'name' has 'a' already, in line 1" in said.err


def test_one_document_says_what_answered(run):
    found = json.loads(run("--text", "the cat", "--text-pair", "a dog", "--json").out)
    assert found["answers"][0]["text_pair"] == "a dog" and found["suite"] == "exact" and found["version"]
    assert found["max_error"] < 1e-2 and "rounds" not in found


@pytest.mark.parametrize("text", ["x [/x]", "[name] was admitted", "[red]cat[/red]", "cat \x1b[2Jdog"])
def test_text_is_never_markup(run, text):
    said = run("--text", text, "--text-pair", text)
    assert said.code == 0 and said.out.count(text.replace("\x1b", " ")) == 2, said


@pytest.mark.parametrize(("mode", "label"), [("simulate", "simulated"), ("plain", "plain")])
def test_only_a_secure_result_is_labelled_secure(run, mode, label):
    said = run("--text", "the cat", "--mode", mode)
    assert said.code == 0 and f"{label} result beside the plaintext result" in said.out and "secure" not in said.out


def test_a_long_text_is_cut_if_that_is_asked_for(run):
    long = "cat " * 90
    assert "92 tokens, 64 are allowed" in run("--format", "text", text=long).err
    said = run("--format", "text", "--truncate", text=f"{long}\na dog")
    assert said.code == 0 and "note: 1 of 2 texts were cut at 64 tokens" in said.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--mode", "quick"], "unknown mode 'quick'"),
        (["--format", "xml"], "unknown format 'xml': choose table, text, json, csv"),
        (["--resume"], "--resume goes on with a file"),
        (["--out", ".", "--format", "csv"], "'.' is a folder"),
        (["--out", "answers"], "a table is for people"),
        (["--json", "--out", "a.csv"], "--json prints one document"),
        (["--text", "a", "--file", "b.txt"], "not from both"),
        (["--id", "name"], "--id"),
    ],
)
def test_options_that_do_not_go_together(run, arguments, complaint):
    said = run(*arguments, text="cat")
    assert said.code == 2 and said.out == "" and complaint in said.err


def test_a_folder_as_a_record_leaves_nothing_behind(monkeypatch, capfd, place, tmp_path):
    (tmp_path / "record").mkdir()
    texts = ("--data", place / "texts.csv", "--column", "text")
    said = command(monkeypatch, capfd, "calibrate", place / "model", *texts, "--out", tmp_path / "record")
    assert said.code == 2 and "error [calibration]: the calibration cannot be kept" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_a_full_disk_is_one_line(run):
    said = run("--out", "/dev/full", "--format", "csv", text="cat")
    assert said.code == 2 and "error [output]: '/dev/full' cannot be written: No space left on device" in said.err

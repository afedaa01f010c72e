"""Bad input at the command line: one clear line, exit code 2, no traceback, and nothing started or written."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from checkpoints import WORDS as WORDS_OF
from commands import command

from secformer.secure_model import SecureModel
from secformer.settings import Settings

TEXT = ("--text", "the cat sat")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    build_checkpoint(folder, "bert", "classification", layers=1)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A copy to be spoilt."""
    copy = tmp_path / "checkpoint"
    copy.mkdir()
    for path in original.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.fixture
def refused(monkeypatch, capfd, tmp_path):
    """Run a command that must be refused with a code and a complaint."""
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "secformer.parties.launch.launch", lambda *_: pytest.fail("servers were started for input that is refused")
    )

    def run(code: str, complaint: str, *arguments: object) -> None:
        outcome = command(monkeypatch, capfd, *arguments)
        assert outcome.code == 2 and outcome.out == "", outcome
        lines = outcome.err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"error [{code}]: "), outcome.err
        assert re.search(complaint, lines[0]), lines[0]
        assert "Traceback" not in outcome.err
        assert not (tmp_path / "cache").exists()

    return run


# Texts


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--text", ""], "text 1 is empty"),
        (["--text", "cat", "--text", " \n\t"], "text 2 is empty"),
        (["--text", "\u200b\u200d"], "text 1 is empty: the tokenizer finds no token"),
        (["--text", "cat " * 63], "text 1 has 65 tokens, 64 are allowed; shorten or split it"),
        (["--text", "cat " * 40, "--text-pair", "mat " * 40], "text 1 has 83 tokens"),
        (["--text", "cat", "--text-pair", "mat", "--text-pair", "dog"], "1 texts and 2 second texts"),
        (["--text", "cat", "--text-pair", ""], "second text 1 is empty"),
        (["--text", "\udcff"], "not valid Unicode"),
    ],
)
def test_texts(refused, original, arguments, complaint):
    refused("input", complaint, "run", original, *arguments)


def test_a_private_text_on_the_command_line_is_refused_and_not_repeated(monkeypatch, capfd):
    outcome = command(monkeypatch, capfd, "query", "sentiment", "my secret text")
    assert outcome.code == 2 and "pipe them in" in outcome.err
    assert "secret" not in outcome.out + outcome.err


def test_without_a_text_standard_input_is_read(refused, monkeypatch, original):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n \n"))
    refused("input", "no text was given: pipe one in, a line each, or name a --file", "run", original)


# Checkpoints


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def forget_words(folder: Path) -> None:
    """A table with fewer rows than the tokenizer has tokens."""
    edit_config(folder, vocab_size=60)
    edit_weights(folder, lambda tensors: tensors.update({WORDS: tensors[WORDS][:60].clone()}))


WORDS = "bert.embeddings.word_embeddings.weight"
UP = "bert.encoder.layer.0.intermediate.dense.weight"
SPOILT = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json' is missing"),
    "half a config": (lambda f: (f / "config.json").write_text('{"model_type": '), "cannot be read as JSON"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pickled PyTorch weights only",
    ),
    "half the weights": (cut, "corrupt or truncated"),
    "no safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 64), "corrupt or truncated"),
    "missing tensor": (lambda f: edit_weights(f, lambda t: t.pop(UP)), f"no tensor '{UP}'; it is incomplete"),
    "NaN": (lambda f: edit_weights(f, lambda t: t[UP][3, 4].fill_(torch.nan)), f"'{UP}' holds NaN or infinite"),
    "infinity": (lambda f: edit_weights(f, lambda t: t[UP][3, 4].fill_(torch.inf)), f"'{UP}' holds NaN or infinite"),
    "integers": (lambda f: edit_weights(f, lambda t: t.update({UP: t[UP].to(torch.int8)})), "quantised"),
    "other sizes": (lambda f: edit_config(f, intermediate_size=48), r"has shape .* config\.json asks for"),
    "wrong vocabulary": (forget_words, "tokens, the model's table only 60 rows; it belongs to another model"),
    "no tokenizer": (
        lambda f: [path.unlink() for path in f.iterdir() if "token" in path.name or "vocab" in path.name],
        "has no tokenizer",
    ),
    "half a tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer in .* cannot be read"),
    "unsupported activation": (lambda f: edit_config(f, hidden_act="mish"), "activation 'mish' is not supported"),
    "unsupported model": (lambda f: edit_config(f, model_type="gpt2"), "model type 'gpt2' is not supported"),
    "unsupported head": (
        lambda f: edit_config(f, architectures=["BertForNextSentencePrediction"]),
        "architecture 'BertForNextSentencePrediction' is not supported",
    ),
    "unsupported positions": (
        lambda f: edit_config(f, position_embedding_type="relative_key"),
        "position_embedding_type 'relative_key'",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_checkpoints(refused, folder, name):
    spoil, complaint = SPOILT[name]
    spoil(folder)
    refused("model", complaint, "run", folder, *TEXT)


@pytest.mark.parametrize("action", ["run", "calibrate"])
def test_an_unknown_folder(refused, tmp_path, action):
    texts = TEXT if action == "run" else ()
    refused("model", "nowhere' is not a folder", action, tmp_path / "nowhere", *texts)


def test_a_file_where_a_folder_should_be(refused, original):
    refused("model", "is not a folder", "run", original / "config.json", *TEXT)


# Suites, calibrations


def test_an_unknown_suite(refused, original):
    refused("settings", "unknown suite 'exakt': did you mean exact", "run", original, *TEXT, "--suite", "exakt")
    refused("settings", "unknown suite", "plan", "bert-base", "--suite", "quick")
    refused("settings", "unknown suite", "calibrate", original, "--suite", "")


def test_a_student_under_softmax(refused, folder):
    edit_config(folder, softmax="2quad", quad_shift=5.0)
    refused("settings", "distilled for 2Quad", "run", folder, *TEXT, "--suite", "exact")


def test_mismatched_calibrations(refused, original, tmp_path):
    build_checkpoint(tmp_path / "other", "bert", "classification", layers=1, seed=9)
    settings = Settings(cache_folder=tmp_path / "elsewhere")
    record = SecureModel.from_pretrained(tmp_path / "other", settings=settings).calibrate(TEXTS, few=True)
    refused("calibration", "was made for other weights", "run", original, *TEXT, "--calibration", record)
    record = SecureModel.from_pretrained(original, settings=settings).calibrate(TEXTS, few=True)
    arguments = ("run", original, *TEXT, "--calibration")
    refused("calibration", "was made for suite 'exact'", *arguments, record, "--suite", "fast")
    refused("calibration", "was made for suite 'exact'", *arguments, record, "--suite", "puma")
    refused("calibration", "there is no calibration at", *arguments, tmp_path / "nowhere.json")
    record.write_text("{}")
    refused("calibration", "is no calibration record", *arguments, record)
    refused("calibration", "is no calibration record", *arguments, tmp_path)


# Plans


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["bert-tiny"], "settings", "neither a folder nor one of"),
        (["bert-base", "--tokens", "513"], "settings", "1 to 512 tokens, not 513"),
        (["bert-base", "--tokens", "-3"], "settings", "1 to 512 tokens, not -3"),
        (["bert-base", "--batch", "0"], "settings", "at least one text, not 0"),
    ],
)
def test_plans(refused, arguments, code, complaint):
    refused(code, complaint, "plan", *arguments)


# Data files


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "holds no text"),
        (b"\n \n", "holds no text"),
        (b"\xff\xfe\x00cat", "is UTF-16: save it as UTF-8"),
        (b"sentence\ncaf\xe9\n", "data.tsv' line 2: byte 4 is not UTF-8"),
        (b"index\tsentence1\tsentence2\n", "a header and no text"),
        (b"sentence1\tsentence2\nthe cat\n", "data.tsv' line 2: 1 fields, where line 1 has 2"),
        (b"title\tbody\tlabel\nthe cat\tit sat\t1\n", "several columns may be the text: .* name it with --column"),
    ],
)
def test_data_files(refused, original, tmp_path, content, complaint):
    (tmp_path / "data.tsv").write_bytes(content)
    refused("input.table", complaint, "calibrate", original, "--data", tmp_path / "data.tsv")


def test_data_options(refused, original, tmp_path):
    (tmp_path / "data.tsv").write_text("sentence\tlabel\nthe cat\t1\n")
    arguments = ("calibrate", original, "--data", tmp_path / "data.tsv")
    refused("input.table", "no column 'txt'; its columns are 'sentence', 'label'", *arguments, "--column", "txt")
    refused("input.table", "'label' holds numbers", *arguments, "--column", "label")
    refused("settings", "unknown format 'xml'", *arguments, "--format", "xml")
    refused("settings", "--add needs --data", "calibrate", original, "--add")
    refused("calibration", "not calibrated", *arguments, "--add")
    refused("calibration", "there is no calibration at", *arguments, "--add", "--out", tmp_path / "nowhere.json")
    refused("input", "1 text will not do .* 32 like those to come .*--few", *arguments)


def test_data_files_that_are_no_files(refused, original, tmp_path):
    arguments = ("calibrate", original, "--data")
    refused("input.table", "cannot be read as text", *arguments, tmp_path / "nowhere.txt")
    refused("input.table", "cannot be read as text", *arguments, tmp_path)
    (tmp_path / "no.gz").write_bytes(b"not gzip")
    refused("input.table", "cannot be read as text", *arguments, tmp_path / "no.gz")
    whole = bytearray(gzip.compress(b"the cat sat on a mat\n" * 200))
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    refused("input.table", "cannot be read as text", *arguments, tmp_path / "cut.gz")
    whole[15:25] = b"\xff" * 10
    (tmp_path / "damaged.gz").write_bytes(whole)
    refused("input.table", "cannot be read as text", *arguments, tmp_path / "damaged.gz")


def test_a_place_that_cannot_be_written(monkeypatch, capfd, original, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = (
        "calibrate",
        original,
        "--few",
        "--data",
        tmp_path / "texts.txt",
        "--out",
        tmp_path / "texts.txt" / "record.json",
    )
    outcome = command(monkeypatch, capfd, *arguments)
    last = outcome.err.strip().splitlines()[-1]
    assert outcome.code == 2 and last.startswith("error [calibration]: the calibration cannot be kept"), outcome.err


# Settings


def test_settings_of_the_environment(refused, monkeypatch, original):
    monkeypatch.setenv("SECFORMER_THREADS", "many")
    refused("settings", "threads", "run", original, *TEXT)
    monkeypatch.delenv("SECFORMER_THREADS")
    monkeypatch.setenv("SECFORMER_CASH_FOLDER", "/tmp")
    refused(
        "settings",
        "unknown setting 'cash_folder' in the environment: did you mean cache_folder",
        "run",
        original,
        *TEXT,
    )


# The demo


def test_the_demo_wants_a_sentence_encoder(refused, original, tmp_path):
    refused("model", "compares sentence embeddings", "demo", "--folder", original)
    build_checkpoint(tmp_path / "encoder", layers=1)
    refused("input", "text 1 is empty", "demo", "--folder", tmp_path / "encoder", "--question", " ", "--text", "cat")


# Commands that work


@pytest.fixture
def data(tmp_path):
    """A table of enough texts, gzipped."""
    rows = "\n".join(f"{index}\t{TEXTS[index % 4]} {WORDS_OF[index % 16]}" for index in range(40))
    (tmp_path / "data.tsv.gz").write_bytes(gzip.compress(f"index\tsentence1\n{rows}\n".encode()))
    return tmp_path / "data.tsv.gz"


def test_calibrate_then_plan(monkeypatch, capfd, original, tmp_path, data):
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    outcome = command(monkeypatch, capfd, "calibrate", original, "--data", data, "--limit", "33")
    assert outcome.code == 0 and "33 texts of your own" in outcome.err and "note:" not in outcome.err
    assert len(list((tmp_path / "cache" / "calibration").iterdir())) == 1
    (record,) = (tmp_path / "cache" / "calibration").iterdir()
    assert outcome.err.strip().endswith(f"kept at {record}")  # one line, however long
    record.write_text("spoilt")  # and can be made anew, by the very command the error names
    assert command(monkeypatch, capfd, "run", original, *TEXT).code == 2
    assert command(monkeypatch, capfd, "calibrate", original, "--data", data).code == 0
    outcome = command(monkeypatch, capfd, "plan", original, "--tokens", "12", "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["rounds"] == 26
    outcome = command(monkeypatch, capfd, "plan", "bert-base", "--tokens", "16")
    assert outcome.code == 0 and "total" in outcome.out and "the client moves" in " ".join(outcome.out.split())


def test_calibrate_and_add(monkeypatch, capfd, original, tmp_path, data):
    """A record of one's own place, widened; the same texts twice are refused; few texts are said to be few."""
    record = tmp_path / "record.json"
    (tmp_path / "more.csv").write_text('text,label\n"the dogs, the cats",1\n')
    few = ("calibrate", original, "--data", tmp_path / "more.csv", "--out", record)
    outcome = command(monkeypatch, capfd, *few, "--few")
    assert outcome.code == 0 and "note: this model is calibrated on 1 text of your own only" in outcome.err
    whole = ("calibrate", original, "--data", data, "--out", record)
    assert command(monkeypatch, capfd, *whole, "--column", "sentence1").code == 0
    outcome = command(monkeypatch, capfd, *few, "--add")
    assert outcome.code == 0 and "40 texts of your own" in outcome.err and "1 text of your own" in outcome.err
    assert [source["texts"] for source in json.loads(record.read_text())["provenance"]] == [40, 1]
    outcome = command(monkeypatch, capfd, *few, "--add")
    assert outcome.code == 2 and "part of the calibration already" in outcome.err


def test_built_in_texts_serve_a_model_with_few_positions(monkeypatch, capfd, original, tmp_path):
    """Sample documents are longer than 64 tokens: they are cut, not refused."""
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    outcome = command(monkeypatch, capfd, "calibrate", original, "--suite", "secformer")
    assert outcome.code == 0 and "kept at" in outcome.err
    assert "note: this model is calibrated on the built-in sample only" in outcome.err


def test_a_sample_record_is_announced_when_it_is_used(monkeypatch, capfd, original, tmp_path):
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    SecureModel.from_pretrained(original).calibrate()
    monkeypatch.setattr("secformer.parties.launch.launch", lambda *_: pytest.fail("far enough"))
    with pytest.raises(pytest.fail.Exception, match="far enough"):
        command(monkeypatch, capfd, "run", original, *TEXT)
    noted = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(noted) == 1 and "the built-in sample only" in noted[0] and "secformer calibrate FOLDER" in noted[0]


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(monkeypatch, capfd, original, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("secformer.parties.launch.launch", lambda *_: pytest.fail("far enough"))
    with pytest.raises(pytest.fail.Exception, match="far enough"):
        command(monkeypatch, capfd, "run", original, *TEXT)
    assert "cannot be kept" in (said := capfd.readouterr().err) and "it serves this run only" in said


def test_a_shell_sees_one_line(original, tmp_path):
    environment = {**os.environ, "SECFORMER_CACHE_FOLDER": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "secformer.cli.main", "run", str(original), "--text", ""]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error [input]: text 1 is empty\n"

"""`secformer run` with images, and with questions that have choices: from files, and what is no such file refused."""

from __future__ import annotations

import json
import sys

import pytest
from checkpoints import build_checkpoint
from commands import command
from vit import build, images

from secformer.errors import SettingsError, TableError
from secformer.models.texts import read_texts

PIL = pytest.importorskip("PIL.Image")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(tmp_path / "cache"))
    return lambda name, *arguments: command(monkeypatch, capfd, name, tmp_path / "model", *arguments)


def save(folder, pictures):
    folder.mkdir()
    for number, pixels in enumerate(pictures):
        PIL.fromarray(pixels).save(folder / f"{number:02}.{'png' if number % 2 else 'jpg'}")
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.mark.long
def test_images_from_files(run, tmp_path):
    build(tmp_path / "model", "vit", layers=1)
    calibration, asked = save(tmp_path / "seen", images(12, seed=7)), save(tmp_path / "asked", images(3))
    assert run("calibrate", "--data", calibration, "--few").code == 0
    said = run("run", "--file", asked, "--mode", "simulate", "--format", "json", "--with-text")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["id"] for row in rows] == ["00.jpg", "01.png", "02.jpg"] == [row["text"] for row in rows]
    assert not any(row["marked"] for row in rows)
    alone = run("run", "--file", asked / "01.png", "--mode", "plain", "--format", "json")
    assert json.loads(alone.out)["label"] == rows[1]["label"]


def test_what_is_no_image_is_refused(run, monkeypatch, tmp_path):
    build(tmp_path / "model", "vit", layers=1)
    broken, empty = tmp_path / "broken.png", tmp_path / "empty"
    broken.write_bytes(b"no image")
    empty.mkdir()
    for path, word in ((broken, "cannot be read as an image"), (empty, "holds no image")):
        said = run("run", "--file", path)
        assert said.code and word in said.err
    assert "leave out --column" in run("run", "--file", broken, "--column", "text").err
    assert "takes images" in run("run", "--text", "the cat").err
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "secformer[images]" in run("run", "--file", broken).err


LISTS = '{"asked": "the cat sat", "ends": ["on a mat", "a dog"]}\n{"asked": "it was", "ends": ["good", "bad film"]}\n'
COLUMNS = "asked,one,two\nthe cat sat,on a mat,a dog\nit was,good,bad film\n"
CELLS = 'asked;ends\nthe cat sat;"[""on a mat"", ""a dog""]"\nit was;"[""good"", ""bad film""]"\n'
FILES = {
    "a.jsonl": (LISTS, ("ends",)),
    "b.csv": (COLUMNS, ("one", "two")),
    "c.csv": (CELLS, ("ends",)),
}


@pytest.mark.parametrize("name", FILES)
def test_choices_are_read(tmp_path, name):
    content, choices = FILES[name]
    (tmp_path / name).write_text(content)
    texts = read_texts(tmp_path / name, ("asked",), choices=choices)
    assert texts.choices == (("on a mat", "a dog"), ("good", "bad film"))
    assert texts.in_pairs()[0] == ("the cat sat",) * 2 + ("it was",) * 2


def test_choices_that_are_none_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for ends, word in (
        ("x", "list of two"),
        (["x"], "list of two"),
        (["x", 1], "list of two"),
        (["x"] * 3, "3 choices"),
    ):
        path.write_text(LISTS + json.dumps({"asked": "why", "ends": ends}))
        with pytest.raises(TableError, match=f"line 3.*{word}"):
            read_texts(path, ("asked",), choices=("ends",))
    with pytest.raises(SettingsError, match="choices belong to a question"):
        read_texts(path, choices=("ends",))


@pytest.mark.long
def test_choices_from_a_file(run, tmp_path):
    build_checkpoint(tmp_path / "model", "bert", "choice", layers=1)
    (tmp_path / "a.jsonl").write_text(LISTS)
    given = ("--column", "asked", "--choices", "ends")
    assert run("calibrate", "--data", tmp_path / "a.jsonl", *given, "--few").code == 0
    said = run("run", "--file", tmp_path / "a.jsonl", *given, "--mode", "simulate", "--format", "json")
    assert all(json.loads(line)["choice"] in (0, 1) for line in said.out.splitlines())
    shown = run("run", "--file", tmp_path / "a.jsonl", *given, "--mode", "simulate", "--with-text")
    assert shown.code == 0 and "bad film" in shown.out

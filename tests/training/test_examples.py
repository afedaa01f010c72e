"""Labelled files, good and bad: every complaint names the file and, where there is one, the line."""

from __future__ import annotations

import gzip
import json

import pytest

from secformer.errors import InputError
from secformer.training.examples import LONGEST_TEXT, Columns, find_file, read_examples, split
from secformer.training.tasks import task_named

TABLE = "sentence1\tlabel\nthe cat sat on a mat\t1\nthe dog was very bad\t0\n"


def written(folder, content, name="train.tsv"):
    path = folder / name
    path.write_text(content)
    return path


def test_a_task_of_glue(tmp_path):
    found = read_examples(written(tmp_path, TABLE), task_named("sst2"))
    assert (list(found.texts), found.pairs, list(found.targets)) == (
        ["the cat sat on a mat", "the dog was very bad"],
        None,
        [1, 0],
    )


def test_pairs_and_scores_in_every_format(tmp_path):
    rows = [("a cat sat here, on the mat", "it was a cat", 4.5), ("the dog ran home now", "a film was bad", 0.25)]
    csv = written(tmp_path, "sentence1,sentence2,label\n" + "".join(f'"{a}",{b},{y}\n' for a, b, y in rows), "dev.csv")
    lines = [json.dumps({"sentence1": a, "sentence2": b, "label": y}) for a, b, y in rows]
    jsonl = written(tmp_path, "\n".join(lines) + "\n", "dev.jsonl")
    packed = tmp_path / "packed.tsv.gz"
    table = "sentence1\tsentence2\tlabel\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    packed.write_bytes(gzip.compress(table.encode()))
    for path in (csv, jsonl, packed):
        found = read_examples(path, task_named("stsb"))
        assert list(zip(found.texts, found.pairs, found.targets, strict=True)) == rows


def test_columns_and_labels_of_ones_own(tmp_path):
    content = "words,mood,id\nthe cat sat on the mat,glad,x1\nit was a very bad film,sad,x2\nno good dog here,sad,x3\n"
    path = written(tmp_path, content, "own.csv")
    found = read_examples(path, task_named("labels"), Columns(("words",), "mood"))
    assert found.task.names == ("glad", "sad")
    assert list(found.targets) == [0, 1, 1]


@pytest.mark.parametrize(
    ("content", "task", "complaint"),
    [
        ("sentence1\tmark\nthe cat sat on a mat\t1\nthe dog was bad\t0\n", "sst2", "no column 'label'"),
        (TABLE + "it was a good film\tmaybe\n", "sst2", "line 4: label 'maybe' is none of task sst2's"),
        (TABLE, "stsb", "line 2: task stsb needs pairs of texts"),
        (TABLE, "mrpc", "line 2: task mrpc needs pairs of texts"),
        ("", "sst2", "holds no text"),
        ("sentence1\tlabel\n", "sst2", "holds a header and no text"),
        (TABLE + "a film\t1\t1\n", "sst2", "line 4: 3 fields"),
        (TABLE + " \t1\n", "sst2", "line 4: no text"),
        (TABLE + "it was a good film\t \n", "sst2", "line 4: no label"),
        (TABLE + "film " * (LONGEST_TEXT // 5 + 1) + "\t1\n", "sst2", "line 4: a text of 100,005 characters"),
        (TABLE.replace("\t0", "\t1"), "labels", "has one label only"),
    ],
)
def test_bad_data_is_refused_with_its_place(tmp_path, content, task, complaint):
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=complaint) as caught:
        read_examples(path, task_named(task))
    assert str(path) in str(caught.value)


def test_a_score_that_is_none(tmp_path):
    content = "sentence1\tsentence2\tlabel\nthe cat sat here\ta good film now\t4.5\nthe dog ran\tit was bad\tnan\n"
    with pytest.raises(InputError, match="line 3: 'nan' is no score"):
        read_examples(written(tmp_path, content), task_named("stsb"))


def test_not_utf8(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(TABLE.encode() + b"caf\xe9 was good\t1\n")
    with pytest.raises(InputError, match="line 4"):
        read_examples(path, task_named("sst2"))


def test_where_a_part_is_looked_for(tmp_path):
    with pytest.raises(InputError, match="no dev part of task sst2"):
        find_file(tmp_path, "sst2", "dev")
    path = written(tmp_path, TABLE, "dev.tsv")
    assert find_file(tmp_path, "sst2", "dev") == path
    (tmp_path / "sst2").mkdir()
    inner = written(tmp_path / "sst2", TABLE, "dev.tsv")
    assert find_file(tmp_path, "sst2", "dev") == inner
    assert find_file(path, "sst2", "dev") == path


def test_a_split_is_the_seeds_and_loses_nothing(tmp_path):
    rows = "".join(f"text number {index} is here\t{index % 2}\n" for index in range(50))
    found = read_examples(written(tmp_path, "sentence1\tlabel\n" + rows), task_named("sst2"))
    most, rest = split(found, 0.1, seed=3)
    assert (len(most), len(rest)) == (45, 5)
    assert sorted([*most.texts, *rest.texts]) == sorted(found.texts)
    assert split(found, 0.1, seed=3)[1].texts == rest.texts
    assert split(found, 0.1, seed=4)[1].texts != rest.texts

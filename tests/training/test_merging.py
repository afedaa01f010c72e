"""Rows of several runs as one table: what replaces what, and which of them say that they are of another run."""

from __future__ import annotations

from commands import command

from secformer.training.results import add_row, lost, read_rows


def measured(kind, value, part="dev", **more):
    row = {"base": "tiny", "task": "cola", "row": kind, "seed": 0, "part": part, "mode": "plain", "metric": "f1"}
    return {**row, "value": value, "examples": 100, "settings": {}, **more}


def merged(tmp_path, monkeypatch, capfd, old, new, *arguments):
    for folder, rows in (("old", old), ("new", new)):
        for row in rows:
            add_row(tmp_path / folder / "tiny-cola.json", row)
    found = command(monkeypatch, capfd, "glue", "merge", tmp_path / "new", "--into", tmp_path / "old", *arguments)
    assert found.code == 0, found.err
    return {(row["row"], row["mode"]): row for row in read_rows(tmp_path / "old")}, found.err


def test_rows_of_a_run_replace_earlier_ones_and_what_is_left_of_these_is_marked(tmp_path, monkeypatch, capfd):
    earlier = measured("secformer", 28.0, mode="simulate", suite="secformer", other_run="long ago")
    old = [measured("plain", 30.0), measured("fast", 29.0), measured("quad", 28.0), measured("quad_bare", 5.0), earlier]
    new = [measured("plain", 31.0), measured("fast", 30.5)]
    rows, said = merged(tmp_path, monkeypatch, capfd, old, new)
    assert (rows["fast", "plain"]["value"], rows["plain", "plain"]["value"]) == (30.5, 31.0)
    assert rows["quad", "plain"]["teacher"] == 30.0
    assert rows["quad", "plain"]["other_run"] == "an earlier run; its teacher came to 30.0"
    assert rows["quad_bare", "plain"]["other_run"] == "an earlier run; it needs no teacher"
    assert rows["secformer", "simulate"] == earlier
    assert "other_run" not in rows["fast", "plain"]
    assert "tiny-cola.json: 2 rows, 2 replaced, 2 marked" in said


def test_one_row_of_a_later_run_has_that_run_s_teacher(tmp_path, monkeypatch, capfd):
    old, new = [measured("plain", 30.0), measured("fast", 29.0)], [measured("plain", 31.0), measured("quad", 30.5)]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, new, "--row", "quad")
    assert rows["plain", "plain"]["value"] == 30.0
    assert rows["quad", "plain"]["other_run"] == "a later run; its teacher came to 31.0"
    assert "other_run" not in rows["fast", "plain"]


def test_what_went_on_with_the_same_teacher_needs_no_mark(tmp_path, monkeypatch, capfd):
    old = [measured("plain", 30.0), measured("fast", 29.0)]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, [measured("plain", 30.0), measured("quad", 30.5)])
    assert not any("other_run" in row for row in rows.values()) and len(rows) == 3


def test_a_comparison_whose_teachers_are_new_is_marked_where_it_is_old(tmp_path, monkeypatch, capfd):
    teacher = [
        measured("plain", value, "choice", settings={"rate": rate}) for value, rate in ((50.0, 1e-4), (49.0, 3e-5))
    ]
    old = [*teacher, measured("c 10", 40.0, "ablation"), measured("hidden", 41.0, "ablation"), measured("fast", 29.0)]
    new = [{**teacher[0], "value": 51.0}, teacher[1], measured("hidden", 42.0, "ablation")]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, new)
    assert "its teacher, fine-tuned anew, is another" in rows["c 10", "plain"]["other_run"]
    assert "other_run" not in rows["hidden", "plain"] and "other_run" not in rows["fast", "plain"]


def test_the_order_in_which_runs_ended_makes_no_other_teacher(tmp_path, monkeypatch, capfd):
    """Two learning rates at a time end in any order; a run that was broken off has one of them."""
    teacher = [
        measured("plain", value, "choice", settings={"rate": rate}) for value, rate in ((50.0, 1e-4), (49.0, 3e-5))
    ]
    old = [*teacher, measured("hidden", 41.0, "ablation")]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, [*reversed(teacher), measured("c 10", 40.0, "ablation")])
    assert not any("other_run" in row for row in rows.values())
    rows, _ = merged(tmp_path / "part", monkeypatch, capfd, old, [teacher[1], measured("c 10", 40.0, "ablation")])
    assert not any("other_run" in row for row in rows.values())


def test_the_first_examples_alone_make_no_other_teacher(tmp_path, monkeypatch, capfd):
    old = [measured("plain", 35.0, examples=10), measured("plain", 30.0), measured("fast", 29.0)]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, [measured("plain", 30.0), measured("quad", 30.5)])
    assert not any("other_run" in row for row in rows.values())


def test_another_teacher_of_the_same_metric_is_known_by_what_was_swapped_in_it(tmp_path, monkeypatch, capfd):
    old = [measured("plain", 30.0), measured("quad_swapped", 3.0), measured("fast", 29.0)]
    new = [measured("plain", 30.0), measured("quad_swapped", 4.0), measured("secformer", 30.5)]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, new)
    assert rows["fast", "plain"]["other_run"].startswith("an earlier run") and "other_run" not in rows["plain", "plain"]


def test_what_was_measured_of_an_earlier_student_does_not_pass_for_the_new_one_s(tmp_path, monkeypatch, capfd):
    simulated = measured("fast", 28.5, mode="simulate", suite="fast")
    old = [measured("plain", 30.0), measured("fast", 29.0), simulated, measured("quad", 28.0)]
    rows, _ = merged(tmp_path, monkeypatch, capfd, old, [measured("plain", 30.0), measured("fast", 29.5)])
    assert rows["fast", "simulate"]["other_run"] == "an earlier run; its teacher came to 30.0"
    assert "other_run" not in rows["fast", "plain"] and "other_run" not in rows["quad", "plain"]


def test_fewer_examples_have_no_loss_against_a_teacher_on_all_of_them():
    rows = [
        measured("plain", 30.0),
        measured("fast", 29.0, teacher=31.0),
        measured("fast", 33.0, examples=10, teacher=31.0),
    ]
    assert [lost(rows, row) for row in rows] == [0.0, 2.0, None]

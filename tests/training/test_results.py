"""Rows into a page: nothing that was not measured, spreads over seeds, and losses against plain."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from commands import command

from secformer.errors import InputError
from secformer.training.page import document
from secformer.training.results import TASKS, Cell, Loss, add_row, cell, loss, lost, read_rows

ROOT = Path(__file__).parents[2]
ROW = {"base": "tiny", "task": "mrpc", "seed": 0, "part": "dev", "mode": "plain", "metric": "f1", "examples": 408}
RANGES = {"scores": [[-4.0, 6.0]], "row_sums": [[10.0, 200.0]]}


def rows():
    plain = [{**ROW, "row": "plain", "seed": seed, "value": value} for seed, value in enumerate((90.0, 88.0))]
    fast = [{**ROW, "row": "fast", "seed": seed, "value": value} for seed, value in enumerate((89.0, 88.0))]
    secure = {**ROW, "row": "fast", "mode": "secure", "suite": "fast", "value": 89.5, "examples": 100}
    failed = {**ROW, "row": "secformer", "mode": "twin", "suite": "secformer", "value": None}
    ablated = {
        **ROW,
        "row": "c 10",
        "part": "ablation",
        "value": 80.0,
        "settings": {"ranges": RANGES, "distance": 0.25},
    }
    return [*plain, *fast, {**secure, "agreeing": 99, "flagged": 1}, failed, ablated]


def test_a_page_of_what_was_measured():
    page = document(rows(), [])
    assert "| plain text | exact | exact | as trained |  |  |  | 89.0 ± 1.4 |  |  |" in page
    assert "| ours, `fast`, distilled | as trained |  |  |  | 0.5 ± 0.7 |  |  | 0.5 ± 0.7 | 1 |" in page
    assert "| mrpc | fast | fast | secure | 0 | 100 | 89.5 |  | 99 | 1 |" in page
    assert "| mrpc | secformer | secformer | twin | 0 | 408 | fails |  |  |  |" in page
    assert "| c 10 | 80.0 | 0.2500 | 20 | 6 |" in page
    assert "MPCFormer, swapped only" not in page


def test_losses_are_seed_by_seed():
    page = document([row for row in rows() if (row["row"], row["seed"]) != ("fast", 1)], [])
    assert "| ours, `fast`, distilled | as trained |  |  |  | 1.0 |  |  | 1.0 | 1 |" in page


def test_what_exact_loses_is_measured_in_fixed_point():
    exact = {**ROW, "row": "exact", "mode": "simulate", "suite": "exact", "value": 89.75, "agreeing": 407, "flagged": 0}
    part = {**exact, "mode": "secure", "value": 50.0, "examples": 100}
    page = document([*rows(), exact, part], [])
    assert "| ours, `exact`, no retraining | fixed point |  |  |  | 0.2 |  |  | 0.2 | 1 |" in page
    assert "| mrpc | exact | exact | simulate | 0 | 408 | 89.8 | 0.2 | 407 | 0 |" in page
    assert "| mrpc | exact | exact | secure | 0 | 100 | 50.0 |  | 407 | 0 |" in page


def test_a_seed_that_fails_is_counted_and_leaves_the_mean_to_the_others():
    twins = [{**ROW, "row": "secformer", "seed": 1, "mode": "twin", "suite": "secformer", "value": 87.0}]
    page = document([*rows(), *twins], [])
    assert "| SecFormer | 2Quad | exact | twin |  |  |  | 87.0 (1 of 2 fail) |  |  |" in page
    assert "| SecFormer | twin |  |  |  | 1.0 (1 of 2 fail) |  |  | 1.0 | 1 |" in page
    assert "Fails: the approximation diverges" in page


def test_the_mean_of_losses_has_its_spread_over_seeds():
    found = Loss({"cola": Cell([1.0, 3.0]), "sst2": Cell([0.0]), "rte": Cell([], 1)})
    assert str(found.mean) == "1.0 ± 0.7" and found.counted == 2


def test_a_loss_of_nearly_nothing_has_no_sign():
    assert str(Cell([-0.01])) == "0.0"


def test_goals_are_judged_by_what_was_measured():
    methods = (
        "plain",
        "mpcformer",
        "mpcformer_bare",
        "mpcformer_swapped",
        "secformer",
        "secformer_bare",
        "secformer_swapped",
    )
    found = [{**ROW, "base": "minilm", "row": method, "value": 90.0 - place} for place, method in enumerate(methods)]
    found += [{**row, "mode": "twin"} for row in found if row["row"] in ("mpcformer", "secformer")]
    for method, value in (("fast", 89.0), ("exact", 89.95)):
        found.append({**ROW, "base": "minilm", "row": method, "mode": "simulate", "suite": method, "value": value})
    found += [{**row, "task": "rte"} for row in found]
    page = document(found, [])
    assert "**missed**, 1.00 in fixed point" in page and "**met**, 0.05 in fixed point" in page
    assert "1.0 and 4.0 (2 tasks) distilled, as trained" in page
    failed = [{**row, "value": None} if row["row"] == "mpcformer" else row for row in found]
    assert "nothing that is a number (2 tasks) and 4.0 (2 tasks) distilled, as trained" in document(failed, [])
    assert "| minilm | 0.0 (2) | 1.0 (2) |  | 4.0 (2) | fails |" in document(failed, [])
    refused = [{**row, "value": None} if (row["row"], row["task"]) == ("exact", "rte") else row for row in found]
    assert "**missed**, 0.05 in fixed point, 1 tasks; rte: no number" in document(refused, [])
    assert "| minilm | 0.0 (1, 1 fail) |" in document(refused, [])
    assert "| minilm | 0.0 (2) | 1.0 (2) |  | 4.0 (2) | 1.0 (2) | 5.0 (2) | 2.0 (2) |" in page
    assert "| BERT-base, in the paper |  |  | 0.0 (5) | 0.9 (5) | 4.3 (5) | 3.8 (5) | 31.8 (5) |" in page


def test_bases_stand_in_the_order_of_their_remarks():
    page = document([{**row, "base": base} for base in ("abc", "minilm-first", "minilm") for row in rows()], [])
    heads = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert heads[-4:-1] == ["minilm", "minilm-first", "abc"]


def test_recipes_tried_are_listed():
    tried = {**ROW, "row": "rate 1e-4", "part": "recipe", "value": 30.0, "copied": "a log"}
    near = {"distance": 0.03, "labels_of_teacher": 0.94, "weighting": {"penalty": 0.1}}
    later = {**tried, "row": "altered", "copied": None, "settings": {**near, "ranges": RANGES}}
    page = document([*rows(), {**tried, "settings": {**near, "row_sums_largest_ratio": 26}}, later], [])
    assert "| mrpc | rate 1e-4 | 0.1 | 30.0 † | 0.0300 | 94.0 % | 26 |" in page
    assert "| mrpc | altered | 0.1 | 30.0 | 0.0300 | 94.0 % | 20 |" in page


def test_what_was_copied_by_hand_is_marked():
    secure = {**ROW, "row": "fast", "mode": "twin", "suite": "fast", "value": 70.0, "copied": "a log"}
    assert "| mrpc | fast | fast | twin | 0 | 408 | 70.0 † |" in document([*rows(), secure], [])
    older = {**ROW, "row": "quad_bare", "value": 60.0, "other_run": "the run before"}
    assert "| 60.0 ‡ |" in document([*rows(), older], [])
    assert " † |" not in document(rows(), [])


def test_a_row_of_another_run_loses_against_its_own_teacher():
    other = {**ROW, "row": "mpcformer", "value": 86.0, "other_run": "the run before", "teacher": 86.5}
    assert lost(rows(), other) == 0.5
    assert lost(rows(), {**ROW, "row": "mpcformer", "value": 86.0}) == 4.0


def test_a_cell_without_rows_is_empty():
    assert str(cell(rows(), "tiny", "rte", "plain", "plain")) == ""


def test_a_row_replaces_an_older_one_of_its_kind(tmp_path):
    path = tmp_path / "glue" / "tiny.json"
    for value in (1.0, 2.0):
        add_row(path, {**ROW, "row": "fast", "value": value})
    add_row(path, {**ROW, "row": "fast", "value": 3.0, "seed": 1})
    assert [row["value"] for row in read_rows(path.parent)] == [2.0, 3.0]


@pytest.mark.parametrize("content", ["{", "[1]", '[{"base": "tiny"}]', "[]"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(InputError):
        read_rows(tmp_path)


def test_the_command_writes_page_and_plot(tmp_path, monkeypatch, capfd):
    pytest.importorskip("matplotlib")
    methods = ("plain", "quad_bare", "secformer_bare", "mpcformer_bare", "quad", "secformer", "mpcformer")
    content = [{**ROW, "row": method, "value": 80.0 + place} for place, method in enumerate(methods)]
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "tiny.json").write_text(json.dumps(content))
    out = tmp_path / "glue.md"
    found = command(monkeypatch, capfd, "glue", "report", "--results", tmp_path / "glue", "--out", out)
    assert found.code == 0, found.err
    assert (tmp_path / "glue-figure-1b-tiny.png").stat().st_size > 1000
    page = out.read_text()
    assert "![glue-figure-1b-tiny.png](glue-figure-1b-tiny.png)" in page
    assert "GeLU -1.0, Softmax -2.0, both -3.0 (1 tasks) without distillation" in page
    assert "GeLU -4.0, Softmax -5.0, both -6.0 (1 tasks) distilled" in page


MEASURED = read_rows(ROOT / "docs" / "results" / "glue")


def lost_on(method, mode, task, base="minilm"):
    return loss(MEASURED, base, method, mode).tasks[task]


def test_the_page_in_the_repository_is_what_its_files_give():
    page = (ROOT / "docs" / "results" / "glue.md").read_text(encoding="utf-8")
    plots = [line[2:].split("]")[0] for line in page.splitlines() if line.startswith("![")]
    assert page == document(MEASURED, plots)


def test_what_the_page_says_in_words_is_what_was_measured():
    two = {method: loss(MEASURED, "minilm", method, "plain") for method in ("mpcformer", "secformer")}
    worse = {task: two["mpcformer"].tasks[task].mean - two["secformer"].tasks[task].mean for task in TASKS}
    assert round(worse["mrpc"]) == 1 and round(worse["rte"]) == -1 and round(worse["sst2"], 1) == 0.6
    assert all(0 < worse[task] < 0.25 for task in ("qnli", "cola", "stsb"))
    first = [loss(MEASURED, "minilm-first", method, "plain").mean.mean for method in ("mpcformer", "secformer")]
    assert [round(each, 1) for each in first] == [4.0, 2.0]
    twins = [loss(MEASURED, "minilm", method, "twin").tasks for method in ("mpcformer", "secformer")]
    without = [statistics.fmean(tasks[task].mean for task in TASKS if task != "cola") for tasks in twins]
    assert [round(each, 1) + 0.0 for each in without] == [0.2, 0.1]
    assert [round(each, 1) for each in lost_on("fast", "simulate", "cola").values] == [3.3, -2.2, 0.7]
    assert round(lost_on("fast", "simulate", "cola", "minilm-third").mean, 1) == 3.0
    fast, exact = (loss(MEASURED, "minilm", suite, "simulate").mean.mean for suite in ("fast", "exact"))
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"`exact` loses nothing, a student distilled for `fast` {fast:.1f} points" in said and abs(exact) < 0.05
    recipes = {row["row"]: row["settings"]["distance"] for row in MEASURED if row["part"] == "recipe"}
    assert min(recipes, key=lambda name: recipes[name]) == "all, both stages"


def test_what_the_page_says_of_twelve_layers():
    def losses(method, mode):
        return loss(MEASURED, "gte-small", method, mode)

    def every(method, mode, task, base="gte-small"):
        wanted = (base, method, mode, task)
        return [row for row in MEASURED if tuple(row[key] for key in ("base", "row", "mode", "task")) == wanted]

    def found(method, mode, task, base="gte-small"):
        (row,) = [row for row in every(method, mode, task, base) if row["seed"] == 0]
        return row

    def last_ratios(method):
        rows = [row for task in TASKS for row in every(method, "plain", task)]
        sums = [row["settings"]["ranges"]["row_sums"][-1] for row in rows]
        return [high / low for low, high in sums]

    fixed, others = losses("fast", "simulate"), [task for task in TASKS if task != "rte"]
    assert fixed.counted == 6 and round(statistics.fmean(fixed.tasks[task].mean for task in others), 1) == -0.3
    assert [round(each / 100 * 277) for each in fixed.tasks["rte"].values] == [13, 2, 8]
    teachers = sorted(every("plain", "plain", "rte"), key=lambda row: row["seed"])
    assert [round(row["value"], 1) for row in teachers] == [65.3, 60.3, 61.4]
    flagged = {task: sum(row["flagged"] for row in every("fast", "simulate", task)) for task in TASKS}
    assert flagged == {"qnli": 2, "cola": 0, "stsb": 3, "mrpc": 1, "rte": 1, "sst2": 1} and sum(flagged.values()) == 8
    results = [row for task in TASKS for row in every("fast", "simulate", task)]
    assert sum(row["examples"] for row in results) == 16_019
    assert max((row.get("largest_error", 0), row["task"]) for row in results) == (0.029, "rte")
    for task, count in {"qnli": 4, "cola": 0, "mrpc": 0, "rte": 0, "sst2": 1}.items():
        rows = every("fast", "simulate", task)
        assert sum(row["examples"] - row["agreeing"] - row["flagged"] for row in rows) == count

    assert round(min(last_ratios("secformer")), -3) == 23_000 and round(max(last_ratios("secformer")), -4) == 990_000
    assert round(min(last_ratios("fast"))) == 98 and round(max(last_ratios("fast"))) == 773
    firsts = [found("fast", "plain", "stsb", base) for base in ("gte-small-first", "gte-small")]
    assert [round(row["value"], 1) for row in firsts] == [87.2, 87.3]
    assert [row["settings"]["weighting"]["sums"] for row in firsts] == [3.0, 10.0]
    assert found("fast", "simulate", "stsb", "gte-small-first")["value"] is None
    bases = ("gte-small-first", "gte-small-second", "gte-small-third", "gte-small")
    students = [found("fast", "plain", "qnli", base) for base in bases]
    assert [round(row["value"], 1) for row in students] == [83.8, 83.7, 83.6, 83.5]
    weights = [(row["settings"]["weighting"]["penalty"], row["settings"]["weighting"]["sums"]) for row in students]
    assert weights == [(0.01, 3.0), (0.01, 10.0), (0.1, 30.0), (0.1, 100.0)]
    assert [found("fast", "simulate", "qnli", base)["value"] for base in bases[:3]] == [None, None, None]

    for seed, values in ((1, [62.8, 61.7, 59.9]), (2, [59.2, 59.2, 58.5])):
        again = [row for base in bases for row in every("fast", "plain", "rte", base) if row["seed"] == seed]
        assert [round(row["value"], 1) for row in again] == values
        assert [row["settings"]["weighting"]["sums"] for row in again] == [3.0, 10.0, 30.0]
    assert [row["value"] for base in bases[:2] for row in every("fast", "simulate", "rte", base)] == [None] * 4

    two = [losses(method, "plain") for method in ("mpcformer", "secformer")]
    assert [round(each.mean.mean, 1) for each in two] == [0.5, -0.4]
    worse = {task: round(two[0].tasks[task].mean - two[1].tasks[task].mean, 1) for task in TASKS}
    assert worse == {"qnli": 0.7, "cola": 2.0, "stsb": -0.2, "mrpc": 0.8, "rte": 0.4, "sst2": 1.6}
    assert set(losses("mpcformer", "twin").failed) == set(TASKS)
    assert all(found("mpcformer", "simulate", task)["value"] is None for task in TASKS)
    assert losses("secformer", "twin").failed == ["sst2"]
    assert all(found("secformer", "simulate", task)["value"] is not None for task in TASKS)
    same = {"qnli": {50.54}, "cola": {0.0}, "mrpc": {81.2227}, "rte": {47.2924, 52.7076}}
    for method, task in [(method, task) for method in ("mpcformer_bare", "quad_bare") for task in same]:
        assert set(cell(MEASURED, "gte-small", task, method, "plain").values) <= same[task]

    assert [round(found("plain", "plain", "rte", base)["value"], 1) for base in ("gte-small", "gte-small-before")] == [
        65.3,
        60.6,
    ]
    assert round(lost_on("fast", "simulate", "rte", "gte-small-before").mean, 1) == -0.4
    assert found("fast", "simulate", "stsb", "gte-small-before")["flagged"] == 16
    flags = [lost_on("fast", mode, "stsb", "gte-small-before").mean for mode in ("simulate", "plain")]
    assert round(flags[0] - flags[1], 1) == 1.6
    assert round(found("plain", "plain", "rte", "gte-small-earlier")["value"], 1) == 66.8
    assert round(lost_on("fast", "plain", "rte", "gte-small-earlier").mean, 1) == 4.3
    assert not any(row.get("other_run") for row in MEASURED if row["base"] == "gte-small")

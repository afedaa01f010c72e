"""The table's rows trained on a tiny model: which jobs wait for which, what is written down, what a deadline leaves."""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import build_checkpoint
from commands import command
from lessons import write_lessons

from secformer.errors import InputError
from secformer.training.batches import Rows, encode
from secformer.training.cards import read_card
from secformer.training.choices import DEFAULT, SECFORMER, Choices, recipe_of
from secformer.training.distill import distillation_stages
from secformer.training.examples import find_file, read_examples
from secformer.training.folders import read_base
from secformer.training.jobs import Job, run_jobs
from secformer.training.page import document
from secformer.training.plans import PLANS, RECIPES
from secformer.training.results import read_rows
from secformer.training.runs import chosen_runs
from secformer.training.shelf import Shelf
from secformer.training.stages import run_stages
from secformer.training.study import Lessons, Study, held_out, ordered
from secformer.training.tasks import task_named
from secformer.training.transfer import altered, other_texts, taken_apart

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def counting(log, name, steps):
    def run():
        for step in range(steps):
            log.append(f"{name}{step}")
            yield step

    return run


def test_jobs_take_turns_and_wait_for_what_they_need():
    log = []
    jobs = [
        Job("c", counting(log, "c", 1), ("a",)),
        Job("a", counting(log, "a", 2)),
        Job("b", counting(log, "b", 2)),
    ]
    assert run_jobs(jobs, CPU, 2) == {"a", "b", "c"}
    assert log == ["a0", "b0", "a1", "b1", "c0"]


def test_a_deadline_drops_what_is_unfinished():
    log = []
    assert run_jobs([Job("a", counting(log, "a", 5))], CPU, 1, deadline=time.monotonic() - 1) == set()
    assert log == []


def test_jobs_that_wait_for_nobody_are_an_error():
    with pytest.raises(ValueError, match="none of these jobs can begin: a"):
        run_jobs([Job("a", counting([], "a", 1), ("b",))], CPU, 1)


def test_reports_count_from_when_the_command_began_reading_included():
    lines = []
    run_jobs([Job("a", counting([], "a", 1))], CPU, 1, report=lines.append, began=time.monotonic() - 100)
    (line,) = lines
    assert 100 <= float(line.split()[0]) < 110 and line.endswith("s  a")


def test_a_run_that_fails_stops_only_those_that_need_it():
    def failing():
        yield 0
        raise InputError("the loss is not a number any more")

    log, lines = [], []
    jobs = [Job("a", failing), Job("b", counting(log, "b", 3)), Job("c", counting(log, "c", 1), ("a",))]
    assert run_jobs(jobs, CPU, 2, report=lines.append) == {"b"}
    assert log == ["b0", "b1", "b2"]
    assert any("a failed: the loss" in line for line in lines) and lines[-1] == "none of these jobs can begin: c"


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")],
)
def test_a_run_without_memory_ends_alone(error):
    def greedy():
        yield 0
        raise error

    log, lines = [], []
    jobs = [Job("a", greedy), Job("b", counting(log, "b", 3))]
    assert run_jobs(jobs, CPU, 2, report=lines.append) == {"b"}
    assert log == ["b0", "b1", "b2"] and lines[0].endswith("a failed: out of memory")


def test_another_defect_ends_them_all():
    def defective():
        yield 0
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="do not fit"):
        run_jobs([Job("a", defective), Job("b", counting([], "b", 3))], CPU, 2)


def test_a_failed_run_holds_nothing_when_it_is_reported():
    held = []

    def failing():
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        yield 0
        raise InputError("the loss is not a number any more")

    run_jobs([Job("a", failing)], CPU, 1, report=lambda line: held.append(held[0]()))
    assert held[1] is None


def tiny_study(tmp_path, kind=Study):
    """Of one task, and what its networks start from."""
    build_checkpoint(tmp_path / "base", "bert", "embedding", layers=1, heads=2, hidden=12, intermediate=16)
    write_lessons(tmp_path / "data", train=32, dev=16)
    task = task_named("sst2")
    source = read_base(tmp_path / "base", task, 0, 0.0)
    train, dev = (
        encode(
            source.tokenizer,
            source.network.config,
            read_examples(find_file(tmp_path / "data", "sst2", part), task),
            32,
        )
        for part in ("train", "dev")
    )
    lessons = {"sst2": Lessons(train, dev, *held_out(train, 0.1, 0), lambda plan: [dev])}
    plans = {
        "sst2": replace(PLANS["sst2"], epochs=1, inside=1, prediction=1, batch=32, together=32, rates=(1e-3, 3e-3))
    }
    start = lambda task, seed: read_base(tmp_path / "base", task_named(task), seed, 0.0).network  # noqa: E731
    return kind("tiny", start, lessons, tmp_path / "rows", plans), start


def test_every_row_of_the_table_is_trained_and_written_down(tmp_path):
    study, start = tiny_study(tmp_path)
    jobs = study.jobs()
    assert run_jobs(jobs, CPU, 3) == {job.name for job in jobs}
    rows = read_rows(tmp_path / "rows")
    assert json.loads((tmp_path / "rows" / "tiny-sst2.json").read_text()) == rows
    on_dev = {row["row"] for row in rows if (row["part"], row["mode"]) == ("dev", "plain")}
    assert on_dev == {
        "plain", "fast", "secformer", "mpcformer", "quad", "secformer_bare", "mpcformer_bare", "quad_bare",
        "secformer_swapped", "mpcformer_swapped", "quad_swapped",
    }  # fmt: skip
    assert {row["row"] for row in rows if row["mode"] == "twin"} >= {"puma", "secformer", "mpcformer"}
    assert len([row for row in rows if row["part"] == "choice"]) == 6
    (student,) = [row for row in rows if (row["row"], row["mode"]) == ("fast", "plain")]
    assert student["settings"]["more_texts"] == 16 and student["settings"]["distance"] >= 0
    assert "SecFormer without distillation" in document(rows, [])
    study.rows = [row for row in rows if (row["row"], row["mode"]) not in (("fast", "plain"), ("secformer", "twin"))]
    study.networks.clear()
    assert [job.name for job in study.jobs(chosen_runs(["fast"], [0]))] == ["sst2 plain 0", "sst2 fast 0"]
    study.rows, study.kept = list(rows), lambda name: start("sst2", 0)
    assert study.jobs() == []
    study.rows = [row for row in rows if (row["row"], row["mode"]) not in (("fast", "plain"), ("secformer", "twin"))]
    assert [job.name for job in study.jobs()] == [
        "sst2 secformer 0",
        "sst2 fast 0",
    ]  # a run that was broken off counts for nothing
    assert not any(row["row"] == "secformer" for row in study.rows)


class Hot(Study):
    """Students of MPCFormer never learn, others from a third of the rate on."""

    def _train(self, name, start, stages):
        rate = stages(start.trainable())[0].trainer().schedule.learning_rate
        if "plain" not in name and ("mpcformer" in name or rate > 1e-4):
            raise InputError("the loss is not a number any more")
        return super()._train(name, start, stages)


def test_a_distillation_that_diverges_is_tried_slower_and_else_has_no_number(tmp_path):
    study, _ = tiny_study(tmp_path, Hot)
    study.plans["sst2"], study.penalty = replace(study.plans["sst2"], rates=(1e-3,)), 0.2
    run_jobs(study.jobs(chosen_runs(["plain", "fast", "mpcformer"], [0])), CPU, 1)
    (fast,) = [row for row in study.rows if row["row"] == "fast"]
    assert round(fast["settings"]["inside"]["learning_rate"], 6) == 9e-5
    assert fast["settings"]["weighting"]["penalty"] == 0.2
    failed = [(row["mode"], row["value"]) for row in study.rows if row["row"] == "mpcformer"]
    assert failed == [("plain", None), ("twin", None)]
    assert study.jobs(chosen_runs(["mpcformer"], [0])) == []  # that it has none stands as well


class TooFast(Study):
    """Models with functions swapped learn nothing at the larger learning rate."""

    def _steps(self, name, start, stages):
        if name == "choice sst2 secformer_bare 0.003":
            raise InputError("the loss is not a number any more")
        return super()._steps(name, start, stages)


def test_a_learning_rate_at_which_a_swapped_model_diverges_is_not_chosen(tmp_path):
    study, _ = tiny_study(tmp_path, TooFast)
    jobs = study.jobs(chosen_runs(["secformer_bare"], [0]))
    assert run_jobs(jobs, CPU, 1) == {job.name for job in jobs}
    (bare,) = [row for row in study.rows if (row["part"], row["mode"]) == ("dev", "plain")]
    assert bare["settings"]["rate"] == 1e-3 and bare["value"] is not None


class Broken(Study):
    """On a device that computes nothing right."""

    def _steps(self, name, start, stages):
        raise InputError("the loss is not a number any more")


def test_where_not_even_a_teacher_learns_nothing_is_believed(tmp_path):
    study, _ = tiny_study(tmp_path, Broken)
    study.plans["sst2"] = replace(study.plans["sst2"], rates=(1e-3,))
    file = tmp_path / "rows" / "tiny-sst2.json"
    run_jobs(study.jobs(chosen_runs(["secformer_bare"], [0])), CPU, 1)
    assert not study.failed and [row["value"] for row in json.loads(file.read_text())] == [None, None]
    run_jobs(study.jobs(chosen_runs(["plain"], [0])), CPU, 1)
    assert study.failed == ["sst2 plain 0"]
    assert json.loads(file.read_text()) == []  # at once: nobody knows when the process is killed
    lines = []
    run_jobs(study.jobs(chosen_runs(["quad_bare"], [0])), CPU, 1, report=lines.append)
    assert json.loads(file.read_text()) == [] and "sst2 quad_bare 0 failed" in lines[0]


def rows_of(study):
    return {(row["row"], row["mode"]): row for row in json.loads((study.out / "tiny-sst2.json").read_text())}


def test_of_a_run_that_is_killed_while_it_measures_no_row_is_left(tmp_path, monkeypatch):
    study, _ = tiny_study(tmp_path)
    study.plans["sst2"] = replace(study.plans["sst2"], rates=(1e-3,))
    monkeypatch.setattr("secformer.training.study.twin_score", lambda *_: sys.exit(143))
    with pytest.raises(SystemExit):
        run_jobs(study.jobs(chosen_runs(["plain"], [0])), CPU, 1)
    assert not list(study.out.glob("*.json"))


def test_rows_whose_teacher_was_lost_and_trained_anew_say_whose_they_are(tmp_path, monkeypatch):
    """As on a machine that has the rows of an earlier call but not its models."""
    study, _ = tiny_study(tmp_path)
    scores = itertools.count(50)  # no teacher is like another on a GPU
    monkeypatch.setattr("secformer.training.study.score_on", lambda *_: float(next(scores)))
    study.plans["sst2"] = replace(study.plans["sst2"], rates=(1e-3,))
    run_jobs(study.jobs(chosen_runs(["plain", "fast"], [0])), CPU, 1)
    before = rows_of(study)
    study.networks.clear()
    run_jobs(study.jobs(chosen_runs(["secformer"], [0])), CPU, 1)
    after = rows_of(study)
    assert after["plain", "plain"]["value"] > before["plain", "plain"]["value"]
    assert after["fast", "plain"]["teacher"] == before["plain", "plain"]["value"]
    assert {key[0] for key, row in after.items() if "other_run" in row} == {"fast"}


def test_of_the_networks_only_teachers_are_held(tmp_path):
    study, _ = tiny_study(tmp_path)
    jobs = study.jobs(chosen_runs(["plain", "fast", "quad_bare"], [0]))
    assert run_jobs(jobs, CPU, 2) == {job.name for job in jobs}
    assert set(study.networks) == {"choice sst2 plain 0.001", "choice sst2 plain 0.003", "sst2 plain 0"}


def test_a_stage_that_is_over_holds_nothing_while_the_next_one_runs(tmp_path):
    """Its graphs and moments are as large as the model; nobody may have to collect garbage first."""
    study, _ = tiny_study(tmp_path)
    trainers = []

    def watched(stage):
        def trainer():
            assert [each for each in trainers if each() is not None] == []
            made = stage.trainer()
            trainers.append(weakref.ref(made))
            return made

        return replace(stage, trainer=trainer)

    rows = study.lessons["sst2"].train
    teacher = study.base("sst2", 0)
    recipe = recipe_of(study.plans["sst2"], SECFORMER, DEFAULT)
    gc.disable()
    try:
        stages = lambda network: [*map(watched, distillation_stages(network, teacher, rows, recipe, 0))]  # noqa: E731
        list(study._steps("sst2 fast 0", teacher, stages))
        run_stages(stages(teacher.trainable()), None)
    finally:
        gc.enable()
    assert len(trainers) == 4


def test_rows_are_trained_in_the_order_they_are_asked_for(tmp_path):
    study, _ = tiny_study(tmp_path)
    rows = ["plain", "fast", "quad", "secformer_bare"]
    assert [job.name for job in ordered(study.jobs(chosen_runs(rows, [0])), rows)] == [
        "choice sst2 plain 0.001", "choice sst2 plain 0.003", "sst2 plain 0", "sst2 fast 0", "sst2 quad 0",
        "choice sst2 secformer_bare 0.001", "choice sst2 secformer_bare 0.003", "sst2 secformer_bare 0",
    ]  # fmt: skip


def test_two_processes_that_share_a_file_lose_no_row(tmp_path):
    row = {"base": "tiny", "task": "mrpc", "row": "fast", "part": "dev", "mode": "plain"}
    line = f"from pathlib import Path; from secformer.training.results import add_row; path = Path({str(tmp_path)!r}, 'x.json'); "
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", f"{line}[add_row(path, {{**{row!r}, 'seed': 2 * n + {half}}}) for n in range(50)]"]
        )
        for half in range(2)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(each["seed"] for each in json.loads((tmp_path / "x.json").read_text())) == list(range(100))


def test_the_command_says_how_long_it_read_and_leaves_nothing_running(tmp_path, monkeypatch, capfd):
    build_checkpoint(tmp_path / "base", "bert", "embedding", layers=1, heads=2, hidden=12, intermediate=16)
    write_lessons(tmp_path / "data", train=64, dev=16)
    before = set(threading.enumerate())
    found = command(
        monkeypatch, capfd, "glue", "train", tmp_path / "base", "--data", tmp_path / "data", "--out", tmp_path / "rows",
        "--task", "sst2", "--row", "secformer_bare", "--share", "0.1", "--choices", ROOT / "docs/results/glue/minilm",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert "examples read, 1 runs to do" in found.err and "1 of 1 runs done" in found.err
    assert {row["row"] for row in read_rows(tmp_path / "rows")} == {"secformer_bare"}
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]


def test_a_shelf_gives_back_what_it_was_given_and_keeps_no_attempts(tmp_path):
    build_checkpoint(tmp_path / "base", "bert", "embedding")
    network = read_base(tmp_path / "base", task_named("sst2"), 0, 0.0).network
    shelf = Shelf(tmp_path / "models", tmp_path / "base", "cpu", 32)
    shelf.keep("sst2 plain 1", network)
    shelf.keep("choice sst2 plain 0.001", network)
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["sst2-plain-1"]
    kept = shelf.kept("sst2 plain 1")
    assert kept is not None and shelf.kept("sst2 fast 1") is None
    word = kept.weights["word"]
    assert torch.equal(word, network.weights["word"].half().float())
    card = read_card(tmp_path / "models" / "sst2-plain-1")
    assert card is not None and (card["settings"]["seed"], card["settings"]["longest"]) == (1, 32)


def texts(count, length):
    ids = torch.full((count, length), length, dtype=torch.int32)
    return Rows(ids, ids, torch.full((count,), length), torch.zeros(count))


def test_other_texts_are_of_the_same_kind_and_not_too_long():
    train = {
        "cola": texts(5, 20),
        "sst2": texts(50, 12),
        "mrpc": texts(50, 12),
        "qnli": texts(9, 70),
        "rte": texts(3, 64),
    }
    (found,) = other_texts("cola", train, 20, 64)
    assert len(found) == 20 and set(found.lengths.tolist()) == {12}
    (found,) = other_texts("mrpc", {**train, "mrpc": texts(2, 100)}, 8, 64)
    assert len(found) == 3 and found.ids.shape[1] == 64
    assert other_texts("sst2", train, 0, 64) == []


def test_the_recipe_nearest_to_the_teacher_is_chosen():
    rows = [
        {"task": task, "row": name, "part": "ablation", "value": 50.0, "settings": {"distance": far}}
        for task, name, far in (("mrpc", "a", 0.1), ("mrpc", "b", 0.2), ("cola", "a", 0.9), ("cola", "b", 0.3))
    ]
    assert Choices(rows, PLANS).best(["a", "b"]) == "b"


def test_pairs_are_taken_apart_with_cls_before_the_second():
    ids = torch.tensor([[101, 1, 2, 102, 3, 102, 0], [101, 4, 102, 5, 6, 7, 102]], dtype=torch.int32)
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]], dtype=torch.int32)
    apart = taken_apart(Rows(ids, types, torch.tensor([6, 7]), torch.zeros(2)))
    found = [row[:length].tolist() for row, length in zip(apart.ids, apart.lengths, strict=True)]
    assert found == [[101, 1, 2, 102], [101, 4, 102], [101, 3, 102], [101, 5, 6, 7, 102]]
    assert not apart.types.any()


def test_an_altered_text_differs_by_one_change_between_its_ends():
    ids = torch.tensor([[101, *range(1000 + 10 * row, 1006 + 10 * row), 102, 0, 0] for row in range(300)]).int()
    rows = Rows(ids, torch.zeros_like(ids), torch.full((300,), 8), torch.zeros(300))
    short = Rows(ids[:1, :3], torch.zeros(1, 3).int(), torch.tensor([3]), torch.zeros(1))
    assert altered(short, 2) == [] and altered(rows, 0) == []
    first, second = altered(rows, 2)
    assert not torch.equal(first.ids, second.ids) and torch.equal(altered(rows, 1)[0].ids, first.ids)
    kinds = set()
    for before, after, length in zip(ids.tolist(), first.ids.tolist(), first.lengths.tolist(), strict=True):
        old, new = before[:8], after[:length]
        assert (new[0], new[-1]) == (101, 102)
        if length == 7:
            kinds.add("left out")
            assert sum(new == old[:place] + old[place + 1 :] for place in range(1, 7)) == 1
        elif sorted(new) == sorted(old):
            kinds.add("exchanged")
            assert sum(one != other for one, other in zip(old, new, strict=True)) in (0, 2)
        else:
            kinds.add("replaced")
            assert sum(one != other for one, other in zip(old, new, strict=True)) == 1 and 102 not in new[:-1]
    assert kinds == {"left out", "exchanged", "replaced"}


def test_the_plan_whose_student_was_nearest_is_taken():
    rows = [
        {"task": "cola", "row": name, "part": "recipe", "settings": {"distance": far}}
        for name, far in (("altered", 0.3), ("all, both stages", 0.1), ("no longer tried", 0.01))
    ]
    choices = Choices(rows, PLANS)
    assert choices.plan("cola") == replace(PLANS["cola"], **RECIPES["cola"]["all, both stages"])
    assert choices.plan("mrpc") == PLANS["mrpc"]


def test_a_shortened_plan_has_its_share_of_the_epochs_and_one_at_least():
    plan = PLANS["qnli"].shortened(0.34)
    assert (plan.epochs, plan.inside, plan.prediction) == (1, 2, 1)
    assert PLANS["qnli"].shortened(1.0) == PLANS["qnli"]

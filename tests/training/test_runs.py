"""Fine-tuning and distillation from end to end, on the command line: a student that is better than swapped functions, and the
same bits after a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch
from checkpoints import build_checkpoint
from commands import command
from lessons import write_lessons

from secformer.errors import SettingsError
from secformer.models.config_json import load_config
from secformer.training import checkpoints
from secformer.training.checkpoints import FILE
from secformer.training.distill import DistillSettings, Recipe, distill
from secformer.training.evaluate import Answers, _evaluation, evaluate, spread
from secformer.training.examples import Examples, find_file, read_examples
from secformer.training.finetune import FinetuneSettings, finetune, schedules
from secformer.training.losses import Weighting
from secformer.training.network import Swaps
from secformer.training.stages import choose
from secformer.training.tasks import task_named
from secformer.training.trainer import Schedule

RECIPE = (
    "--softmax", "2quad", "--gelu", "quad", "--attention", "0", "--penalty", "0.01", "--batch", "16", "--longest", "32",
    "--inside-epochs", "6", "--inside-rate", "3e-3", "--prediction-epochs", "2", "--prediction-rate", "1e-3",
    "--checkpoint-every", "10",
)  # fmt: skip


@pytest.fixture(scope="module")
def lessons(tmp_path_factory):
    """The base, the data and a teacher."""
    folder = tmp_path_factory.mktemp("lessons")
    build_checkpoint(folder / "base", "bert", "embedding", hidden=48, intermediate=96, heads=4)
    write_lessons(folder / "data")
    settings = FinetuneSettings(schedules(10, [3e-3], 16), Swaps())  # longer than the model takes: cut there
    train, dev = examples(folder)
    finetune(folder / "base", folder / "teacher", train, dev, settings)
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models as small as these are faster without others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def examples(folder):
    return [read_examples(find_file(folder / "data", "sst2", part), task_named("sst2")) for part in ("train", "dev")]


def distilling(lessons, out):
    return ["distill", lessons / "teacher", "--task", "sst2", "--data", lessons / "data", "--out", out, *RECIPE]


def killed_in_the_middle(lessons, out):
    """Until the second stage, or all of the first, would be lost."""
    line = [sys.executable, "-m", "secformer.cli.main", *map(str, distilling(lessons, out))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not (out / FILE).is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_distilled_student_and_the_same_bits_after_a_kill(lessons, tmp_path, monkeypatch, capfd):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    killed_in_the_middle(lessons, broken)
    assert (broken / FILE).is_file() and not (broken / "config.json").exists()
    for out in (broken, whole):
        done = command(monkeypatch, capfd, *distilling(lessons, out))
        assert done.code == 0, done.err
    assert not (broken / FILE).exists()
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    card = json.loads((whole / "card.json").read_text())
    assert card["plain"]["teacher"] > 90
    assert card["plain"]["student"] > card["plain"]["before_distillation"] + 5
    before, after = (max(high for _, high in card["ranges"][when]["scores"]) for when in ("before", "after"))
    assert after < before
    assert "student" in (whole / "README.md").read_text()


def test_a_checkpoint_of_other_settings_is_not_taken_up(lessons, tmp_path):
    checkpoints.write(tmp_path, checkpoints.fingerprint({"other": "settings"}), 0, {"weight": torch.zeros(2)})
    train, dev = examples(lessons)
    recipe = Recipe(Swaps("2quad", 5.0), Schedule(1, 1e-3, 16), Schedule(1, 1e-3, 16), Weighting())
    with pytest.raises(SettingsError, match="belongs to a run with other settings"):
        distill(lessons / "teacher", tmp_path, train, dev, DistillSettings((recipe,), longest=32))


def test_texts_of_other_tasks_are_taught_too(lessons, tmp_path, monkeypatch, capfd):
    (lessons / "data" / "cola").mkdir(exist_ok=True)
    for part in ("train", "dev"):
        kept = find_file(lessons / "data", "sst2", part)
        (lessons / "data" / "cola" / kept.name).write_bytes(kept.read_bytes())
    few = ("--inside-epochs", "1", "--prediction-epochs", "1", "--batch", "32", "--longest", "32", "--also", "cola")
    few += ("--altered", "1", "--both")
    found = command(
        monkeypatch, capfd, "distill", lessons / "teacher", "--task", "sst2", "--data", lessons / "data",
        "--out", tmp_path, *few,
    )  # fmt: skip
    assert found.code == 0, found.err
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["made_from"]["texts_of_other_tasks"] == {"cola": card["made_from"]["train_examples"]}
    assert (card["settings"]["altered"], card["settings"]["both"]) == (1, True)


def test_a_smaller_student_runs_under_fast(lessons, tmp_path):
    train, dev = examples(lessons)
    recipe = Recipe(
        Swaps("2quad", 5.0), Schedule(3, 3e-3, 16), Schedule(1, 1e-3, 16), Weighting(attention=0.0, penalty=0.01)
    )
    settings = DistillSettings((recipe,), layers=1, vocabulary=80, longest=32, half=True)
    card = distill(lessons / "teacher", tmp_path, train, dev, settings)
    config = load_config(tmp_path)
    assert (config.layers, config.softmax) == (1, "2quad") and config.vocabulary <= 80
    some = train.chosen(range(100))
    plain, simulated = evaluate(tmp_path, dev, some, "fast", ["plain", "simulate"], limit=16)
    assert plain.agreeing == plain.examples == 16 and plain.largest_error == 0
    assert 0 < simulated.largest_error < 0.05
    assert simulated.agreeing + simulated.flagged >= 15
    assert card["cost"]["suite"] == "fast" and card["cost"]["rounds"] > 0


def test_the_best_of_several_settings_is_kept_and_said(lessons, tmp_path, monkeypatch, capfd):
    arguments = (
        "--epochs",
        "1",
        "--batch",
        "32",
        "--longest",
        "32",
        "--learning-rate",
        "1e-6",
        "--learning-rate",
        "3e-3",
    )
    found = command(
        monkeypatch, capfd, "finetune", lessons / "base", "--task", "sst2", "--data", lessons / "data",
        "--out", tmp_path, *arguments,
    )  # fmt: skip
    assert found.code == 0, found.err
    card = json.loads((tmp_path / "card.json").read_text())
    scores = card["settings"]["chosen_on_a_tenth_of_train"]
    assert len(scores) == 2
    best = max(scores, key=scores.__getitem__)
    assert f"rate {card['settings']['learning_rate']:g}" in best


def test_a_score_once_found_is_not_looked_for_again(tmp_path):
    tried = []

    def attempt(index, folder):
        tried.append(index)
        if len(tried) == 2:
            raise KeyboardInterrupt
        return float(index)

    with pytest.raises(KeyboardInterrupt):
        choose(["a", "b", "c"], tmp_path, attempt)
    assert choose(["a", "b", "c"], tmp_path, attempt) == (2, {"a": 0.0, "b": 1.0, "c": 2.0})
    assert tried == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("distill", "teacher", "--task", "stsb"), "no train part of task stsb"),
        (("distill", "base", "--task", "sst2"), "has head 'embedding'"),
        (("eval", "teacher", "--task", "sst2", "--mode", "plain,magic"), "unknown mode 'magic'"),
        (
            ("eval", "teacher", "--task", "sst2", "--mode", "plain", "--suite", "fasst"),
            "unknown suite 'fasst': did you mean fast",
        ),
        (("distill", "teacher", "--task", "sst2", "--gelu", "relu"), "unknown gelu 'relu'"),
        (
            ("distill", "teacher", "--task", "sst2", "--softmax", "exact", "--row-sums", "1"),
            "row sums are those of 2Quad",
        ),
    ],
)
def test_errors_of_a_user_are_one_line(lessons, tmp_path, monkeypatch, capfd, arguments, complaint):
    name, folder, *rest = arguments
    out = () if name == "eval" else ("--out", tmp_path)
    found = command(monkeypatch, capfd, name, lessons / folder, "--data", lessons / "data", *out, *rest)
    assert found.code == 2
    assert complaint in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(("count", "most"), [(5749, 2000), (8551, 2000), (2001, 2000), (1999, 2000), (7, 3), (1, 5)])
def test_calibration_texts_come_from_all_over_a_file(count, most):
    """Where it begins and where it ends, no more than were asked for, no gap wider than another by more than one."""
    places = spread(count, most)
    gaps = {after - before for before, after in pairwise([*places, count])}
    assert len(places) == min(count, most) and places[0] == 0
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


def test_errors_are_those_of_results_that_are_not_flagged():
    some = Examples(task_named("sst2"), ["a", "b", "c"], None, [0, 1, 1], "")
    reference = torch.tensor([[1.0, -1.0], [0.0, 2.0], [0.0, 1.0]])
    results = reference + torch.tensor([[0.0, 0.001], [1e9, 0.0], [-0.002, 0.0]])
    for flags, error in (([False, True, False], 0.002), ([True, True, True], 0.0)):
        row = _evaluation("simulate", "fast", some, Answers(results, torch.tensor(flags)), reference, "dev", 1.0)
        assert row.largest_error == pytest.approx(error) and row.flagged == sum(flags)


def test_a_device_that_cannot_be_used_is_named_before_anything_is_computed(lessons):
    train, dev = examples(lessons)
    with pytest.raises(SettingsError, match="device 'cuda:77' cannot be used"):
        evaluate(lessons / "teacher", dev, train, "exact", ["plain"], device="cuda:77")

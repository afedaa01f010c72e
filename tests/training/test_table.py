"""The table in one call: the order of things, what a refusal, a death and a deadline do, and that a later call goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from checkpoints import build_checkpoint
from commands import command
from lessons import write_lessons
from safetensors.torch import load_file, save_file

from secformer.cli import table as driving
from secformer.cli.table import Driver, Means, Places, Running, make_table, means_for
from secformer.errors import InputError, SettingsError
from secformer.training.cards import write_card
from secformer.training.results import add_row, known_rows, read_rows
from secformer.training.table import ROWS, Table, Training

PROGRAM = '''
"""Stands in for `secformer`: writes what `glue train` and `eval` would, as the file `orders` tells it to."""
import json, os, sys, time
from pathlib import Path
from secformer.training.results import add_row, known_rows

words = sys.argv[1:]
given = {}
for name, value in zip(words, words[1:]):
    if name.startswith("--"):
        given.setdefault(name[2:], []).append(value)
here = Path(__file__).parent
orders = json.loads((here / "orders").read_text())
task = given["task"][0]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([words[0], given]) + "\\n")


def row(kind, seed, mode="plain", value=50.0, **more):
    found = {"base": "tiny", "task": task, "row": kind, "seed": int(seed), "part": "dev", "mode": mode, "metric": "f1"}
    return {**found, "value": value, "examples": 400, "settings": {}, **more}


if words[0] == "glue":
    out, models = Path(given["out"][0]), Path(given["models"][0])
    for kind in given["row"]:
        for seed in given["seed"]:
            name = f"{task} {kind} {seed}"
            known = {(each["base"], each["task"], each["row"], each["seed"]) for each in known_rows(out)}
            if ("tiny", task, kind, int(seed)) in known:
                continue
            if name in orders["die"] and not (here / "died").exists():
                (here / "died").touch()
                sys.exit(3)
            time.sleep(orders["sleep"].get(kind, 0))
            (models / f"{task}-{kind}-{seed}").mkdir(parents=True)
            (models / f"{task}-{kind}-{seed}" / "config.json").write_text(given["row-sums"][0])
            settings = {"sums": float(given["row-sums"][0]), "penalty": given.get("penalty")}
            add_row(out / f"tiny-{task}.json", row(kind, seed, settings=settings))
            if kind == "plain":
                add_row(out / f"tiny-{task}.json", row("quad_swapped", seed))
            if kind.startswith(("secformer", "mpcformer")):
                add_row(out / f"tiny-{task}.json", row(kind, seed, "twin", suite=kind.split("_")[0]))
else:
    sums = float((Path(words[1]) / "config.json").read_text())
    seed, suite, mode = words[1].rsplit("-", 1)[1], given["suite"][0], given["mode"][0]
    examples = min(400, int(given.get("limit", [400])[0]))
    refused = suite == "fast" and mode == "simulate" and sums < orders["enough"]
    more = {"value": None, "settings": {"refused": "2Quad's row sums range from 1 to 9"}} if refused else {}
    add_row(Path(given["results"][0]), row(given["row"][0], seed, mode, suite=suite, **{"examples": examples, **more}))
    sys.exit(2 if refused else 0)
'''


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A program that only pretends, what it is told to do, and a function that makes the table with it."""
    monkeypatch.setattr(driving, "PAUSE", 0.02)
    (tmp_path / "program.py").write_text(PROGRAM)
    return Stage(tmp_path)


class Stage:
    def __init__(self, folder):
        self.folder = folder
        self.out, self.models = folder / "rows", folder / "models"

    def make(self, tasks=("mrpc",), enough=0.0, die=(), sleep=None, seconds=None, **table):
        (self.folder / "orders").write_text(json.dumps({"enough": enough, "die": die, "sleep": sleep or {}}))
        program = (sys.executable, str(self.folder / "program.py"))
        means = Means(workers=2, evaluators=2, seconds=seconds, program=program)
        self.table = Table("tiny", self.out, self.models, tasks, **{"seeds": (0,), **table})
        make_table(
            self.table, Places(self.folder / "tiny", self.folder, self.out, self.models), means, time.monotonic()
        )

    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def rows(self, **wanted):
        return [row for row in known_rows(self.out) if all(row.get(key) == value for key, value in wanted.items())]


def test_every_row_is_trained_and_every_model_evaluated(stage, capfd):
    stage.make(("mrpc", "sst2"), secure=8)
    trained, *_ = [given for kind, given in stage.calls() if kind == "glue"]
    assert trained["row"] == list(ROWS)
    assert {row["row"] for row in stage.rows(mode="plain", task="sst2")} == {*ROWS, "quad_swapped"}
    simulated = {(row["row"], row["examples"]) for row in stage.rows(mode="simulate", task="mrpc")}
    assert simulated == {("fast", 400), ("exact", 400), ("secformer", 300), ("mpcformer", 300), ("puma", 300)}
    assert {row["row"]: row["examples"] for row in stage.rows(mode="secure", task="mrpc")} == {
        "secformer": 8,
        "exact": 8,
        "fast": 8,
    }
    assert "all done" in capfd.readouterr().err
    before = len(stage.calls())
    stage.make(("mrpc", "sst2"), secure=8)
    assert len(stage.calls()) == before  # nothing is missing


def test_a_refused_fast_is_tried_again_from_the_same_teacher_and_the_refused_set_aside(stage, capfd):
    stage.make(enough=10.0, penalty=0.02)
    told = [line.split(": ")[-1] for line in capfd.readouterr().err.splitlines() if "ended after" in line]
    assert [line for line in told if "mrpc-fast-0," in line] == [
        "simulate-mrpc-fast-0, refused", "simulate-mrpc-fast-0, refused", "simulate-mrpc-fast-0, f1 50.0, 0 flagged",
    ]  # fmt: skip
    attempts = [given for kind, given in stage.calls() if kind == "glue" and given["row"] == ["fast"]]
    assert [(given["row-sums"], given["penalty"]) for given in attempts] == [(["3.0"], ["0.01"]), (["10.0"], ["0.01"])]
    (kept,) = stage.rows(base="tiny", row="fast", mode="plain")
    assert kept["settings"]["sums"] == 10.0
    assert [row["value"] for row in stage.rows(base="tiny", row="fast", mode="simulate")] == [50.0]
    for base, sums in (("tiny-first", 0.0), ("tiny-second", 3.0)):
        aside = {(row["row"], row["mode"]): row for row in read_rows(stage.out) if row["base"] == base}
        assert set(aside) == {("plain", "plain"), ("fast", "plain"), ("fast", "simulate")}
        assert aside["fast", "plain"]["settings"]["sums"] == sums and aside["fast", "simulate"]["value"] is None
    assert {path.name for path in stage.models.glob("mrpc-fast-*")} == {
        "mrpc-fast-0", "mrpc-fast-0-first", "mrpc-fast-0-second",
    }  # fmt: skip


@pytest.mark.parametrize("sums, attempts", [(0.0, 5), (3.0, 4)])
def test_after_the_last_attempt_the_refusal_stands(stage, sums, attempts):
    stage.make(enough=1000.0, sums=sums)
    bases = {row["base"] for row in stage.rows(row="fast", mode="simulate")}
    assert bases == {"tiny", *(f"tiny-{name}" for name in ("first", "second", "third", "fourth")[: attempts - 1])}
    assert all(row["value"] is None for row in stage.rows(row="fast", mode="simulate"))


def written(folder, kind, seed, mode="plain", **more):
    """A row as a process would have written it."""
    row = {"base": "tiny", "task": "mrpc", "row": kind, "seed": seed, "part": "dev", "mode": mode, "metric": "f1"}
    add_row(folder / "tiny-mrpc.json", {**row, "value": 50.0, "examples": 400, "settings": {}, **more})


REFUSAL = {"suite": "fast", "value": None, "settings": {"refused": "2Quad's row sums range from 1 to 9"}}


def refused_fast(stage, seed=0, **table):
    """A table whose `fast` was refused a moment ago."""
    written(stage.out, "plain", seed)
    written(stage.out, "quad_swapped", seed)
    written(stage.out, "fast", seed)
    written(stage.out, "fast", seed, "simulate", **REFUSAL)
    for kind in ("plain", "fast"):
        (stage.models / f"mrpc-{kind}-{seed}").mkdir(parents=True)
        (stage.models / f"mrpc-{kind}-{seed}" / "config.json").write_text("0")
    return Table("tiny", stage.out, stage.models, ("mrpc",), **table)


def test_only_what_is_asked_for_is_set_aside(stage):
    """Whoever asks for other rows or seeds would not train it anew."""
    table = refused_fast(stage, seed=1)
    assert table.refused(table.read()) == [("mrpc", 1)]
    for asked in ({"rows": ("plain", "quad")}, {"seeds": (0, 2)}):
        assert Table("tiny", stage.out, stage.models, ("mrpc",), **asked).refused(table.read()) == []


def test_a_kill_while_a_refused_one_is_set_aside_costs_no_attempt(stage, monkeypatch):
    table = refused_fast(stage)
    with monkeypatch.context() as patched:
        patched.setattr("secformer.training.table.remove_rows", lambda *_: sys.exit(143))
        with pytest.raises(SystemExit):
            table.set_aside(table.read(), "mrpc", 0)
    assert table.refused(table.read()) == [("mrpc", 0)]
    table.set_aside(table.read(), "mrpc", 0)
    assert {row["base"] for row in table.read()} == {"tiny", "tiny-first"} and not stage.rows(base="tiny", row="fast")
    assert [job.attempt for job in table.trainings(table.read()) if job.rows == ("fast",) and job.attempt] == [1]
    assert (stage.models / "mrpc-fast-0-first" / "config.json").is_file()


def test_a_model_set_aside_for_other_rows_is_no_obstacle(stage):
    table = refused_fast(stage)
    (stage.models / "mrpc-fast-0-first").mkdir()
    (stage.models / "mrpc-fast-0-first" / "config.json").write_text("of another table")
    table.set_aside(table.read(), "mrpc", 0)
    assert (stage.models / "mrpc-fast-0-first" / "config.json").read_text() == "0"


def test_what_still_looks_at_a_refused_model_is_waited_for(stage):
    table = refused_fast(stage, secure=8)
    driver = Driver(table, Places(stage.folder, stage.folder, stage.out, stage.models), Means(), 0.0)
    (secure,) = [job for job in table.evaluations(table.read()) if (job.mode, job.suite) == ("secure", "fast")]
    driver.running.append(Running(secure, None, 0.0))  # type: ignore[arg-type]
    assert driver._refused(table.read()) == []
    driver.running.clear()
    assert driver._refused(table.read()) == [("mrpc", 0)]


def test_seeds_that_were_not_refused_are_trained_in_a_process_that_has_its_own_tries(stage):
    """A later call, after the first seed was refused and before the others had their `fast`."""
    refused_fast(stage).set_aside(known_rows(stage.out), "mrpc", 0)
    stage.make(seeds=(), rows=("plain", "fast", "secformer"))
    assert {row["seed"] for row in stage.rows(base="tiny", row="fast", mode="simulate")} == {0, 1, 2}
    trained = [(given["row"], given["seed"]) for kind, given in stage.calls() if kind == "glue"]
    assert sorted(trained) == [(["fast"], ["0"]), (["fast"], ["1", "2"]), (["plain", "secformer"], ["0", "1", "2"])]


def test_two_processes_of_a_task_never_train_its_teachers_both(stage):
    table = refused_fast(stage)
    table.set_aside(table.read(), "mrpc", 0)
    driver = Driver(table, Places(stage.folder, stage.folder, stage.out, stage.models), Means(workers=9), 0.0)
    rest, again, main = table.trainings(table.read())
    assert [job.name for job in (rest, again, main)] == ["train-mrpc-fast", "train-mrpc-fast-0-second", "train-mrpc"]
    driver.running.append(Running(main, None, 0.0))  # type: ignore[arg-type]
    assert driver._in_its_way(rest) and not driver._in_its_way(again)
    (stage.models / "mrpc-plain-0" / "config.json").unlink()
    assert driver._in_its_way(again)
    driver.running[:] = [Running(again, None, 0.0)]  # type: ignore[list-item]
    assert driver._in_its_way(main)


def test_with_learning_rates_given_a_process_trains_one_seed_and_the_first_of_every_task_comes_first(stage):
    table = Table("tiny", stage.out, stage.models, ("mrpc", "rte"), seeds=(0, 2), chosen=True)
    jobs = table.trainings([])
    assert [job.name for job in jobs] == ["train-mrpc-0", "train-rte-0", "train-mrpc-2", "train-rte-2"]
    driver = Driver(table, Places(stage.folder, stage.folder, stage.out, stage.models), Means(workers=9), 0.0)
    driver.running.append(Running(jobs[0], None, 0.0))  # type: ignore[arg-type]
    assert [driver._in_its_way(job) for job in jobs] == [True, False, False, False]
    (before,) = Table("tiny", stage.out, stage.models, ("mrpc",), seeds=(0, 2)).trainings([])
    assert (before.name, list(before.seeds)) == ("train-mrpc", [0, 2])


def test_seeds_side_by_side_make_the_whole_table_and_a_refused_one_is_tried_again(stage):
    stage.make(("mrpc", "rte"), enough=10.0, sums=3.0, chosen=True, seeds=(0, 1), rows=("plain", "fast", "secformer"))
    for task, seed in (("mrpc", 0), ("mrpc", 1), ("rte", 0), ("rte", 1)):
        rows = stage.rows(base="tiny", task=task, seed=seed, mode="plain")
        assert {row["row"] for row in rows} == {"plain", "quad_swapped", "fast", "secformer"}
        assert [row["settings"]["sums"] for row in rows if row["row"] == "fast"] == [10.0]
        (measured,) = stage.rows(base="tiny", task=task, seed=seed, mode="simulate", row="fast")
        assert measured["value"] == 50.0
    teachers = [given for kind, given in stage.calls() if kind == "glue" and "plain" in given["row"]]
    assert all(len(given["seed"]) == 1 for given in teachers)


def test_the_paper_s_suites_are_measured_for_seed_0_alone(stage):
    stage.make(seeds=(0, 1), rows=("plain", "fast", "secformer"))
    measured = {(row["row"], row["seed"]) for row in stage.rows(mode="simulate")}
    assert measured == {("fast", 0), ("fast", 1), ("exact", 0), ("exact", 1), ("secformer", 0), ("puma", 0)}


def test_a_process_that_dies_is_started_once_more(stage):
    stage.make(die=["mrpc secformer 0"])
    assert len([1 for kind, given in stage.calls() if kind == "glue"]) == 2
    assert len(stage.rows(mode="plain")) == len(ROWS) + 1


def test_one_that_dies_again_is_given_up(stage):
    (stage.folder / "program.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(InputError, match=r"given up after 2 times: train-mrpc; see .*logs"):
        stage.make()


def test_at_the_limit_everything_ends_and_a_later_call_goes_on(stage, capfd):
    began = time.monotonic()
    stage.make(sleep={"secformer": 60.0}, seconds=4.0)
    assert time.monotonic() - began < 5.0
    said = capfd.readouterr().err
    assert "out of time" in said and "to do: train-mrpc" in said
    assert {row["row"] for row in stage.rows(mode="plain")} == {"plain", "quad_swapped", "fast"}
    assert {row["row"] for row in stage.rows(mode="simulate")} == {"fast", "exact", "puma"}
    stage.make()
    assert {row["row"] for row in stage.rows(mode="plain")} == {*ROWS, "quad_swapped"}
    trained = [given["row"] for kind, given in stage.calls() if kind == "glue"]
    assert len(trained) == 2 and len(stage.rows(row="plain")) == 1


def test_the_commands_have_what_was_asked_for(tmp_path):
    places = Places(tmp_path / "base", tmp_path / "glue", tmp_path / "rows", tmp_path / "models", tmp_path / "other")
    means = Means("cuda", 0.5, 2, seconds=100.0)
    driver = Driver(Table("base", places.out, places.models, ("cola",)), places, means, time.monotonic())
    words = driver.training(Training("cola", ("plain", "fast"), (2,), 3.0, 0.01))
    line = " ".join(map(str, words))
    assert "--row plain --row fast --seed 2 --row-sums 3.0 --penalty 0.01 --choices" in line
    assert "--device cuda --slots 2 --share 0.5" in line and 80 < float(str(words[-1])) < 90


SLOW = """
import builtins, sys, time
imported, slow = builtins.__import__, sys.argv.pop()

def late(name, *rest, **more):
    time.sleep(6 if name == slow and name not in sys.modules else 0)
    return imported(name, *rest, **more)

builtins.__import__ = late
from secformer.cli.main import main
main()
"""


@pytest.mark.parametrize(("which", "slow"), [("train", "secformer.cli.glue"), ("table", "secformer.cli.table")])
def test_seconds_count_from_the_first_line_of_a_command_imports_included(tmp_path, which, slow):
    build_checkpoint(tmp_path / "tiny", "bert", "embedding", layers=1, heads=2, hidden=12, intermediate=16)
    write_lessons(tmp_path / "data", train=64, dev=16)
    words = [
        "glue",
        which,
        tmp_path / "tiny",
        "--data",
        tmp_path / "data",
        "--out",
        tmp_path / "rows",
        "--seconds",
        "3",
    ]
    words += ["--models", tmp_path / "models", "--task", "sst2", "--row", "plain"]
    found = subprocess.run([sys.executable, "-c", SLOW, *map(str, words), slow], capture_output=True, text=True)
    assert found.returncode == 0 and "out of time" in found.stderr, found.stderr
    assert float(found.stderr.split()[0]) > 6  # what is said has its second before it
    assert not list((tmp_path / "rows").glob("logs/*"))


def test_the_first_process_does_not_wait_for_the_driver_s_imports(tmp_path):
    """What takes seconds of a GPU's time is imported by those that compute, at the same time."""
    line = "import sys, secformer.cli.table, secformer.cli.commands.glue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line]).returncode == 0


def test_a_device_that_is_not_there_is_named_and_what_began_is_ended(stage):
    (stage.folder / "program.py").write_text("import time; time.sleep(60)")
    table = Table("tiny", stage.out, stage.models, ("mrpc",))
    means = Means("cuda:77", program=(sys.executable, str(stage.folder / "program.py")))
    began = time.monotonic()
    with pytest.raises(SettingsError, match="device 'cuda:77' cannot be used"):
        make_table(table, Places(stage.folder, stage.folder, stage.out, stage.models), means, began)
    assert time.monotonic() - began < 20


def test_on_a_cpu_one_thing_is_done_after_the_other():
    assert means_for("cpu", 6) == Means("cpu", workers=1, evaluators=1)
    assert means_for("cuda:1", 6) == Means("cuda:1", slots=2, workers=6, evaluators=4)


# -- with the program itself -------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    build_checkpoint(tmp_path / "tiny", "bert", "embedding", layers=1, heads=2, hidden=12, intermediate=16)
    write_lessons(tmp_path / "data", train=64, dev=16)
    return tmp_path


def test_the_command_makes_a_table(tiny, monkeypatch, capfd):
    found = command(
        monkeypatch, capfd, "glue", "table", tiny / "tiny", "--data", tiny / "data", "--out", tiny / "rows",
        "--models", tiny / "models", "--task", "sst2", "--row", "plain", "--row", "fast", "--share", "0.1",
        "--evaluators", "2",
    )  # fmt: skip
    assert found.code == 0, found.err + "".join(path.read_text() for path in (tiny / "rows" / "logs").iterdir())
    assert "all done" in found.err
    rows = {(row["row"], row["mode"]): row for row in read_rows(tiny / "rows")}
    assert {("plain", "plain"), ("fast", "plain"), ("fast", "simulate"), ("exact", "simulate")} <= set(rows)
    assert rows["exact", "simulate"]["value"] == pytest.approx(rows["plain", "plain"]["value"], abs=13)


@pytest.mark.parametrize(
    ("flag", "name", "known"), [("--task", "wnli", "mrpc, rte"), ("--row", "ablation", "plain, fast")]
)
def test_what_the_table_does_not_have_is_said(tiny, monkeypatch, capfd, flag, name, known):
    places = ("--data", tiny / "data", "--out", tiny / "rows", "--models", tiny / "models")
    found = command(monkeypatch, capfd, "glue", "table", tiny / "tiny", *places, flag, name)
    assert found.code == 2 and f"'{name}': the table has {known}" in found.err


def test_a_model_that_a_suite_refuses_is_a_row_without_a_number(tiny, monkeypatch, capfd):
    model = tiny / "models"
    build_checkpoint(model, "bert", "classification", layers=1, heads=2, hidden=12, intermediate=16, labels=2)
    weights = load_file(model / "model.safetensors")
    for name, tensor in weights.items():
        if ".query." in name:
            weights[name] = 40 * tensor
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    settings = {"seed": 3, "longest": 32}
    write_card(
        model, {"title": "", "summary": "", "made_from": {"base": "tiny"}, "settings": settings, "evaluations": []}
    )
    found = command(
        monkeypatch, capfd, "eval", model, "--task", "sst2", "--data", tiny / "data", "--mode", "plain,simulate",
        "--suite", "fast", "--limit", "8", "--device", "cpu", "--results", tiny / "rows.json", "--row", "fast",
    )  # fmt: skip
    assert found.code == 2 and "error [calibration]" in found.err and "row sums" in found.err
    plain, simulated = json.loads((tiny / "rows.json").read_text())
    assert plain["mode"] == "plain" and plain["value"] is not None
    assert (simulated["value"], simulated["examples"], simulated["seed"]) == (None, 8, 3)
    assert simulated["settings"]["refused"].startswith("CalibrationError: layer 0: 2Quad's row sums range")


def test_a_trimmed_encoder_reads_the_same_vectors(tiny, monkeypatch, capfd):
    from secformer.training.folders import read_base
    from secformer.training.tasks import task_named

    weights = load_file(tiny / "tiny" / "model.safetensors")  # as all-MiniLM-L6-v2 has it
    weights["embeddings.position_ids"] = torch.arange(8)[None]
    save_file(weights, tiny / "tiny" / "model.safetensors", metadata={"format": "pt"})
    arguments = ("--data", tiny / "data", "--task", "sst2", "--half")
    found = command(monkeypatch, capfd, "glue", "trim", tiny / "tiny", *arguments, "--out", tiny / "small")
    assert found.code == 0, found.err
    whole, small = (read_base(tiny / name, task_named("sst2"), 0, 0.0) for name in ("tiny", "small"))
    assert small.network.config.vocabulary < whole.network.config.vocabulary
    text = ["the cat sat on a good film"]
    old, new = (each.tokenizer(text)["input_ids"][0] for each in (whole, small))
    assert torch.equal(whole.network.weights["word"][old].half().float(), small.network.weights["word"][new])
    for name in ("layers.0.query.weight", "pooler.weight"):
        assert torch.equal(whole.network.weights[name].half().float(), small.network.weights[name])
    again = command(monkeypatch, capfd, "glue", "trim", tiny / "tiny", *arguments, "--out", tiny / "small")
    assert again.code == 2 and "holds a model already" in again.err

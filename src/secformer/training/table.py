"""What of the table is still to be done, read off the rows and models there are.

Nothing else is remembered: whoever asks again, after a kill or in another call, goes on where the files stand.

    training      the rows of a task that do not stand yet, in the order of ROWS, by one process on one teacher a seed; where
                  learning rates are given, by one process a seed, the first seed of every task first
    evaluation    a model that stands, in the servers' fixed point: `fast` and `exact` on all of dev, the paper's suites on FEW
                  examples, seed 0 alone; between servers, if that is asked for
    attempt       `fast` anew with the next step of LADDER, from the same teacher, where the suite refused the student because
                  its row sums span too much; the refused one is set aside as base BASE-first, BASE-second, … (of seeds that
                  were not refused, `fast` is then a training of its own)
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from secformer.training.plans import PLANS
from secformer.training.results import Row, add_row, known_rows, remove_rows
from secformer.training.runs import rows_file, standing

ROWS = ("plain", "fast", "secformer", "mpcformer", "secformer_bare", "mpcformer_bare", "quad_bare", "quad")
"""In the order of their importance."""
ONCE = ("quad_bare", "quad")
"""Trained for seed 0 alone."""
FEW = 300
LADDER: Sequence[tuple[float, float]] = ((3.0, 0.01), (10.0, 0.01), (30.0, 0.1), (100.0, 0.1))
"""Row sums and penalty of further attempts at `fast`."""
REFUSED_FOR = "row sums"
"""Stands in the reason of a refusal that another attempt may heal."""
ASIDE = ("first", "second", "third", "fourth", "fifth")
"""What attempts are called, the one before LADDER's included."""
assert len(ASIDE) == 1 + len(LADDER)


class Training(NamedTuple):
    task: str
    rows: Sequence[str]
    seeds: Sequence[int]
    sums: float
    penalty: float | None
    attempt: int = 0
    apart: bool = False
    """Whether it is `fast` alone, because a seed's was refused."""
    alone: bool = False
    """Whether it is one seed of several."""

    @property
    def name(self) -> str:
        if self.attempt:
            return f"train-{self.task}-fast-{self.seeds[0]}-{ASIDE[self.attempt]}"
        if self.alone:
            return f"train-{self.task}-{self.seeds[0]}"
        return f"train-{self.task}-fast" if self.apart else f"train-{self.task}"


class Evaluation(NamedTuple):
    task: str
    seed: int
    suite: str
    """And as which row."""
    model: str
    """The row whose model it is."""
    mode: str
    limit: int | None
    rank: int
    """The smallest first."""

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.task}-{self.suite}-{self.seed}"


SIMULATED = (("fast", "fast", None, 0), ("exact", "plain", None, 1), ("secformer", "secformer", FEW, 2),
             ("mpcformer", "mpcformer", FEW, 2), ("puma", "plain", FEW, 3))  # fmt: skip
"""Suite, whose model, on how many examples, rank."""
SECURE = (("secformer", "secformer"), ("exact", "plain"), ("fast", "fast"))


@dataclass(frozen=True)
class Table:
    base: str
    out: Path
    models: Path
    tasks: Sequence[str]
    rows: Sequence[str] = ROWS
    seeds: Sequence[int] = ()
    """None given: as many as a task's plan has."""
    sums: float = 0.0
    penalty: float | None = None
    secure: int = 0
    """Examples that are asked about between servers."""
    chosen: bool = False
    """Whether learning rates are given: then no seed waits for another's choice of them."""

    def read(self) -> list[Row]:
        """Every row there is now."""
        return known_rows(self.out)

    def trainings(self, rows: Sequence[Row]) -> list[Training]:
        """One a task, or a task and seed; where a `fast` was refused, one more for every seed that was, and one for those that
        were not."""
        found = []
        for task in self.tasks:
            done, tried = standing(self._own(rows, task)), {s: self._tried(rows, task, s) for s in self._seeds(task)}
            again = "fast" in self.rows and any(tried.values())
            if again:
                without = [seed for seed in tried if f"{task} fast {seed}" not in done]
                found += self._fast(task, {seed: tried[seed] for seed in without})
            wanted = [row for row in self.rows if not (row == "fast" and again)]
            parts = [(seed,) for seed in tried] if self.chosen else [tuple(tried)]
            for seeds in [seeds for seeds in parts if self._missing(task, wanted, seeds, done)]:
                found.append(Training(task, wanted, seeds, self.sums, self.penalty, alone=self.chosen))
        return sorted(found, key=lambda job: job.seeds[0] if job.alone else -1)

    def share_teachers(self, one: Training, other: Training) -> bool:
        """Of two trainings of a task: whether there is a model both would train, a choice of learning rates among them."""
        return not self.chosen or bool(set(one.seeds) & set(other.seeds))

    def has_teacher(self, job: Training) -> bool:
        """Whether the models that it starts from lie there: then it trains none itself."""
        return all(_is_model(self.models / f"{job.task}-plain-{seed}") for seed in job.seeds)

    def evaluations(self, rows: Sequence[Row]) -> list[Evaluation]:
        """Of models that stand, what was not measured yet; the most important first."""
        found = []
        for task in self.tasks:
            own = self._own(rows, task)
            every = [each for seed in self._seeds(task) for each in self._evaluations(task, seed)]
            found += [each for each in every if self._is_open(each, own)]
        return sorted(found, key=lambda each: each.rank)

    def refused(self, rows: Sequence[Row]) -> list[tuple[str, int]]:
        """Task and seed of every `fast` that was refused, is asked for and can be tried again."""
        tasks = self.tasks if "fast" in self.rows else ()
        every = [row for task in tasks for row in self._own(rows, task) if _refused(row)]
        pairs = {(row["task"], row["seed"]) for row in every if row["seed"] in self._seeds(row["task"])}
        return [(task, seed) for task, seed in sorted(pairs) if self._tried(rows, task, seed) < len(self._ladder)]

    def set_aside(self, rows: Sequence[Row], task: str, seed: int) -> None:
        """A refused `fast`, with the teacher it had for comparison: its rows under a base of their own, its model renamed.
        After a kill in between it is refused still, and all of this is done once more."""
        number = ASIDE[self._tried(rows, task, seed)]
        base, model = f"{self.base}-{number}", self.models / f"{task}-fast-{seed}"
        if model.is_dir():
            aside = model.with_name(f"{model.name}-{number}")
            shutil.rmtree(aside, ignore_errors=True)  # of other rows than these
            model.rename(aside)
        for row in self._own(rows, task):
            teacher = (row["row"], row["mode"]) == ("plain", "plain")
            if _of(row, seed) and (row["row"] == "fast" or teacher):
                add_row(self.out / f"{base}.json", {**row, "base": base})
        remove_rows(rows_file(self.out, self.base, task), lambda row: _of(row, seed) and row["row"] == "fast")

    def model(self, evaluation: Evaluation) -> Path:
        return self.models / f"{evaluation.task}-{evaluation.model}-{evaluation.seed}"

    # -- what there is --------------------------------------------------------------------------------------------------

    def _own(self, rows: Sequence[Row], task: str) -> list[Row]:
        return [row for row in rows if (row["base"], row["task"]) == (self.base, task)]

    def _tried(self, rows: Sequence[Row], task: str, seed: int) -> int:
        """How many attempts at `fast` were set aside; one that stands here too was not yet. (No two have the same settings.)"""
        bases = {f"{self.base}-{number}" for number in ASIDE}
        aside = [row for row in rows if row["base"] in bases and row["task"] == task and _of(row, seed)]
        here = [row for row in self._own(rows, task) if (row["row"], row["mode"]) == ("fast", "plain")]
        again = {row["base"] for row in aside if _among(row, here)}
        return len({row["base"] for row in aside if _refused(row)} - again)

    def _seeds(self, task: str) -> Sequence[int]:
        every = range(PLANS[task].seeds)
        return [seed for seed in every if seed in self.seeds] if self.seeds else every

    def _missing(self, task: str, rows: Sequence[str], seeds: Sequence[int], done: set[str]) -> bool:
        wanted = {f"{task} {row} {seed}" for row in rows for seed in seeds if not (row in ONCE and seed)}
        return not wanted <= done

    @property
    def _ladder(self) -> Sequence[tuple[float, float]]:
        """What is left of it above the row sums of the first attempt."""
        return [step for step in LADDER if step[0] > self.sums]

    def _fast(self, task: str, tried: Mapping[int, int]) -> list[Training]:
        """Of these seeds, tried so often: together for the first time, then each by itself."""
        first = [seed for seed, number in tried.items() if not number]
        found = [Training(task, ("fast",), first, self.sums, self.penalty, apart=True)] if first else []
        for seed, number in tried.items():
            if number:
                found.append(Training(task, ("fast",), (seed,), *self._ladder[number - 1], number, apart=True))
        return found

    def _evaluations(self, task: str, seed: int) -> list[Evaluation]:
        found = [
            Evaluation(task, seed, suite, model, "simulate", limit, rank)
            for suite, model, limit, rank in SIMULATED
            if limit is None or seed == 0
        ]
        if self.secure:
            found += [Evaluation(task, seed, suite, model, "secure", self.secure, 0) for suite, model in SECURE]
        return [each for each in found if each.model in self.rows]

    def _is_open(self, evaluation: Evaluation, rows: Sequence[Row]) -> bool:
        if f"{evaluation.task} {evaluation.model} {evaluation.seed}" not in standing(rows):
            return False
        whole = max((row["examples"] for row in rows if row["part"] == "dev"), default=0)
        count = min(evaluation.limit or whole, whole)
        wanted = (evaluation.suite, evaluation.seed, "dev", evaluation.mode, evaluation.suite, count)
        measured = {tuple(row.get(key) for key in ("row", "seed", "part", "mode", "suite", "examples")) for row in rows}
        return wanted not in measured and _is_model(self.model(evaluation))


def _of(row: Row, seed: int) -> bool:
    return row["part"] == "dev" and row["seed"] == seed


def _among(row: Row, others: Sequence[Row]) -> bool:
    """Whether one of them is the same but for its base."""
    return any({**row, "base": other["base"]} == other for other in others)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _refused(row: Row) -> bool:
    """Whether it is a `fast` that its suite refused for what another attempt may heal."""
    reason = row.get("settings", {}).get("refused", "")
    return (row["row"], row["mode"], row["value"]) == ("fast", "simulate", None) and REFUSED_FOR in reason

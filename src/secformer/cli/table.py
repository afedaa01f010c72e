"""`secformer glue table`: the accuracy table of an encoder in one go, training and evaluation side by side.

Every run is a process of its own, `secformer glue train` or `secformer eval`, its imports done (warm.py); what there is to do is
read off the rows they write (training/table.py). A process that ends without them is started once more.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from secformer.cli import warm
from secformer.errors import InputError
from secformer.training.plans import PLANS
from secformer.training.results import Row
from secformer.training.runs import rows_file
from secformer.training.table import ROWS, Evaluation, Table, Training

TRIES = 2
PAUSE = 0.5
"""Seconds between two looks at the files."""
SPARE, SHORTEST = 10.0, 20.0
"""Seconds before the limit at which everything is stopped, and before that in which nothing is begun; of short limits less."""
PATIENCE = 5.0
"""Seconds for a process to end when it is asked to."""


@dataclass(frozen=True)
class Places:
    base: Path
    data: Path
    out: Path
    models: Path
    choices: Path | None = None


@dataclass(frozen=True)
class Means:
    device: str = "cpu"
    share: float = 1.0
    slots: int = 1
    """Runs at a time in a process that trains."""
    workers: int = 1
    """Such processes at a time."""
    evaluators: int = 1
    """Processes that evaluate; when nothing is trained any more, those of the others too."""
    seconds: float | None = None
    program: Sequence[str] = ()
    """What is started in the place of `secformer`."""


def means_for(device: str, tasks: int) -> Means:
    """On a GPU everything side by side, on a CPU one after the other."""
    on_gpu = device.startswith("cuda")
    return Means(device, slots=2, workers=tasks, evaluators=4) if on_gpu else Means(device)


def check_names(tasks: Sequence[str], rows: Sequence[str]) -> None:
    for what, names, known in (("task", tasks, tuple(PLANS)), ("row", rows, ROWS)):
        for name in names:
            if name not in known:
                raise InputError(f"unknown {what} '{name}': the table has {', '.join(known)}")


def make_table(table: Table, places: Places, means: Means, began: float) -> None:
    """Do what is missing, until nothing is or the time, which counts from `began` (of time.monotonic), is over."""
    driver = Driver(table, places, means, began)
    try:
        driver.work()
    finally:
        driver.stop()
    driver.say(f"{driver.left()}; rows in {table.out}")
    given_up = sorted(name for name, count in driver.failures.items() if count >= TRIES)
    if given_up:
        raise InputError(f"given up after {TRIES} times: {', '.join(given_up)}; see {driver.logs}")


@dataclass
class Running:
    job: Training | Evaluation
    process: warm.Child
    since: float


@dataclass
class Driver:
    table: Table
    places: Places
    means: Means
    began: float
    running: list[Running] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    checked: bool = False
    """Whether this machine has the device."""

    @property
    def logs(self) -> Path:
        return self.table.out / "logs"

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    @property
    def remaining(self) -> float:
        """Seconds until everything has to be stopped."""
        seconds = self.means.seconds
        return float("inf") if seconds is None else seconds - min(SPARE, seconds / 10) - self.passed

    def say(self, line: str) -> None:
        Console(stderr=True).print(f"{self.passed:6.1f} s  {line}", highlight=False, markup=False, soft_wrap=True)

    def work(self) -> None:
        while self.remaining > 0:
            for each in [each for each in self.running if each.process.poll() is not None]:
                self._ended(each)
            rows = self.table.read()
            for task, seed in [] if self._late else self._refused(rows):
                self.say(f"{task}: suite fast refused the student of seed {seed} by its row sums; another attempt")
                self.table.set_aside(rows, task, seed)
                rows = self.table.read()
            self._start_more(rows)
            if not self.running:
                return
            self._check_device()
            time.sleep(min(PAUSE, max(self.remaining, 0)))
        self.say("out of time")

    def _check_device(self) -> None:
        """Once, while what was begun imports the same: it would say so in its log only."""
        if not self.checked:
            from secformer.ring.devices import device_named

            device_named(self.means.device)
            self.checked = True

    def _refused(self, rows: Sequence[Row]) -> list[tuple[str, int]]:
        """Those whose model nobody looks at any more: what it wrote later would stand beside the next attempt's."""
        evaluated = {
            (job.task, job.seed) for job in self._jobs() if isinstance(job, Evaluation) and job.model == "fast"
        }
        return [pair for pair in self.table.refused(rows) if pair not in evaluated]

    def left(self) -> str:
        rows = self.table.read()
        names = [job.name for job in (*self.table.trainings(rows), *self.table.evaluations(rows))]
        return f"to do: {', '.join(names)}" if names else "all done"

    def stop(self) -> None:
        """End what runs, by SIGTERM first: rows and models are whole at any time."""
        for each in self.running:
            each.process.terminate()
        end = time.monotonic() + PATIENCE
        for each in self.running:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(max(0.1, end - time.monotonic()))
            if each.process.poll() is None:
                each.process.kill()
                with suppress(subprocess.TimeoutExpired):  # a driver may hold it for longer than there is time
                    each.process.wait(1.0)
        self.running.clear()

    def _start_more(self, rows: Sequence[Row]) -> None:
        for job in self.table.trainings(rows):
            alike = [each for each in self._trainings() if bool(each.attempt) == bool(job.attempt)]
            if self._may(job) and len(alike) < self.means.workers and not self._in_its_way(job):
                self._start(job)
        room = self.means.evaluators + (0 if self._trainings() else self.means.workers)
        for job in self.table.evaluations(rows):
            places = max(1, room - (job.rank > 0))  # one is kept for what decides whether `fast` is trained anew
            if self._may(job) and len(self.running) - len(self._trainings()) < places:
                self._start(job)

    def _may(self, job: Training | Evaluation) -> bool:
        names = {running.name for running in self._jobs()}
        return self.failures[job.name] < TRIES and job.name not in names and not self._late

    def _in_its_way(self, job: Training) -> bool:
        """Two that train the same teachers would each train its own. Another attempt has one: it waits for nobody."""
        beside = [each for each in (job, *self._trainings()) if each.attempt and self.table.has_teacher(each)]
        others = [each for each in self._trainings() if each not in beside and each.task == job.task]
        return job not in beside and any(self.table.share_teachers(job, each) for each in others)

    @property
    def _late(self) -> bool:
        return self.remaining < min(SHORTEST, (self.means.seconds or 0) / 5)

    def _jobs(self) -> list[Training | Evaluation]:
        return [each.job for each in self.running]

    def _trainings(self) -> list[Training]:
        return [job for job in self._jobs() if isinstance(job, Training)]

    def _start(self, job: Training | Evaluation) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        arguments = self.training(job) if isinstance(job, Training) else self.evaluation(job)
        cores = max(1, (os.cpu_count() or 1) // (self.means.workers + self.means.evaluators))
        environment = {"OMP_NUM_THREADS": str(cores), **os.environ}
        if self.failures[job.name]:  # with a part of a GPU's processors teachers have come to no number
            environment.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)
        process = self._process([str(word) for word in arguments], self.logs / f"{job.name}.log", environment)
        self.running.append(Running(job, process, self.passed))
        self.say(f"begins: {job.name}")

    def _process(self, arguments: list[str], path: Path, environment: dict[str, str]) -> warm.Child:
        if not self.means.program:
            return warm.start(arguments, path, environment)
        with path.open("ab") as log:
            line = [*self.means.program, *arguments]
            return subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def _ended(self, each: Running) -> None:
        self.running.remove(each)
        rows, job = self.table.read(), each.job
        is_open = job.name in {each.name for each in (*self.table.trainings(rows), *self.table.evaluations(rows))}
        self.failures[job.name] += is_open
        own = [row for row in rows if row["base"] == self.table.base]
        result = f"status {each.process.returncode}, something is missing" if is_open else _result(job, own)
        self.say(f"ended after {self.passed - each.since:.0f} s: {job.name}, {result}")

    # -- commands -------------------------------------------------------------------------------------------------------

    def training(self, job: Training) -> list[object]:
        places, means = self.places, self.means
        found = ["glue", "train", places.base, "--data", places.data, "--out", places.out, "--models", places.models]
        found += ["--task", job.task, "--device", means.device, "--slots", means.slots, "--share", means.share]
        found += [word for row in job.rows for word in ("--row", row)]
        found += [word for seed in job.seeds for word in ("--seed", seed)]
        found += ["--row-sums", job.sums]
        found += [] if job.penalty is None else ["--penalty", job.penalty]
        found += [] if places.choices is None else ["--choices", places.choices]
        return found if means.seconds is None else [*found, "--seconds", max(1.0, self.remaining - 1)]

    def evaluation(self, job: Evaluation) -> list[object]:
        """Servers on the CPU: the GPU has enough to do."""
        device = "cpu" if job.mode == "secure" else self.means.device
        found = ["eval", self.table.model(job), "--task", job.task, "--data", self.places.data, "--mode", job.mode]
        found += ["--suite", job.suite, "--row", job.suite, "--device", device]
        found += ["--results", rows_file(self.places.out, self.table.base, job.task)]
        return found if job.limit is None else [*found, "--limit", job.limit]


def _result(job: Training | Evaluation, rows: Sequence[Row]) -> str:
    """What was measured, in a word."""
    if isinstance(job, Training):
        return "all rows"
    keys = (job.task, job.suite, job.seed, job.mode, job.suite)
    found = [row for row in rows if tuple(row.get(k) for k in ("task", "row", "seed", "mode", "suite")) == keys]
    value = found[-1]["value"] if found else None
    return "refused" if value is None else f"{found[-1]['metric']} {value:.1f}, {found[-1].get('flagged', 0)} flagged"

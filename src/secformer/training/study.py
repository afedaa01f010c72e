"""The paper's accuracy table, trained: every row of it on the same teachers, seed by seed.

    row               Softmax   GeLU    how it is made
    plain             exact     exact   fine-tuned: the teacher
    puma              exact     exact   the teacher by PUMA's twin
    mpcformer_bare    2Quad     Quad    fine-tuned as it is, without a teacher
    mpcformer         2Quad     Quad    distilled
    secformer_bare    2Quad     exact   fine-tuned as it is
    secformer         2Quad     exact   distilled
    fast              2Quad     exact   distilled with the penalty on scores: ours
    quad_bare, quad   exact     Quad    what replacing GeLU alone costs, for Figure 1(b)
    …_swapped         the same          the teacher with functions swapped, nothing trained

Settings are chosen on a tenth of the training examples held out (`choice` rows), never on dev: learning rates of what is
fine-tuned on every small task by their metric, the weighting of the distillation on two of them by the distance of the
student's predictions from the teacher's, and so is the plan of CoLA (`recipe` rows). Stage one of a distillation takes texts
of other tasks too, where a task has few. A row is one JSON object; `glue_report` makes the tables.

A study goes on where an earlier one was broken off: what stands in its rows is not trained again, and networks come from the
folders they were kept in. So several processes share a study, each with rows, tasks and seeds of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from secformer.errors import InputError
from secformer.training.batches import Rows, batches_of
from secformer.training.choices import (
    DEFAULT,
    MPCFORMER,
    PENALTIES,
    PLAIN,
    QUAD,
    SECFORMER,
    Ablation,
    Choices,
    ablations,
    recipe_of,
)
from secformer.training.distill import Recipe, distillation_stages, swapped
from secformer.training.finetune import FinetuneSettings, schedules, task_stage
from secformer.training.jobs import Job
from secformer.training.merging import add_rows
from secformer.training.network import Network, Swaps
from secformer.training.plans import ABLATED, PLANS, RECIPES, TaskPlan
from secformer.training.ranges import measure_ranges
from secformer.training.results import Row, remove_rows
from secformer.training.runs import COMPARED, choice_name, rows_file, run_of, standing
from secformer.training.scoring import agreement, distance, score_on, twin_score
from secformer.training.stages import Stage
from secformer.training.tasks import TASKS, task_named
from secformer.training.trainer import Schedule, Trainer
from secformer.training.transfer import altered

RANGE_EXAMPLES = 512
SLOWER = (1.0, 0.3, 0.1)
"""Of these, what a distillation is tried with one after the other, while its loss stops being a number."""


@dataclass(frozen=True, repr=False)
class Lessons:
    """A task's rows: to train on, to report on, and the training rows cut in two to choose with."""

    train: Rows
    dev: Rows
    most: Rows
    held_out: Rows
    more: Callable[[TaskPlan], Sequence[Rows]] = lambda plan: ()
    """Texts of other tasks, which have no targets."""


def held_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.ids.device)
    count = round(share * len(rows))
    return rows.chosen(order[count:].sort().values), rows.chosen(order[:count].sort().values)


@dataclass
class Study:
    """`base` makes the start of a task and seed: the encoder with a new head."""

    name: str
    base: Callable[[str, int], Network]
    lessons: Mapping[str, Lessons]
    out: Path
    plans: Mapping[str, TaskPlan] = field(default_factory=lambda: PLANS)
    networks: dict[str, Network] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    keep: Callable[[str, Network], None] = lambda name, network: None
    """Told of every network that was trained."""
    kept: Callable[[str], Network | None] = lambda name: None
    """A network that an earlier run kept."""
    penalty: float | None = None
    """Of `fast`; None: the one that the ablation chose."""
    sums: float = 0.0
    """How much the row sums of `fast` count."""
    failed: list[str] = field(default_factory=list)
    """Runs of unchanged models whose loss was not a number any more."""
    diverged: list[Row] = field(default_factory=list)
    """The rows of this run that have no number."""

    @property
    def choices(self) -> Choices:
        """By what stands in the rows now."""
        return Choices(self.rows, self.plans, self.penalty, self.sums)

    # -- jobs, in the order of their importance -------------------------------------------------------------------------

    def jobs(self, asked: Callable[[str], bool] = lambda name: True) -> list[Job]:
        """What is asked for and does not stand in the rows yet, with what it needs. (Recipes are compared only if that is
        asked for; otherwise those that were decide, or nothing does.)"""
        every = {job.name: job for job in self._every()}
        wanted = {name for name in every if asked(name) and not self._stands(name)}
        for name in reversed(every):  # whoever needs something comes behind it
            if name in wanted:
                needed = [need for need in every[name].needs if asked(need) or not need.startswith(COMPARED)]
                wanted |= {need for need in needed if not self._given(need, name)}
        self.rows = [row for row in self.rows if run_of(row) not in wanted]
        return [
            replace(job, needs=tuple(need for need in job.needs if need in wanted))
            for name, job in every.items()
            if name in wanted
        ]

    def _every(self) -> list[Job]:
        found = [job for task in self.lessons for job in self._choosing(task)]
        for task in self._ablated():
            found += self._ablation(task)
        found += [self._trying(task, name) for task in self.lessons for name in RECIPES.get(task, ())]
        for seed in range(max(self.plans[task].seeds for task in self.lessons)):
            for task in self.lessons:
                if seed < self.plans[task].seeds:
                    found += self._seed(task, seed)
        return found

    def _stands(self, name: str) -> bool:
        """Whether all that a run writes down stands in the rows."""
        return name in standing(self.rows)

    def _given(self, name: str, by: str) -> bool:
        """Whether what run `by` takes from another is there: its rows, and the network where that is the teacher."""
        if not self._stands(name):
            return False
        if " plain " not in name or " plain " in by or name in self.networks:
            return True
        network = self.kept(name)
        if network is not None:
            self.networks[name] = network
        return network is not None

    def _ablated(self) -> list[str]:
        return [task for task in ABLATED if task in self.lessons]

    def _choosing(self, task: str) -> list[Job]:
        plan = self.plans[task]
        if len(plan.rates) == 1:
            return []
        kinds = {"plain": PLAIN, "secformer_bare": SECFORMER, "mpcformer_bare": MPCFORMER}
        return [self._finetuning(task, kind, swaps, 0, rate) for rate in plan.rates for kind, swaps in kinds.items()]

    def _ablation(self, task: str) -> list[Job]:
        def job(kind: str, ablation: Ablation) -> Job:
            name = f"ablation {task} {kind}"
            return Job(name, lambda: self._ablate(task, kind, name, ablation), self._compared(task))

        return [job(kind, ablation) for kind, ablation in ablations().items()]

    def _seed(self, task: str, seed: int) -> list[Job]:
        plan = self.plans[task]
        chosen = {
            kind: tuple(choice_name(task, kind, rate) for rate in plan.rates) if len(plan.rates) > 1 else ()
            for kind in ("plain", "secformer_bare", "mpcformer_bare")
        }
        recipes = tuple(f"ablation {each} {name}" for each in self._ablated() for name in ("scores", "hidden"))
        penalties = tuple(f"ablation {each} penalty {penalty:g}" for each in self._ablated() for penalty in PENALTIES)
        recipes += tuple(f"recipe {task} {name}" for name in RECIPES.get(task, ()))
        teacher = f"{task} plain {seed}"
        found = [
            Job(teacher, lambda: self._teach(task, seed), chosen["plain"]),
            self._distilling(task, "secformer", SECFORMER, seed, (teacher, *recipes)),
            self._distilling(task, "fast", SECFORMER, seed, (teacher, *recipes, *penalties)),
            self._distilling(task, "mpcformer", MPCFORMER, seed, (teacher, *recipes)),
            self._bare(task, "secformer_bare", SECFORMER, seed, chosen["secformer_bare"]),
            self._bare(task, "mpcformer_bare", MPCFORMER, seed, chosen["mpcformer_bare"]),
        ]
        if seed == 0:
            found.append(self._bare(task, "quad_bare", QUAD, seed, chosen["mpcformer_bare"]))
            found.append(self._distilling(task, "quad", QUAD, seed, (teacher, *recipes)))
        return found

    def _finetuning(self, task: str, kind: str, swaps: Swaps, seed: int, rate: float) -> Job:
        name = choice_name(task, kind, rate)

        def run() -> Iterator[Any]:
            lessons, (schedule,) = (
                self.lessons[task],
                schedules(self.plans[task].epochs, [rate], self.plans[task].batch),
            )
            network = _with(self.base(task, seed), swaps)
            value = None
            try:
                yield from self._train(name, network, lambda n: [_task_stage(n, lessons.most, schedule, seed)])
                value = score_on(self.networks[name], lessons.held_out, task_named(task))
            except InputError:  # the loss is not a number any more
                if kind == "plain":
                    raise
            row = self._row(task, kind, seed, value, len(lessons.held_out), {"rate": rate}, part="choice")
            self._write_result(name, row)

        return Job(name, run)

    def _bare(self, task: str, kind: str, swaps: Swaps, seed: int, needs: tuple[str, ...]) -> Job:
        like = "mpcformer_bare" if kind == "quad_bare" else kind

        def run() -> Iterator[Any]:
            rate = self.choices.rate(task, like)
            try:
                yield from self._finetune(task, kind, swaps, seed, rate)
            except InputError:  # the loss is not a number any more
                self._diverged(task, kind, seed, rate)
            else:
                self._write(name, *self._evaluated(task, kind, seed, name, {"rate": rate}))

        name = f"{task} {kind} {seed}"
        return Job(name, run, needs)

    def _teach(self, task: str, seed: int) -> Iterator[Any]:
        rate, name = self.choices.rate(task, "plain"), f"{task} plain {seed}"
        yield from self._finetune(task, "plain", PLAIN, seed, rate)
        rows = self._evaluated(task, "plain", seed, name, {"rate": rate})
        rows.append(self._twin(task, "puma", seed, name, "puma"))
        swaps = {"secformer_swapped": SECFORMER, "mpcformer_swapped": MPCFORMER, "quad_swapped": QUAD}
        for kind, swap in swaps.items():
            lessons = self.lessons[task]
            value = score_on(swapped(self.networks[name], swap), lessons.dev, task_named(task))
            rows.append(self._row(task, kind, seed, value, len(lessons.dev), asdict(swap)))
        self._write(name, *rows)

    def _distilling(self, task: str, kind: str, swaps: Swaps, seed: int, needs: tuple[str, ...]) -> Job:
        def run() -> Iterator[Any]:
            weighting = self.choices.weighting(kind == "fast")
            for share in SLOWER:
                recipe = recipe_of(self.choices.plan(task).slowed(share), swaps, weighting)
                try:
                    yield from self._distil(task, kind, recipe, seed)
                except InputError:  # the loss is not a number any more
                    continue
                return
            self._diverged(task, kind, seed, recipe.inside.learning_rate)

        return Job(f"{task} {kind} {seed}", run, needs)

    def _distil(self, task: str, kind: str, recipe: Recipe, seed: int) -> Iterator[Any]:
        lessons, name = self.lessons[task], f"{task} {kind} {seed}"
        teacher, texts = (
            self.networks[f"{task} plain {seed}"],
            self._texts(task, self.choices.plan(task), lessons.train),
        )
        stages = lambda n: distillation_stages(n, teacher, lessons.train, recipe, seed, texts)  # noqa: E731
        yield from self._train(name, swapped(teacher, recipe.swaps), stages)
        far = {"distance": distance(self.networks[name], teacher, lessons.dev)}
        more = {"more_texts": sum(map(len, texts))}
        self._write(name, *self._evaluated(task, kind, seed, name, {**asdict(recipe), **more, **far}))

    def _ablate(self, task: str, kind: str, name: str, ablation: Ablation) -> Iterator[Any]:
        plan = self.plans[task]
        recipe = recipe_of(plan, ablation.swaps, ablation.weighting, ablation.stages, ablation.rate)
        yield from self._compare(task, kind, name, recipe, plan, "ablation")

    def _trying(self, task: str, kind: str) -> Job:
        """Another plan of a task, with the penalty of `fast`."""
        name = f"recipe {task} {kind}"
        plan = replace(self.plans[task], **RECIPES[task][kind])
        recipe = recipe_of(plan, SECFORMER, DEFAULT)
        return Job(name, lambda: self._compare(task, kind, name, recipe, plan, "recipe"), self._compared(task))

    def _compared(self, task: str) -> tuple[str, ...]:
        """What the teachers of a comparison are."""
        return tuple(choice_name(task, "plain", rate) for rate in self.plans[task].rates)

    def _compare(self, task: str, kind: str, name: str, recipe: Recipe, plan: TaskPlan, part: str) -> Iterator[Any]:
        """On the part of train that the teacher too was trained on, scored on the rest."""
        lessons = self.lessons[task]
        best = max(self.plans[task].rates, key=lambda rate: self.choices.score(task, "plain", rate))
        teacher, texts = self.networks[choice_name(task, "plain", best)], self._texts(task, plan, lessons.most)
        stages = lambda n: distillation_stages(n, teacher, lessons.most, recipe, 0, texts)  # noqa: E731
        yield from self._train(name, swapped(teacher, recipe.swaps), stages)
        student = self.networks[name]
        value = score_on(student, lessons.held_out, task_named(task))
        ranges = measure_ranges(student, batches_of(lessons.most, 64, student.config, 256))
        far = distance(student, teacher, lessons.held_out)
        same = agreement(student, teacher, lessons.held_out)
        settings = {**asdict(recipe), "ranges": ranges, "distance": far, "labels_of_teacher": same}
        settings |= {"more_texts": sum(map(len, texts))}
        self._write(name, self._row(task, kind, 0, value, len(lessons.held_out), settings, part=part))

    # -- what they share -------------------------------------------------------------------------------------------------

    def _finetune(self, task: str, kind: str, swaps: Swaps, seed: int, rate: float) -> Iterator[Any]:
        plan = self.plans[task]
        (schedule,) = schedules(plan.epochs, [rate], plan.batch)
        network = _with(self.base(task, seed), swaps)
        rows = self.lessons[task].train
        yield from self._train(f"{task} {kind} {seed}", network, lambda n: [_task_stage(n, rows, schedule, seed)])

    def _train(self, name: str, start: Network, stages: Callable[[Network], Sequence[Stage]]) -> Iterator[Any]:
        try:
            yield from self._steps(name, start, stages)
        except InputError:
            if " plain " in name:
                self.failed.append(name)
                self._take_back()
            raise

    def _steps(self, name: str, start: Network, stages: Callable[[Network], Sequence[Stage]]) -> Iterator[Any]:
        network = start.trainable()
        for stage in stages(network):
            yield from _through(stage.trainer())
        self.networks[name] = network.copy()
        self.keep(name, self.networks[name])

    def _texts(self, task: str, plan: TaskPlan, own: Rows) -> list[Rows]:
        """What a distillation takes beside the task's own."""
        return [*self.lessons[task].more(plan), *altered(own, plan.altered)]

    # -- what they measure -----------------------------------------------------------------------------------------------

    def _evaluated(self, task: str, kind: str, seed: int, name: str, settings: Mapping[str, Any]) -> list[Row]:
        """On dev, as trained, and by the twin of the suite that would run it."""
        network, lessons = self.networks[name], self.lessons[task]
        ranges = {}
        if network.swaps.softmax == "2quad":
            ranges = {"ranges": measure_ranges(network, batches_of(_some(lessons.train), 64, network.config))}
        value = score_on(network, lessons.dev, task_named(task))
        rows = [self._row(task, kind, seed, value, len(lessons.dev), {**settings, **ranges})]
        suite = kind.split("_")[0]
        if suite in ("secformer", "mpcformer"):
            rows.append(self._twin(task, kind, seed, name, suite))
        return rows

    def _diverged(self, task: str, kind: str, seed: int, rate: float) -> None:
        """A row without a number, in every mode that the run would have been measured in."""
        examples, suite = len(self.lessons[task].dev), kind.split("_")[0]
        rows = [self._row(task, kind, seed, None, examples, {"rate": rate, "diverged": True})]
        if suite in ("secformer", "mpcformer"):
            rows.append(self._row(task, kind, seed, None, examples, {"diverged": True}, mode="twin", suite=suite))
        self._write_result(f"{task} {kind} {seed}", *rows)

    def _write_result(self, name: str, *rows: Row) -> None:
        """Or that there is none. Where not even a teacher could be trained, what was swapped is not the reason."""
        without = [row for row in rows if row["value"] is None]
        if without and self.failed:
            raise InputError(f"the loss is not a number any more, and that of {self.failed[0]} was not either")
        self.diverged += without
        self._write(name, *rows)

    def _take_back(self) -> None:
        """The rows of this run that have no number."""
        for task in self.lessons:
            remove_rows(rows_file(self.out, self.name, task), lambda row: row in self.diverged)

    def _twin(self, task: str, kind: str, seed: int, name: str, suite: str) -> Row:
        network, lessons = self.networks[name], self.lessons[task]
        batches = batches_of(_some(lessons.train), 64, network.config)
        value, agreeing = twin_score(network, suite, batches, lessons.dev, task_named(task))
        return self._row(task, kind, seed, value, len(lessons.dev), {}, mode="twin", suite=suite, agreeing=agreeing)

    def _row(
        self,
        task: str,
        kind: str,
        seed: int,
        value: float | None,
        examples: int,
        settings: Mapping[str, Any],
        part: str = "dev",
        mode: str = "plain",
        **more: Any,
    ) -> Row:
        row = {"base": self.name, "task": task, "row": kind, "seed": seed, "part": part, "mode": mode}
        row |= {
            "metric": task_named(task).metric,
            "value": None if value is None else round(value, 4),
            "examples": examples,
            **more,
        }
        return {**row, "settings": dict(settings)}

    def _write(self, name: str, *rows: Row) -> None:
        """All that a run measured, at once: after a kill there is none of it or the whole. Its network goes, unless it is a
        teacher: a GPU has to hold those that are still trained."""
        self.rows += rows
        add_rows(rows_file(self.out, self.name, rows[0]["task"]), rows)
        if " plain " not in name:
            self.networks.pop(name, None)


def ordered(jobs: Sequence[Job], rows: Sequence[str]) -> list[Job]:
    """Those of the first of these rows first, each behind the learning rates that are tried for it."""

    def place(job: Job) -> int:
        first, second, third, *_ = job.name.split()
        kind = second if first in TASKS else third if first == "choice" else first
        return rows.index(kind) if kind in rows else -1

    return sorted(jobs, key=place)


def _some(rows: Rows) -> Rows:
    """From all over: where a file begins its texts may be short."""
    step = max(1, len(rows) // RANGE_EXAMPLES)
    return rows.chosen(torch.arange(0, len(rows), step, device=rows.ids.device))


def _through(trainer: Trainer) -> Iterator[int]:
    """Train to the end; when this is over nobody holds the trainer any more."""
    for step in trainer.run():
        if step % trainer.steps_an_epoch == 0:
            trainer.mean_loss()  # refuses to go on with what is not a number
        yield step


def _with(network: Network, swaps: Swaps) -> Network:
    return replace(network, swaps=swaps, config=swaps.config(network.config))


def _task_stage(network: Network, rows: Rows, schedule: Schedule, seed: int) -> Stage:
    return task_stage(network, rows, schedule, FinetuneSettings((schedule,), network.swaps, seed=seed))

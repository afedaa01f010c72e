"""`secformer distill`: a fine-tuned teacher in, its student with cheaper functions out (MPCFormer's recipe, section 3.1).

The student starts as the teacher with functions swapped. Stage one brings its embedding, hidden states and attention scores
near the teacher's, stage two its predictions (losses.py). The teacher is in evaluation mode, and so is the student: nothing
is dropped. Neither stage needs labels, so where a task has few texts of its own, stage one, and stage two if the recipe says
so, takes texts of other tasks and the own ones altered (transfer.py) as well. A student may have fewer layers and a smaller
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from secformer.engine.tracing import trace
from secformer.errors import SettingsError
from secformer.models.cost import cost_dict
from secformer.systems import suite_named
from secformer.training import checkpoints
from secformer.training.batches import Rows, batches_of, encode, joined
from secformer.training.cards import read_card, write_card
from secformer.training.examples import Examples, split
from secformer.training.finetune import CHOOSING, HELD_OUT, plain_row
from secformer.training.folders import Folder, check_task, prepare, read_folder, save_folder
from secformer.training.losses import DistillationLoss, Weighting
from secformer.training.network import Network, Swaps
from secformer.training.ranges import measure_ranges
from secformer.training.scoring import score_on
from secformer.training.stages import Keeping, Stage, Watch, choose, ignore, run_stages
from secformer.training.trainer import Schedule, Trainer
from secformer.training.transfer import altered, taken_apart
from secformer.training.vocabulary import fewer_layers, trimmed, used_words

RANGE_EXAMPLES = 512
RANGE_BATCH = 64


@dataclass(frozen=True)
class Recipe:
    """What a student becomes, and how."""

    swaps: Swaps
    inside: Schedule
    """Stage one; no epochs: it is left out."""
    prediction: Schedule
    """Stage two."""
    weighting: Weighting
    both: bool = False
    """Whether stage two takes other texts than the task's own too."""

    def __post_init__(self) -> None:
        if self.weighting.sums and self.swaps.softmax != "2quad":
            raise SettingsError("row sums are those of 2Quad: a student with Softmax has no penalty on them")

    @property
    def name(self) -> str:
        return f"c {self.swaps.shift:g}, penalty {self.weighting.penalty:g}, attention {self.weighting.attention:g}"


def recipes(
    swaps: Sequence[Swaps], weightings: Sequence[Weighting], inside: Schedule, prediction: Schedule, both: bool = False
) -> tuple[Recipe, ...]:
    """Every combination."""
    return tuple(Recipe(swap, inside, prediction, weighting, both) for swap in swaps for weighting in weightings)


@dataclass(frozen=True)
class DistillSettings:
    recipes: tuple[Recipe, ...]
    """One, or several to choose from on a part of the training examples."""
    layers: int | None = None
    vocabulary: int | None = None
    altered: int = 0
    """How often each text is taken with a word changed, besides as it is."""
    longest: int = 128
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 500
    half: bool = False


def distill(
    teacher: Path,
    out: Path,
    train: Examples,
    dev: Examples,
    settings: DistillSettings,
    watch: Watch = ignore,
    also: Sequence[Examples] = (),
) -> dict[str, Any]:
    """Train, save and describe; gives the card. `also`: other tasks' examples, whose texts are taken too."""
    prepare(out)
    source = read_folder(teacher)
    check_task(source, train.task)
    run = _Distillation(_readable(source, train, settings, out), train, settings, also)
    recipe, scores = run.choose(out, watch)
    keeping = Keeping(out, run.definition(recipe), settings.checkpoint_every)
    student = distilled(
        run.teacher, run.start(recipe), run.rows, recipe, settings.seed, keeping, watch, run.texts(run.rows)
    )
    save_folder(out, run.source, student, torch.float16 if settings.half else torch.float32)
    card = run.card(teacher, recipe, scores, student, dev)
    write_card(out, card)
    checkpoints.remove(out)
    return card


def _readable(source: Folder, train: Examples, settings: DistillSettings, out: Path) -> Folder:
    """The teacher, with the student's vocabulary where that is smaller: both must see the same tokens."""
    if source.network.swaps != Swaps():
        raise SettingsError(f"'{source.path}' is a student already: distil from its teacher")
    if settings.vocabulary is None:
        return source
    rows = encode(source.tokenizer, source.network.config, train, settings.longest)
    return trimmed(source, used_words(source.path, rows, settings.vocabulary), out)


def distilled(
    teacher: Network,
    start: Network,
    rows: Rows,
    recipe: Recipe,
    seed: int,
    keeping: Keeping | None = None,
    watch: Watch = ignore,
    more: Sequence[Rows] = (),
) -> Network:
    student = start.trainable()
    run_stages(distillation_stages(student, teacher, rows, recipe, seed, more), keeping, watch)
    return student.copy()


def distillation_stages(
    student: Network, teacher: Network, rows: Rows, recipe: Recipe, seed: int, more: Sequence[Rows] = ()
) -> list[Stage]:
    """`more`: rows without labels, for stage one and, where the recipe says so, stage two."""

    def stage(final: bool, schedule: Schedule, number: int) -> Stage:
        loss = DistillationLoss(student, teacher, recipe.weighting, final)
        name = "stage two: prediction" if final else "stage one: inside"
        taught = joined([rows, *more]) if more and (recipe.both or not final) else rows
        return Stage(name, lambda: Trainer(student.weights.tensors, taught, loss, schedule, seed + number))

    both = ((False, recipe.inside), (True, recipe.prediction))
    return [stage(final, schedule, number) for number, (final, schedule) in enumerate(both) if schedule.epochs]


def swapped(teacher: Network, swaps: Swaps) -> Network:
    """The teacher with other functions: where a student starts, and a row of the table without any training."""
    return replace(teacher.copy(), swaps=swaps, config=swaps.config(teacher.config))


class _Distillation:
    """A teacher, the rows it teaches on, and what its student starts from."""

    def __init__(
        self, source: Folder, train: Examples, settings: DistillSettings, also: Sequence[Examples] = ()
    ) -> None:
        self.source, self.train, self.settings, self.also = source, train, settings, also
        self.teacher = source.network.to(settings.device)
        self.rows = self._encode(train)
        self.more = [self._like_own(self._encode(examples), examples) for examples in also]

    def _encode(self, examples: Examples) -> Rows:
        rows = encode(self.source.tokenizer, self.teacher.config, examples, self.settings.longest)
        return rows.to(self.settings.device)

    def _like_own(self, rows: Rows, examples: Examples) -> Rows:
        """Pairs are taken apart for a task of one text."""
        return taken_apart(rows) if self.train.pairs is None and examples.pairs is not None else rows

    def texts(self, rows: Rows) -> list[Rows]:
        """What these rows are distilled with besides."""
        return [*self.more, *altered(rows, self.settings.altered)]

    def start(self, recipe: Recipe) -> Network:
        student = swapped(self.teacher, recipe.swaps)
        return student if self.settings.layers is None else fewer_layers(student, self.settings.layers)

    def definition(self, recipe: Recipe) -> dict[str, Any]:
        """All that decides the result."""
        settings = asdict(replace(self.settings, recipes=(recipe,), checkpoint_every=0))
        teacher = self.source.network.weights.digest
        also = [examples.digest for examples in self.also]
        return {"what": "distill", "teacher": teacher, "data": self.train.digest, "also": also, "settings": settings}

    def choose(self, out: Path, watch: Watch) -> tuple[Recipe, dict[str, float] | None]:
        """The recipe whose student does best on a tenth of the training examples after training on the others."""
        recipes, settings = self.settings.recipes, self.settings
        if len(recipes) == 1:
            return recipes[0], None
        rows, held_out = (self._encode(part) for part in split(self.train, HELD_OUT, settings.seed))

        def attempt(index: int, folder: Path) -> float:
            recipe = recipes[index]
            keeping = Keeping(folder, {**self.definition(recipe), "choosing": True}, settings.checkpoint_every)
            start = self.start(recipe)
            more = self.texts(rows)
            student = distilled(self.teacher, start, rows, recipe, settings.seed, keeping, watch, more)
            return score_on(student, held_out, self.train.task)

        best, scores = choose([recipe.name for recipe in recipes], out / CHOOSING, attempt)
        return recipes[best], scores

    def card(
        self, teacher: Path, recipe: Recipe, scores: dict[str, float] | None, student: Network, dev: Examples
    ) -> dict[str, Any]:
        task, rows = self.train.task, self._encode(dev)
        values = {
            "teacher": score_on(self.teacher, rows, task),
            "before_distillation": score_on(self.start(recipe), rows, task),
            "student": score_on(student, rows, task),
        }
        seen = batches_of(self.rows, RANGE_BATCH, self.teacher.config, RANGE_EXAMPLES)
        known = read_card(teacher) or {}
        chosen = {"chosen_on_a_tenth_of_train": scores} if scores else {}
        others = {"texts_of_other_tasks": {each.task.name: len(each) for each in self.also}} if self.also else {}
        sizes = {"layers": student.config.layers, "vocabulary": student.config.vocabulary}
        return {
            "title": f"{teacher.name} distilled: Softmax {recipe.swaps.softmax}, GeLU {recipe.swaps.gelu}",
            "summary": (
                f"A student of {task.name}, made by `secformer distill`. On dev ({task.metric}): "
                f"teacher {values['teacher']:.2f}, functions swapped without distillation "
                f"{values['before_distillation']:.2f}, student {values['student']:.2f}."
            ),
            "task": task.name,
            "made_from": {
                "base": known.get("made_from", {}).get("base", teacher.name),
                "teacher": teacher.name,
                "train_examples": len(self.train),
                "train_sha256": self.train.digest,
                **others,
            },
            "settings": {
                **asdict(recipe),
                **sizes,
                "altered": self.settings.altered,
                "longest": self.settings.longest,
                "seed": self.settings.seed,
                **chosen,
            },
            "plain": values,
            "evaluations": [plain_row(task.metric, values["student"], len(dev))],
            "ranges": {
                "before": measure_ranges(self.start(recipe), seen),
                "after": measure_ranges(student, seen),
            },
            "cost": query_cost(student),
        }


def query_cost(student: Network, tokens: int = 128) -> dict[str, Any]:
    """Of one text, traced with the constants of a preset: costs hardly depend on a model's own."""
    suite = "mpcformer" if student.swaps.gelu == "quad" else "fast" if student.swaps.softmax == "2quad" else "exact"
    tokens = min(tokens, student.config.positions)
    cost = trace(suite_named(suite).preset(student.config).query_program(1, tokens)).cost
    return {"suite": suite, "tokens": tokens, **cost_dict(cost)}

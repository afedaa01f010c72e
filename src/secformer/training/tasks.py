"""What a model is trained for: the tasks of GLUE, and a user's own.

    task     texts    labels in the files                     metric
    cola     one      0 unacceptable, 1 acceptable            Matthews' correlation
    sst2     one      0 negative, 1 positive                  accuracy
    mrpc     pairs    0 different, 1 paraphrase               F1
    stsb     pairs    a score from 0 to 5                     mean of Pearson's and Spearman's correlation
    qnli     pairs    0 entailment, 1 not_entailment          accuracy
    rte      pairs    0 entailment, 1 not_entailment          accuracy
    labels   either   whatever the training file has          accuracy
    score    either   a number                                mean of Pearson's and Spearman's correlation

A label is written in a file by its key ("1") or by its name ("positive").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from secformer.errors import SettingsError


@dataclass(frozen=True)
class Task:
    name: str
    metric: str
    """One of metrics.METRICS."""
    pairs: bool | None = None
    """Whether an example is a pair of texts; None: as the file has it."""
    keys: tuple[str, ...] = ()
    """The labels as GLUE's files write them, in the order of the model's outputs."""
    names: tuple[str, ...] = ()
    """The same for people. Of a task of labels without names, those of the training file."""
    score: bool = False
    """Whether a number is learnt instead of a label."""

    @property
    def outputs(self) -> int:
        return 1 if self.score else len(self.names)

    def index(self, label: str) -> int | None:
        """Which output a label of a file means; None: none."""
        for known in (self.names, self.keys):
            if label in known:
                return known.index(label)
        return None


def _two(name: str, metric: str, pairs: bool, first: str, second: str) -> Task:
    return Task(name, metric, pairs, ("0", "1"), (first, second))


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _two("cola", "matthews", False, "unacceptable", "acceptable"),
            _two("sst2", "accuracy", False, "negative", "positive"),
            _two("mrpc", "f1", True, "different", "paraphrase"),
            Task("stsb", "correlation", True, score=True),
            _two("qnli", "accuracy", True, "entailment", "not_entailment"),
            _two("rte", "accuracy", True, "entailment", "not_entailment"),
            Task("labels", "accuracy"),
            Task("score", "correlation", score=True),
        )
    }
)


def task_named(name: str) -> Task:
    if name not in TASKS:
        raise SettingsError(f"unknown task '{name}': choose {', '.join(TASKS)}")
    return TASKS[name]


def of_another(task: Task, labels: Iterable[str]) -> bool:
    """Whether a model's labels are those of another task, or this one's in another order. (Labels that no task has, like
    LABEL_0, say nothing.)"""
    found = tuple(label.lower() for label in labels)
    if found == task.names:
        return False
    return sorted(found) == sorted(task.names) or any(found == other.names for other in TASKS.values() if other.names)


def with_labels(task: Task, labels: Iterable[str]) -> Task:
    """A task of labels that has none of its own yet, with those seen."""
    if task.score or task.names:
        return task
    return replace(task, names=tuple(sorted(set(labels))))

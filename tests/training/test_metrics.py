"""GLUE's metrics against values worked out by hand, and the ways a label is written."""

from __future__ import annotations

import math

import pytest
import torch

from secformer.errors import SettingsError
from secformer.training.metrics import METRICS, accuracy, correlation, f1, matthews, pearson, ranks
from secformer.training.tasks import TASKS, task_named, with_labels


def said(*labels):
    return torch.nn.functional.one_hot(torch.tensor(labels), 2).float()


RIGHT = torch.tensor([1.0, 1, 1, 0, 0, 1])
SAID = said(1, 1, 0, 0, 1, 1)  # TP 3, FN 1, TN 1, FP 1


def test_accuracy_f1_and_matthews_by_hand():
    assert accuracy(SAID, RIGHT) == pytest.approx(400 / 6)
    assert f1(SAID, RIGHT) == pytest.approx(75.0)
    assert matthews(SAID, RIGHT) == pytest.approx(100 * (3 * 1 - 1 * 1) / math.sqrt(4 * 4 * 2 * 2))


def test_a_model_that_says_one_label_only_has_no_correlation():
    assert matthews(said(1, 1, 1, 1, 1, 1), RIGHT) == 0.0
    assert f1(said(0, 0, 0, 0, 0, 0), RIGHT) == 0.0


def test_ranks_of_equal_values_are_shared():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_correlation_is_the_mean_of_both():
    scores, right = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert correlation(scores, right) == pytest.approx(50 * (pearson(scores[:, 0], right) + 1))
    assert pearson(scores[:, 0], right) == pytest.approx(0.9591663, abs=1e-6)
    assert pearson(torch.zeros(4), right) == 0.0


def test_every_task_has_a_metric():
    assert {task.metric for task in TASKS.values()} == set(METRICS)


def test_labels_by_key_and_by_name():
    task = task_named("rte")
    assert task.index("1") == task.index("not_entailment") == 1
    assert task.index("2") is None
    assert with_labels(task_named("labels"), ["b", "a", "b"]).names == ("a", "b")
    with pytest.raises(SettingsError, match="unknown task 'glue'"):
        task_named("glue")

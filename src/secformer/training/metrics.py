"""The metrics of GLUE, times 100. Each takes a model's results (examples, outputs) and the targets (examples,)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

Metric = Callable[[Tensor, Tensor], float]


def accuracy(results: Tensor, targets: Tensor) -> float:
    return 100 * float((results.argmax(-1) == targets).double().mean())


def f1(results: Tensor, targets: Tensor) -> float:
    """Of the second label: 2·TP / (2·TP + FP + FN)."""
    true, false_positive, false_negative, _ = _counts(results, targets)
    return 100 * 2 * true / max(2 * true + false_positive + false_negative, 1)


def matthews(results: Tensor, targets: Tensor) -> float:
    """(TP·TN − FP·FN) / √((TP+FP)(TP+FN)(TN+FP)(TN+FN)); 0 where a label is never predicted or never there."""
    tp, fp, fn, tn = _counts(results, targets)
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return 100 * (tp * tn - fp * fn) / below if below else 0.0


def correlation(results: Tensor, targets: Tensor) -> float:
    """The mean of Pearson's and Spearman's correlation."""
    scores, targets = results[:, 0].double(), targets.double()
    return 50 * (pearson(scores, targets) + pearson(ranks(scores), ranks(targets)))


def pearson(left: Tensor, right: Tensor) -> float:
    left, right = left - left.mean(), right - right.mean()
    below = float(left.norm() * right.norm())
    return float(left @ right) / below if below else 0.0


def ranks(values: Tensor) -> Tensor:
    """Places in the order of size; equal values share the mean of theirs."""
    _, group, count = torch.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[group]


def _counts(results: Tensor, targets: Tensor) -> tuple[int, int, int, int]:
    """True and false positives, false and true negatives."""
    said, right = results.argmax(-1) == 1, targets == 1
    pairs = ((said, right), (said, ~right), (~said, right), (~said, ~right))
    tp, fp, fn, tn = (int((one & other).sum()) for one, other in pairs)
    return tp, fp, fn, tn


METRICS: Mapping[str, Metric] = MappingProxyType(
    {"accuracy": accuracy, "f1": f1, "matthews": matthews, "correlation": correlation}
)

"""A model's results on a set of rows, and its metric there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from secformer.errors import CalibrationError
from secformer.models import plain
from secformer.models.tokens import Batch
from secformer.systems import suite_named
from secformer.training.batches import Places, Rows, in_order
from secformer.training.metrics import METRICS
from secformer.training.network import Network
from secformer.training.tasks import Task

BATCH = 128


def results_on(network: Network, rows: Rows) -> Tensor:
    """(examples, outputs), on the CPU, in the order of the rows."""
    return _results(rows, len(network.config.labels), lambda batch: network.infer(batch).result)


def score_on(network: Network, rows: Rows, task: Task) -> float:
    return METRICS[task.metric](results_on(network, rows), rows.targets.cpu())


def distance(student: Network, teacher: Network, rows: Rows) -> float:
    """Between their predictions: KL(teacher ‖ student), of a score the squared difference. Far less noisy than a metric on few
    examples, so recipes are chosen by it."""
    found, wanted = results_on(student, rows), results_on(teacher, rows)
    if student.config.head == "regression":
        return float((found - wanted).square().mean())
    said, right = functional.log_softmax(found, -1), functional.log_softmax(wanted, -1)
    return float(functional.kl_div(said, right, log_target=True, reduction="batchmean"))


def agreement(student: Network, teacher: Network, rows: Rows) -> float | None:
    """The share of the labels that are the teacher's; of a score: None."""
    if student.config.head == "regression":
        return None
    same = results_on(student, rows).argmax(-1) == results_on(teacher, rows).argmax(-1)
    return float(same.float().mean())


def twin_score(
    network: Network, suite: str, calibration: Iterable[Batch], rows: Rows, task: Task
) -> tuple[float | None, int | None]:
    """The metric under a suite's own approximations in float64, its constants from `calibration`, and in how many labels it
    agrees with the model itself (of a score: None). No metric where the approximation diverges on this model."""
    system, exact = suite_named(suite), network.to(network.device, torch.float64)
    config = system.adapt(network.config)
    try:
        functions = system.functions(config, system.calibrate(exact.weights, config, calibration))
    except (ValueError, CalibrationError):  # a root of what is not positive any more, or not a number
        return None, None

    def run(batch: Batch) -> Tensor:
        return plain.forward(exact.weights, config, batch, functions=functions).result

    found = _results(rows, len(config.labels), run)
    if not bool(torch.isfinite(found).all()):
        return None, None
    agreeing = int((found.argmax(-1) == results_on(network, rows).argmax(-1)).sum())
    return METRICS[task.metric](found, rows.targets.cpu()), None if task.score else agreeing


def _results(rows: Rows, outputs: int, run: Callable[[Batch], Tensor]) -> Tensor:
    found = torch.empty(len(rows), outputs, device=rows.ids.device)
    for places in in_order(rows.lengths.cpu(), BATCH, rows.ids.shape[1]):
        there = places.rows.to(rows.ids.device)
        batch, _ = rows.select(Places(there, places.length))
        found[there] = run(batch).float()
    return found.cpu()

"""A model's results on a set of rows, and its metric there."""

from __future__ import annotations

import torch
from torch import Tensor

from secformer.training.batches import Places, Rows, in_order
from secformer.training.metrics import METRICS
from secformer.training.network import Network
from secformer.training.tasks import Task

BATCH = 128


def results_on(network: Network, rows: Rows) -> Tensor:
    """(examples, outputs), on the CPU, in the order of the rows."""
    lengths, longest = rows.lengths.cpu(), rows.ids.shape[1]
    found = torch.empty(len(rows), len(network.config.labels))
    for places in in_order(lengths, BATCH, longest):
        batch, _ = rows.select(Places(places.rows.to(rows.ids.device), places.length))
        found[places.rows] = network.infer(batch).result.float().cpu()
    return found


def score_on(network: Network, rows: Rows, task: Task) -> float:
    return METRICS[task.metric](results_on(network, rows), rows.targets.cpu())

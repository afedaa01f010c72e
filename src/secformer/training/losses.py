"""What is minimised: a task's own loss, and the two stages of a distillation.

With hidden states H_0 (the embedding's output) … H_L, scores S_1 … S_L and results z of student (s) and teacher (t), means
being over real tokens, or pairs of them, only:

    stage one   Σ_i mean (H_i^s − H_i^t)²  +  a · Σ_i mean (S_i^s − S_i^t)²
    stage two   KL(softmax z^t ‖ softmax z^s), of a score (z^s − z^t)²,  +  h · stage one
    both        +  p · Σ_i mean max(0, |S_i^s| − (c − ½))²
                +  r · Σ_i mean max(0, ln c² − ln D_i, ln D_i − ln 1000c²)²    with the row sums D = Σ (S^s + c)²

The penalty p keeps a student's scores where (S + c)² still grows with S, which also narrows the row sums. What is left are rare
rows whose scores are all near −c, or long ones of large scores; r moves these alone, to where one reciprocal reaches all of
them: from what a single score of nought makes, c², to a thousand times that. A student of fewer layers is compared with evenly
spaced ones of its teacher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from secformer.models.plain import OUTSIDE
from secformer.models.tokens import Batch
from secformer.training.network import SMALLEST_SUM, Dropout, Network

SCORE_MARGIN = 0.5
"""How far below c the penalty begins."""
WIDEST_SUMS = 1000.0
"""The ratio of row sums that costs nothing."""


def task_loss(results: Tensor, targets: Tensor, score: bool) -> Tensor:
    if score:
        return functional.mse_loss(results[:, 0].float(), targets)
    return functional.cross_entropy(results.float(), targets.long())


@dataclass(frozen=True, repr=False)
class TaskLoss:
    network: Network
    score: bool
    dropout: Dropout

    def __call__(self, batch: Batch, targets: Tensor) -> Tensor:
        return task_loss(self.network(batch, dropout=self.dropout).result, targets, self.score)


@dataclass(repr=False)
class Seen:
    """Hidden states and scores of one pass, by layer."""

    hidden: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)

    def observe(self, name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        if name == "input" or (name == "hidden" and layer == OUTSIDE):
            self.hidden.append(tensor.float())
        elif name == "scores":
            self.scores.append(tensor.float())


@dataclass(frozen=True)
class Weighting:
    """How much each part counts; none of what is 0 is computed."""

    attention: float = 1.0
    """a."""
    hidden: float = 0.1
    """h."""
    penalty: float = 0.0
    """p."""
    sums: float = 0.0
    """r."""


def layer_pairs(student: int, teacher: int) -> list[int]:
    """The number of the teacher's layer for each of the student's: the last for its last, the others evenly before."""
    return [round((index + 1) * teacher / student) - 1 for index in range(student)]


@dataclass(frozen=True, repr=False)
class DistillationLoss:
    student: Network
    teacher: Network
    weighting: Weighting
    final: bool
    """Whether this is stage two."""

    def __call__(self, batch: Batch, targets: Tensor) -> Tensor:
        expected, seen = Seen(), Seen()
        with torch.no_grad():
            wanted = self.teacher(batch, expected.observe).result.float()
        found = self.student(batch, seen.observe).result.float()
        loss = torch.zeros((), device=found.device)
        if self.final:
            loss = loss + self._prediction(found, wanted)
        share = self.weighting.hidden if self.final else 1.0
        if share:
            loss = loss + share * self._inside(seen, expected, batch.mask)
        if self.weighting.penalty:
            loss = loss + self.weighting.penalty * self._beyond(seen.scores, batch.mask)
        if self.weighting.sums:
            loss = loss + self.weighting.sums * self._outside(seen.scores, batch.mask)
        return loss

    def _prediction(self, found: Tensor, wanted: Tensor) -> Tensor:
        if self.student.config.head == "regression":
            return functional.mse_loss(found, wanted)
        said, right = functional.log_softmax(found, -1), functional.log_softmax(wanted, -1)
        return functional.kl_div(said, right, log_target=True, reduction="batchmean")

    def _inside(self, seen: Seen, expected: Seen, mask: Tensor) -> Tensor:
        partners = layer_pairs(self.student.config.layers, self.teacher.config.layers)
        hidden = [expected.hidden[0], *(expected.hidden[index + 1] for index in partners)]
        loss = _distance(seen.hidden, hidden, mask[..., None])
        if self.weighting.attention:
            pairs = mask[:, None, :, None] & mask[:, None, None, :]
            scores = [expected.scores[index] for index in partners]
            loss = loss + self.weighting.attention * _distance(seen.scores, scores, pairs)
        return loss

    def _beyond(self, scores: Sequence[Tensor], mask: Tensor) -> Tensor:
        pairs = mask[:, None, :, None] & mask[:, None, None, :]
        limit = self.student.swaps.shift - SCORE_MARGIN
        return torch.stack([_mean((each.abs() - limit).relu().square(), pairs) for each in scores]).sum()

    def _outside(self, scores: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Of row sums, by their logarithms."""
        shift = self.student.swaps.shift
        queries, keys = mask[:, None, :, None], mask[:, None, None, :]
        parts = []
        for each in scores:
            total = ((each + shift).square() * keys).sum(-1, keepdim=True)
            above = total.clamp_min(SMALLEST_SUM).log() - 2 * math.log(shift)
            parts.append(_mean(((-above).relu() + (above - math.log(WIDEST_SUMS)).relu()).square(), queries))
        return torch.stack(parts).sum()


def _distance(left: Sequence[Tensor], right: Sequence[Tensor], mask: Tensor) -> Tensor:
    parts = [_mean((one - other).square(), mask) for one, other in zip(left, right, strict=True)]
    return torch.stack(parts).sum()


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Over what the mask, which broadcasts, lets through."""
    count = mask.sum() * (values.numel() // mask.numel())
    return (values * mask).sum() / count

"""What a caller makes of a model's result: vectors, logits, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from secformer.engine.simulating import Departure
from secformer.models.config import ModelConfig
from secformer.models.evidence import RangeEvidence
from secformer.models.tokens import Batch
from secformer.parties.caller import Result


@dataclass(frozen=True, repr=False)
class Prediction:
    """`result` is what the model gives: vectors or logits. `labels` names the winners of a classifier."""

    result: Tensor
    labels: list[Any] | None
    outcome: Result | None = None
    """Of a secure run: its cost, as declared and as every party counted it."""
    evidence: RangeEvidence | None = None
    """Of a secure or simulated run of a suite that has it: which rows left the ranges the model was calibrated for."""
    departures: tuple[Departure, ...] = ()
    """Of a simulated run: the same with how far they went."""

    @property
    def marked(self) -> list[bool]:
        """By text: may the result be wrong, because ranges were left? (See `evidence`.)"""
        return self.evidence.marked if self.evidence else [False] * len(self.result)

    def __repr__(self) -> str:
        marked = f", {sum(self.marked)} marked" if any(self.marked) else ""
        return f"Prediction(shape={tuple(self.result.shape)}{marked})"


def prediction(
    config: ModelConfig,
    batch: Batch,
    result: Tensor,
    outcome: Result | None = None,
    evidence: RangeEvidence | None = None,
    departures: Sequence[Departure] = (),
) -> Prediction:
    """Rows of a token classifier that belong to padding are zero."""
    labels = None
    if config.head == "classification" and not config.multi_label:
        labels = [config.labels[index] for index in result.argmax(-1).tolist()]
    elif config.head == "tokens":
        result = result[:, : batch.ids.shape[1]].masked_fill(~batch.mask[..., None], 0.0)
        rows = zip(result.argmax(-1).tolist(), batch.lengths.tolist(), strict=True)
        labels = [[config.labels[index] for index in row[:count]] for row, count in rows]
    return Prediction(result, labels, outcome, evidence, tuple(departures))

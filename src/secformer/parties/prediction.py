"""What a caller makes of a model's result: vectors, logits, labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.parties.caller import Result


@dataclass(frozen=True, repr=False)
class Prediction:
    """`result` is what the model gives: vectors or logits. `labels` names the winners of a classifier."""

    result: Tensor
    labels: list[Any] | None
    outcome: Result | None = None
    """Of a secure run: its cost, as declared and as every party counted it."""

    def __repr__(self) -> str:
        return f"Prediction(shape={tuple(self.result.shape)})"


def prediction(config: ModelConfig, batch: Batch, result: Tensor, outcome: Result | None = None) -> Prediction:
    """Rows of a token classifier that belong to padding are zero."""
    if config.head == "classification" and not config.multi_label:
        return Prediction(result, [config.labels[index] for index in result.argmax(-1).tolist()], outcome)
    if config.head == "tokens":
        result = result[:, : batch.ids.shape[1]].masked_fill(~batch.mask[..., None], 0.0)
        rows = zip(result.argmax(-1).tolist(), batch.lengths.tolist(), strict=True)
        return Prediction(result, [[config.labels[index] for index in row[:count]] for row, count in rows], outcome)
    return Prediction(result, None, outcome)

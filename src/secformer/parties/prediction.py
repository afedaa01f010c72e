"""What a caller makes of a model's result: vectors, logits, labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.engine.simulating import Departure
from secformer.models.config import ModelConfig
from secformer.models.evidence import RangeEvidence
from secformer.models.tokens import Batch, Context
from secformer.parties.caller import Result

LONGEST_ANSWER = 30
"""Tokens, as transformers has it."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """`result` is what the model gives: vectors or logits. `labels` names the winners of a classifier, the answer to a question,
    the number of the best choice, or the likeliest word for each mask."""

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
    tokenizer: Any = None,
) -> Prediction:
    """Rows of a token classifier that belong to padding are zero."""
    if config.head in ("tokens", "question"):
        result = result[:, : batch.ids.shape[1]].masked_fill(~batch.mask[..., None], 0.0)
    if config.head == "choice" and batch.choices:
        result = result.reshape(-1, batch.choices)
        evidence = evidence and evidence.together(batch.choices)
    labels = _labels(config, batch, result, tokenizer)
    return Prediction(result, labels, outcome, evidence, tuple(departures))


def _labels(config: ModelConfig, batch: Batch, result: Tensor, tokenizer: Any) -> list[Any] | None:
    """The winners: a label, one for each token, the number of a choice, an answer, or a word for each that was asked for."""
    if config.head == "classification" and not config.multi_label:
        return [config.labels[index] for index in result.argmax(-1).tolist()]
    if config.head == "tokens":
        rows = zip(result.argmax(-1).tolist(), batch.lengths.tolist(), strict=True)
        return [[config.labels[index] for index in row[:count]] for row, count in rows]
    if config.head == "question" and batch.contexts:
        return [answer(row, context) for row, context in zip(result, batch.contexts, strict=True)]
    if config.head == "choice":
        return result.argmax(-1).tolist()
    if config.head == "masked" and tokenizer is not None:
        return [tokenizer.convert_ids_to_tokens(row) for row in result.argmax(-1).tolist()]
    return None


def answer(logits: Tensor, context: Context) -> str:
    """The span of a text with the largest sum of its first token's start and its last token's end."""
    inside = torch.tensor([place is not None for place in context.places])
    start, end = (logits[: len(inside), side].masked_fill(~inside, -math.inf) for side in (0, 1))
    spans = torch.ones(len(inside), len(inside), dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
    sums = (start[:, None] + end[None, :]).masked_fill(~spans, -math.inf)
    first, last = divmod(int(sums.argmax()), len(inside))
    begin, stop = context.places[first], context.places[last]
    return context.text[begin[0] : stop[1]] if begin and stop else ""

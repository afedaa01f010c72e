"""What a caller makes of a model's result: the numbers, and an answer for every text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from secformer.engine.simulating import Departure
from secformer.errors import SettingsError
from secformer.models.answers import Answer, answer_of, part_of
from secformer.models.batches import sessions
from secformer.models.config import ModelConfig
from secformer.models.evidence import RangeEvidence
from secformer.models.tokens import Batch, Tokens, pad
from secformer.parties.caller import Progress, Result, added


@dataclass(frozen=True, repr=False)
class Prediction:
    """The answers to some texts, in their order: iterate over it, or take `prediction[0]`.

    `result` is what the model gives: vectors or logits, a row a text. `labels` names the winners of a classifier: one a text,
    several where it is multi-label, one a token (special ones left out) where it classifies tokens; of other heads the answer
    to a question, the number of the best choice, or the likeliest word for each mask.
    """

    result: Tensor
    labels: list[Any] | None
    outcome: Result | None = None
    """Of a secure run: its cost, as declared and as every party counted it."""
    evidence: RangeEvidence | None = None
    """Of a secure or simulated run of a suite that has it: which rows left the ranges the model was calibrated for."""
    departures: tuple[Departure, ...] = ()
    """Of a simulated run: the same with how far they went."""
    answers: tuple[Answer, ...] = ()
    """What the numbers mean, by text."""

    @property
    def marked(self) -> list[bool]:
        """By text: may the result be wrong, because ranges were left? (See `evidence`.)"""
        return self.evidence.marked if self.evidence else [False] * len(self.result)

    def __len__(self) -> int:
        return len(self.result)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __getitem__(self, text: int) -> Answer:
        return self.answers[text]

    def to_dict(self, scores: bool = False) -> dict[str, Any]:
        """Answers and, of a secure run, cost; for JSON. `scores` adds those of all labels."""
        found: dict[str, Any] = {"answers": [answer.to_dict(scores) for answer in self.answers]}
        return found if self.outcome is None else {**found, "cost": self.outcome.to_dict()}

    def to_pandas(self, scores: bool = False) -> Any:
        """A row a text, as a DataFrame."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise SettingsError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([answer.to_dict(scores) for answer in self.answers])

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
    marks = (
        [dict(marked=one, evidence=evidence.of(text)) for text, one in enumerate(evidence.marked)] if evidence else []
    )
    words = getattr(tokenizer, "convert_ids_to_tokens", None)
    answers = tuple(
        answer_of(config, row, part_of(batch, text, words), **(marks[text] if marks else {}))
        for text, row in enumerate(result)
    )
    return Prediction(result, _labels(config, answers), outcome, evidence, tuple(departures), answers)


def _labels(config: ModelConfig, answers: Sequence[Answer]) -> list[Any] | None:
    if config.head == "classification":
        return [list(answer.labels) if answer.labels is not None else answer.label for answer in answers]
    if config.head == "tokens":
        return [[token.label for token in answer.tokens or ()] for answer in answers]
    if config.head == "question":
        return [answer.span.text if answer.span else "" for answer in answers]
    if config.head == "choice":
        return [answer.choice for answer in answers]
    if config.head == "masked":
        return [[word.token for word in answer.words] if answer.words is not None else None for answer in answers]
    return None


def in_parts(
    rows: Sequence[Tokens],
    config: ModelConfig,
    ask: Callable[[Batch, Progress], Prediction],
    memory: int,
    alike: bool,
    progress: Progress,
) -> Prediction:
    """Ask about texts in as many sessions as `memory` makes necessary (batches.py); the choices of a question share one."""
    size = max(rows[0].choices, 1)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    lengths = [max(len(row.ids) for row in group) for group in groups]
    parts = sessions(lengths, config, memory, alike=alike, rows=size)
    found = []
    for number, part in enumerate(parts, 1):
        told = progress if len(parts) == 1 else partial(_tell, progress, f"part {number} of {len(parts)}: ")
        found.append(ask(pad([row for index in part for row in groups[index]], config), told))
    return together(found, [index for part in parts for index in part])


def _tell(progress: Progress, part: str, step: str) -> None:
    progress(part + step)


def together(parts: Sequence[Prediction], order: Sequence[int]) -> Prediction:
    """Predictions of several sessions as one; `order` says which text each of their rows belongs to."""
    if len(parts) == 1 and list(order) == list(range(len(order))):
        return parts[0]
    places = sorted(range(len(order)), key=lambda row: order[row])
    rows = [row for part in parts for row in part.result]
    longest = max(len(row) for row in rows)  # of tokens: the others have one length
    padded = [torch.cat((row, row.new_zeros(longest - len(row), *row.shape[1:]))) for row in rows]
    answers = [answer for part in parts for answer in part.answers]
    labels = [label for part in parts for label in part.labels or ()]
    counted = [part.evidence for part in parts if part.evidence is not None]
    evidence = None
    if len(counted) == len(parts):
        evidence = RangeEvidence(torch.cat([each.counts for each in counted])[places], counted[0].places)
    return Prediction(
        torch.stack([padded[place] for place in places]),
        [labels[place] for place in places] if labels else None,
        added([part.outcome for part in parts if part.outcome is not None]),
        evidence,
        tuple(departure for part in parts for departure in part.departures),
        tuple(answers[place] for place in places),
    )

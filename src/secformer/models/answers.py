"""What a model's numbers mean for one text: a label with its score, entities, a value, a vector.

    head             answer
    classification   label and score (softmax); several labels, each yes or no, where the model is multi-label (sigmoid)
    tokens           entities: neighbouring tokens of one kind, merged by their B- and I- as transformers' pipelines do
    regression       value
    embedding        vector, of length 1 where sentence-transformers would make it so

Scores and vectors come from the logits at the client; nobody else sees either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.models.tokens import Pieces

OUTSIDE = "O"
"""The label of a token that belongs to no entity."""
LIKELY = 0.5
"""A label of a multi-label classifier holds from this score on."""
DIGITS = 6
"""Of numbers for people and files. A secure result is good for three."""


class Token(NamedTuple):
    """A token with its label, as a pipeline without aggregation gives it."""

    label: str
    score: float
    index: int
    word: str
    start: int
    end: int
    second: bool = False


class Entity(NamedTuple):
    """Neighbouring tokens of one kind, as a pipeline with `aggregation_strategy="simple"` gives them."""

    label: str
    score: float
    word: str
    start: int
    end: int
    tokens: tuple[Token, ...]

    def to_dict(self) -> dict[str, Any]:
        """With the names that pipelines use; `second` where it is in the second text of a pair."""
        place = {"second": True} if self.tokens[0].second else {}
        score = round(self.score, DIGITS)
        return {
            "entity_group": self.label,
            "score": score,
            "word": self.word,
            "start": self.start,
            "end": self.end,
            **place,
        }


@dataclass(frozen=True, repr=False)
class Answer:
    """What a model says about one text, or one pair. Only what its head gives is there."""

    label: str | None = None
    """The likeliest label."""
    score: float | None = None
    """How likely, from 0 to 1."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of every label, the likeliest first."""
    logits: Tensor | None = None
    """Of a classifier, in the order of the model's labels."""
    labels: tuple[str, ...] | None = None
    """Of a multi-label classifier: all that are at least as likely as not."""
    entities: tuple[Entity, ...] | None = None
    tokens: tuple[Token, ...] | None = None
    """Of a token classifier: every token but the special ones."""
    value: float | None = None
    vector: Tensor | None = None
    marked: bool = False
    """Ranges were left: the answer may be wrong."""
    evidence: Mapping[str, int] | None = None
    """Where, and how many rows; None where the suite does not count."""

    def to_dict(self, scores: bool = False) -> dict[str, Any]:
        """For JSON. `scores` adds those of all labels."""
        found: dict[str, Any] = {}
        if self.labels is not None:
            found["labels"] = list(self.labels)
        if self.label is not None:
            found |= {"label": self.label, "score": round(self.score or 0.0, DIGITS)}
        if scores and self.scores:
            found["scores"] = {label: round(score, DIGITS) for label, score in self.scores.items()}
        if self.entities is not None:
            found["entities"] = [entity.to_dict() for entity in self.entities]
        if self.value is not None:
            found["value"] = round(self.value, DIGITS)
        if self.vector is not None:
            found["vector"] = [round(number, DIGITS) for number in self.vector.tolist()]
        return {**found, "marked": self.marked, "evidence": None if self.evidence is None else dict(self.evidence)}

    def __repr__(self) -> str:
        shown = [f"{self.label!r}, score={self.score:.3f}"] if self.label is not None and self.score is not None else []
        shown += [f"labels={list(self.labels)}"] if self.labels is not None else []
        shown += [f"{len(self.entities)} entities"] if self.entities is not None else []
        shown += [f"value={self.value:.4f}"] if self.value is not None else []
        shown += [f"vector of {len(self.vector)}"] if self.vector is not None else []
        return f"Answer({', '.join(shown + ['marked'] * self.marked)})"


def answer_of(config: ModelConfig, numbers: Tensor, pieces: Pieces | None, **marks: Any) -> Answer:
    """`numbers` are one text's: logits (a row for each token of a token classifier), or its vector."""
    if config.head == "classification":
        return _classified(config, numbers, marks)
    if config.head == "tokens":
        tokens = _tokens(config, numbers, pieces) if pieces is not None else ()
        return Answer(entities=_entities(tokens, pieces), tokens=tokens, **marks)
    if config.head == "regression":
        return Answer(value=float(numbers[0]), **marks)
    return Answer(vector=numbers, **marks)


def _classified(config: ModelConfig, logits: Tensor, marks: Mapping[str, Any]) -> Answer:
    likely = torch.sigmoid(logits) if config.multi_label else torch.softmax(logits, -1)
    pairs = sorted(zip(config.labels, likely.tolist(), strict=True), key=lambda pair: -pair[1])
    (label, score), scores = pairs[0], dict(pairs)
    labels = tuple(name for name, each in pairs if each >= LIKELY) if config.multi_label else None
    return Answer(label, score, scores, logits, labels, **marks)


def _tokens(config: ModelConfig, logits: Tensor, pieces: Pieces) -> tuple[Token, ...]:
    likely = torch.softmax(logits, -1)
    best = likely.max(-1)
    labels, scores = best.indices.tolist(), best.values.tolist()
    return tuple(Token(config.labels[labels[piece.index]], scores[piece.index], *piece) for piece in pieces.of)


def _entities(tokens: Sequence[Token], pieces: Pieces | None) -> tuple[Entity, ...]:
    """Neighbours join if they are of one kind and the later one does not begin anew; what is outside is left out."""
    groups: list[list[Token]] = []
    for token in tokens:
        begins, kind = _tag(token.label)
        last = groups[-1][-1] if groups else None
        if last is not None and not begins and kind == _tag(last.label)[1] and token.second == last.second:
            groups[-1].append(token)
        else:
            groups.append([token])
    kept = [group for group in groups if _tag(group[0].label)[1] != OUTSIDE]
    return tuple(_entity(group, pieces) for group in kept if pieces is not None)


def _tag(label: str) -> tuple[bool, str]:
    """Whether it begins an entity, and its kind; a label without B- or I- goes on."""
    return label.startswith("B-"), label[2:] if label[:2] in ("B-", "I-") else label


def _entity(group: Sequence[Token], pieces: Pieces) -> Entity:
    score = sum(token.score for token in group) / len(group)
    word = pieces.join([token.word for token in group])
    return Entity(_tag(group[0].label)[1], score, word, group[0].start, group[-1].end, tuple(group))

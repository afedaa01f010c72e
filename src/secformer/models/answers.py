"""What a model's numbers mean for one text: a label with its score, entities, a span, a value, a vector.

    head             answer
    classification   label and score (softmax); several labels, each yes or no, where the model is multi-label (sigmoid)
    tokens           entities: neighbouring tokens of one kind, merged by their B- and I- as transformers' pipelines do
    regression       value
    question         span: the part of the second text that answers, as transformers' pipelines choose it
    choice           choice: the number of the best second text, and its score
    masked           words: the likeliest token for each mask, and its score
    embedding        vector, of length 1 where sentence-transformers would make it so

Scores and vectors come from the logits at the client; nobody else sees either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch, Context, Pieces

OUTSIDE = "O"
"""The label of a token that belongs to no entity."""
LIKELY = 0.5
"""A label of a multi-label classifier holds from this score on."""
DIGITS = 6
"""Of numbers for people and files. A secure result is good for three."""


LONGEST_ANSWER = 30
"""Tokens of the answer to a question, as transformers has it."""

Words = Callable[[list[int]], list[str]]
"""Names of tokens: a tokenizer's `convert_ids_to_tokens`."""


class Part(NamedTuple):
    """What a client knows of one text beside its tokens, as far as its head needs it. Secret."""

    pieces: Pieces | None = None
    context: Context | None = None
    masks: int = 0
    words: Words | None = None

    def __repr__(self) -> str:
        return "Part(hidden)"


def part_of(batch: Batch, text: int, words: Words | None) -> Part:
    pieces = batch.pieces[text] if batch.pieces else None
    context = batch.contexts[text] if batch.contexts else None
    masks = 0 if batch.places is None else len(set(batch.places[text].tolist()))
    return Part(pieces, context, masks, words)


class Span(NamedTuple):
    """A part of a text, in characters. Secret."""

    text: str
    score: float
    start: int
    end: int

    def to_dict(self) -> dict[str, Any]:
        """With the names that pipelines use."""
        return {"answer": self.text, "score": round(self.score, DIGITS), "start": self.start, "end": self.end}


class Word(NamedTuple):
    """The likeliest token for a mask."""

    token: str
    score: float

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token, "score": round(self.score, DIGITS)}


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
    span: Span | None = None
    choice: int | None = None
    """Of several second texts, counted from 0."""
    words: tuple[Word, ...] | None = None
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
        if self.span is not None:
            found |= self.span.to_dict()
        if self.choice is not None:
            found |= {"choice": self.choice, "score": round(self.score or 0.0, DIGITS)}
        if self.words is not None:
            found["words"] = [word.to_dict() for word in self.words]
        if self.value is not None:
            found["value"] = round(self.value, DIGITS)
        if self.vector is not None:
            found["vector"] = [round(number, DIGITS) for number in self.vector.tolist()]
        return {**found, "marked": self.marked, "evidence": None if self.evidence is None else dict(self.evidence)}

    def __repr__(self) -> str:
        shown = [f"{self.label!r}, score={self.score:.3f}"] if self.label is not None and self.score is not None else []
        shown += [f"labels={list(self.labels)}"] if self.labels is not None else []
        shown += [f"{len(self.entities)} entities"] if self.entities is not None else []
        shown += [f"a span of {len(self.span.text)} letters"] if self.span is not None else []
        shown += [f"choice={self.choice}"] if self.choice is not None else []
        shown += [f"{len(self.words)} words"] if self.words is not None else []
        shown += [f"value={self.value:.4f}"] if self.value is not None else []
        shown += [f"vector of {len(self.vector)}"] if self.vector is not None else []
        return f"Answer({', '.join(shown + ['marked'] * self.marked)})"


def answer_of(config: ModelConfig, numbers: Tensor, part: Part | None = None, **marks: Any) -> Answer:
    """`numbers` are one text's: logits (a row for each token of a token classifier), or its vector."""
    part = part or Part()
    if config.head == "classification":
        return _classified(config, numbers, marks)
    if config.head == "tokens":
        tokens = _tokens(config, numbers, part.pieces) if part.pieces is not None else ()
        return Answer(entities=_entities(tokens, part.pieces), tokens=tokens, **marks)
    if config.head == "question":
        return Answer(span=_span(numbers, part.context) if part.context is not None else None, **marks)
    if config.head == "choice":
        return _chosen(numbers, marks)
    if config.head == "masked":
        return Answer(words=_words(numbers, part), **marks)
    if config.head == "regression":
        return Answer(value=float(numbers[0]), **marks)
    return Answer(vector=numbers, **marks)


def _span(logits: Tensor, context: Context) -> Span:
    """The part with the largest product of its first token's start and its last token's end."""
    inside = torch.tensor([place is not None for place in context.places])
    start, end = (logits[: len(inside), side].masked_fill(~inside, -math.inf).log_softmax(0) for side in (0, 1))
    spans = torch.ones(len(inside), len(inside), dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
    sums = (start[:, None] + end[None, :]).masked_fill(~spans, -math.inf)
    first, last = divmod(int(sums.argmax()), len(inside))
    begin, stop = context.places[first], context.places[last]
    if begin is None or stop is None:
        return Span("", 0.0, 0, 0)
    return Span(context.text[begin[0] : stop[1]], math.exp(float(sums[first, last])), begin[0], stop[1])


def _chosen(logits: Tensor, marks: Mapping[str, Any]) -> Answer:
    likely = torch.softmax(logits, -1).tolist()
    best = max(range(len(likely)), key=likely.__getitem__)
    scores = {str(number): score for number, score in enumerate(likely)}
    return Answer(choice=best, score=likely[best], scores=scores, logits=logits, **marks)


def _words(logits: Tensor, part: Part) -> tuple[Word, ...] | None:
    if part.words is None:
        return None
    best = torch.softmax(logits[: part.masks], -1).max(-1)
    names = part.words(best.indices.tolist())
    return tuple(Word(name, score) for name, score in zip(names, best.values.tolist(), strict=True))


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

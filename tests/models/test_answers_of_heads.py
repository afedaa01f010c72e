"""Answers to questions, choices and masks; and a question's choices stay in one session."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from secformer.models.answers import LONGEST_ANSWER, Part, answer_of
from secformer.models.batches import query_bytes
from secformer.models.shapes import PRESETS
from secformer.models.tokens import Batch, Context, Tokens, length_class
from secformer.parties.prediction import in_parts, prediction

CONFIG = PRESETS["bert-base"]
TEXT = "the cat sat on a mat"
PLACES = [None, None, None, (0, 3), (4, 7), (8, 11), (12, 14), (15, 16), (17, 20), None]
QUESTION = replace(CONFIG, head="question", labels=("start", "end"))


def logits_of(start: dict[int, float], end: dict[int, float], tokens: int = len(PLACES)) -> torch.Tensor:
    found = torch.zeros(tokens, 2, dtype=torch.float64)
    for side, values in enumerate((start, end)):
        for place, value in values.items():
            found[place, side] = value
    return found


def test_an_answer_is_the_likeliest_span_of_the_text():
    """The largest numbers stand in the question and behind the end: neither may be chosen, nor an end before its start."""
    logits = logits_of({1: 99.0, 4: 3.0, 7: 2.5}, {9: 99.0, 3: 4.0, 5: 3.0})
    span = answer_of(QUESTION, logits, Part(context=Context(TEXT, PLACES))).span
    assert span is not None and (span.text, span.start, span.end) == ("cat sat", 4, 11)
    inside = slice(3, 9)
    likely = torch.softmax(logits[inside, 0], 0)[1] * torch.softmax(logits[inside, 1], 0)[2]
    assert span.score == pytest.approx(float(likely))
    answer = answer_of(QUESTION, logits, Part(context=Context(TEXT, PLACES)))
    assert answer.to_dict()["answer"] == "cat sat" and "cat" not in repr(answer)


def test_an_answer_is_no_longer_than_transformers_allows():
    tokens = LONGEST_ANSWER + 5
    places = [(index, index + 1) for index in range(tokens)]
    logits = logits_of({0: 9.0, 5: 8.0}, {tokens - 1: 9.0}, tokens)
    span = answer_of(QUESTION, logits, Part(context=Context("x" * tokens, places))).span
    assert span is not None and (span.start, span.end) == (5, tokens)


def test_a_choice_has_its_number_and_all_scores():
    logits = torch.tensor([0.0, math.log(3.0), 0.0], dtype=torch.float64)
    answer = answer_of(replace(CONFIG, head="choice", labels=("score",)), logits)
    assert answer.choice == 1 and answer.score == pytest.approx(0.6)
    assert answer.to_dict(scores=True)["scores"] == {"0": 0.2, "1": 0.6, "2": 0.2}


def test_a_mask_has_the_likeliest_word_and_those_asked_for_twice_are_left_out():
    logits = torch.zeros(3, 5, dtype=torch.float64)
    logits[0, 2], logits[1, 4], logits[2, 2] = 9.0, 8.0, 9.0
    words = answer_of(
        replace(CONFIG, head="masked", labels=()), logits, Part(masks=2, words=lambda ids: [f"w{i}" for i in ids])
    )
    assert [word.token for word in words.words or ()] == ["w2", "w4"]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_choices_of_a_question_share_a_session(room):
    """Questions of different lengths, too many for one session: every batch has whole questions, and answers keep their order."""
    config, lengths = replace(CONFIG, head="choice", labels=("score",)), (9, 40, 3, 60, 5)
    rows = [
        Tokens([number + 1] * (length - choice), None, choices=3)
        for number, length in enumerate(lengths)
        for choice in range(3)
    ]
    memory = query_bytes(config, 3 * room, length_class(max(lengths), config.positions))
    seen = []

    def ask(batch: Batch, progress: object):
        assert batch.choices == 3 and batch.ids.shape[0] % 3 == 0
        first = batch.ids[:, 0].reshape(-1, 3)
        assert bool((first == first[:, :1]).all())
        seen.append(len(first))
        scores = torch.stack([first[:, 0], -first[:, 0], first[:, 0] * 0], 1).double()
        return prediction(config, batch, scores.reshape(-1, 1))

    found = in_parts(rows, config, ask, memory, False, lambda step: None)
    assert found.result[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.labels == [0] * 5 and sum(seen) == 5 and (len(seen) == 1) == (room == 100)

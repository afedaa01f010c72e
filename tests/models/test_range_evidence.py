"""What a result says of itself: which texts are marked, where, and what to do."""

from __future__ import annotations

import torch

from secformer.models.evidence import ADVICE, RangeEvidence
from secformer.parties.prediction import Prediction

PLACES = (("embedding", "norm"), ("layer 0", "scores"), ("layer 3", "values"))
COUNTS = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 5.0]], dtype=torch.float64)
EVIDENCE = RangeEvidence(COUNTS, PLACES)


def test_a_text_is_marked_if_anything_left_its_range():
    assert EVIDENCE.marked == [False, True, True]
    assert [EVIDENCE.of(text) for text in range(3)] == [
        {},
        {"layer 0, scores": 2},
        {"embedding, norm": 1, "layer 3, values": 5},
    ]


def test_a_sentence_for_people():
    assert EVIDENCE.describe(0) == ""
    assert EVIDENCE.describe(2) == f"ranges were left (embedding, norm: 1 rows; layer 3, values: 5 rows): {ADVICE}"
    assert "--add" in ADVICE and "may be wrong" in ADVICE


def test_printing_counts_no_places():
    assert repr(EVIDENCE) == "RangeEvidence(3 texts, 2 marked)"


def test_a_prediction_is_marked_by_its_evidence():
    result = torch.zeros(3, 4)
    assert Prediction(result, None, evidence=EVIDENCE).marked == [False, True, True]
    assert repr(Prediction(result, None, evidence=EVIDENCE)) == "Prediction(shape=(3, 4), 2 marked)"
    assert Prediction(result, None).marked == [False] * 3 and "marked" not in repr(Prediction(result, None))

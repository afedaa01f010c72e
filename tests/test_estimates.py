"""Seconds from a plan: the formula, what is kept, and that a run is not far off."""

from __future__ import annotations

import json
from dataclasses import astuple
from types import SimpleNamespace

import pytest

from secformer import estimates
from secformer.cli import costs
from secformer.engine.ledger import Cost
from secformer.engine.tracing import trace
from secformer.estimates import Speeds, measure_speeds, speeds_here
from secformer.settings import Settings
from secformer.systems import suite_named

COST = Cost(rounds=100, opened_bytes=10**6, dealer_bytes=10**9, products=10**9, combined_words=10**8)


def test_the_formula():
    speeds = Speeds(1e-3, 1e-9, 2e-10, 1e-9)
    computing = 0.1 + (2e6 + 1e9) * 1e-9 + 0.2 + 0.1
    assert speeds.seconds(COST) == pytest.approx(computing)
    assert speeds.seconds(COST, "lan") == pytest.approx(computing + 100 * 1e-4 + 8e6 / 10e9)
    assert speeds.seconds(COST, "wan") == pytest.approx(8e9 / 400e6)  # the dealer's line is the longer one
    few = Cost(rounds=100, opened_bytes=10**6, dealer_bytes=10**6)
    assert speeds.seconds(few, "wan") == pytest.approx(0.1 + 3e-3 + 2 + 0.02)


MACHINE = Speeds(2e-3, 3e-9, 4e-10, 5e-9)


@pytest.mark.parametrize("suite", ["exact", "crypten"])
def test_speeds_come_from_four_models(monkeypatch, suite):
    """A machine of these speeds is found to have them, however they are mixed in what it is given to do."""
    monkeypatch.setattr(estimates, "_run", lambda plan, device: MACHINE.seconds(plan.cost))
    assert astuple(measure_speeds(suite)) == pytest.approx(astuple(MACHINE), rel=1e-6)


def test_a_disturbed_measurement_gives_no_negative_speed(monkeypatch):
    seconds = iter((0.5, 0.6, 0.5, 0.4, 0.1, 0.2, 0.9, 0.7))
    monkeypatch.setattr(estimates, "_run", lambda plan, device: next(seconds))
    found = measure_speeds("exact")
    assert min(astuple(found)) >= 0 and max(astuple(found)) > 0


def test_work_is_counted_from_the_shapes():
    """Every token meets every weight; every look-up the whole table."""
    config, tokens = estimates.WIDE, 32
    layer = 4 * config.hidden**2 + 2 * config.hidden * config.intermediate
    scores = 2 * tokens * config.hidden
    found = trace(suite_named("exact").preset(config).query_program(1, tokens)).cost
    assert tokens * (layer + scores) <= found.products <= 1.1 * tokens * (layer + scores)
    words = found.combined_words / (config.vocabulary * (16 + tokens) / 4)
    assert words == int(words) and 64 * words >= 10 * config.hidden


def test_a_run_says_how_far_the_estimate_was_off(monkeypatch):
    monkeypatch.setattr(costs, "speeds_here", lambda suite, settings: Speeds(1e-3, 1e-9, 2e-10, 1e-9))
    expected = Speeds(1e-3, 1e-9, 2e-10, 1e-9).seconds(COST)  # 1.402 s
    for took, off, explained in ((1.0, "+40 %", False), (5.0, "-72 %", True), (expected, "+0 %", False)):
        said = costs.beside_estimate(SimpleNamespace(declared=COST, online_seconds=took), "exact", Settings())
        assert said.startswith(f"{took:.2f} s online; the estimate for this machine is 1.4 s, {off}")
        assert said.endswith("take longer") == explained


def test_speeds_are_measured_once_and_a_read_only_cache_is_no_error(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(
        estimates, "measure_speeds", lambda *given: measured.append(given) or Speeds(1.0, 2.0, 3.0, 4.0)
    )
    for _ in range(2):
        assert speeds_here("exact", Settings(cache_folder=tmp_path)) == Speeds(1.0, 2.0, 3.0, 4.0)
    (place,) = (tmp_path / "speeds").iterdir()
    assert measured == [("exact", "cpu")] and list(json.loads(place.read_text()).values()) == [1.0, 2.0, 3.0, 4.0]
    place.write_text("spoilt")
    assert speeds_here("exact", Settings(cache_folder=tmp_path)) == Speeds(1.0, 2.0, 3.0, 4.0)
    (tmp_path / "file").touch()
    assert speeds_here("fast", Settings(cache_folder=tmp_path / "file")) == Speeds(1.0, 2.0, 3.0, 4.0)


@pytest.mark.long
def test_a_real_measurement_gives_times_of_this_world():
    found = measure_speeds("exact")
    assert 0 < found.seconds(Cost(rounds=100, dealer_bytes=10**8)) < 60

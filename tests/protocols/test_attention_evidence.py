"""Rows whose scores leave their window are counted, on shares and in simulation alike; others never are."""

from __future__ import annotations

import pytest
import torch
from attending import LOG2_E, Attention, exact_setting
from case import revealing
from simulation import simulation

from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.protocols.attention import (
    LARGEST_VALUE,
    LOWEST_MAXIMUM,
    HeadGroup,
    QuadSetting,
    RowSetting,
    watch_values,
)
from secformer.protocols.evidence import Evidence
from secformer.protocols.menu import reciprocal

CELL = 2.0  # octaves of the histogram
KEYS = 7
EDGE = 2.0**-11
WINDOWS = [6, 7, 9, 10]


def forced(first):
    return None if first is None else lambda ring, width: torch.full_like(ring, first)


def uniform(low, high, shape, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def ordinary(group, batch, rows, keys=KEYS):
    """Placed scores that fill the window up to its guard, each row with a maximum that is high enough."""
    placed = uniform(0, group.highest - EDGE, (batch, rows, keys))
    placed[:, :, 0] = uniform(LOWEST_MAXIMUM, group.highest - EDGE, (batch, rows), 3)
    placed[0, 0, 0] = group.highest - EDGE
    return placed


def watched(group, placed, mask=None, rows=None):
    """One head; every text is a batch of rows."""
    scores = ((placed - group.centre) / LOG2_E)[:, None]
    mask = torch.ones(len(placed), placed.shape[-1], dtype=torch.float64) if mask is None else mask
    return Attention(scores, mask, exact_setting([group], placed.shape[-1]), rows=rows, watched=True)


# -- true Softmax ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, 0, -1])
@pytest.mark.parametrize("bits", WINDOWS)
def test_rows_inside_are_quiet_and_right(bits, first):
    group = HeadGroup(1, bits)
    attention = watched(group, ordinary(group, 2, 60))
    assert attention.counts(forced(first)) == ([0, 0], [0, 0])
    attention.check(2e-3, forced(first))


def test_padding_is_quiet():
    group = HeadGroup(1, 6)
    lengths = torch.tensor([7, 3, 1])
    mask = (torch.arange(KEYS) < lengths[:, None]).double()
    placed = ordinary(group, 3, KEYS)
    placed = torch.where(mask[:, :, None] == 1, placed, torch.tensor(group.centre, dtype=torch.float64))  # Q = 0
    attention = watched(group, placed, mask, mask)
    assert attention.counts() == ([0, 0, 0], [0, 0, 0])
    attention.check(2e-3)


def counted_at(group, places, first, lone=False):
    """A text for every place and one without: counts, on shares and in simulation."""
    placed = ordinary(group, len(places) + 1, 3)
    for text, place in enumerate(places, 1):
        placed[text, 1] = place if lone else placed[text, 1]
        placed[text, 1, 4] = place
    return watched(group, placed).counts(forced(first))


def beyond(group):
    """Places outside, all that two windows hold: from the guard's second cell to two octaves below zero."""
    window = 2.0**group.window_bits
    return torch.linspace(group.highest + CELL, 2 * window - CELL - 2.0**-11, 80, dtype=torch.float64).tolist()


@pytest.mark.parametrize("first", [None, 0, -1, 1 << 36])
@pytest.mark.parametrize("bits", WINDOWS)
def test_a_score_above_its_window_or_far_beyond_is_counted(bits, first):
    group = HeadGroup(1, bits)
    for quiet, *counts in counted_at(group, beyond(group), first):
        assert quiet == 0
        assert min(counts) >= 1 and max(counts) <= 2


@pytest.mark.parametrize("first", [None, 0, -1])
@pytest.mark.parametrize("bits", WINDOWS)
def test_beside_the_window_a_row_is_right_or_counted(bits, first):
    """A text a row: one score just above, one just below, or one of each."""
    group = HeadGroup(1, bits)
    placed = ordinary(group, 120, 1)
    placed[:80, 0, 3] = group.highest + uniform(0, CELL, (80,))
    placed[40:, 0, 4] = uniform(-CELL, 0, (80,), 5)
    attention = watched(group, placed)
    run, simulated = attention.run(forced(first)), attention.simulation()
    for result, counts in ((run.value("y"), run.value("counts")), (simulated["y"], simulated["counts"])):
        wrong = (result - attention.expected).abs().amax((1, 2, 3)) > 2e-3
        assert not (wrong & (counts[:, 0] == 0)).any()
        assert not wrong[:40].any()


@pytest.mark.parametrize("bits", WINDOWS)
def test_a_score_below_its_window_is_counted(bits):
    """Down to a whole window below, and a second one."""
    group = HeadGroup(1, bits)
    window = 2.0**group.window_bits
    places = [place - 2 * window for place in beyond(group)]
    assert min(places) < -window and -2.1 < max(places) < -2.0
    for quiet, *counts in counted_at(group, places, None):
        assert quiet == 0
        assert min(counts) >= 1 and max(counts) <= 2


def test_counts_are_exact_away_from_the_ambiguous_cells():
    group = HeadGroup(1, 6)
    above, far, low = group.highest + 3, 64.0 + 6, LOWEST_MAXIMUM - 10
    expected = [0, 1, 1]
    assert counted_at(group, [above, far], None) == (expected, expected)
    assert counted_at(group, [low, 0.0], None, lone=True) == (expected, expected)


@pytest.mark.parametrize("first", [None, 0, -1])
@pytest.mark.parametrize("bits", WINDOWS)
def test_a_row_maximum_that_is_too_low_is_counted(bits, first):
    """Padded keys would count beside it."""
    group = HeadGroup(1, bits)
    places = torch.linspace(0, LOWEST_MAXIMUM - CELL - 2.0**-11, 20, dtype=torch.float64).tolist()
    expected = [0] + [1] * 20
    assert counted_at(group, places, first, lone=True) == (expected, expected)


def test_every_row_and_every_group_is_counted():
    groups = [HeadGroup(1, 6), HeadGroup(1, 7)]
    scores = uniform(-3, 3, (2, 2, 5, KEYS))
    scores[0, 0, 2, 3] = scores[0, 1, 4, 0] = scores[0, 1, 1, 6] = 60 / LOG2_E  # far in one window, above in the other
    mask = torch.ones(2, KEYS, dtype=torch.float64)
    attention = Attention(scores, mask, exact_setting(groups, KEYS), watched=True)
    secure, plain = attention.counts()
    assert secure[1] == plain[1] == 0
    assert 3 <= secure[0] <= 6 and 3 <= plain[0] <= 6


# -- 2Quad -------------------------------------------------------------------------------------------------------------

SHIFT, LIMIT = 5.0, 32.0
LOW, HIGH = 4.0, 1024.0
"""L² = HIGH: a row in the window of D cannot leave that of the scores."""


def quad(scores, mask=None, rows=None):
    setting = QuadSetting(
        RowSetting(reciprocal(LOW, HIGH), reciprocal_scale=24),
        shift=SHIFT,
        score_scale=10,
        score_width=10 + 5 + 2,
        weight_scale=10,
        weight_width=37,
    )
    mask = torch.ones(len(scores), scores.shape[-1], dtype=torch.float64) if mask is None else mask
    return Attention(scores[:, None], mask, setting, rows=rows, watched=True)


def quad_counts(values, first=None):
    """A text for every shifted score, in one row of an ordinary text."""
    scores = uniform(-4, 4, (len(values) + 1, 3, KEYS))
    for text, value in enumerate(values, 1):
        scores[text, 1, 4] = value - SHIFT
    return quad(scores).counts(forced(first))


def test_quad_rows_inside_are_quiet_and_right():
    scores = uniform(-4, 4, (3, 20, KEYS))
    attention = quad(scores)
    assert attention.counts() == ([0] * 3, [0] * 3)
    attention.check(2e-3)
    lengths = torch.tensor([7, 3, 1])
    mask = (torch.arange(KEYS) < lengths[:, None]).double()
    padded = uniform(-2, 4, (3, KEYS, KEYS)) * mask[:, :, None]
    attention = quad(padded, mask, mask)
    assert attention.counts() == ([0] * 3, [0] * 3)
    attention.check(2e-3)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("first", [None, 0, -1, 1 << 36])
def test_a_quad_score_beyond_its_limit_is_counted(first, sign):
    """From L to 13L/2; a score may be counted by its cell and by the row's sum."""
    values = (sign * torch.linspace(1.01, 6.49, 70, dtype=torch.float64) * LIMIT).tolist()
    for quiet, *counts in quad_counts(values, first):
        assert quiet == 0
        assert min(counts) >= 1 and max(counts) <= 2


@pytest.mark.parametrize("first", [None, 0, -1])
def test_quad_row_sums_outside_their_window_are_counted(first):
    """Every score inside its own: D = 7·s², with s from below √(LOW/7) to above √(HIGH/7)."""
    sums = [LOW * 0.5, LOW * 0.1, 0.0, HIGH * 1.05, HIGH * 2, HIGH * 6]
    fine = [LOW * 1.3, LOW * 10, HIGH * 0.97]
    scores = uniform(-4, 4, (1 + len(sums) + len(fine), 3, KEYS))
    for text, total in enumerate([*sums, *fine], 1):
        scores[text, 2] = (total / KEYS) ** 0.5 - SHIFT
    expected = [0, *[1] * len(sums), *[0] * len(fine)]
    assert quad(scores).counts(forced(first)) == (expected, expected)


# -- values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, 0, -1, 1 << 34])
def test_a_long_row_of_values_is_counted(first):
    lengths = torch.tensor([[LARGEST_VALUE - 0.05] * 6, [0.0] * 6, [7.45, 8, 20, 60, 120, 180]], dtype=torch.float64)
    rows = torch.randn(3, 2, 6, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows = rows / rows.norm(dim=-1, keepdim=True) * lengths[:, None, :, None]
    secrets = {
        "value": Encoded.numbers(rows, 9, 35, "masked"),
        "other": Encoded.numbers(torch.zeros(3, dtype=torch.float64), 4, 20),
    }

    def body(runtime, inputs):
        evidence = Evidence()
        with runtime.scope("layer"), runtime.scope("softmax"):
            watch_values(runtime, inputs["value"], evidence)
            for _ in range(2):
                runtime.open(inputs["other"])
        return {"counts": evidence.disclosed(runtime, [("layer", "values")]).value}

    built = revealing("values", body, {name: secret.form for name, secret in secrets.items()})
    run = run_locally(built, {name: share(secret, forced(first)) for name, secret in secrets.items()})
    for found in (run.value("counts"), simulation(built, secrets).results["counts"]):
        assert found.long().tolist() == [[0], [0], [2 * 6]]
    assert run.plan.cost.rounds == 2
    assert run.plan.ledger.at("layer/evidence").opened_bits == 36 * (25 + 7)

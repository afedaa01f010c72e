"""ReLU by one opening: exact over its whole range, in narrow and in wide rings."""

from __future__ import annotations

import pytest
import torch
from variants import check, line, number, on_grid, plan_of, simulate

from secformer.errors import RangeError
from secformer.protocols.rectifier import relu
from secformer_lab.paper import adder

EDGES = torch.tensor([0.0, 2.0**-16, -(2.0**-16), 1.0, -1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 2.0**8),
        ({"bits": 20}, 2.0**3),
        ({"bits": 8}, 2.0**-9),
        ({"width": 64}, 2.0**7),
        ({"bits": 22, "width": 40}, 2.0**4),
        ({"bits": 40}, 2.0**23),
        ({"bits": 40, "width": 64}, 2.0**22),
        ({"bits": 64}, 2.0**40),
    ],
    ids=str,
)
def test_exact_over_the_whole_range(options, limit):
    torch.manual_seed(7)
    inside = limit - 2.0**-16
    drawn = on_grid((2 * torch.rand(500, dtype=torch.float64) - 1) * inside)
    edges = EDGES[EDGES.abs() <= inside]
    x = torch.cat((drawn, edges, torch.tensor([inside, -limit], dtype=torch.float64)))
    check(lambda runtime, value: relu(runtime, value, **options), x.clamp(min=0), 0.0, x)


def test_dropped_input_is_off_by_a_unit_at_most():
    x = line(-100, 100)
    check(lambda runtime, value: relu(runtime, value, 24, 12, 50), x.clamp(min=0), 2.0**-12, x)


@pytest.mark.parametrize(("bits", "rounds", "extra"), [(25, 2, 7), (18, 2, 7), (26, 3, 34), (64, 3, 34)])
def test_rounds_and_bits(bits, rounds, extra):
    cost = plan_of(lambda runtime, value: relu(runtime, value, bits), (10,)).cost
    assert (cost.rounds, cost.opened_bits) == (rounds, 10 * (bits + extra))


def test_the_product_needs_no_opening():
    plan = plan_of(relu, (3,))
    assert [opening.form.boolean for opening in plan.tape.openings] == [False, True]


def test_the_paper_s():
    x = line(-50, 50)
    run = check(adder.relu, x.clamp(min=0), 0.0, x)
    assert (run.plan.cost.rounds, run.plan.cost.online_bits / 400) == (9, 3712)


def test_simulation_names_a_range_that_is_left():
    with pytest.raises(RangeError, match="leave the range"):
        simulate(lambda runtime, value: relu(runtime, value, width=64), number(line(-200, 200)), strict=True)

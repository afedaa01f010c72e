"""Every protocol: secure = plaintext within its bound, = simulation up to rounding, declared = traced = counted."""

import pytest
import torch
from case import RESULT
from declared import declared
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secformer.engine.tracing import trace
from secformer.errors import ShapeError
from secformer_lab.bench.cases import catalogue

NAMES = [(case.flavour, case.protocol) for case in catalogue(2, 3)]

FORCED = {
    "fresh": None,
    "zero": lambda plain, width: torch.zeros_like(plain),
    "all ones": lambda plain, width: torch.full_like(plain, -1),
    "half": lambda plain, width: torch.ones_like(plain) << (width - 1),
    "below half": lambda plain, width: (torch.ones_like(plain) << (width - 1)) - 1,
    "whole": lambda plain, width: plain,
    "one more": lambda plain, width: plain + 1,
}
"""S0's share, so that the sum wraps always, never, or just."""

TRUNCATES_ITS_INPUT = {"exp", "rsqrt", "div"}
"""Local truncation of such an input fails by design when the shares wrap: the paper's arithmetic."""


def find(flavour, protocol, rows, columns):
    (case,) = [c for c in catalogue(rows, columns) if (c.flavour, c.protocol) == (flavour, protocol)]
    return case


def difference(case, result, simulated):
    distance = (result - simulated).abs().double()
    return float((distance / simulated.abs() if case.relative else distance).max())


@pytest.mark.parametrize(("flavour", "protocol"), NAMES)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 7),
    seed=st.integers(0, 2**31),
    forced=st.sampled_from(sorted(FORCED)),
)
def test_secure_equals_plaintext_and_simulation_and_costs_what_it_says(flavour, protocol, rows, columns, seed, forced):
    case = find(flavour, protocol, rows, columns)
    if protocol in TRUNCATES_ITS_INPUT and "half" in forced:
        forced = "fresh"
    secrets, plan = case.inputs(seed), trace(case.program)
    run = case.run(case.share(secrets, FORCED[forced]), plan)
    result = run.value(RESULT)
    assert case.error(result, case.exact(secrets)) <= case.bound
    assert difference(case, result, case.simulate(secrets)) <= case.rounding
    check_costs(declared(flavour, protocol, rows, columns), plan, run)


def check_costs(declared, plan, run):
    traced = plan.cost
    assert (traced.rounds, traced.opened_bits, traced.dealer_bits) == (
        declared.rounds,
        declared.opened_bits,
        declared.dealer_bits,
    )
    assert (traced.opened_bytes, traced.dealer_bytes) == (declared.opened_bytes, declared.dealer_bytes)
    for counters in run.counters:
        assert counters.rounds == counters.messages_sent == counters.messages_received == declared.rounds
        assert counters.payload_sent == counters.payload_received == declared.opened_bytes
    assert run.dealer.payload_sent == declared.dealer_bytes
    assert run.dealer.messages_sent == len(plan.tape.dealt)


@pytest.mark.parametrize(("flavour", "protocol"), NAMES)
def test_larger_tensors(flavour, protocol):
    """The sizes at which packing and products change their method."""
    case = find(flavour, protocol, 19, 23)
    secrets, plan = case.inputs(7), trace(case.program)
    run = case.run(case.share(secrets), plan)
    assert case.error(run.value(RESULT), case.exact(secrets)) <= case.bound
    check_costs(declared(flavour, protocol, 19, 23), plan, run)


@pytest.mark.parametrize(
    ("protocol", "rounds", "bits"),
    [
        ("add", 0, 0),
        ("sin", 1, 42),
        ("square", 1, 128),
        ("mul", 1, 256),
        ("matmul", 1, 256),
        ("lt", 8, 3456),
    ],
)
def test_costs_of_table_1_as_corrected(protocol, rounds, bits):
    case = find("table1", protocol, 6, 6)
    cost = trace(case.program).cost
    assert (cost.rounds, cost.online_bits / case.elements) == (rounds, bits)


@pytest.mark.parametrize(
    ("protocol", "rounds", "opened"),
    [("less_than 64", 3, 64 + 34), ("less_than 24", 2, 24 + 7), ("gelu", 1, 17), ("bit_to_arithmetic", 1, 1)],
)
def test_costs_of_the_design(protocol, rounds, opened):
    case = find("wire", protocol, 4, 5)
    cost = trace(case.program).cost
    assert (cost.rounds, cost.opened_bits / case.elements) == (rounds, opened)


def test_the_row_maximum_is_never_too_low():
    case = find("wire", "row maximum", 40, 9)
    for seed in range(5):
        secrets = case.inputs(seed)
        excess = case.run(case.share(secrets)).value(RESULT) - case.exact(secrets)
        assert set(excess.unique().tolist()) <= {0.0, 1.0}


def test_a_catalogue_of_nothing_is_refused():
    with pytest.raises(ShapeError):
        catalogue(0, 3)

"""What a server sends and what both then know is uniform whatever the input, and new in every run.

For every protocol: one fixed input, fresh randomness in every repetition. Three views of each opening (S0's message,
S1's message, the opened value) go through a chi-square test of each byte over all elements, and one of all single bits,
which sees an element that is not masked among many that are. The differences of two runs are tested in the same way:
a mask used twice would show there and nowhere else. α = 1e-6 a test.
"""

import math

import pytest
import torch
from declared import declared
from uniformity import exceeds, fair_bits_problem, opened, recording, sent_values, uniform_problem

from secformer.engine import local
from secformer.engine.tracing import trace
from secformer.ring.fixed_point import reduce
from secformer_lab.bench.cases import catalogue

SIZE = 32, 8
CASES = {
    f"{case.flavour} {case.protocol}": case
    for case in catalogue(*SIZE)
    if declared(case.flavour, case.protocol, *SIZE).rounds
}
SAMPLES = 20 * 256
"""Values an opening must give altogether: 20 expected in each of 256 cells."""


def transcripts(case, repetitions):
    """For each opening: S0's and S1's messages and the opened value, each (repetitions, elements)."""
    plan, sharings = trace(case.program), case.share(case.inputs(3))
    views = [([], [], []) for _ in plan.tape.openings]
    for _ in range(repetitions):
        wrap, recorders = recording()
        case.run(sharings, plan, wrap)
        zero, one = (sent_values(plan, recorder) for recorder in recorders)
        for opening, view, left, right in zip(plan.tape.openings, views, zero, one, strict=True):
            for kept, new in zip(view, (left, right, opened(left, right, opening.form)), strict=True):
                kept.append(new)
    return plan.tape.openings, [tuple(torch.stack(kept) for kept in view) for view in views]


def repetitions_for(case):
    smallest = min(opening.form.elements for opening in trace(case.program).tape.openings)
    return 2 * math.ceil(max(16, SAMPLES / smallest) / 2)


def two_run_differences(values, form):
    first, second = values[0::2], values[1::2]
    return reduce(first ^ second if form.boolean else first - second, form.width)


def problems(openings, views):
    found = []
    for opening, view in zip(openings, views, strict=True):
        samples = [*view, two_run_differences(view[2], opening.form)]
        for name, values in zip(("S0's message", "S1's message", "opened", "difference"), samples, strict=True):
            for test in (uniform_problem, fair_bits_problem):
                problem = test(values, opening.form.width)
                if problem:
                    found.append(f"{opening.name}, {name}, {problem}")
    return found


@pytest.mark.parametrize("name", CASES)
def test_openings_are_uniform_and_runs_independent(name):
    case = CASES[name]
    assert problems(*transcripts(case, repetitions_for(case))) == []


# What the tests above must be able to see


@pytest.mark.parametrize(
    ("freedom", "limit"),
    # 2 degrees: exp(-x/2); 1 degree: erfc(sqrt(x/2)); many: the normal quantile in Wilson and Hilferty's cube
    [(2, -2 * math.log(1e-6)), (1, 4.8916**2), (255, 255 * (1 - 2 / 2295 + 4.7534 * math.sqrt(2 / 2295)) ** 3)],
)
def test_the_level_of_a_test(freedom, limit):
    assert not exceeds(0.99 * limit, freedom)
    assert exceeds(1.01 * limit, freedom)


def test_a_bias_of_one_bit_is_seen():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 1 << 20, (40, 256), generator=generator)
    assert uniform_problem(values, 20) is None
    assert fair_bits_problem(values, 20) is None
    assert "bits 16" in uniform_problem(values & ~(1 << 19), 20)


def test_one_bare_element_among_many_is_seen():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 1 << 20, (40, 256), generator=generator)
    values[:, 17] = 12345
    assert fair_bits_problem(values, 20) is not None


def test_a_session_that_is_used_again_is_seen_in_the_differences_only(monkeypatch):
    """Masks from the same seeds in both runs: every run alone looks uniform, their difference does not."""
    case = CASES["wire multiply"]
    openings, fresh = transcripts(case, 20)
    monkeypatch.setattr(local.os, "urandom", lambda size: bytes(range(size)))
    monkeypatch.setattr(local.Seed, "from_os", classmethod(lambda cls: cls(bytes(range(32)))))
    _, again = transcripts(case, 20)
    form = openings[0].form
    assert uniform_problem(two_run_differences(fresh[0][2], form), form.width) is None
    assert uniform_problem(two_run_differences(again[0][2], form), form.width) is not None

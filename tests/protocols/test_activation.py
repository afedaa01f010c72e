"""Our activations in shares: one opening, the error the paper's table asks for, neurons in classes."""

from __future__ import annotations

import pytest
import torch
from variants import check, line, number, plan_of, simulate

from secformer.bench.case import revealing, simulated
from secformer.bench.function_cases import by_series
from secformer.engine.form import shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.engine.tracing import trace
from secformer.errors import RangeError, ShapeError
from secformer.protocols.activation import ActivationSetting, NeuronClass, activate, activate_one
from secformer.protocols.functions import FUNCTIONS
from secformer.protocols.menu import ACTIVATION_WINDOWS, activation, entry

OURS = {name: by_series(name) for name in ("gelu", "gelu_new", "tanh", "sigmoid", "silu")}
TABLE = [(-1.0, 1.0), (-5.0, 5.0), (-10.0, 10.0)]
"""The intervals of the paper's accuracy table."""


@pytest.mark.parametrize("interval", TABLE, ids=str)
@pytest.mark.parametrize("function", OURS)
def test_mean_error_on_the_intervals_of_the_table(function, interval):
    low, high = interval if function != "tanh" else (max(interval[0], -8.0), min(interval[1], 8.0))
    x = line(low, high, 4001)
    run = check(OURS[function], FUNCTIONS[function](x), 1e-3, x)
    assert (run.value("y") - FUNCTIONS[function](x)).abs().mean() <= 2e-4


@pytest.mark.parametrize("function", OURS)
def test_one_round_and_at_most_50_bits(function):
    cost = plan_of(OURS[function], (5, 8)).cost
    assert cost.rounds == 1
    assert cost.online_bits / 40 <= 50


# -- classes -------------------------------------------------------------------------------------------------------------


def setting_of(function, counts):
    return ActivationSetting(tuple(NeuronClass(count, activation(function, name)) for name, count in counts.items()))


def inputs_of(setting, rows, seed=4):
    """Values that fill each class's window, ends included, and the same in units of their periods."""
    generator = torch.Generator().manual_seed(seed)
    values, angles = [], []
    for part in setting.classes:
        unit = 2.0**setting.bits / part.fit.period
        places = torch.rand(rows, part.count, generator=generator, dtype=torch.float64)
        places[0, 0], places[-1, -1] = 0, 1
        angle = torch.round((part.fit.low + (part.fit.high - part.fit.low) * places) * unit)
        angles.append(angle.long())
        values.append(angle / unit)
    return torch.cat(values, -1), torch.cat(angles, -1)


def run_classes(setting, angles, forced=None, width=20):
    secret = Encoded.ring_elements(angles, width=width)
    program = revealing("classes", lambda runtime, v: {"y": activate(runtime, v["x"], 0, setting)}, {"x": secret.form})
    return run_locally(program, {"x": share(secret, forced)}), simulated(program, {"x": secret})["y"]


@pytest.mark.parametrize("function", ["gelu", "gelu_new", "silu"])
@pytest.mark.parametrize(
    "counts",
    [{"narrow": 30}, {"tight": 21, "wide": 3}, {"tight": 11, "narrow": 7, "wide": 5, "huge": 1}],
    ids=lambda counts: " ".join(counts),
)
def test_classes_of_neurons(function, counts):
    setting = setting_of(function, counts)
    values, angles = inputs_of(setting, 40)
    run, plain = run_classes(setting, angles)
    expected = FUNCTIONS[function](values)
    start = 0
    for part in setting.classes:  # the series, 15 bits of its cosines, and 13 of the public factors
        columns = slice(start, start + part.count)
        noise = part.fit.max_error + part.fit.fixed_point_error(setting.dealt_scale, setting.public_scale)
        bound = noise * 1.7 + 2.0**-13
        for result in (run.value("y"), plain):
            assert (result - expected)[:, columns].abs().max() <= bound
        start += part.count
    assert run.plan.cost.rounds == 1
    assert run.plan.cost.online_bits == 2 * 17 * angles.numel()


def test_a_narrow_class_is_dealt_less():
    narrow, mixed = (setting_of("gelu", counts) for counts in ({"narrow": 100}, {"narrow": 97, "wide": 3}))
    costs = []
    for setting in (narrow, mixed):
        forms = {"x": shared((1, 100), 20)}
        costs.append(trace(revealing("x", lambda r, v, s=setting: {"y": activate(r, v["x"], 0, s)}, forms)).cost)
    terms = [activation("gelu", name).terms for name in ("narrow", "wide")]
    assert costs[0].dealer_bits == 2 * terms[0] * 100 * narrow.width
    assert costs[1].dealer_bits == 2 * (97 * terms[0] + 3 * terms[1]) * narrow.width
    assert costs[0].opened_bits == costs[1].opened_bits


@pytest.mark.parametrize("first", [0, -1, 1 << 16, 1 << 19, (1 << 17) - 1])
def test_shares_that_wrap(first):
    """Only what is left of the shares modulo the period counts."""
    setting = setting_of("gelu", {"tight": 9, "wide": 2})
    values, angles = inputs_of(setting, 20)
    run, _ = run_classes(setting, angles, lambda ring, width: torch.full_like(ring, first))
    assert (run.value("y") - FUNCTIONS["gelu"](values)).abs().max() <= 2.5e-3


def test_a_wrong_number_of_neurons_is_refused():
    setting = setting_of("gelu", {"tight": 4})
    with pytest.raises(ShapeError, match="4 neurons"):
        run_classes(setting, torch.zeros(2, 5, dtype=torch.int64))


# -- one class, from ordinary shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ACTIVATION_WINDOWS)
def test_every_window_of_the_menu(window):
    low, high = ACTIVATION_WINDOWS[window]
    x = line(low, high, 3001)
    check(
        lambda runtime, value: activate_one(runtime, value, activation("gelu", window), 20, 20, 18),
        FUNCTIONS["gelu"](x),
        4e-4,
        x,
    )


def test_the_pooler_s_tanh():
    x = line(-32, 32, 3001)
    run = check(lambda runtime, value: activate_one(runtime, value, entry("tanh"), 22, 20, 18), torch.tanh(x), 3e-4, x)
    assert run.plan.cost.rounds == 1


def test_simulation_refuses_what_leaves_the_window():
    for function, outside in (("gelu", 11.0), ("tanh", -40.0), ("silu", 100.0)):
        with pytest.raises(RangeError, match="leave the range"):
            simulate(OURS[function], number(torch.tensor([0.0, outside], dtype=torch.float64)), strict=True)

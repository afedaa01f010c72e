"""Our LayerNorm in shares: over wide ranges of variances, with secret padding, at odd sizes, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import simulation

from secformer.bench.case import revealing
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.errors import RangeError
from secformer.protocols.evidence import Evidence
from secformer.protocols.fit import scaled
from secformer.protocols.menu import inverse_sqrt
from secformer.protocols.multiply import unmask
from secformer.protocols.normalise import NormSetting, Witness, centre, normalise

SCALE = 16
OUTPUT_SCALE, OUTPUT_WIDTH = 12, 40


def norm_setting(low, high, size, largest=64, **options):
    """For variances in [low, high] of rows of `size` values below `largest`."""
    width = 12 + (largest - 1).bit_length() + 2
    return NormSetting(scaled(inverse_sqrt(low, high), size, 1.0), residual_width=width, **options)


def rows_of(variances, size, seed=1):
    """Rows whose variances are exactly these, about a mean of one."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.randn(len(variances), size, generator=generator, dtype=torch.float64)
    unit = unit - unit.mean(-1, keepdim=True)
    unit = unit / unit.square().mean(-1, keepdim=True).sqrt()
    real = 1 + unit * torch.as_tensor(variances, dtype=torch.float64).sqrt()[:, None]
    return torch.round(real * 2.0**SCALE) * 2.0**-SCALE


def exact(x, epsilon=0.0):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()


class Norm:
    """(x − μ)/σ, opened at the output's scale unless `raw`; `keep` is the padding bit of each row."""

    def __init__(self, x, setting, keep=None, raw=False):
        self.setting, self.raw = setting, raw
        self.secrets = {"x": Encoded.numbers(x[None], SCALE)}  # one text
        if keep is not None:
            flags = keep.reshape(1, -1, 1).long()
            self.secrets["keep"] = Encoded.ring_elements(flags, width=1, kind="bits")
            self.secrets["real"] = Encoded.ring_elements(flags)
        self.program = revealing("norm", self.body, {name: secret.form for name, secret in self.secrets.items()})

    def body(self, runtime, inputs):
        gate = runtime.open(inputs["keep"])[0] if "keep" in inputs else None
        witness = Witness(Evidence(), "norm", inputs["real"]) if "real" in inputs else None
        normal = normalise(runtime, centre(runtime, inputs["x"]), self.setting, gate, witness=witness)
        if self.raw:
            return {"y": normal}
        (wire,) = runtime.open(normal.at(OUTPUT_SCALE, OUTPUT_WIDTH))
        return {"y": unmask(runtime, wire)}

    def run(self, forced=None):
        return run_locally(self.program, {name: share(secret, forced) for name, secret in self.secrets.items()})

    def secure(self, forced=None):
        return self.run(forced).value("y")[0]

    def simulate(self, strict=False):
        return simulation(self.program, self.secrets, strict).results["y"][0]


def relative_error(result, expected):
    """Of each row as a vector, the largest."""
    return float(((result - expected).square().sum(-1) / expected.square().sum(-1)).sqrt().max())


@pytest.mark.parametrize("size", [96, 384, 768])
def test_variances_600_times_apart(size):
    variances = torch.logspace(0, 1, 64, base=600, dtype=torch.float64) * 0.25
    x = rows_of(variances, size)
    norm = Norm(x, norm_setting(0.2, 200.0, size))
    run = norm.run()
    assert relative_error(run.value("y")[0], exact(x)) <= 1e-3
    assert relative_error(norm.simulate(), exact(x)) <= 1e-3
    assert run.counters[0].rounds == run.plan.cost.rounds == 4  # the last opens the output
    assert run.dealer.payload_sent == run.plan.cost.dealer_bytes


def test_ends_of_the_window():
    setting = norm_setting(0.25, 16.0, 64)
    x = rows_of([0.25 * 1.001, 16.0 * 0.999, 0.26, 15.0] * 8, 64)
    norm = Norm(x, setting)
    assert relative_error(norm.secure(), exact(x)) <= 1e-3
    assert relative_error(norm.simulate(), exact(x)) <= 1e-3


def test_padded_rows_come_out_as_exactly_zero():
    """Thousands of rows, their residuals anything at all, variances far outside the window included."""
    count, size = 4000, 6
    keep = torch.arange(count) % 3 == 0
    x = rows_of(torch.full((count,), 2.0), size)
    x[~keep] = torch.randn(int((~keep).sum()), size, dtype=torch.float64).clamp(-4, 4) * 5
    x[1], x[4] = 0, 12.0
    norm = Norm(x, norm_setting(0.5, 8.0, size), keep, raw=True)
    result = norm.secure()
    assert (result[~keep] == 0).all()
    assert relative_error(result[keep], exact(x[keep])) <= 1e-3
    simulated = norm.simulate()
    assert (simulated[~keep] == 0).all()
    assert relative_error(simulated[keep], exact(x[keep])) <= 1e-3


def test_the_gate_costs_no_round():
    x = rows_of([1.0, 2.0], 8)
    gated = Norm(x, norm_setting(0.5, 8.0, 8), torch.tensor([True, False]), raw=True).run()
    assert gated.plan.cost.rounds == 3 + 1  # the bit, which an encoder opens once for all its layers


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.05, 2.0])
def test_epsilon(epsilon):
    x = rows_of([0.3, 1.0, 7.0], 40)
    norm = Norm(x, norm_setting(0.25, 16.0, 40, epsilon=epsilon))
    assert relative_error(norm.secure(), exact(x, epsilon)) <= 1e-3
    assert relative_error(norm.simulate(), exact(x, epsilon)) <= 1e-3


@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 5), size=st.integers(2, 41), seed=st.integers(0, 2**20))
def test_odd_sizes(rows, size, seed):
    variances = torch.logspace(0, 1, rows, base=20, dtype=torch.float64)
    x = rows_of(variances, size, seed)
    norm = Norm(x, norm_setting(0.9, 25.0, size, largest=128))
    assert relative_error(norm.secure(), exact(x)) <= 1e-3
    assert relative_error(norm.simulate(), exact(x)) <= 1e-3


@pytest.mark.parametrize("first", [0, -1, 1 << 62, (1 << 63) - 1])
def test_shares_that_wrap(first):
    x = rows_of([1.0, 3.0, 9.0], 17)
    result = Norm(x, norm_setting(0.5, 16.0, 17)).secure(lambda ring, width: torch.full_like(ring, first))
    assert relative_error(result, exact(x)) <= 1e-3


@pytest.mark.parametrize("variance", [0.05, 40.0])
def test_a_variance_outside_the_window_is_refused_in_simulation(variance):
    x = rows_of([1.0, variance], 32)
    with pytest.raises(RangeError, match="1 values .* leave the range"):
        Norm(x, norm_setting(0.5, 16.0, 32)).simulate(strict=True)
    Norm(x, norm_setting(0.5, 16.0, 32), torch.tensor([True, False])).simulate(strict=True)  # padding may hold anything


def test_a_residual_wider_than_its_wire_is_refused_in_simulation():
    x = rows_of([9.0, 9.0], 400)
    with pytest.raises(RangeError, match="leave the range -4 to 4"):
        Norm(x, norm_setting(4.0, 16.0, 400, largest=4)).simulate(strict=True)


def test_the_mean_is_removed():
    """20 bits of 1/n: a mean of 1,000 leaves less than 1,000·2^-21·n behind."""
    x = torch.round(torch.randn(4, 30, dtype=torch.float64) * 2.0**SCALE) * 2.0**-SCALE + 1000
    secret = Encoded.numbers(x, SCALE)
    program = revealing("centre", lambda runtime, v: {"y": centre(runtime, v["x"])}, {"x": secret.form})
    result = run_locally(program, {"x": secret}).value("y")
    assert (result - (x - x.mean(-1, keepdim=True))).abs().max() <= 1000 * 30 * 2.0**-21

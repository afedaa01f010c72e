"""Our LayerNorm in shares: over wide ranges of variances, with secret padding, at odd sizes, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from case import revealing
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import simulation

from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.errors import RangeError
from secformer.protocols.evidence import Evidence
from secformer.protocols.fit import scaled
from secformer.protocols.menu import entry, inverse_sqrt
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


def test_variances_15000_times_apart_in_blocks():
    """More rows than a block of the longest series has, some of them padding."""
    variances = torch.logspace(0, 1, 300, base=15_000, dtype=torch.float64) * 0.5
    x, keep = rows_of(variances, 48), torch.arange(300) % 10 != 3
    finer = dict(factor_scale=18, factor_width=22, width=62)
    norm = Norm(x, norm_setting(0.49, 0.49 * 16384, 48, largest=512, **finer), keep, raw=True)
    for result in (norm.secure(), norm.simulate()):
        assert relative_error(result[keep], exact(x[keep])) <= 1e-3 and (result[~keep] == 0).all()


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
    with pytest.raises(RangeError, match=r"1 values .* leave the range"):
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


# -- evidence --------------------------------------------------------------------------------------------------------------

SIZE, BITS = 64, 4
LIMIT = 2.0**BITS
HIGH, LOW = LIMIT**2, LIMIT**2 / 32
"""As an encoder sets it: the wire holds |c| < L, the window of S ends at L²."""


def counted(texts, real=None, first=None):
    """Rows outside by text, for centred rows (texts, rows, size): on shares, in simulation, and what they cost."""
    fit = scaled(entry("inverse_sqrt 32"), HIGH, SIZE**0.5 / LIMIT)
    setting = NormSetting(fit, residual_width=12 + BITS + 2)
    flags = torch.ones(*texts.shape[:2], 1, dtype=torch.int64) if real is None else real[..., None].long()
    secrets = {
        "x": Encoded.numbers(texts, SCALE),
        "keep": Encoded.ring_elements(flags, width=1, kind="bits"),
        "real": Encoded.ring_elements(flags),
    }

    def body(runtime, inputs):
        evidence = Evidence()
        (gate,) = runtime.open(inputs["keep"])
        with runtime.scope("layer"), runtime.scope("layernorm"):
            normal = normalise(runtime, inputs["x"], setting, gate, witness=Witness(evidence, "norm", inputs["real"]))
        return {"y": normal, "counts": evidence.disclosed(runtime, [("layer", "norm")]).value}

    program = revealing("witness", body, {name: secret.form for name, secret in secrets.items()})
    forced = None if first is None else lambda ring, width: torch.full_like(ring, first)
    run = run_locally(program, {name: share(secret, forced) for name, secret in secrets.items()})
    assert run.plan.cost.rounds == 1 + 3
    assert run.plan.ledger.at("layer/evidence").opened_bits == flags.numel() * (25 + 2 * 7 + 10 + 1)
    plain = simulation(program, secrets).results["counts"]
    return run.value("y"), [found.flatten().long().tolist() for found in (run.value("counts"), plain)]


def rows_with(sums):
    """(rows, size): centred rows with these sums of squares."""
    return rows_of(torch.as_tensor(sums, dtype=torch.float64) / SIZE, SIZE) - 1


def spiked(value, total=0.5 * HIGH, place=3):
    """A centred row with one element at `value`; the others hold the rest of the sum, as well as they can."""
    row = rows_with([total])[0]
    row[place] = 0
    row = row - row.sum() / (SIZE - 1)
    row[place] = value
    others = torch.arange(SIZE) != place
    row[others] -= row.sum() / (SIZE - 1)
    return row


def in_ordinary_texts(odd):
    """A text for every odd row, which lies between two ordinary ones; and one without."""
    quiet = rows_with(torch.linspace(LOW * 1.08, HIGH * 0.95, 3).tolist())
    texts = quiet.repeat(len(odd) + 1, 1, 1)
    for text, row in enumerate(odd, 1):
        texts[text, 1] = row
    return texts


@pytest.mark.parametrize("first", [None, 0, -1, 1 << 40])
def test_rows_inside_are_quiet_and_right(first):
    texts = rows_with(torch.logspace(0, 1, 60, base=29) * LOW * 1.08).reshape(2, 30, SIZE)
    result, counts = counted(texts, first=first)
    assert counts == [[0, 0]] * 2
    assert relative_error(result, exact(texts)) <= 1e-3


@pytest.mark.parametrize("first", [None, 0, -1])
def test_variances_outside_are_counted(first):
    """S is compared in units of a sixteenth of its lowest value."""
    sums = [0.99 * LOW, 0.9 * LOW, 0.5 * LOW, 0.01 * LOW, 0.0, 1.05 * HIGH, 2 * HIGH, 6 * HIGH]
    _, counts = counted(in_ordinary_texts(rows_with(sums)), first=first)
    assert counts == [[0, *[1] * len(sums)]] * 2


@pytest.mark.parametrize("first", [None, 0, -1])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_residual_beyond_its_limit_is_counted(sign, first):
    """From L to 3L by S, a lone one further out by the row's sum (or by S, if it is misread as large)."""
    places = (sign * torch.linspace(1.02, 40, 120, dtype=torch.float64) * LIMIT).tolist()
    texts = in_ordinary_texts([spiked(place) for place in places])
    assert texts.sum(-1).abs().max() <= 1e-2
    for quiet, *counts in counted(texts, first=first)[1]:
        assert quiet == 0
        assert min(counts) >= 1 and max(counts) <= 2


def test_a_lone_element_at_four_limits_is_seen_by_the_sum_alone():
    """It is misread as 0: S lies in the window, and the result is wrong."""
    _, counts = counted(in_ordinary_texts([spiked(4 * LIMIT, 0.4 * HIGH)]))
    assert counts == [[0, 1]] * 2


def test_padded_rows_are_never_counted():
    texts = rows_with(torch.linspace(LOW * 1.08, HIGH * 0.95, 12).tolist()).reshape(2, 6, SIZE)
    real = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    texts = texts * real[..., None]
    result, counts = counted(texts, real)
    assert counts == [[0, 0]] * 2
    assert (result[real == 0] == 0).all()
    texts[0, 1] *= 8
    assert counted(texts, real)[1] == [[1, 0]] * 2

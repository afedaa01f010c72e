"""LayerNorm: every variant against its twin over the variances it is made for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from variants import SCALE, check, number, on_grid, wire

from secformer.protocols import menu
from secformer.protocols.fit import scaled
from secformer.protocols.normalise import NormSetting, layer_norm
from secformer_lab.paper import layernorm
from secformer_lab.paper import variants as v
from secformer_lab.paper.layernorm import EPSILON

WIDTH = 48


def rows(deviations: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(5)
    unit = torch.randn(len(deviations), WIDTH, dtype=torch.float64)
    x = on_grid(0.7 + unit * torch.tensor(deviations, dtype=torch.float64)[:, None])
    return x, on_grid(0.5 + torch.rand(WIDTH, dtype=torch.float64)), on_grid(torch.randn(WIDTH, dtype=torch.float64))


def exact(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (WIDTH,), gain, bias, 1e-12)


def twin(variant: v.LayerNorm, x: Tensor, gain: Tensor, bias: Tensor, eta: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred * variant.inverse_deviation(variance, WIDTH, eta) * gain + bias


DEVIATIONS = (0.5, 1.0, 2.0, 4.0, 6.0)
VARIANTS = {  # the pair, eta, twin against exact, rounds, bits a row
    "crypten": (v.NORM_CRYPTEN, 1.0, 1e-2, 59, 12160),
    "puma": (v.NORM_PUMA, 1.0, 1e-2, 20, 3072),
    "secformer": (v.NORM_SECFORMER, 1000.0, 2e-4, 25, 7168),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name):
    variant, eta, approximation, rounds, row_bits = VARIANTS[name]
    x, gain, bias = rows(DEVIATIONS)
    expected = twin(variant, x, gain, bias, eta)
    assert (expected - exact(x, gain, bias)).abs().max() <= approximation

    def run(runtime, value, factor, offset):
        return variant.protocol(runtime, value, factor, offset, EPSILON, eta)

    secure = check(run, expected, 1.5e-2, x, wire(gain), bias)
    cost, elements = secure.plan.cost, x.numel()
    assert (cost.rounds, cost.online_bits) == (rounds, 3 * 128 * elements + row_bits * len(DEVIATIONS))


@pytest.mark.parametrize("name", VARIANTS)
def test_deflation_brings_other_variances_into_range(name):
    """Deviations from 0.03 to 0.06: far below what the defaults can take."""
    x, gain, bias = rows((0.03, 0.06))
    eta = 0.2 if name == "secformer" else 0.002
    protocol = VARIANTS[name][0].protocol
    expected = exact(x, gain, bias)
    check(lambda runtime, *values: protocol(runtime, *values, EPSILON, eta), expected, 5e-2, x, wire(gain), bias)


def test_gain_as_shares_is_opened_too():
    x, gain, bias = rows((1.0, 2.0))
    run = check(layernorm.layernorm_puma, exact(x, gain, bias), 1e-2, x, gain, bias)
    assert run.plan.cost.online_bits == 128 * (3 * x.numel() + WIDTH) + 3072 * 2


def test_padding_rows_of_zeros_stay_zero():
    x, gain, bias = rows((1.0, 0.0))
    x[1] = 0
    function = layernorm.layernorm_secformer
    check(
        lambda runtime, *values: function(runtime, *values, eta=200.0)[1],
        bias,
        2.0**-SCALE,
        x,
        wire(gain),
        bias,
    )


def test_ours():
    x, gain, bias = rows(DEVIATIONS)
    setting = NormSetting(scaled(menu.inverse_sqrt(0.15, 64.0), WIDTH, 1.0), residual_width=20)
    gain = torch.round(gain * 2**14) / 2**14

    def ours(runtime, *values):
        return layer_norm(runtime, *values, setting)

    run = check(ours, exact(x, gain, bias), 4e-3, x, wire(gain, 14), number(bias, 26))
    assert run.plan.cost.rounds == 4

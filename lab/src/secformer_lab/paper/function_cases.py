"""Every variant of every function as something to run: inputs of a given size, the protocol, the exact
result.

Inputs spread evenly over the range a variant is meant for (a Weyl sequence, the same on every machine). Row
functions take rows of ROW elements, the last eighth of each Softmax row padding. An error is measured against
the function the suite means to compute, GeLU or Quad, Softmax or 2Quad; relative for division and the inverse
root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from secformer.engine.program import Inputs
from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded
from secformer.engine.values import Masked, Shared, need
from secformer.protocols import menu, rectifier
from secformer.protocols.activation import activate_one
from secformer.protocols.attention import (
    ExactSetting,
    HeadGroup,
    QuadSetting,
    RowSetting,
    exact_attention,
    row_reciprocal,
)
from secformer.protocols.fit import FourierFit
from secformer.protocols.fit import scaled as stretched
from secformer.protocols.fourier import to_period
from secformer.protocols.functions import FUNCTIONS
from secformer.protocols.lift import lift_wire, multiply_lifted, square_lifted
from secformer.protocols.normalise import NormSetting, layer_norm
from secformer_lab.fits.search import fit
from secformer_lab.paper import adder, gelu, goldschmidt, layernorm, newton, sigmoid, softmax
from secformer_lab.paper.beaver import divide_public, multiply
from secformer_lab.paper.rows import row_sum, scaled

SCALE = 16
ROW = 128
PADDING = ROW // 8
GOLDEN = 0.6180339887498949

Body = Callable[[Runtime, Inputs], Shared]
Unary = Callable[[Runtime, Shared], Shared]


@dataclass(frozen=True)
class Built:
    """One case at one size."""

    inputs: dict[str, Encoded]
    body: Body
    exact: Tensor


@dataclass(frozen=True)
class FunctionCase:
    function: str
    suite: str
    build: Callable[[int], Built]
    relative: bool = False
    row: int = 1


def spread(count: int, low: float, high: float) -> Tensor:
    """Points that fill [low, high] evenly and without order, as 16 fraction bits hold them."""
    places = torch.remainder(torch.arange(1, count + 1, dtype=torch.float64) * GOLDEN, 1.0)
    return torch.round((low + (high - low) * places) * 2.0**SCALE) * 2.0**-SCALE


def number(real: Tensor, scale: int = SCALE) -> Encoded:
    return Encoded.numbers(real, scale)


def shared(inputs: Inputs, name: str) -> Shared:
    return need(inputs[name], Shared)


def wire(inputs: Inputs, name: str) -> Masked:
    return need(inputs[name], Masked)


def function_cases() -> list[FunctionCase]:
    return [
        *activation_cases(),
        *quotient_cases(),
        *layernorm_cases(),
        *softmax_cases(),
        *quad_cases(),
    ]


# -- elementwise ---------------------------------------------------------------------------------------------


def elementwise(
    function: str,
    suite: str,
    protocol: Unary,
    exact: Callable[[Tensor], Tensor],
    low: float,
    high: float,
    relative: bool = False,
) -> FunctionCase:
    def build(elements: int) -> Built:
        x = spread(elements, low, high)
        return Built({"x": number(x)}, lambda runtime, inputs: protocol(runtime, shared(inputs, "x")), exact(x))

    return FunctionCase(function, suite, build, relative)


def quad(x: Tensor) -> Tensor:
    return 0.125 * x * x + 0.25 * x + 0.5


class Window(NamedTuple):
    """Where our series has to hold, and the largest error it may have there."""

    low: float
    high: float
    error: float = 5e-5


WINDOWS = {
    "gelu": Window(-10.25, 10.25),
    "gelu_new": Window(-10.25, 10.25),
    "tanh": Window(-8.0, 8.0),
    "sigmoid": Window(-16.0, 16.0),
    "silu": Window(-16.0, 16.0, 1e-4),
}
SERIES_BITS = 18  # a unit is the period/2^18, 1e-4: rounded without bias, it adds 5e-5 to the mean error
SERIES_DEALT, SERIES_PUBLIC = 20, 14


@cache
def series_of(name: str) -> FourierFit:
    """The series of a function on its window."""
    low, high, error = WINDOWS[name]
    return fit(FUNCTIONS[name], low, high, error=error, dealt_bits=SERIES_DEALT, name=name)


def by_series(name: str) -> Unary:
    """Our way for any function: one opening modulo the period."""

    def protocol(runtime: Runtime, x: Shared) -> Shared:
        return activate_one(runtime, x, series_of(name), SERIES_BITS, SERIES_DEALT, SERIES_PUBLIC)

    return protocol


def activation_cases() -> list[FunctionCase]:
    """All on [−8, 8]."""
    rows: list[tuple[str, str, Unary, Callable[[Tensor], Tensor]]] = [
        ("gelu", "crypten", gelu.gelu_crypten, FUNCTIONS["gelu"]),
        ("gelu", "puma", gelu.gelu_puma, FUNCTIONS["gelu"]),
        ("gelu", "mpcformer", gelu.gelu_quad, quad),
        ("gelu", "secformer", gelu.gelu_secformer, FUNCTIONS["gelu"]),
        ("gelu", "exact", by_series("gelu"), FUNCTIONS["gelu"]),
        ("gelu_new", "exact", by_series("gelu_new"), FUNCTIONS["gelu_new"]),
        ("tanh", "crypten", sigmoid.tanh_crypten, torch.tanh),
        ("tanh", "exact", by_series("tanh"), torch.tanh),
        ("sigmoid", "crypten", sigmoid.sigmoid_crypten, torch.sigmoid),
        ("sigmoid", "exact", by_series("sigmoid"), torch.sigmoid),
        ("silu", "crypten", sigmoid.silu_crypten, FUNCTIONS["silu"]),
        ("silu", "exact", by_series("silu"), FUNCTIONS["silu"]),
        ("relu", "crypten", adder.relu, torch.relu),
        ("relu", "exact", rectifier.relu, torch.relu),
    ]
    return [elementwise(function, suite, protocol, exact, -8.0, 8.0) for function, suite, protocol, exact in rows]


QUOTIENT = (1.0, 64.0)
QUOTIENT_DEFLATION = 40.0
ROOT = (0.25, 16.0)
ROOT_DEFLATION = 8.0
PERIOD_BITS, DEALT_SCALE, PUBLIC_SCALE = 28, 24, 26  # of our 1/x and 1/√x, as in normalise.py


def root_crypten(runtime: Runtime, x: Shared) -> Shared:
    """√x = x·Π_rSqrt(x), then Π_Div: what the paper's comparison calls CrypTen's inverse square root."""
    return newton.signed_reciprocal(runtime, multiply(runtime, x, newton.inverse_sqrt(runtime, x)))


def root_secformer(runtime: Runtime, x: Shared) -> Shared:
    return goldschmidt.deflated_inverse_sqrt(runtime, x, ROOT_DEFLATION)


def root_ours(runtime: Runtime, x: Shared) -> Shared:
    return activate_one(runtime, x, menu.inverse_sqrt(*ROOT), PERIOD_BITS, DEALT_SCALE, PUBLIC_SCALE)


def quotient_secformer(runtime: Runtime, x: Shared) -> Shared:
    inverse = goldschmidt.reciprocal(runtime, divide_public(runtime, x, QUOTIENT_DEFLATION))
    return scaled(runtime, inverse, 1 / QUOTIENT_DEFLATION)


def quotient_ours(runtime: Runtime, x: Shared) -> Shared:
    return activate_one(runtime, x, menu.reciprocal(*QUOTIENT), PERIOD_BITS, DEALT_SCALE, PUBLIC_SCALE)


def quotient_cases() -> list[FunctionCase]:
    roots: dict[str, Unary] = {
        "crypten": root_crypten,
        "puma": newton.inverse_sqrt,
        "secformer": root_secformer,
        "exact": root_ours,
    }
    quotients: dict[str, Unary] = {
        "crypten": newton.signed_reciprocal,
        "secformer": quotient_secformer,
        "exact": quotient_ours,
    }
    return [
        *(elementwise("inverse_sqrt", suite, root, torch.rsqrt, *ROOT, True) for suite, root in roots.items()),
        *(elementwise("division", suite, one, torch.reciprocal, *QUOTIENT, True) for suite, one in quotients.items()),
    ]


# -- rows ----------------------------------------------------------------------------------------------------

VARIANCES = (0.25, 16.0)
LAYERNORMS = {
    "crypten": layernorm.layernorm_crypten,
    "puma": layernorm.layernorm_puma,
    "secformer": layernorm.layernorm_secformer,
}


def layernorm_cases() -> list[FunctionCase]:
    """Rows of 128 whose variances span 0.25 to 16."""
    deflations = {"crypten": 1.0, "puma": 1.0, "secformer": 1000.0}
    theirs = [
        FunctionCase("layernorm", suite, lambda elements, s=suite: _layernorm(elements, s, deflations[s]), row=ROW)
        for suite in deflations
    ]
    return [*theirs, FunctionCase("layernorm", "exact", _layernorm_ours, row=ROW)]


def _norm_rows(elements: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = elements // ROW
    deviation = torch.logspace(-1.0, 2.0, rows, base=2.0, dtype=torch.float64)[:, None]  # 0.5 to 4
    unit = spread(elements, -(3.0**0.5), 3.0**0.5).reshape(rows, ROW)
    x = torch.round((1.0 + deviation * unit) * 2.0**SCALE) * 2.0**-SCALE
    gain, bias = spread(ROW, 0.5, 1.5), spread(ROW, -0.5, 0.5)
    return x, gain, bias, torch.nn.functional.layer_norm(x, (ROW,), gain, bias, 1e-12)


def _layernorm(elements: int, suite: str, eta: float) -> Built:
    x, gain, bias, exact = _norm_rows(elements)
    function = LAYERNORMS[suite]

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return function(runtime, shared(inputs, "x"), wire(inputs, "gain"), shared(inputs, "bias"), eta=eta)

    return Built(
        {"x": number(x), "gain": Encoded.numbers(gain, SCALE, kind="masked"), "bias": number(bias)}, body, exact
    )


def _layernorm_ours(elements: int) -> Built:
    x, gain, bias, exact = _norm_rows(elements)
    low, high = VARIANCES
    setting = NormSetting(stretched(menu.inverse_sqrt(low / 2, 2 * high), ROW, 1.0))  # of the sum of ROW squares

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return layer_norm(runtime, shared(inputs, "x"), wire(inputs, "gain"), shared(inputs, "bias"), setting)

    inputs = {"x": number(x), "gain": Encoded.numbers(gain, 14, kind="masked"), "bias": number(bias, 26)}
    return Built(inputs, body, exact)


def _scores(elements: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    """(1, 1, rows, ROW), and the key mask."""
    mask = torch.ones(1, 1, 1, ROW, dtype=torch.float64)
    mask[..., -PADDING:] = 0
    return spread(elements, low, high).reshape(1, 1, -1, ROW), mask


def softmax_cases() -> list[FunctionCase]:
    """Scores from −5 to 5."""
    theirs = {"crypten": softmax.softmax_crypten, "puma": softmax.softmax_puma}
    cases = [
        FunctionCase("softmax", suite, lambda elements, f=function: _softmax(elements, f), row=ROW)
        for suite, function in theirs.items()
    ]
    return [*cases, FunctionCase("softmax", "exact", _softmax_ours, row=ROW)]


def _softmax(elements: int, function: Callable[..., Shared]) -> Built:
    scores, mask = _scores(elements, -5.0, 5.0)
    exact = torch.softmax(scores.masked_fill(mask == 0, -torch.inf), -1)

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return function(runtime, shared(inputs, "scores"), shared(inputs, "mask"))

    return Built({"scores": number(scores), "mask": number(mask, 0)}, body, exact)


def _softmax_ours(elements: int) -> Built:
    """In octaves, padded scores zero, times an identity in the place of V, so that the weights themselves come out."""
    scores, mask = _scores(elements, -5.0, 5.0)
    octaves = scores * (1 / torch.log(torch.tensor(2.0, dtype=torch.float64))) * mask
    exact = torch.softmax(scores.masked_fill(mask == 0, -torch.inf), -1)
    rows = RowSetting(menu.reciprocal(0.08, 32.0), reciprocal_scale=20)
    setting = ExactSetting((HeadGroup(1, 6),), rows)

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return exact_attention(
            runtime, shared(inputs, "scores"), wire(inputs, "value"), shared(inputs, "mask"), setting
        )

    identity = Encoded.ring_elements(torch.eye(ROW, dtype=torch.int64)[None, None], kind="masked")
    return Built({"scores": number(octaves), "mask": number(mask, 0), "value": identity}, body, exact)


def quad_cases() -> list[FunctionCase]:
    """(x + 5)² for scores from −4 to 4: row sums near 3,400."""
    theirs = {"mpcformer": softmax.quad_mpcformer, "secformer": softmax.quad_secformer}
    cases = [
        FunctionCase("2quad", suite, lambda elements, f=function: _quad(elements, f), row=ROW)
        for suite, function in theirs.items()
    ]
    relu2 = FunctionCase("2relu", "mpcformer", _relu2, row=ROW)
    return [*cases, FunctionCase("2quad", "fast", _quad_ours, row=ROW), relu2]


def _quad_exact(scores: Tensor, mask: Tensor) -> Tensor:
    weights = (scores + softmax.SHIFT).square() * mask
    return weights / weights.sum(-1, keepdim=True)


def _quad(elements: int, function: Callable[..., Shared]) -> Built:
    scores, mask = _scores(elements, -4.0, 4.0)

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return function(runtime, shared(inputs, "scores"), shared(inputs, "mask"))

    return Built({"scores": number(scores), "mask": number(mask, 0)}, body, _quad_exact(scores, mask))


def _relu2(elements: int) -> Built:
    built = _quad(elements, softmax.relu2_mpcformer)
    scores, mask = built.inputs["scores"].real, built.inputs["mask"].real
    weights = scores.clamp(min=0) * mask
    return Built(built.inputs, built.body, weights / weights.sum(-1, keepdim=True))


def _quad_ours(elements: int) -> Built:
    scores, mask = _scores(elements, -4.0, 4.0)
    rows = RowSetting(menu.reciprocal(500.0, 8000.0), reciprocal_scale=31)
    setting = QuadSetting(rows, shift=softmax.SHIFT, weight_scale=8)

    def body(runtime: Runtime, inputs: Inputs) -> Shared:
        return quad_weights(runtime, shared(inputs, "scores"), shared(inputs, "mask"), setting)

    return Built({"scores": number(scores * mask), "mask": number(mask, 0)}, body, _quad_exact(scores, mask))


def quad_weights(runtime: Runtime, scores: Shared, key_mask: Shared, setting: QuadSetting) -> Shared:
    """Our 2Quad by itself: P = (x + c·m)² on a wire, times 1/Σ. Padded scores must be zero. Three rounds.

    In a model `attention.quad_attention` multiplies by V before it normalises, which opens less. The result has
    scale weight + reciprocal, modulo 2^rows.width.
    """
    rows, width = setting.rows, setting.square_width
    shift = round(setting.shift * 2.0**scores.scale)
    shifted = scores + Shared(key_mask.share * shift, scores.width, scores.scale)
    (opened_scores,) = runtime.open(shifted.at(setting.score_scale, setting.score_width))
    weights = square_lifted(runtime, lift_wire(runtime, opened_scores, width), width)
    opened, total = runtime.open(
        weights.at(setting.weight_scale, setting.weight_width),
        to_period(runtime, row_sum(weights), rows.fit, rows.denominator_bits),
    )
    (factor,) = runtime.open(row_reciprocal(runtime, total, rows).at(rows.reciprocal_scale, rows.reciprocal_width))
    lifted = lift_wire(runtime, opened, rows.width)
    return multiply_lifted(runtime, lifted, lift_wire(runtime, factor, rows.width), rows.width)

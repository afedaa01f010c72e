"""Our LayerNorm: (x − μ)/σ from a centred residual in four rounds, over any range of variances.

    1  open c = x − μ (narrow; centring is linear and folded into the weights), lift it
    2  Σ c² locally, modulo 2^64; scaled by a public factor so that the window's period is 2^28; open it
    3  p = m/√(v + ε) by a Fourier series (no iteration, no initial value), gated by the secret padding bit m; open, lift
    4  c·p, a product of lifted wires; opened by whoever uses it next

γ and β are folded into the weights that follow. The window of v is calibrated by layer: real encoders show ratios of 3
to 566 within one layer, and the number of terms follows the ratio (a per-row function can afford it).
"""

from __future__ import annotations

from dataclasses import dataclass

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, MaskedBits, Shared
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, gated_fourier, to_period
from secformer.protocols.lift import lift_wire, multiply_lifted, row_squares_lifted
from secformer.protocols.multiply import multiply


@dataclass(frozen=True)
class NormSetting:
    """`fit` is 1/√(S/n) as a function of the sum of squares S of n values (ε included by the caller's window)."""

    fit: FourierFit
    epsilon: float = 1e-12
    residual_scale: int = 12
    residual_width: int = 19
    variance_bits: int = 28
    factor_scale: int = 14
    factor_width: int = 20
    width: int = 58
    dealt_scale: int = 24
    public_scale: int = 26


def normalise(
    runtime: Runtime,
    residual: Shared,
    setting: NormSetting,
    gate: MaskedBits | None = None,
    where: Shared | None = None,
) -> Shared:
    """(x − μ)/σ from the centred residual (..., n), at scale residual + factor, modulo 2^width.

    `gate` (..., 1) is the padding bit: rows where it is 0 come out as exactly 0. `where` tells simulation which rows count.
    """
    (opened,) = runtime.open(residual.at(setting.residual_scale, setting.residual_width))
    centred = lift_wire(runtime, opened, 64, where=where)
    squares = row_squares_lifted(runtime, centred)
    if setting.epsilon >= 2.0**-squares.scale:
        squares = runtime.add(squares, setting.epsilon * residual.shape[-1])
    (variance,) = runtime.open(to_period(runtime, squares, setting.fit, setting.variance_bits, where))
    scales = (setting.dealt_scale, setting.public_scale)
    if gate is None:
        factor = fourier(runtime, variance, setting.fit, *scales)
    else:
        factor = gated_fourier(runtime, variance, gate, setting.fit, *scales)
    (opened_factor,) = runtime.open(factor.at(setting.factor_scale, setting.factor_width))
    lifted_factor = lift_wire(runtime, opened_factor, setting.width, where=where)
    return multiply_lifted(runtime, centred, lifted_factor, setting.width)


def centre(runtime: Runtime, x: Shared, precision: int = 20) -> Shared:
    """x minus its row mean, at scale + precision: 2^p·x − Σx·round(2^p/n), local."""
    count = x.shape[-1]
    weight = round(2.0**precision / count)
    raised = Shared(x.share << precision, x.width, x.scale + precision)
    mean = Shared(x.share.sum(-1, keepdim=True) * weight, x.width, x.scale + precision)
    return raised - mean


def layer_norm(
    runtime: Runtime, x: Shared, gain: Masked, bias: Shared, setting: NormSetting, scale: int = 12, width: int = 44
) -> Shared:
    """γ·(x − μ)/σ + β for shares x (..., n), a wire γ (n,) and shares β (n,) at the product's scale. Four rounds."""
    normal = normalise(runtime, centre(runtime, x), setting)
    (wire,) = runtime.open(normal.at(scale, width))
    return multiply(runtime, wire, gain) + bias

"""Our LayerNorm: (x − μ)/σ from a centred residual in four rounds, over any range of variances.

    1  open c = x − μ (narrow; centring is linear and folded into the weights), lift it
    2  S = Σ c² locally, modulo 2^64; scaled by a public factor so that the window's period is 2^28; open it
    3  p = m/√(S/n + ε) by a Fourier series (no iteration, no initial value), gated by the secret padding bit m; open, lift
    4  c·p, a product of lifted wires; opened by its next user

γ and β are folded into the weights that follow. The window of S is calibrated by layer: real encoders show ratios of 3
to 586 within one layer, and the number of terms follows the ratio (affordable for one value per row).

**Evidence.** The lift holds |c| < L with L² at least the window's highest S, so a row in the window cannot leave it. For a row
above the window, S is opened a second time, coarsely and wide, and compared with both ends. A c in [L, 3L) is read as c or as
c ± 4L, beyond L in any case, so it shows in S. A single c further out may be read as a small value. But a centred row sums to
zero, and a misread row to a multiple of 4L: the row's sum is opened in units of L/8 and tested. (Undetected: a row with
two values of opposite sign beyond 3L, three times the limit of the whole row.) Padded rows are given an S inside the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from secformer.engine.runtime import Runtime
from secformer.engine.values import Lifted, Masked, MaskedBits, Shared
from secformer.protocols.evidence import (
    INTERVAL_BITS,
    LARGEST_TABLE,
    SCOPE,
    Evidence,
    Outside,
    bit_steps,
    coarse_scale,
    complement,
    interval_steps,
)
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, gated_fourier, to_period
from secformer.protocols.lift import lift_wire, multiply_lifted, row_squares_lifted, unmask_lifted
from secformer.protocols.multiply import multiply

SUM_BITS = 10
SUM_UNITS = 3  # the row's sum is opened in units of L/2^3: a cell of the table is 2L, all of them 128L


@dataclass(frozen=True)
class NormSetting:
    """Scales and widths of a LayerNorm; `fit` is 1/√(S/n) as a function of the sum of squares S of n values.

    The caller's window includes ε.
    """

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

    @property
    def series_width(self) -> int:
        """Bits at which the series is needed: those of its wire and those dropped before."""
        return min(64, self.factor_width + self.dealt_scale + self.public_scale - self.factor_scale)


@dataclass(frozen=True)
class Witness:
    """The counts for a LayerNorm's range violations, and the real rows: (batch, n, 1) at scale 0."""

    evidence: Evidence
    kind: str
    real: Shared


def normalise(
    runtime: Runtime,
    residual: Shared,
    setting: NormSetting,
    gate: MaskedBits | None = None,
    epsilon: Shared | None = None,
    witness: Witness | None = None,
) -> Shared:
    """Return (x − μ)/σ as `normalise_stream` does, without the residual."""
    return normalise_stream(runtime, residual, setting, gate, epsilon, witness)[0]


def normalise_stream(
    runtime: Runtime,
    residual: Shared,
    setting: NormSetting,
    gate: MaskedBits | None = None,
    epsilon: Shared | None = None,
    witness: Witness | None = None,
) -> tuple[Shared, Lifted]:
    """Return (x − μ)/σ from the centred residual (..., n), and the lifted residual for later additions.

    The first is at scale residual + factor, modulo 2^width. `gate` (..., 1) is the padding bit: rows where it is 0 come out as
    exactly 0. `epsilon` is n·ε at the scale of the squares, given where it is secret (the residual may have been scaled by a
    secret factor); otherwise the setting's is used.
    """
    real = None if witness is None else witness.real
    (opened,) = runtime.open(residual.at(setting.residual_scale, setting.residual_width))
    centred = lift_wire(runtime, opened, 64, where=real)
    squares = row_squares_lifted(runtime, centred)
    if epsilon is not None:
        squares = squares + epsilon
    elif setting.epsilon >= 2.0**-squares.scale:
        squares = runtime.add(squares, setting.epsilon * residual.shape[-1])
    if witness is not None:
        squares = _inside(runtime, squares, setting.fit, witness.real)
        _watch(runtime, centred, squares, setting, witness)
    (variance,) = runtime.open(to_period(runtime, squares, setting.fit, setting.variance_bits, real))
    scales = (setting.dealt_scale, setting.public_scale, setting.series_width)
    if gate is None:
        factor = fourier(runtime, variance, setting.fit, *scales)
    else:
        factor = gated_fourier(runtime, variance, gate, setting.fit, *scales)
    (opened_factor,) = runtime.open(factor.at(setting.factor_scale, setting.factor_width))
    lifted_factor = lift_wire(runtime, opened_factor, setting.width, where=real)
    return multiply_lifted(runtime, centred, lifted_factor, setting.width), centred


def _inside(runtime: Runtime, squares: Shared, fit: FourierFit, real: Shared) -> Shared:
    """Give padded rows, which have S = 0, an S inside the window."""
    middle = round(math.sqrt(fit.low * fit.high) * 2.0**squares.scale)
    padded = complement(runtime, real.narrow(squares.width))
    return squares + Shared(padded.share * middle, squares.width, squares.scale)


def _watch(runtime: Runtime, centred: Lifted, squares: Shared, setting: NormSetting, witness: Witness) -> None:
    """Check S coarsely, and the row's sum: both join the opening of the variance."""
    evidence, fit = witness.evidence, setting.fit
    scale = min(squares.scale, coarse_scale(fit.low))
    coarse = squares.at(scale, INTERVAL_BITS)
    runtime.ride(interval_steps(runtime, evidence, witness.kind, coarse, fit.low, fit.high), SCOPE)
    limit = setting.residual_width - 2 - setting.residual_scale  # log2 L
    total = unmask_lifted(runtime, centred).map(lambda tensor: tensor.sum(-1, keepdim=True))
    rest = runtime.add(total, 2.0**limit).at(SUM_UNITS - limit, SUM_BITS)
    gate = Outside(LARGEST_TABLE, 0, 1, single=True)
    runtime.ride(bit_steps(runtime, evidence, witness.kind, rest, gate), SCOPE)


def centre(runtime: Runtime, x: Shared, precision: int = 20) -> Shared:
    """Subtract the row mean, at scale + precision: 2^p·x − Σx·round(2^p/n), local."""
    count = x.shape[-1]
    weight = round(2.0**precision / count)
    raised = Shared(x.share << precision, x.width, x.scale + precision)
    mean = Shared(x.share.sum(-1, keepdim=True) * weight, x.width, x.scale + precision)
    return raised - mean


def layer_norm(
    runtime: Runtime, x: Shared, gain: Masked, bias: Shared, setting: NormSetting, scale: int = 12, width: int = 44
) -> Shared:
    """Return γ·(x − μ)/σ + β for shares x (..., n), a wire γ (n,) and shares β (n,) at the product's scale. Four rounds."""
    normal = normalise(runtime, centre(runtime, x), setting)
    (wire,) = runtime.open(normal.at(scale, width))
    return multiply(runtime, wire, gain) + bias

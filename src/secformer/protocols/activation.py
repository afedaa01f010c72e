"""Our activation: one opening modulo the period, whatever the function. GeLU, tanh, sigmoid, SiLU, gelu_new alike.

The dealer pays 2K values an element, and K grows with the window. Few neurons are wide (1–3 % in real encoders), so
neurons come in classes, ordered by class, each with its own fit; the order is a secret permutation folded into the
weights, and so is the factor that makes each class's period 2^bits ring units.

The wire is opened modulo two periods, one bit more than the series needs: its cells, each a 32nd of a period, tell whether a
value left its class's window (evidence.py). A value cannot be further away than that: |w·x + b| ≤ ‖w‖·√h + |b| behind a
LayerNorm, and calibration gives a neuron a class for which that is below the next window.

Rounds 1; each way `bits` + 1 bits an element (18); dealer 2K·width + 64 bits an element of a class, where a calm class's width
is less than a wild one's. Result: scale dealt + public + what the wildest class has more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared, joined
from secformer.errors import ShapeError
from secformer.protocols.evidence import LARGEST_TABLE, SCOPE, Evidence, Outside, outside_steps
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, to_period

CELLS = 1 << LARGEST_TABLE
CELLS_A_PERIOD = CELLS // 2
CALM_SUM = 12.0
"""Σ|c_k| of a series that the setting's own scales are meant for."""


@dataclass(frozen=True)
class NeuronClass:
    """`count` neighbouring neurons that share a fit."""

    count: int
    fit: FourierFit

    @property
    def finer(self) -> int:
        """More fraction bits of a wide window's series. Balanced (fourier.py), one with s of them in all has a rounding error of
        variance 2^-s·Σ|c_k|/6."""
        return max(0, round(math.log2(self.fit.coefficient_sum / CALM_SUM)))


@dataclass(frozen=True)
class Window:
    """Where a fit's values may lie: whole cells, one free on either side of them where the fit has at most degraded slowly."""

    low: float
    high: float
    cells: int
    foreign: float
    """How far a value may be from zero and still not be taken for one of the window, two periods away."""


def window_of(fit: FourierFit) -> Window:
    cell, size = fit.period / CELLS_A_PERIOD, fit.high + fit.above - fit.low + fit.below
    whole = math.floor(size / cell + 1e-9)
    low, cells = fit.low - fit.below + (size - whole * cell) / 2 + cell, whole - 2
    high = low + cells * cell
    return Window(low, high, cells, min(2 * fit.period - high - cell, 2 * fit.period + low - cell))


@dataclass(frozen=True)
class ActivationSetting:
    classes: tuple[NeuronClass, ...]
    bits: int = 17
    dealt_scale: int = 12
    public_scale: int = 12
    width: int = 50

    @property
    def neurons(self) -> int:
        return sum(part.count for part in self.classes)

    @property
    def finest(self) -> int:
        """Fraction bits that the finest class has more than the setting's own."""
        return max(part.finer for part in self.classes)

    @property
    def scale(self) -> int:
        return self.dealt_scale + self.public_scale + self.finest


def activate(
    runtime: Runtime, angles: Shared, scale: int, setting: ActivationSetting, evidence: Evidence | None = None
) -> Shared:
    """The activation of (batch, n, neurons) values in period units, which `scale` fraction bits cut into 2^bits steps."""
    if angles.shape[-1] != setting.neurons:
        raise ShapeError(f"the setting knows {setting.neurons} neurons, the tensor has {angles.shape[-1]}")
    (wire,) = runtime.open(angles.at(scale, setting.bits + (evidence is not None)))
    parts, pieces, start = [], [], 0
    for part in setting.classes:
        piece = wire[..., start : start + part.count]
        _expect(runtime, piece, part.fit, setting.bits)
        pieces.append((_outside(piece, part.fit, start), piece))
        parts.append(_series(runtime, piece.narrow(setting.bits), part, setting))
        start += part.count
    if evidence is not None:
        runtime.ride(outside_steps(runtime, evidence, "activation", [pieces]), SCOPE)
    return joined(parts, -1)


def _series(runtime: Runtime, angle: Masked, part: NeuronClass, setting: ActivationSetting) -> Shared:
    """A class's function, each class as fine as it needs, all brought to one scale: x mod 2^w is 2^k·x mod 2^(w+k)."""
    spare = setting.finest - part.finer
    scales = (setting.dealt_scale + part.finer, setting.public_scale)
    result = fourier(runtime, angle, part.fit, *scales, setting.width - spare)
    return Shared(result.share << spare, setting.width, setting.scale)


def _expect(runtime: Runtime, wire: Masked, fit: FourierFit, bits: int) -> None:
    window = window_of(fit)
    runtime.expect(wire, window.low, window.high, unit=fit.period / 2.0 ** (bits - wire.scale))


def _outside(wire: Masked, fit: FourierFit, start: int) -> Outside:
    window = window_of(fit)
    shift = round(-window.low / fit.period * 2.0 ** (wire.width - 1))
    return Outside(LARGEST_TABLE, 0, window.cells, shift, start)


def activate_one(
    runtime: Runtime, x: Shared, fit: FourierFit, bits: int = 17, dealt_scale: int = 16, public_scale: int = 14
) -> Shared:
    """The same for ordinary shares x, one class: shares in, shares out, one round."""
    (wire,) = runtime.open(to_period(runtime, x, fit, bits))
    return fourier(runtime, wire, fit, dealt_scale, public_scale)

"""Our activation: one opening modulo the period, the same for GeLU, tanh, sigmoid, SiLU and gelu_new.

The dealer sends 2K values per element, and K grows with the window. Few neurons are wide (1–3 % in real encoders), so
neurons are ordered by class, and each class has its own fit. The order is a secret permutation folded into the weights, and
so is the factor that makes each class's period 2^bits ring units.

The wire is opened modulo two periods, one bit more than the series needs. Its cells, each a 32nd of a period, show if a
value left its class's window (evidence.py). A value cannot be further away than that: |w·x + b| ≤ ‖w‖·√h + |b| after a
LayerNorm, and calibration gives a neuron a class for which this bound is below the next window.

Rounds 1; each way `bits` + 1 bits per element (18); dealer 2K·width + 64 bits per element of a class. A class whose series
needs fewer fraction bits (`finer`) has a smaller width. Result scale: dealt + public + the largest `finer` of any class.
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
        """Additional fraction bits for a wide window's series.

        A balanced series (fourier.py) with s fraction bits in all has a rounding error of variance 2^-s·Σ|c_k|/6.
        """
        return max(0, round(math.log2(self.fit.coefficient_sum / CALM_SUM)))


@dataclass(frozen=True)
class Window:
    """The range in which a fit's values may lie: whole cells, with one free cell at each side where the fit degrades slowly."""

    low: float
    high: float
    cells: int
    foreign: float
    """Largest distance from zero at which a value is not yet mistaken for one inside the window, two periods away."""


def window_of(fit: FourierFit) -> Window:
    """Return the window of a fit."""
    cell, size = fit.period / CELLS_A_PERIOD, fit.high + fit.above - fit.low + fit.below
    whole = math.floor(size / cell + 1e-9)
    low, cells = fit.low - fit.below + (size - whole * cell) / 2 + cell, whole - 2
    high = low + cells * cell
    return Window(low, high, cells, min(2 * fit.period - high - cell, 2 * fit.period + low - cell))


@dataclass(frozen=True)
class ActivationSetting:
    """The neuron classes of one activation, and the widths and scales of its wires."""

    classes: tuple[NeuronClass, ...]
    bits: int = 17
    dealt_scale: int = 12
    public_scale: int = 12
    width: int = 50

    @property
    def neurons(self) -> int:
        """Number of neurons in all classes."""
        return sum(part.count for part in self.classes)

    @property
    def finest(self) -> int:
        """Fraction bits that the finest class has beyond the setting's own."""
        return max(part.finer for part in self.classes)

    @property
    def scale(self) -> int:
        """Fraction bits of the result."""
        return self.dealt_scale + self.public_scale + self.finest


def activate(
    runtime: Runtime, angles: Shared, scale: int, setting: ActivationSetting, evidence: Evidence | None = None
) -> Shared:
    """Return the activation of (batch, n, neurons) values in period units; at `scale` fraction bits a period has 2^bits steps.

    With `evidence`, rows that leave their windows are counted. Raises ShapeError if the number of neurons is not the setting's.
    """
    if angles.shape[-1] != setting.neurons:
        raise ShapeError(f"the setting is for {setting.neurons} neurons, the tensor has {angles.shape[-1]}")
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
    """Evaluate a class's function at its own precision and bring it to the common scale: x mod 2^w is 2^k·x mod 2^(w+k)."""
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
    """Return the activation of ordinary shares x, with one fit for all neurons. One round."""
    (wire,) = runtime.open(to_period(runtime, x, fit, bits))
    return fourier(runtime, wire, fit, dealt_scale, public_scale)

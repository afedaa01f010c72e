"""Our activation: one opening modulo the period, whatever the function. GeLU, tanh, sigmoid, SiLU, gelu_new alike.

The dealer pays 2K values an element, and K grows with the window. Few neurons are wide (1–3 % in real encoders), so
neurons come in classes, ordered by class, each with its own fit; the order is a secret permutation folded into the
weights, and so is the factor that makes each class's period 2^bits ring units.

Rounds 1; each way `bits` bits an element (17); dealer 2K·width bits an element of a class. Result: scale dealt + public.
"""

from __future__ import annotations

from dataclasses import dataclass

from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer.errors import ShapeError
from secformer.protocols.blocks import joined
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, to_period


@dataclass(frozen=True)
class NeuronClass:
    """`count` neighbouring neurons that share a fit."""

    count: int
    fit: FourierFit


@dataclass(frozen=True)
class ActivationSetting:
    classes: tuple[NeuronClass, ...]
    bits: int = 17
    dealt_scale: int = 15
    public_scale: int = 13
    width: int = 54

    @property
    def neurons(self) -> int:
        return sum(part.count for part in self.classes)

    @property
    def scale(self) -> int:
        return self.dealt_scale + self.public_scale


def activate(runtime: Runtime, angles: Shared, scale: int, setting: ActivationSetting) -> Shared:
    """The activation of (..., neurons) values in period units, which `scale` fraction bits cut into 2^bits steps."""
    if angles.shape[-1] != setting.neurons:
        raise ShapeError(f"the setting knows {setting.neurons} neurons, the tensor has {angles.shape[-1]}")
    (wire,) = runtime.open(angles.at(scale, setting.bits))
    parts, start = [], 0
    for part in setting.classes:
        piece = wire[..., start : start + part.count]
        parts.append(fourier(runtime, piece, part.fit, setting.dealt_scale, setting.public_scale, setting.width))
        start += part.count
    return joined(parts, -1)


def activate_one(
    runtime: Runtime, x: Shared, fit: FourierFit, bits: int = 17, dealt_scale: int = 16, public_scale: int = 14
) -> Shared:
    """The same for ordinary shares x, one class: shares in, shares out, one round."""
    (wire,) = runtime.open(to_period(runtime, x, fit, bits))
    return fourier(runtime, wire, fit, dealt_scale, public_scale)

"""The extremes of what a fixed-point run of the model has to hold, layer by layer: for the report of a distillation.

scores          S = QKᵀ/√d
row_sums        what Softmax or 2Quad divides by
preactivation   what goes into GeLU
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from secformer.models.tokens import Batch
from secformer.training.network import Network

OBSERVED = {"scores": "scores", "denominator": "row_sums", "preactivation": "preactivation"}
Ranges = dict[str, list[tuple[float, float]]]


@dataclass(repr=False)
class _Extremes:
    found: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)

    def observe(self, name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        if name not in OBSERVED:
            return
        low = float(tensor.masked_fill(~mask, math.inf).min())
        high = float(tensor.masked_fill(~mask, -math.inf).max())
        layers = self.found.setdefault(OBSERVED[name], {})
        before = layers.get(layer, (math.inf, -math.inf))
        layers[layer] = (min(low, before[0]), max(high, before[1]))


def measure_ranges(network: Network, batches: Iterable[Batch]) -> Ranges:
    """Lowest and highest of each, a pair for every layer."""
    extremes = _Extremes()
    for batch in batches:
        network.infer(batch, extremes.observe)
    return {
        name: [(_short(layers[index][0]), _short(layers[index][1])) for index in sorted(layers)]
        for name, layers in extremes.found.items()
    }


def _short(number: float) -> float:
    return float(f"{number:.4g}")

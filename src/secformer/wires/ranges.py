"""The ranges a model's intermediates take on real text.

Fixed point and Fourier windows need bounds, and real encoders have no small ones: a few tokens with massive
activations stretch one LayerNorm's variance by a factor of hundreds, and one attention head in a hundred
spans ten times what the others do. So a record keeps extremes per layer and operation, per head for
attention scores, and per neuron for the input of the activation. It is a plain measurement: margins and
menus are calibration's matter.

A record says something about the weights it was measured on, and carries their digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.models.weights import Weights


@dataclass(repr=False, eq=False)
class Extremes:
    """Lowest and highest value seen, elementwise; of one value, of a head, or of a neuron."""

    low: Tensor
    high: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extremes) and torch.equal(self.low, other.low) and torch.equal(self.high, other.high)

    def include(self, other: Extremes) -> Extremes:
        if self.low.shape != other.low.shape:
            raise CalibrationError("two range records disagree in the number of heads or neurons")
        return Extremes(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    @property
    def magnitude(self) -> float:
        return max(abs(float(self.low.min())), abs(float(self.high.max())))


@dataclass(repr=False)
class RangeRecord:
    """Extremes by operation and layer; operations are `plain`'s names.

    `values` holds scalars, `by_part` what is kept apart inside a layer: `scores` and `row_maximum` by head,
    `preactivation` by neuron.
    """

    digest: str  # of the weights
    sentences: int = 0
    tokens: int = 0
    longest: int = 0
    values: dict[str, dict[int, Extremes]] = field(default_factory=dict)
    by_part: dict[str, dict[int, Extremes]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RangeRecord({self.sentences} sentences, digest {self.digest[:12]}…)"

    def observe(self, name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        """An observer for `plain.forward`."""
        low, high = tensor.masked_fill(~mask, math.inf), tensor.masked_fill(~mask, -math.inf)
        extremes = _extremes(name, layer, low, high)
        _widen(self.values, name, layer, extremes)
        if name == "scores":
            _widen(self.by_part, name, layer, _extremes(name, layer, low, high, (0, 2, 3)))
            self._observe_row_maximum(layer, high.amax(-1), mask.any(-1))
        elif name == "preactivation":
            _widen(self.by_part, name, layer, _extremes(name, layer, low, high, (0, 1)))

    def _observe_row_maximum(self, layer: int, maximum: Tensor, mask: Tensor) -> None:
        low, high = maximum.masked_fill(~mask, math.inf), maximum.masked_fill(~mask, -math.inf)
        _widen(self.by_part, "row_maximum", layer, _extremes("row_maximum", layer, low, high, (0, 2)))

    def measure(self, weights: Weights, config: ModelConfig, batches: Iterable[Batch]) -> RangeRecord:
        """Run the model in the clear over `batches` and widen this record by what is seen."""
        for batch in batches:
            plain.forward(weights, config, batch, self.observe)
            self.sentences += batch.ids.shape[0]
            self.tokens += int(batch.mask.sum())
            self.longest = max(self.longest, int(batch.lengths.max()))
        return self

    def to_data(self) -> dict[str, Any]:
        """As JSON has it, for the provider's own record."""
        tables = {"values": _table_data(self.values), "by_part": _table_data(self.by_part)}
        return {name: getattr(self, name) for name in ("digest", "sentences", "tokens", "longest")} | tables

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RangeRecord:
        """The inverse; KeyError, TypeError or ValueError for anything else."""
        values, by_part = (_read_table(data[name]) for name in ("values", "by_part"))
        sentences, tokens, longest = (int(data[name]) for name in ("sentences", "tokens", "longest"))
        return cls(str(data["digest"]), sentences, tokens, longest, values, by_part)


def _table_data(table: Mapping[str, Mapping[int, Extremes]]) -> dict[str, Any]:
    return {
        name: {str(layer): [seen.low.tolist(), seen.high.tolist()] for layer, seen in layers.items()}
        for name, layers in table.items()
    }


def _read_table(data: Mapping[str, Any]) -> dict[str, dict[int, Extremes]]:
    return {str(name): {int(layer): _read_extremes(*seen) for layer, seen in data[name].items()} for name in data}


def _read_extremes(low: Any, high: Any) -> Extremes:
    found = Extremes(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))
    if found.low.shape != found.high.shape or not bool((found.low <= found.high).all()):
        raise ValueError("extremes that are none")
    return found


def _extremes(name: str, layer: int, low: Tensor, high: Tensor, over: tuple[int, ...] | None = None) -> Extremes:
    dimensions = tuple(range(low.ndim)) if over is None else over
    extremes = Extremes(low.amin(dimensions).double().cpu(), high.amax(dimensions).double().cpu())
    if not bool(torch.isfinite(extremes.low).all() and torch.isfinite(extremes.high).all()):
        raise RangeError(f"'{name}' of layer {layer} is not finite on some input; the model overflows")
    return extremes


def _widen(table: dict[str, dict[int, Extremes]], name: str, layer: int, seen: Extremes) -> None:
    layers = table.setdefault(name, {})
    layers[layer] = layers[layer].include(seen) if layer in layers else seen

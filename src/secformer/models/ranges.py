"""The ranges a model's intermediates take on real text.

Fixed point and Fourier windows need bounds, and real encoders have no small ones: a few tokens with massive
activations stretch one LayerNorm's variance by a factor of hundreds, and one attention head in a hundred
spans ten times what the others do. So a record keeps extremes per layer and operation, per head for
attention scores, and per neuron for the input of the activation. It is a plain measurement: margins and
menus are calibration's matter.

A record says something about the weights it was measured on; it carries their digest and fits no other
model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.models.weights import Weights

FORMAT = 1


@dataclass(repr=False)
class Extremes:
    """Lowest and highest value seen, elementwise; of one value, of a head, or of a neuron."""

    low: Tensor
    high: Tensor

    def include(self, other: Extremes) -> Extremes:
        if self.low.shape != other.low.shape:
            raise CalibrationError("two range records disagree in the number of heads or neurons")
        return Extremes(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    @property
    def magnitude(self) -> float:
        return max(abs(float(self.low.min())), abs(float(self.high.max())))

    def to_json(self) -> list[Any]:
        return [self.low.tolist(), self.high.tolist()]

    @classmethod
    def from_json(cls, data: list[Any]) -> Extremes:
        low, high = (torch.tensor(side, dtype=torch.float64) for side in data)
        if low.shape != high.shape or not bool((low <= high).all()):
            raise ValueError("extremes out of order")
        return cls(low, high)


@dataclass(repr=False)
class RangeRecord:
    """Extremes by operation and layer; operations are `plain`'s names.

    `values` holds scalars, `by_part` what is kept apart inside a layer: `scores` and `row_maximum` by head,
    `preactivation` by neuron.
    """

    digest: str  # of the weights
    softmax: str
    quad_shift: float
    sentences: int = 0
    tokens: int = 0
    longest: int = 0
    values: dict[str, dict[int, Extremes]] = field(default_factory=dict)
    by_part: dict[str, dict[int, Extremes]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RangeRecord({self.sentences} sentences, digest {self.digest[:12]}…)"

    @classmethod
    def empty(cls, weights: Weights, config: ModelConfig) -> RangeRecord:
        return cls(weights.digest, config.softmax, config.quad_shift)

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
        self.check(weights, config)
        for batch in batches:
            plain.forward(weights, config, batch, self.observe)
            self.sentences += batch.ids.shape[0]
            self.tokens += int(batch.mask.sum())
            self.longest = max(self.longest, int(batch.lengths.max()))
        return self

    def check(self, weights: Weights, config: ModelConfig) -> None:
        """Refuse to serve a model other than the one measured."""
        if self.digest != weights.digest:
            raise CalibrationError(
                f"the ranges were measured on other weights (digest {self.digest[:12]}…, the model's is "
                f"{weights.digest[:12]}…); calibrate this model"
            )
        if (self.softmax, self.quad_shift) != (config.softmax, config.quad_shift):
            raise CalibrationError(
                f"the ranges were measured with softmax '{self.softmax}', shift {self.quad_shift}; "
                f"the model runs '{config.softmax}', shift {config.quad_shift}: calibrate again"
            )

    def merge(self, other: RangeRecord) -> RangeRecord:
        """A record of everything either has seen."""
        if (self.digest, self.softmax, self.quad_shift) != (other.digest, other.softmax, other.quad_shift):
            raise CalibrationError("range records of two different models cannot be merged")
        merged = RangeRecord(self.digest, self.softmax, self.quad_shift)
        merged.sentences = self.sentences + other.sentences
        merged.tokens = self.tokens + other.tokens
        merged.longest = max(self.longest, other.longest)
        for record in (self, other):
            for target, source in ((merged.values, record.values), (merged.by_part, record.by_part)):
                for name, layers in source.items():
                    for layer, extremes in layers.items():
                        _widen(target, name, layer, extremes)
        return merged

    def save(self, path: str | Path) -> None:
        """Write as JSON; a reader never sees half a record."""
        path = Path(path)
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(self.to_json(), allow_nan=False), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> RangeRecord:
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise CalibrationError(f"there is no range record '{path}'; calibrate the model first") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CalibrationError(f"the range record '{path}' cannot be read: {error}; calibrate again") from None

    def to_json(self) -> dict[str, Any]:
        scalars = ("digest", "softmax", "quad_shift", "sentences", "tokens", "longest")
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in scalars},
            "values": _table_to_json(self.values),
            "by_part": _table_to_json(self.by_part),
        }

    @classmethod
    def from_json(cls, data: Any) -> RangeRecord:
        """The inverse of `to_json`; anything else is a ValueError."""
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"not a range record of format {FORMAT}")
        try:
            values, by_part = _table_from_json(data.pop("values")), _table_from_json(data.pop("by_part"))
            return cls(**data, values=values, by_part=by_part)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"malformed: {error}") from None


def _extremes(name: str, layer: int, low: Tensor, high: Tensor, over: tuple[int, ...] | None = None) -> Extremes:
    dimensions = tuple(range(low.ndim)) if over is None else over
    extremes = Extremes(low.amin(dimensions).double().cpu(), high.amax(dimensions).double().cpu())
    if not bool(torch.isfinite(extremes.low).all() and torch.isfinite(extremes.high).all()):
        raise RangeError(f"'{name}' of layer {layer} is not finite on some input; the model overflows")
    return extremes


def _widen(table: dict[str, dict[int, Extremes]], name: str, layer: int, seen: Extremes) -> None:
    layers = table.setdefault(name, {})
    layers[layer] = layers[layer].include(seen) if layer in layers else seen


def _table_to_json(table: dict[str, dict[int, Extremes]]) -> dict[str, dict[str, list[Any]]]:
    return {
        name: {str(layer): extremes.to_json() for layer, extremes in layers.items()} for name, layers in table.items()
    }


def _table_from_json(data: dict[str, dict[str, list[Any]]]) -> dict[str, dict[int, Extremes]]:
    return {
        name: {int(layer): Extremes.from_json(pair) for layer, pair in layers.items()} for name, layers in data.items()
    }

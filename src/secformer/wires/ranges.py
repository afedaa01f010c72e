"""The ranges a model's intermediates take on real text.

Fourier windows need bounds, and for some values there is no small one: a few tokens with massive activations stretch one
LayerNorm's variance by a factor of hundreds, and one attention head in a hundred spans ten times what the others do. So a
record keeps extremes per layer and operation, per head for scores and values, and per neuron for the input of the
activation. It is a plain measurement: margins and menus are calibration's matter.

Scores are kept *centred*: adding one vector to all keys of a head changes no Softmax, only where the scores lie, and in some
encoders they lie far from zero. `centre` finds the vector for each head from the middle of every row, as a linear function of
its query; it is folded into the keys' bias, and stays secret like all that is here.

A record says something about the weights it was measured on, and carries their digest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from secformer.errors import CalibrationError, RangeError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.positions import is_local
from secformer.models.tokens import Batch
from secformer.models.weights import Weights

RIDGE = 1e-4
"""Of the mean squared query: what holds a centre back where queries say nothing about it."""


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


@dataclass(repr=False, eq=False)
class RangeRecord:
    """Extremes by operation and layer (`plain`'s names, −1 outside the layers; all uses of a layer's weights are one).

    `scores`, `row_maximum` and `value` (the length of its rows) are kept by head, `preactivation` by neuron.
    """

    digest: str  # of the weights
    centres: tuple[Tensor, ...] | None = None  # by layer (heads, head_size), what is taken from every key
    sentences: int = 0
    tokens: int = 0
    longest: int = 0
    seen: dict[str, dict[int, Extremes]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeRecord) and self.to_data() == other.to_data()

    def __repr__(self) -> str:
        return f"RangeRecord({self.sentences} sentences, digest {self.digest[:12]}…)"

    def measure(self, weights: Weights, config: ModelConfig, batches: Iterable[Batch]) -> RangeRecord:
        """Run the model in the clear over `batches` and widen this record by what is seen."""
        observe = _observer(self, config)
        for batch in batches:
            plain.forward(weights, config, batch, observe)
            self.sentences += batch.ids.shape[0]
            self.tokens += int(batch.mask.sum())
            self.longest = max(self.longest, int(batch.lengths.max()))
        return self

    def widen(self, name: str, layer: int, tensor: Tensor, mask: Tensor, over: tuple[int, ...] | None = None) -> None:
        """Include a tensor, where the mask is true, reduced over some dimensions or all."""
        dimensions = tuple(range(tensor.ndim)) if over is None else over
        low = tensor.masked_fill(~mask, math.inf).amin(dimensions)
        high = tensor.masked_fill(~mask, -math.inf).amax(dimensions)
        if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise RangeError(f"'{name}' of layer {layer} is not finite on some input; the model overflows")
        layers = self.seen.setdefault(name, {})
        found = Extremes(low.double().cpu(), high.double().cpu())
        layers[layer] = layers[layer].include(found) if layer in layers else found

    def to_data(self) -> dict[str, Any]:
        """All of it, for the provider's own record."""
        return {
            "digest": self.digest,
            "centres": None if self.centres is None else [centre.tolist() for centre in self.centres],
            "sentences": self.sentences,
            "tokens": self.tokens,
            "longest": self.longest,
            "seen": {
                name: {str(layer): [part.low.tolist(), part.high.tolist()] for layer, part in layers.items()}
                for name, layers in self.seen.items()
            },
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RangeRecord:
        centres = data["centres"]
        return cls(
            digest=str(data["digest"]),
            centres=None if centres is None else tuple(_numbers(centre) for centre in centres),
            sentences=int(data["sentences"]),
            tokens=int(data["tokens"]),
            longest=int(data["longest"]),
            seen={
                name: {int(layer): _read_extremes(*parts) for layer, parts in layers.items()}
                for name, layers in data["seen"].items()
            },
        )


def _numbers(data: Any) -> Tensor:
    return torch.tensor(data, dtype=torch.float64)


def _read_extremes(low: Any, high: Any) -> Extremes:
    found = Extremes(_numbers(low), _numbers(high))
    if found.low.shape != found.high.shape or not bool((found.low <= found.high).all()):
        raise ValueError("extremes that are none")
    return found


def _observer(record: RangeRecord, config: ModelConfig) -> plain.Observer:
    """What `plain.forward` shows, into the record."""
    queries: dict[int, Tensor] = {}

    def observe(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        layer = layer if layer == plain.OUTSIDE else config.own_layer(layer)
        if name == "query":
            queries[layer] = tensor
        elif name == "scores":
            scores = _centred(tensor, queries.pop(layer), record.centres, layer)
            record.widen(name, layer, scores, mask, (0, 2, 3))
            highest = scores.masked_fill(~mask, -math.inf).amax(-1)
            record.widen("row_maximum", layer, highest, mask.any(-1), (0, 2))
        elif name == "value":
            record.widen(name, layer, tensor.norm(dim=-1), mask.any(-1), (0, 2))
        elif name == "preactivation":
            record.widen(name, layer, tensor, mask, (0, 1))
        elif name.endswith(".variance"):
            record.widen(name, layer, tensor, mask)
        elif name == "denominator" and config.softmax == "2quad":
            record.widen(name, layer, tensor, mask)
            padded = config.quad_shift**2 * mask.sum(2, keepdim=True).to(tensor.dtype)  # the row sum of a padded query
            if is_local(config, layer):
                padded = torch.full_like(padded, config.quad_shift**2)  # it may see itself alone
            record.widen(name, layer, padded, torch.ones_like(padded, dtype=torch.bool))

    return observe


def _centred(scores: Tensor, queries: Tensor, centres: tuple[Tensor, ...] | None, layer: int) -> Tensor:
    """Scores of keys less their head's centre."""
    if centres is None:
        return scores
    centre = centres[layer].to(queries) / math.sqrt(queries.shape[-1])
    return scores - torch.einsum("bhnd,hd->bhn", queries, centre)[..., None]


def centre(weights: Weights, config: ModelConfig, batches: Iterable[Batch]) -> tuple[Tensor, ...]:
    """For every layer and head the vector that, taken from all keys, brings the middle of each row of scores near zero:
    least squares over the rows of `batches`."""
    found: dict[int, _LeastSquares] = {}
    queries: dict[int, Tensor] = {}

    def observe(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        if name == "query":
            queries[layer] = tensor / math.sqrt(config.head_size)
        elif name == "scores":
            found.setdefault(config.own_layer(layer), _LeastSquares()).add(queries.pop(layer), tensor, mask)

    for batch in batches:
        plain.forward(weights, config, batch, observe)
    return tuple(found[layer].solution() for layer in range(config.own_layers))


class _LeastSquares:
    """Normal equations of t ≈ q·x over the rows of every head, t the middle of a row of scores."""

    def __init__(self) -> None:
        self.squares: Tensor | float = 0.0
        self.products: Tensor | float = 0.0

    def add(self, queries: Tensor, scores: Tensor, mask: Tensor) -> None:
        high, low = scores.masked_fill(~mask, -math.inf).amax(-1), scores.masked_fill(~mask, math.inf).amin(-1)
        real = mask.any(-1).expand_as(high)
        middle = ((high + low) / 2).masked_fill(~real, 0.0).double()
        rows = queries.double() * real[..., None]
        self.squares = self.squares + torch.einsum("bhnd,bhne->hde", rows, rows)
        self.products = self.products + torch.einsum("bhnd,bhn->hd", rows, middle)

    def solution(self) -> Tensor:
        assert isinstance(self.squares, Tensor) and isinstance(self.products, Tensor)
        squares, products = self.squares.cpu(), self.products.cpu()
        diagonal = torch.diagonal(squares, dim1=1, dim2=2).mean(-1).clamp(min=1e-12)
        ridge = RIDGE * diagonal[:, None, None] * torch.eye(squares.shape[-1], dtype=torch.float64)
        return torch.linalg.solve(squares + ridge, products[..., None])[..., 0]

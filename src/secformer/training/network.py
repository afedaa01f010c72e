"""A model that can be trained: `plain.forward`'s own computation with gradients.

Weights stay in float32 under our own names; the non-linear parts are those of the model it is to become (`Swaps`). What
torch has in one kernel (linear maps, LayerNorm, table look-ups) is computed so; on a GPU matrix products are in bfloat16.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from secformer.errors import SettingsError
from secformer.models.config import ModelConfig, Softmax
from secformer.models.plain import OUTSIDE, Forward, Functions, Observer, Output, exact_functions, ignore
from secformer.models.tokens import Batch
from secformer.models.weights import Linear, Weights

Gelu = Literal["exact", "quad"]
SMALLEST_SUM = 1e-6
"""Of a row's numerators, below what any row of a trained model has."""


@dataclass(frozen=True)
class Swaps:
    """What a model computes in place of Softmax and of its activation."""

    softmax: Softmax = "exact"
    shift: float = 0.0
    """c of 2Quad."""
    gelu: Gelu = "exact"
    """`quad`: MPCFormer's 0.125x² + 0.25x + 0.5."""

    def config(self, config: ModelConfig) -> ModelConfig:
        return replace(config, softmax=self.softmax, quad_shift=self.shift if self.softmax == "2quad" else 0.0)

    def functions(self, config: ModelConfig) -> Functions:
        """Scores are taken in float32, whatever the products before them were computed in: bfloat16, in which all of a row can
        be -c exactly. The context of such a row is nought, and not 0/0."""
        exact = exact_functions(self.config(config))
        weights = exact.softmax_weights
        return replace(
            exact,
            activation=gelu_quad if self.gelu == "quad" else exact.activation,
            softmax_weights=lambda scores, keys: weights(scores.float(), keys),
            reciprocal=lambda total, place: 1 / total.clamp_min(SMALLEST_SUM),
        )


def gelu_quad(x: Tensor) -> Tensor:
    """Compute MPCFormer's Quad, which replaces GeLU."""
    return 0.125 * x * x + 0.25 * x + 0.5


def swaps_named(softmax: str, shift: float, gelu: str) -> Swaps:
    for name, value, allowed in (("softmax", softmax, Softmax), ("gelu", gelu, Gelu)):
        if value not in get_args(allowed):
            raise SettingsError(f"unknown {name} '{value}': choose {' or '.join(get_args(allowed))}")
    return Swaps(softmax, shift if softmax == "2quad" else 0.0, gelu)  # type: ignore[arg-type]


class Dropout:
    """Zeroes a share of what passes, with randomness of its own, so that a run can be resumed in the middle."""

    def __init__(self, share: float, seed: int, device: str | torch.device) -> None:
        self.share = share
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.share:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.share, generator=self.generator)
        return x * kept / (1 - self.share)


@dataclass(frozen=True, repr=False)
class Network:
    weights: Weights
    config: ModelConfig
    swaps: Swaps

    @property
    def device(self) -> torch.device:
        return self.weights["word"].device

    def to(self, device: str | torch.device, dtype: torch.dtype = torch.float32) -> Network:
        tensors = {name: tensor.detach().to(device, dtype) for name, tensor in self.weights.tensors.items()}
        return replace(self, weights=Weights(tensors))

    def copy(self) -> Network:
        tensors = {name: tensor.detach().clone() for name, tensor in self.weights.tensors.items()}
        return replace(self, weights=Weights(tensors))

    def trainable(self) -> Network:
        """A copy whose tensors take gradients."""
        copied = self.copy()
        for tensor in copied.weights.tensors.values():
            tensor.requires_grad_(True)
        return copied

    def __call__(self, batch: Batch, observer: Observer = ignore, dropout: Dropout | None = None) -> Output:
        with mixed_precision(self.device):
            return self._pass(batch, observer, dropout).run(batch)

    def infer(self, batch: Batch, observer: Observer = ignore) -> Output:
        """In full precision, without gradients."""
        with torch.no_grad():
            return self._pass(batch, observer).run(batch)

    def _pass(self, batch: Batch, observer: Observer, dropout: Dropout | None = None) -> Pass:
        weights = FusedWeights(self.weights.tensors)
        return Pass(weights, self.config, batch.mask, observer, self.swaps.functions(self.config), dropout)


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class FusedLinear(Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.T, self.bias)


class FusedWeights(Weights):
    def linear(self, name: str) -> Linear:
        return FusedLinear(*super().linear(name))


@dataclass(frozen=True, repr=False)
class Pass(Forward):
    """One pass over one batch, as plain.py has it; in training with BERT's dropout on what a block adds."""

    dropout: Dropout | None = None

    def embed(self, batch: Batch) -> Tensor:
        x = functional.embedding(batch.ids, self.weights["word"])
        if "position" in self.weights:
            x = x + self.weights["position"][: batch.ids.shape[1]]
        if "token_type" in self.weights:
            x = x + functional.embedding(batch.token_types, self.weights["token_type"])
        return self.project(self.norm(x, "embedding_norm", OUTSIDE))

    def layer(self, x: Tensor, index: int) -> Tensor:
        name = self.stored(index)
        self.observer("input", index, x, self.tokens)
        attended = self.weights.linear(f"{name}.output")(self.attention(x, index))
        x = self.norm(self.added(attended) + x, "attention_norm", index)
        return self.norm(self.added(self.feed_forward(x, index)) + x, "output_norm", index)

    def norm(self, residual: Tensor, part: str, index: int) -> Tensor:
        gain, bias = self.norm_weights(part, index)
        return functional.layer_norm(residual, residual.shape[-1:], gain, bias, self.config.layer_norm_eps)

    def added(self, x: Tensor) -> Tensor:
        return x if self.dropout is None else self.dropout(x)

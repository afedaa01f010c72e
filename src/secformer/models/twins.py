"""The twin of a suite: the whole model in float64 with that suite's own approximations, and no fixed point.

A secure run must agree with its twin up to rounding; that `secformer` with Quad or 2Quad differs from the
plain model is no error of the run. The twins of our own suites are the plain model itself: `exact`
approximates nothing beyond 2e-4, and `fast` computes 2Quad exactly. The observer sees the same names as in
plain.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from secformer.models import plain
from secformer.models.baseline import HEAD_DEFLATION, quad_shift
from secformer.models.config import ModelConfig
from secformer.models.plain import OUTSIDE, Observer, Output, ignore, pool
from secformer.models.tokens import Batch
from secformer.models.weights import LayerWeights, Norm, Weights
from secformer.protocols import twins
from secformer.protocols.suites import Suite

Deflation = Mapping[str, float]


@torch.no_grad()
def forward(
    weights: Weights,
    config: ModelConfig,
    batch: Batch,
    suite: Suite,
    deflation: Deflation | None = None,
    observer: Observer = ignore,
) -> Output:
    """The suite's model on one batch; weights in float64."""
    if suite.ours:
        softmax = replace(config, softmax="2quad", quad_shift=quad_shift(config, suite))
        return plain.forward(weights, softmax if suite.softmax_kind == "2quad" else config, batch, observer)
    return _Twin(weights, config, batch.mask, suite, {} if deflation is None else deflation, observer).run(batch)


class _Twin:
    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        mask: Tensor,
        suite: Suite,
        deflation: Deflation,
        observer: Observer,
    ) -> None:
        self.weights, self.config, self.mask, self.suite = weights, config, mask, suite
        self.deflation, self.observer = deflation, observer

    def run(self, batch: Batch) -> Output:
        weights = self.weights
        x = weights.word[batch.ids] + weights.position[: batch.ids.shape[1]]
        if weights.token_type is not None:
            x = x + weights.token_type[batch.token_types]
        x = self.norm(x, weights.embedding_norm, "embedding_norm", OUTSIDE)
        for index, layer in enumerate(weights.layers):
            x = self.layer(x, layer, index)
        self.observer("hidden", OUTSIDE, x, self.mask[..., None])
        return Output(x, self.head(x))

    def layer(self, x: Tensor, layer: LayerWeights, index: int) -> Tensor:
        self.observer("input", index, x, self.mask[..., None])
        x = self.norm(x + layer.output(self.attention(x, layer, index)), layer.attention_norm, "attention_norm", index)
        inner = layer.up(x)
        self.observer("preactivation", index, inner, self.mask[..., None])
        return self.norm(x + layer.down(self.activate(inner)), layer.output_norm, "output_norm", index)

    def attention(self, x: Tensor, layer: LayerWeights, index: int) -> Tensor:
        config, suite = self.config, self.suite

        def split(rows: Tensor) -> Tensor:
            return rows.unflatten(-1, (config.heads, config.head_size)).transpose(1, 2)

        queries, keys = self.mask[:, None, :, None], self.mask[:, None, None, :]
        scores = split(layer.query(x)) @ split(layer.key(x)).transpose(-1, -2) / math.sqrt(config.head_size)
        self.observer("scores", index, scores, queries & keys)
        weights = twins.softmax_weights(suite.softmax, scores, keys, quad_shift(config, suite))
        total = weights.sum(-1, keepdim=True)
        self.observer("denominator", index, total, queries)
        eta = self.deflation.get(f"layers.{index}.softmax", suite.eta_softmax)
        weights = weights * twins.softmax_reciprocal(suite.softmax, total, eta, suite.softmax_steps)
        return (weights @ split(layer.value(x))).transpose(1, 2).flatten(-2)

    def activate(self, x: Tensor) -> Tensor:
        if self.config.activation == "relu":
            return torch.relu(x)
        if self.config.activation == "silu":
            return twins.silu_crypten(x)
        return twins.GELU[self.suite.activation](x)

    def norm(self, x: Tensor, norm: Norm, name: str, index: int) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        self.observer(f"{name.removesuffix('_norm')}.variance", index, variance, self.mask[..., None])
        place = name if index == OUTSIDE else f"layers.{index}.{name}"
        eta = self.deflation.get(place, self.suite.eta_layernorm)
        inverse = twins.inverse_deviation(
            self.suite.layernorm, variance + self.config.layer_norm_eps, x.shape[-1], eta, self.suite.layernorm_steps
        )
        return centred * inverse * norm.gain + norm.bias

    def head(self, x: Tensor) -> Tensor:
        config, weights = self.config, self.weights
        if config.head == "embedding":
            pooled = pool(x, self.mask, config)
            return self.unit_length(pooled) if config.normalise else pooled
        if weights.pooler is not None:
            x = weights.pooler(x[:, 0])
            x = twins.tanh_crypten(x) if config.pooler_activation == "tanh" else torch.relu(x)
        assert weights.classifier is not None
        return weights.classifier(x)

    def unit_length(self, pooled: Tensor) -> Tensor:
        squared = pooled.square().sum(-1, keepdim=True)
        self.observer("squared_norm", OUTSIDE, squared, self.mask[:, :1])
        eta = self.deflation.get("head", HEAD_DEFLATION[self.suite.uses_goldschmidt])
        if self.suite.uses_goldschmidt:
            inverse = twins.goldschmidt_inverse_sqrt(squared / eta, self.suite.layernorm_steps)
        else:
            inverse = twins.newton_inverse_sqrt(squared / eta)
        return pooled * inverse / math.sqrt(eta)


# -- deflation -----------------------------------------------------------------------------------------------

NEWTON_ROOT = 2.5  # √(0.1·64): the middle of where Π_rSqrt's first guess holds
NEWTON_QUOTIENT = 4.0  # √(0.1·160), likewise for Π_Div
GOLDSCHMIDT_ROOT = 1.5  # of 2.9: room for inputs twice as large as those measured
GOLDSCHMIDT_QUOTIENT = 1.0  # of 2


def measure_deflation(weights: Weights, config: ModelConfig, batch: Batch, suite: Suite) -> dict[str, float]:
    """η for every place, from the ranges on a batch like the data to come.

    Newton's methods get the geometric middle of the range, Goldschmidt's its upper end.
    """
    found: dict[str, float] = {}

    def observe(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        values = tensor[mask.expand_as(tensor)]
        low, high = (bound.item() for bound in torch.aminmax(values))
        place = "" if layer == OUTSIDE else f"layers.{layer}."
        if name.endswith(".variance"):
            count = config.hidden if suite.uses_goldschmidt else 1
            found[f"{place}{name.removesuffix('.variance')}_norm"] = _root(suite, count * low, count * high)
        elif name == "squared_norm":
            found["head"] = _root(suite, low, high)
        elif name == "denominator" and suite.softmax_kind == "2quad":
            found[f"{place}softmax"] = _quotient(suite, low, high)

    forward(weights, config, batch, suite, found, observe)  # a place is observed before its η is looked up
    return found


def _root(suite: Suite, low: float, high: float) -> float:
    return high / GOLDSCHMIDT_ROOT if suite.uses_goldschmidt else math.sqrt(low * high) / NEWTON_ROOT


def _quotient(suite: Suite, low: float, high: float) -> float:
    if suite.softmax == "2quad-goldschmidt":
        return max(2.0, high / GOLDSCHMIDT_QUOTIENT)
    return math.sqrt(low * high) / NEWTON_QUOTIENT

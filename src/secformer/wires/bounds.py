"""What a model's values cannot exceed, whatever the text: from the weights alone.

Behind a LayerNorm the normalised row X′ has length √h and mean zero, so |w·X′ + b| ≤ √h·‖w − w̄‖ + |b|. For the input of an
activation that is 12 to 20 in real encoders, two to four times what texts reach: enough to know how far away a value can be. A
sum of embedding rows is bounded by the tables.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secformer.models.config import ModelConfig
from secformer.models.weights import Linear, Norm, Weights


def behind_norm(norm: Norm, linear: Linear) -> Tensor:
    """The largest magnitude of every output of a linear map behind a LayerNorm."""
    weight = linear.weight.double()
    folded = norm.gain.double()[:, None] * weight
    bias = linear.bias.double() + norm.bias.double() @ weight
    return math.sqrt(len(folded)) * (folded - folded.mean(0)).norm(dim=0) + bias.abs()


def behind_layer(weights: Weights, config: ModelConfig, layer: int, part: str) -> Tensor:
    """A layer's query, key or value, by entry."""
    norm = weights.norm(config.output_norm(layer - 1) if layer else "embedding_norm")
    return behind_norm(norm, weights.linear(f"layers.{layer}.{part}"))


def gate(weights: Weights, layer: int) -> float:
    """What a layer's activation is multiplied by."""
    return float(
        behind_norm(weights.norm(f"layers.{layer}.attention_norm"), weights.linear(f"layers.{layer}.gate")).max()
    )


def preactivation(weights: Weights, layer: int) -> Tensor:
    """By neuron; `layer` counts those with weights of their own."""
    return behind_norm(weights.norm(f"layers.{layer}.attention_norm"), weights.linear(f"layers.{layer}.up"))


def embedding(weights: Weights) -> float:
    """The largest entry of a sum of centred embedding rows."""
    tables = [weights[name] for name in ("word", "position", "token_type") if name in weights]
    largest = torch.stack([_centred(table).abs().amax(0) for table in tables])
    return float(largest.sum(0).max())


def _centred(table: Tensor) -> Tensor:
    rows = table.double()
    return rows - rows.mean(-1, keepdim=True)


def projection(weights: Weights) -> float:
    """The largest entry of what layers start from, where an embedding has a map behind it."""
    return float(behind_norm(weights.norm("embedding_norm"), weights.linear("projection")).max())


def last_norm(weights: Weights, config: ModelConfig) -> Norm:
    return weights.norm(config.output_norm(config.layers - 1))


def head(weights: Weights, config: ModelConfig) -> Tensor:
    """What goes into the head's activation, by output. (A mean of rows is no larger than the largest of them.)"""
    name = "pooler" if config.pooler else "transform" if config.transform else "dense"
    return behind_norm(last_norm(weights, config), weights.linear(name))


def result(weights: Weights, config: ModelConfig) -> float:
    """The largest logit, or entry of a vector, there can be."""
    if config.head == "embedding":
        return 1.0 if config.dense_activation else float(head(weights, config).max())
    classifier = weights.linear("classifier")
    if not config.pooler:
        before = weights.norm("transform_norm") if config.transform else last_norm(weights, config)
        return float(behind_norm(before, classifier).max())
    largest = head(weights, config)
    if config.pooler == "tanh":
        largest = torch.ones_like(largest)
    return float((largest @ classifier.weight.double().abs() + classifier.bias.double().abs()).max())

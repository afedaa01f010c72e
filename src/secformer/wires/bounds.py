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


def preactivation(weights: Weights, layer: int) -> Tensor:
    """By neuron."""
    return behind_norm(weights.norm(f"layers.{layer}.attention_norm"), weights.linear(f"layers.{layer}.up"))


def embedding(weights: Weights) -> float:
    """The largest entry of a sum of centred embedding rows."""
    tables = [weights[name] for name in ("word", "position", "token_type") if name in weights]
    largest = torch.stack([_centred(table).abs().amax(0) for table in tables])
    return float(largest.sum(0).max())


def _centred(table: Tensor) -> Tensor:
    rows = table.double()
    return rows - rows.mean(-1, keepdim=True)


def pooler(weights: Weights, config: ModelConfig) -> float:
    norm = weights.norm(f"layers.{config.layers - 1}.output_norm")
    return float(behind_norm(norm, weights.linear("pooler")).max())


def logits(weights: Weights, config: ModelConfig) -> float:
    """The largest logit there can be."""
    classifier = weights.linear("classifier")
    if not config.pooler:
        norm = weights.norm(f"layers.{config.layers - 1}.output_norm")
        return float(behind_norm(norm, classifier).max())
    largest = 1.0 if config.pooler == "tanh" else pooler(weights, config)
    return float((classifier.weight.double().abs().sum(0) * largest + classifier.bias.double().abs()).max())

"""Folding: the provider's weights as the secure program wants them, once, before they are shared and masked.

Everything linear and constant goes into the weights: γ and β of the LayerNorm before, the centring of the LayerNorm
behind, 1/√d and log2 e (the exponential works in octaves), the factors that turn a preactivation into period units, and
the secret order of heads and neurons. A bias is an extra row, multiplied by the column that holds the padding bit m, so
that padded rows stay zero.

    X′ = (x − μ)/σ·m        x = γ·X′ + β·m
    [X′ m] @ qkv            (h+1, 3h)       Q, K, V
    X′ ⊙ gain − X′ @ mean   residual, centred (β is in the bias row of `out`)
    [O m] @ out             (h+1, h)        centred output projection
    [X₁′ m] @ up            (h+1, f)        preactivations in period units
    [G m] @ down            (f+1, h)        centred
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.models import settings as s
from secformer.models.calibration import LOG2_E, Layout
from secformer.models.config import ModelConfig
from secformer.models.settings import EncoderSetting, LayerSetting
from secformer.models.weights import LayerWeights, Linear, Norm, Weights
from secformer.protocols.embedding import table_words
from secformer.ring.fixed_point import encode


@dataclass(frozen=True, repr=False)
class Static:
    """One tensor to be shared and masked at upload: ring elements at a scale, or packed bits."""

    ring: Tensor
    width: int
    scale: int = 0
    boolean: bool = False


def centred(matrix: Tensor) -> Tensor:
    """Rows minus their mean."""
    return matrix - matrix.mean(-1, keepdim=True)


def _augmented(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat((weight, bias[None]), 0)


def _after(norm: Norm, linear: Linear) -> Tensor:
    """γ and β of the LayerNorm before, folded into a linear map: (inputs + 1, outputs)."""
    weight = linear.weight.double()
    return _augmented(norm.gain.double()[:, None] * weight, linear.bias.double() + norm.bias.double() @ weight)


def fold(weights: Weights, config: ModelConfig, setting: EncoderSetting, layout: Layout) -> dict[str, Static]:
    """Every static tensor of the secure encoder, by name."""
    folded = _embedding(weights, setting)
    norm = weights.embedding_norm
    for index, layer in enumerate(weights.layers):
        parts = _layer(layer, norm, config, setting.layers[index], layout.heads[index], layout.neurons[index])
        folded.update({f"{index}.{name}": static for name, static in parts.items()})
        norm = layer.output_norm
    folded.update(_head(weights, config, norm))
    return folded


def _ring(real: Tensor, scale: int, width: int) -> Static:
    return Static(encode(real.double(), scale), width, scale)


def centred_words(weights: Weights) -> Tensor:
    return centred(weights.word.double())


def _embedding(weights: Weights, setting: EncoderSetting) -> dict[str, Static]:
    words = encode(centred_words(weights), s.EMBEDDING_SCALE, setting.word_bits)
    position = weights.position.double()
    folded = {"word": Static(table_words(words, setting.word_bits), 64, boolean=True)}
    if weights.token_type is not None:
        types = weights.token_type.double()
        position = position + types[0]
        if len(types) > 1:
            step = centred(types[1] - types[0])[None]
            folded["type"] = _ring(step, s.EMBEDDING_SCALE, setting.embedding_width)
    folded["position"] = _ring(centred(position), s.EMBEDDING_SCALE, setting.embedding_width)
    return folded


def _layer(
    layer: LayerWeights,
    before: Norm,
    config: ModelConfig,
    setting: LayerSetting,
    heads: tuple[int, ...],
    neurons: tuple[int, ...],
) -> dict[str, Static]:
    columns = _head_columns(heads, config.head_size)
    octaves = LOG2_E if config.softmax == "exact" else 1.0
    query = _after(before, layer.query)[:, columns] * (octaves / math.sqrt(config.head_size))
    key, value = (_after(before, part)[:, columns] for part in (layer.key, layer.value))
    output = centred(_augmented(layer.output.weight.double()[columns], layer.output.bias + before.bias))
    order = torch.tensor(neurons)
    up = _after(layer.attention_norm, layer.up)[:, order] * _period_factors(setting)
    down = centred(_augmented(layer.down.weight.double()[order], layer.down.bias + layer.attention_norm.bias))
    return {
        "qkv": _ring(torch.cat((query, key, value), 1), s.WEIGHT_SCALE, setting.hidden_width),
        **_residual(before, "in", setting.hidden_width),
        "out": _ring(output, s.WEIGHT_SCALE, setting.context_width),
        "up": _ring(up, s.WEIGHT_SCALE, setting.middle_width),
        **_residual(layer.attention_norm, "middle", setting.middle_width),
        "down": _ring(down, s.WEIGHT_SCALE, setting.activation_width),
    }


def _head_columns(heads: tuple[int, ...], size: int) -> Tensor:
    return torch.cat([torch.arange(head * size, (head + 1) * size) for head in heads])


def _period_factors(setting: LayerSetting) -> Tensor:
    """Factor of each neuron that makes its class's period 2^5: 17 bits at 12 fraction bits."""
    if setting.activation is None:
        return torch.ones(1, dtype=torch.float64)
    parts = [torch.full((part.count,), 32.0 / part.fit.period) for part in setting.activation.classes]
    return torch.cat(parts).double()


def _residual(norm: Norm, name: str, width: int) -> dict[str, Static]:
    """X′⊙γ, and the row mean of it as a product with γ/n."""
    gain = norm.gain.double()
    mean = (gain / len(gain))[:, None]
    return {
        f"{name}.gain": _ring(gain, s.WEIGHT_SCALE, width),
        f"{name}.mean": _ring(mean, s.MEAN_SCALE, width),
    }


def _head(weights: Weights, config: ModelConfig, norm: Norm) -> dict[str, Static]:
    """What turns the last X′ into the result."""
    width = 64
    if config.head == "embedding":
        return {
            "final.gain": _ring(norm.gain, s.WEIGHT_SCALE, width),
            "final.bias": _ring(norm.bias[None], s.WEIGHT_SCALE, width),
        }
    assert weights.classifier is not None
    if weights.pooler is None:
        return {"classifier": _ring(_after(norm, weights.classifier), s.WEIGHT_SCALE, width)}
    classifier = _augmented(weights.classifier.weight.double(), weights.classifier.bias.double())
    return {
        "pooler": _ring(_after(norm, weights.pooler), s.WEIGHT_SCALE, width),
        "classifier": _ring(classifier, s.WEIGHT_SCALE, width),
    }

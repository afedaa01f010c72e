"""From constants to widths and scales: how every opening of a secure encoder is made.

Rules (docs/protocols.md): a matmul wire must be as wide as what its product still has to lose and hold,

    w ≥ w_next + dropped bits            if the product feeds another wire
    w ≥ s_A + s_B + log2(period)         if it feeds a Fourier function or the exponential
    lifted wires: w ≥ scale + log2|x| + 2

so the widths are derived here backwards, from the last wire of a layer to its first. With the ranges of the two real
encoders this gives the table of the design: X′ 51–53, QKV 35–37, P 35–37, N 24–26, O 33, c 19, X₁′ 44, z 17, G 37, c 23 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from secformer.errors import CalibrationError
from secformer.models.config import ModelConfig
from secformer.protocols.activation import ActivationSetting, NeuronClass
from secformer.protocols.attention import ExactSetting, HeadGroup, QuadSetting, RowSetting, largest_denominator
from secformer.protocols.fit import scaled
from secformer.protocols.functions import activation_named
from secformer.protocols.menu import activation, inverse_sqrt, reciprocal
from secformer.protocols.normalise import NormSetting
from secformer.wires.calibration import RELU_LIMIT, Constants, HeadWindow, LayerConstants, VarianceWindow

WEIGHT_SCALE = 14
MEAN_SCALE = 20  # fraction bits of the mean's weights γ/n
HIDDEN_SCALE = 12  # X′ and X₁′
QUERY_SCALE = 13  # Q and K
VALUE_SCALE = 10
NUMERATOR_SCALE = 15  # N = P·V of true Softmax: a unit is 2^-11 of the smallest denominator
OUTPUT_SCALE = 12  # O
ACTIVATION_SCALE = 11  # G
EMBEDDING_SCALE = 15
FACTOR_WIDTH = 20  # 1/σ
RING = 64
PERIOD_BITS = 5  # a preactivation's period is 2^5 after folding
RELU_BITS = math.ceil(math.log2(RELU_LIMIT)) + 2  # a ReLU's input is lifted
FINAL_WIDTH = 50  # the last X′: a sum over a sentence times γ, and the result's fraction
RESULT_SCALE = 11
"""Fraction bits of what the client gets: a result is accurate to about 2^-11, and finer digits would tell of roundings."""
RESULT_WIDTH = RESULT_SCALE + 21  # below 2^20: a sum over 512 tokens of values below 2^11
LOGIT_WIDTH = 38  # a logit below 2^11 at a product's scale


@dataclass(frozen=True)
class LayerSetting:
    attention: ExactSetting | QuadSetting
    attention_norm: NormSetting
    activation: ActivationSetting | None  # None: ReLU
    output_norm: NormSetting
    hidden_width: int  # X′, what the layer starts from
    query_width: int
    value_width: int
    context_width: int  # O
    middle_width: int  # X₁′
    preactivation_width: int
    activation_width: int  # G


@dataclass(frozen=True)
class EncoderSetting:
    """All public numbers of a secure encoder."""

    layers: tuple[LayerSetting, ...]
    embedding_norm: NormSetting
    embedding_width: int
    word_bits: int


@lru_cache(maxsize=64)
def encoder_setting(constants: Constants, config: ModelConfig, tokens: int) -> EncoderSetting:
    """Derive every width. `tokens` bounds the row sums of attention: short texts need narrower windows."""
    layers, after = [], FINAL_WIDTH
    for layer in reversed(constants.layers):
        layers.insert(0, _layer(layer, config, tokens, after))
        after = layers[0].hidden_width
    embedding_width = EMBEDDING_SCALE + constants.embedding_bits + 2
    return EncoderSetting(
        layers=tuple(layers),
        embedding_norm=_norm(constants.embedding_variance, config, EMBEDDING_SCALE, embedding_width, after),
        embedding_width=embedding_width,
        word_bits=EMBEDDING_SCALE + constants.word_bits + 1,
    )


def _layer(layer: LayerConstants, config: ModelConfig, tokens: int, after: int) -> LayerSetting:
    """The wires of a layer, from its last to its first; `after` is the width of the next layer's X′."""
    product_scale, mean_scale = HIDDEN_SCALE + WEIGHT_SCALE, HIDDEN_SCALE + MEAN_SCALE
    output = ACTIVATION_SCALE + layer.output_bits + 2  # the residual after the feed-forward block
    activation = output + WEIGHT_SCALE
    preactivation = product_scale + (RELU_BITS if activation_named(config.activation).rectifies else PERIOD_BITS)
    middle = max(preactivation, output + mean_scale - ACTIVATION_SCALE)
    residual = HIDDEN_SCALE + layer.attention_bits + 2  # after attention
    context = residual + OUTPUT_SCALE + WEIGHT_SCALE - HIDDEN_SCALE
    attention = _exact(layer, context, tokens) if config.softmax == "exact" else _quad(layer, config, context)
    query, value = _query_width(layer, attention), attention.weight_width
    hidden = max(
        query + product_scale - QUERY_SCALE, value + product_scale - VALUE_SCALE, residual + mean_scale - HIDDEN_SCALE
    )
    return LayerSetting(
        attention=attention,
        attention_norm=_norm(layer.attention_variance, config, HIDDEN_SCALE, residual, middle),
        activation=_activation(layer, config, activation),
        output_norm=_norm(layer.output_variance, config, ACTIVATION_SCALE, output, after),
        hidden_width=hidden,
        query_width=query,
        value_width=value,
        context_width=context,
        middle_width=middle,
        preactivation_width=preactivation,
        activation_width=activation,
    )


def _norm(window: VarianceWindow, config: ModelConfig, scale: int, width: int, next_width: int) -> NormSetting:
    """1/σ gets as many fraction bits as its own width and the 64-bit ring of the product allow."""
    largest = math.ceil(math.log2(window.low**-0.5))
    factor_scale = min(FACTOR_WIDTH - 2 - largest, RING - next_width - scale + HIDDEN_SCALE)
    if factor_scale + largest < 8:
        raise CalibrationError(f"a LayerNorm of width {width} and next width {next_width} leaves 1/σ too few bits")
    fit = scaled(inverse_sqrt(window.low, window.high), config.hidden, 1.0)
    return NormSetting(
        fit=fit,
        epsilon=config.layer_norm_eps,
        residual_scale=scale,
        residual_width=width,
        factor_scale=factor_scale,
        factor_width=factor_scale + max(largest, 1) + 2,
        width=next_width + scale + factor_scale - HIDDEN_SCALE,
    )


def _activation(layer: LayerConstants, config: ModelConfig, width: int) -> ActivationSetting | None:
    if activation_named(config.activation).rectifies:
        return None
    classes = tuple(NeuronClass(count, activation(config.activation, name)) for name, count in layer.classes)
    setting = ActivationSetting(classes)
    return replace(setting, width=min(RING, width + setting.scale - ACTIVATION_SCALE))


def _groups(windows: tuple[HeadWindow, ...]) -> tuple[HeadGroup, ...]:
    bits = sorted({window.bits for window in windows})
    members = [[window.lowest for window in windows if window.bits == size] for size in bits]
    return tuple(HeadGroup(len(lowest), size, tuple(lowest)) for size, lowest in zip(bits, members, strict=True))


def _rows(
    layer: LayerConstants, denominator: tuple[float, float], numerator_scale: int, context_width: int
) -> RowSetting:
    low, high = denominator
    largest = math.ceil(math.log2(1 / low))
    reciprocal_width = 26
    reciprocal_scale = reciprocal_width - 2 - largest
    scale = numerator_scale + reciprocal_scale
    return RowSetting(
        fit=reciprocal(low, high),
        numerator_scale=numerator_scale,
        numerator_width=numerator_scale + layer.numerator_bits + 2,
        reciprocal_scale=reciprocal_scale,
        reciprocal_width=reciprocal_width,
        width=context_width + scale - OUTPUT_SCALE,
    )


def _exact(layer: LayerConstants, context_width: int, tokens: int) -> ExactSetting:
    low, high = layer.denominator
    rows = _rows(layer, (low, min(high, largest_denominator(tokens))), NUMERATOR_SCALE, context_width)
    weight_scale = 16
    weight_width = rows.numerator_width + weight_scale + VALUE_SCALE - rows.numerator_scale
    return ExactSetting(_groups(layer.windows), rows, weight_scale=weight_scale, weight_width=weight_width)


def _quad(layer: LayerConstants, config: ModelConfig, context_width: int) -> QuadSetting:
    """Scores squared span many octaves; keep D·2^weight_scale near 2^21."""
    high_bits = math.ceil(math.log2(layer.denominator[1]))
    weight_scale = max(0, 21 - high_bits)
    numerator_scale = max(2, 21 - layer.numerator_bits)
    rows = _rows(layer, layer.denominator, numerator_scale, context_width)
    weight_width = rows.numerator_width + weight_scale + VALUE_SCALE - numerator_scale
    score_scale = 10
    return QuadSetting(
        rows,
        shift=config.quad_shift,
        score_scale=score_scale,
        score_width=score_scale + layer.score_bits + 2,
        weight_scale=weight_scale,
        weight_width=weight_width,
    )


def _query_width(layer: LayerConstants, attention: ExactSetting | QuadSetting) -> int:
    if isinstance(attention, ExactSetting):
        return max(window.bits for window in layer.windows) + 2 * QUERY_SCALE
    return attention.score_width + 2 * QUERY_SCALE - attention.score_scale

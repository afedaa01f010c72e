"""From constants to widths and scales: how every opening of a secure encoder is made.

Rules (docs/protocols.md): a matmul wire must be as wide as what its product still has to lose and hold,

    w ≥ w_next + dropped bits            if the product feeds another wire
    w ≥ s_A + s_B + log2(period)         if it feeds a Fourier function or the exponential
    lifted wires: w ≥ scale + log2|x| + 2

so the widths are derived here backwards, from the last wire of a layer to its first. What follows from a query's length is
derived from it: the window of D, and with it the widths of N, P and V. The preset of `exact` gives, at 512
tokens, X′ 54, QK 33–35, V and P 37, N 27, O 33, c 19, X₁′ 39–43, z 18, G 32–36, c 17–21 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from secformer.errors import CalibrationError
from secformer.models.config import ModelConfig
from secformer.protocols.activation import ActivationSetting, NeuronClass
from secformer.protocols.attention import (
    LARGEST_VALUE,
    SMALLEST_DENOMINATOR,
    ExactSetting,
    HeadGroup,
    QuadSetting,
    RowSetting,
    largest_denominator,
)
from secformer.protocols.fit import scaled
from secformer.protocols.menu import activation, entry, reciprocal
from secformer.protocols.normalise import NormSetting
from secformer.wires.calibration import LOGIT_BITS, SERIES_LOGIT_BITS, row_factor, score_bits
from secformer.wires.choices import VARIANCE_RATIOS
from secformer.wires.constants import Constants, LayerConstants, NormRange, QuadRange, rectifies

WEIGHT_SCALE = 14
MEAN_SCALE = 20  # fraction bits of the mean's weights γ/n
HIDDEN_SCALE = 12  # X′ and X₁′
QUERY_SCALE = 13  # Q and K
INNER_SCALE = 15
"""Of the weights that make Q, K, V and an activation's input. Every token makes the same error with V's, none averages it away;
the others have the bit for nothing: X′ and X₁′ are as wide for V and for the residual."""
VALUE_BITS = 20  # V of true Softmax has as many fraction bits as N leaves of these
QUAD_VALUE_SCALE = 9  # V of 2Quad, for long texts
LONG = 128  # tokens from which on 2Quad's wires have the fewest bits
NUMERATOR_SCALE = 15  # N = P·V of true Softmax: a unit is 2^-11 of the smallest denominator
OUTPUT_SCALE = 12  # O, scaled like V
ACTIVATION_SCALE = 12  # G
FORWARD_SCALE = 10  # the residual after the feed-forward block
EMBEDDING_SCALE = 15  # a word's vector
EMBEDDED_SCALE = 14  # the sum of a token's vectors: 1/σ gets the bit
FACTOR_WIDTH = 20  # 1/σ
SERIES_BITS = 8
"""That the public factors of 1/σ's series are finer than 1/σ: √K of their roundings are a sixth of its own at the most."""
RECIPROCAL_WIDTH = 26  # 1/D, unless its product with N needs more than the ring
RING = 64
DISTANCE_SCALE = 14  # scores of content with distance, opened by themselves
ROTARY_SCALE = 16  # cosines and sines of positions
GATE_SCALE = 14  # an activation and its gate, before they are multiplied
STREAM_DIGITS = 16
PERIOD_BITS = 5  # a preactivation's period is 2^5 after folding
FINAL_WIDTH = 50  # the last X′: a sum over a sentence times γ, and the result's fraction
RESULT_SCALE = 11
"""Fraction bits of what the client gets: a result is accurate to about 2^-11, and finer digits would tell of roundings."""
RESULT_WIDTH = RESULT_SCALE + LOGIT_BITS + 2  # also for a sum over 512 tokens of values below 2^11
LOGIT_WIDTH = HIDDEN_SCALE + WEIGHT_SCALE + LOGIT_BITS + 1  # a logit at a product's scale
SERIES_LOGIT_WIDTH = HIDDEN_SCALE + WEIGHT_SCALE + SERIES_LOGIT_BITS + 1


@dataclass(frozen=True)
class LayerSetting:
    attention: ExactSetting | QuadSetting
    attention_norm: NormSetting
    activation: ActivationSetting | None  # None: ReLU
    relu_width: int
    output_norm: NormSetting
    hidden_width: int  # X′, what the layer starts from
    query_width: int
    value_width: int
    value_scale: int
    context_width: int  # O
    middle_width: int  # X₁′
    preactivation_width: int
    activation_width: int  # G
    turned_width: int = 0  # Q and K before they are turned by their position, opened narrow and lifted; 0: they are not
    narrow_value_width: int = 0  # V beside them
    factor_width: int = 0  # an activation that is multiplied by a gate, opened narrow and lifted; 0: there is no gate
    gate_width: int = 0


@dataclass(frozen=True)
class EncoderSetting:
    """All public numbers of a secure encoder."""

    layers: tuple[LayerSetting, ...]
    embedding_norm: NormSetting
    projection_width: int  # of the wire behind an embedding's projection, before it is lifted; 0: there is none
    embedding_width: int
    word_bits: int
    transform_norm: NormSetting | None = None  # of the rows that a head classifies


@lru_cache(maxsize=64)
def encoder_setting(constants: Constants, config: ModelConfig, tokens: int) -> EncoderSetting:
    """Derive every width. `tokens` bounds the row sums of attention: short texts need narrower windows."""
    layers, after = [], FINAL_WIDTH
    for index in reversed(range(config.layers)):
        layers.insert(0, _layer(constants, constants.layers[config.own_layer(index)], config, tokens, after))
        after = layers[0].hidden_width
    embedding, projection = constants.embedding_norm, 0
    if config.embedding_size:
        projection = HIDDEN_SCALE + constants.projection_bits + 2
        after = projection + WEIGHT_SCALE
    return EncoderSetting(
        layers=tuple(layers),
        embedding_norm=_norm(embedding, config, EMBEDDED_SCALE, after, config.table_size),
        projection_width=projection,
        embedding_width=EMBEDDING_SCALE + embedding.bits + 2,
        word_bits=EMBEDDING_SCALE + embedding.bits + 1,
        transform_norm=_transform_norm(constants.transform_norm, config),
    )


def _transform_norm(norm: NormRange | None, config: ModelConfig) -> NormSetting | None:
    if norm is None:
        return None
    setting = _norm(norm, config, EMBEDDING_SCALE, LOGIT_WIDTH, config.transform_size)
    return replace(setting, epsilon=config.layer_norm_eps * row_factor(config.transform_size) ** 2)


def relu_width(bits: int) -> int:
    """A ReLU's input below 2^bits, opened and lifted."""
    return HIDDEN_SCALE + bits + 2


def _layer(constants: Constants, layer: LayerConstants, config: ModelConfig, tokens: int, after: int) -> LayerSetting:
    """The wires of a layer, from its last to its first; `after` is the width of the next layer's X′."""
    product_scale, mean_scale = HIDDEN_SCALE + weight_scale(config), HIDDEN_SCALE + MEAN_SCALE
    output_scale = _residual_scale(layer.output_norm, config, FORWARD_SCALE, after)
    output = output_scale + layer.output_norm.bits + 2  # the residual after the feed-forward block
    activation = output + ACTIVATION_SCALE + down_scale(config) - output_scale
    opened = constants.relu_bits + 2 if rectifies(config) else PERIOD_BITS + 1
    preactivation = HIDDEN_SCALE + INNER_SCALE + opened
    gate = GATE_SCALE + layer.gate_bits + 2 if config.gated else 0
    middle = gate + product_scale - GATE_SCALE if config.norm_first else output + mean_scale - output_scale
    middle = max(preactivation, middle)
    attention_scale = _residual_scale(layer.attention_norm, config, HIDDEN_SCALE, middle)
    residual = attention_scale + layer.attention_norm.bits + 2  # after attention
    context = residual + OUTPUT_SCALE + weight_scale(config) - attention_scale
    value_scale = quad_value_scale(config, tokens) if layer.quad else value_fraction(tokens)
    attention = _quad(layer.quad, config, context, tokens) if layer.quad else _exact(layer, config, context, tokens)
    query, value = _query_width(attention), attention.weight_width
    turned = QUERY_SCALE + layer.query_bits + 2 if config.rotary_base else 0
    narrow = value_scale + layer.value_bits + 2 if config.rotary_base else 0
    hidden = max(
        (turned or query) + HIDDEN_SCALE + INNER_SCALE - QUERY_SCALE,
        (narrow or value) + HIDDEN_SCALE + INNER_SCALE - value_scale,
        residual + mean_scale - attention_scale,
    )
    return LayerSetting(
        attention=attention,
        attention_norm=_norm(layer.attention_norm, config, attention_scale, middle),
        activation=_activation(layer, config, _factor_width(layer, config) or activation),
        relu_width=relu_width(constants.relu_bits),
        output_norm=_norm(layer.output_norm, config, output_scale, after),
        hidden_width=hidden,
        query_width=query,
        value_width=value,
        value_scale=value_scale,
        context_width=context,
        middle_width=middle,
        preactivation_width=preactivation,
        activation_width=activation,
        turned_width=turned,
        narrow_value_width=narrow,
        factor_width=_factor_width(layer, config),
        gate_width=gate,
    )


def _residual_scale(norm: NormRange, config: ModelConfig, usual: int, next_width: int) -> int:
    """Fraction bits of a residual. In a stream, where sizes differ, as many as give σ of the largest row STREAM_DIGITS; fewer
    where the next wire is wide: residual and 1/σ share what that leaves of the ring, three to the residual first. One fewer
    where rows differ most, at every length alike, for 1/σ of the largest (ε is uploaded at this scale)."""
    if not config.norm_first:
        return usual - 1 if norm.ratio > VARIANCE_RATIOS[-1] else usual
    digits = min(STREAM_DIGITS, (RING + HIDDEN_SCALE - next_width + 3) // 2)
    return min(STREAM_DIGITS, round(digits + math.log2(config.hidden) / 2) - norm.bits)


def weight_scale(config: ModelConfig) -> int:
    """Fraction bits of a layer's maps. One more where layers are many and nothing normalises what they add up: in 22 layers of
    width 384 their rounding alone is 2.6e-3 of the largest logit (root mean square), that of X′ 5e-4, of the stream 1e-4."""
    return WEIGHT_SCALE + 1 if config.gated else WEIGHT_SCALE


def down_scale(config: ModelConfig) -> int:
    """Fraction bits of the weights that G is multiplied with."""
    return weight_scale(config) - 1


def quad_value_scale(config: ModelConfig, tokens: int) -> int:
    """Fraction bits of V under 2Quad. A row averages the roundings of all its keys, and few tokens average less; P, which has as
    many bits more as V, is small then. A short text among longer ones has their scale."""
    return QUAD_VALUE_SCALE + max(2 if config.gated else 0, min(3, _halvings(tokens)))


def _halvings(tokens: int) -> int:
    """How often LONG is halved until it is no more than a length."""
    return max(0, math.ceil(math.log2(LONG / tokens)))


def angle_scale(config: ModelConfig) -> int:
    """Fraction bits of an activation's input in units of which 2^5 are a period. A gate multiplies what they leave out."""
    return HIDDEN_SCALE + 2 if config.gated else HIDDEN_SCALE


def _factor_width(layer: LayerConstants, config: ModelConfig) -> int:
    """An activation before it is multiplied by its gate: no larger than the end of its widest window."""
    if not config.gated:
        return 0
    highest = max(activation(config.activation, name).high for name, _ in layer.classes)
    return GATE_SCALE + math.ceil(math.log2(highest)) + 1 + 2


def _norm(norm: NormRange, config: ModelConfig, scale: int, next_width: int, size: int = 0) -> NormSetting:
    """1/σ gets as many fraction bits as its own width and the 64-bit ring of the product allow."""
    root = math.sqrt(size or config.hidden) * 2.0**-norm.bits  # 1/σ of the largest sum of squares
    largest = math.ceil(math.log2(root * math.sqrt(norm.ratio)))
    factor_scale = min(FACTOR_WIDTH - 2 - largest, RING - next_width - scale + HIDDEN_SCALE)
    width = scale + norm.bits + 2
    if factor_scale + largest < 8:
        raise CalibrationError(f"a LayerNorm of width {width} and next width {next_width} leaves 1/σ too few bits")
    return NormSetting(
        fit=scaled(entry(f"inverse_sqrt {norm.ratio}"), 4.0**norm.bits, root),
        epsilon=config.layer_norm_eps,
        residual_scale=scale,
        residual_width=width,
        factor_scale=factor_scale,
        factor_width=factor_scale + max(largest, 1) + 2,
        width=next_width + scale + factor_scale - HIDDEN_SCALE,
        public_scale=min(NormSetting.public_scale, factor_scale + SERIES_BITS),
    )


def _activation(layer: LayerConstants, config: ModelConfig, width: int) -> ActivationSetting | None:
    if rectifies(config):
        return None
    classes = tuple(NeuronClass(count, activation(config.activation, name)) for name, count in layer.classes)
    setting = ActivationSetting(classes, bits=PERIOD_BITS + angle_scale(config))
    if config.softmax == "exact":
        setting = replace(setting, dealt_scale=setting.dealt_scale + 1)
    return replace(setting, width=min(RING, width + setting.scale - (GATE_SCALE if config.gated else ACTIVATION_SCALE)))


def _rows(denominator: tuple[float, float], numerator_scale: int, context_width: int) -> RowSetting:
    low, high = denominator
    largest = math.ceil(math.log2(1 / low))
    numerator_bits = _numerator_bits(high)
    reciprocal_scale = min(RECIPROCAL_WIDTH - 2 - largest, RING + OUTPUT_SCALE - context_width - numerator_scale)
    scale = numerator_scale + reciprocal_scale
    return RowSetting(
        fit=reciprocal(low, high),
        numerator_scale=numerator_scale,
        numerator_width=numerator_scale + numerator_bits + 2,
        reciprocal_scale=reciprocal_scale,
        reciprocal_width=reciprocal_scale + largest + 2,
        width=context_width + scale - OUTPUT_SCALE,
    )


def _numerator_bits(largest_denominator: float) -> int:
    return math.ceil(math.log2(largest_denominator * LARGEST_VALUE))


def value_fraction(tokens: int) -> int:
    """Fraction bits of V under true Softmax: P is as wide for short texts as for long ones, and V the finer."""
    return VALUE_BITS - _numerator_bits(largest_denominator(tokens))


def _exact(layer: LayerConstants, config: ModelConfig, context_width: int, tokens: int) -> ExactSetting:
    """P and N have a bit more in a deep stream: a unit is up to 2^-11 of what a head gives."""
    finer = 1 if config.gated else 0
    denominator = (SMALLEST_DENOMINATOR, largest_denominator(tokens))
    rows = _rows(denominator, NUMERATOR_SCALE + finer, context_width)
    weight_scale = 15 + finer
    weight_width = rows.numerator_width + weight_scale + value_fraction(tokens) - rows.numerator_scale
    groups = tuple(HeadGroup(count, bits) for bits, count in layer.windows)
    return ExactSetting(groups, rows, weight_scale=weight_scale, weight_width=weight_width)


def _quad(quad: QuadRange, config: ModelConfig, context_width: int, tokens: int) -> QuadSetting:
    """Scores squared span many octaves: P is known to 2^-18 of the largest D, N to 2^-21 of the largest N. In a deep stream they,
    scores and values all have two bits more: no one of them makes the error, together they take it to a quarter and less. In
    short texts S, N and V are few; but P's bits are X′'s, and those of the weights, which serve every length."""
    finer = 2 if config.gated else min(2, max(0, _halvings(tokens) - 1))
    high = 2.0**quad.bits
    weight_scale, numerator_scale = 18 + 2 * config.gated - quad.bits, 18 + finer - quad.bits
    rows = _rows((high / quad.ratio, high), numerator_scale, context_width)
    weight_width = rows.numerator_width + weight_scale + quad_value_scale(config, tokens) - numerator_scale
    score_scale = 8 + finer
    return QuadSetting(
        rows,
        shift=config.quad_shift,
        score_scale=score_scale,
        score_width=score_scale + score_bits(quad.bits) + 2,
        weight_scale=weight_scale,
        weight_width=weight_width,
    )


def _query_width(attention: ExactSetting | QuadSetting) -> int:
    """One bit above the window, or above what a score is lifted from, is opened for the evidence."""
    if isinstance(attention, ExactSetting):
        return max(group.window_bits for group in attention.groups) + 1 + 2 * QUERY_SCALE
    return attention.score_width + 1 + 2 * QUERY_SCALE - attention.score_scale

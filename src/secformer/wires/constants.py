"""The public constants of a model: they decide shapes, widths and tables, and everybody may see them.

They say something about the weights, so every number is taken from a short list (choices.py), and `entropy` tells how many
bits all of them can say at the most. Which head has which window, which neuron is wide, and the factors that bring a range to
its standard size stay with the provider: they are folded into the weights (`Secrets`).
"""

from __future__ import annotations

from dataclasses import dataclass

from secformer.errors import CalibrationError
from secformer.models.config import ModelConfig
from secformer.protocols.functions import activation_named
from secformer.wires import choices


@dataclass(frozen=True)
class NormRange:
    """A scaled residual: |c| ≤ 2^bits, and the sum of squares of a row between 4^bits/ratio and 4^bits."""

    bits: int
    ratio: int


@dataclass(frozen=True)
class QuadRange:
    """Row sums of 2Quad: between 2^bits/ratio and 2^bits."""

    bits: int
    ratio: int


@dataclass(frozen=True)
class LayerConstants:
    windows: tuple[tuple[int, int], ...]  # (log2 of the octaves, heads), in the order of the layout
    quad: QuadRange | None  # instead of windows
    attention_norm: NormRange
    output_norm: NormRange
    classes: tuple[tuple[str, int], ...]  # (window name, neurons), in the order of the layout; none for ReLU
    query_bits: int = 0  # log2 of the largest entry of queries and keys, where they are turned by their position
    value_bits: int = 0  # the same of values, scaled
    gate_bits: int = 0  # the same of what an activation is multiplied by


@dataclass(frozen=True)
class Constants:
    softmax: str
    layers: tuple[LayerConstants, ...]  # those with weights of their own
    embedding_norm: NormRange
    projection_bits: int = 0  # log2 of the largest entry behind an embedding's projection
    pooler: int = 0  # of the head's activation: the window of a series, or log2 of the largest input of a ReLU
    transform_norm: NormRange | None = None  # of the LayerNorm behind a head's activation
    relu_bits: int = 0  # log2 of the largest input of a ReLU in the layers
    quad_shift: float = 0.0

    def check(self, config: ModelConfig) -> None:
        """Raise CalibrationError unless these can be the constants of a model of this shape."""
        if (self.softmax, self.quad_shift) != (config.softmax, config.quad_shift):
            raise CalibrationError(f"this calibration was made for softmax '{self.softmax}', not '{config.softmax}'")
        fits = (
            len(self.layers) == config.own_layers
            and any(self._layers_fit(config, ratios) for ratios in choices.OUTPUT_RATIOS)
            and self.projection_bits in _projection_choices(config)
            and self.pooler in choices.head_windows(config.head_activation)
            and _transform_fits(self.transform_norm, config)
            and self.relu_bits in _relu_choices(config)
        )
        if not fits:
            raise CalibrationError("this calibration was made for a model of another shape: calibrate this one")

    def _layers_fit(self, config: ModelConfig, ratios: tuple[int, ...]) -> bool:
        """`ratios` is the menu of all output norms, and of all that are in a stream."""
        image = bool(config.image_size)
        bits = choices.STREAM_BITS if image else choices.TABLE_BITS
        embedding = _norm_fits(self.embedding_norm, bits, ratios if image else choices.VARIANCE_RATIOS)
        return embedding and all(_layer_fits(layer, config, ratios) for layer in self.layers)

    def entropy(self, config: ModelConfig) -> float:
        """Bits that the choice of all constants may tell about the weights."""
        layer = choices.bits_of_counts(choices.HEAD_SHARES)
        if config.softmax == "2quad":
            layer = choices.bits_of(choices.QUAD_BITS) + choices.bits_of(choices.QUAD_RATIOS)
        if not rectifies(config):
            layer += choices.bits_of_counts(choices.NEURON_SHARES)
        ratio = choices.bits_of(choices.VARIANCE_RATIOS)  # every menu of them has as many
        layer += 2 * (choices.bits_of(_residual_choices(config)) + ratio)
        layer += 2 * choices.bits_of(_projected_choices(bool(config.rotary_base)))
        layer += choices.bits_of(_projected_choices(config.gated))
        tables = choices.STREAM_BITS if config.image_size else choices.TABLE_BITS
        outside = choices.bits_of(tables) + ratio + choices.bits_of(_projection_choices(config))
        outside += choices.bits_of(choices.head_windows(config.head_activation)) + choices.bits_of(
            _relu_choices(config)
        )
        if config.transform:
            outside += choices.bits_of(choices.TRANSFORM_BITS) + ratio
        return config.own_layers * layer + outside + choices.bits_of(choices.OUTPUT_RATIOS)


def rectifies(config: ModelConfig) -> bool:
    return activation_named(config.activation).rectifies


def _layer_fits(layer: LayerConstants, config: ModelConfig, ratios: tuple[int, ...]) -> bool:
    quad = layer.quad
    if config.softmax == "2quad":
        scores = not layer.windows and quad is not None
        scores = scores and quad.bits in choices.QUAD_BITS and quad.ratio in choices.QUAD_RATIOS  # type: ignore[union-attr]
    else:
        scores = quad is None and _counts_fit(layer.windows, choices.WINDOW_BITS, choices.HEAD_SHARES, config.heads)
    if rectifies(config):
        neurons = not layer.classes
    else:
        neurons = _counts_fit(layer.classes, choices.NEURON_CLASSES, choices.NEURON_SHARES, config.intermediate)
    sizes, behind = _residual_choices(config), ratios if config.norm_first else choices.VARIANCE_RATIOS
    norms = _norm_fits(layer.attention_norm, sizes, behind) and _norm_fits(layer.output_norm, sizes, ratios)
    turned, gated = _projected_choices(bool(config.rotary_base)), _projected_choices(config.gated)
    bounded = layer.query_bits in turned and layer.value_bits in turned and layer.gate_bits in gated
    return scores and neurons and bounded and norms


def _residual_choices(config: ModelConfig) -> tuple[int, ...]:
    return choices.STREAM_BITS if config.norm_first else choices.RESIDUAL_BITS


def _projected_choices(needed: bool) -> tuple[int, ...]:
    return choices.PROJECTED_BITS if needed else (0,)


def _norm_fits(norm: NormRange, bits: tuple[int, ...], ratios: tuple[int, ...] = choices.VARIANCE_RATIOS) -> bool:
    return norm.bits in bits and norm.ratio in ratios


def _counts_fit(
    counts: tuple[tuple[object, int], ...], names: tuple[object, ...], shares: tuple[tuple[int, ...], ...], total: int
) -> bool:
    """Classes in order, none empty, and their sizes as rounding up leaves them."""
    found = dict(counts)
    sizes = tuple(found.get(name, 0) for name in names)
    ordered = [name for name in names if name in found] == [name for name, _ in counts]
    positive = all(type(count) is int and count > 0 for _, count in counts)
    return ordered and positive and sum(sizes) == total and choices.rounded_up(sizes, shares) == sizes


def _transform_fits(norm: NormRange | None, config: ModelConfig) -> bool:
    return _norm_fits(norm, choices.TRANSFORM_BITS) if norm and config.transform else not norm and not config.transform


def _projection_choices(config: ModelConfig) -> tuple[int, ...]:
    return choices.PROJECTION_BITS if config.embedding_size else (0,)


def _relu_choices(config: ModelConfig) -> tuple[int, ...]:
    return choices.RELU_BITS if rectifies(config) else (0,)


@dataclass(frozen=True, repr=False)
class Secrets:
    """The provider's: for each layer with weights of its own the order of heads and of neurons that the constants refer to, what
    is taken from a head's keys, and the factors of its values and of the residuals (embedding first, then attention and output by
    layer).
    """

    heads: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...]
    key_centres: tuple[tuple[tuple[float, ...], ...], ...]
    value_factors: tuple[tuple[float, ...], ...]
    norm_factors: tuple[float, ...]

    def check(self, config: ModelConfig) -> None:
        heads = all(sorted(order) == list(range(config.heads)) for order in self.heads)
        neurons = all(sorted(order) == list(range(config.intermediate)) for order in self.neurons)
        centres = all(len(row) == config.head_size for layer in self.key_centres for row in layer)
        factors = all(len(layer) == config.heads for layer in (*self.value_factors, *self.key_centres))
        parts = (self.heads, self.neurons, self.key_centres, self.value_factors)
        count = config.own_layers
        layers = all(len(part) == count for part in parts) and len(self.norm_factors) == 2 * count + 1
        if not (heads and neurons and centres and factors and layers):
            raise CalibrationError("the order of heads and neurons does not fit the model: calibrate again")

"""Calibration: from measured ranges to the public constants a secure run is built with.

`Constants` are public: they decide shapes, widths and tables, and everybody may see them. They say something about the
weights, so every number is taken from a coarse menu (windows and bounds in powers of two, fits of protocols/menu.py)
with a margin. Which head has which window, and which neuron is wide, stays with the provider: heads and neurons are
reordered by class (a `Layout`), and the order is folded into the weights.

Outside its range a secure run gives wrong numbers without a sign of it: nothing may be checked that depends on secrets.
Simulation checks every range and names the layer and the operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from secformer.errors import CalibrationError
from secformer.models.config import ModelConfig
from secformer.models.system import Calibration
from secformer.protocols.attention import SMALLEST_DENOMINATOR, WINDOW_FOOT, WINDOW_TOP, largest_denominator
from secformer.protocols.functions import activation_named
from secformer.protocols.menu import ACTIVATION_WINDOWS, INVERSE_SQRT_RATIOS, RECIPROCAL_RATIOS, TANH_WINDOW
from secformer.wires.ranges import Extremes, RangeRecord

ROUNDING = 1e-9  # a logarithm may be rounded to the whole number on the wrong side of the bound
MARGIN = 1.25
"""Every measured bound is widened by this factor before it is rounded up to the menu."""

PADDING_OCTAVES = 21.0
"""Padded keys sit at least this far below the lowest row maximum of their head."""

SCORE_SLACK = 0.1
"""Share of a head's span of scores added on each side; rounding the window up to a power of two adds the rest. Held-out
documents exceeded a calibration on 240 sentences and 4 documents by up to 0.19 of a span (7 octaves)."""

WINDOW_OVERHEAD = WINDOW_FOOT + WINDOW_TOP + 1.0
"""Octaves a window needs beside the scores: below and above them, and one for rounding `lowest` to a whole octave."""

LOG2_E = math.log2(math.e)
DENOMINATOR_MARGIN = 1.2

RELU_LIMIT = 64.0
"""A ReLU's input is opened at this range, in the layers and in a head (widths.py)."""

LOGIT_BITS = 11
"""A classifier's logits are read modulo 2^12 (encoder.py)."""


@dataclass(frozen=True)
class HeadWindow:
    """Scores of a head, in octaves: at least `lowest`, within a window of 2^bits octaves above its foot."""

    bits: int
    lowest: float


@dataclass(frozen=True)
class VarianceWindow:
    low: float
    high: float


@dataclass(frozen=True)
class LayerConstants:
    windows: tuple[HeadWindow, ...]  # by head, in the order of the layout: widest last
    denominator: tuple[float, float]  # D, the row sums of the attention weights
    numerator_bits: int  # |P·V| < 2^bits
    score_bits: int  # |S + c| < 2^bits (2Quad)
    attention_bits: int  # |centred residual| < 2^bits
    output_bits: int
    attention_variance: VarianceWindow
    output_variance: VarianceWindow
    classes: tuple[tuple[str, int], ...]  # (window name, neurons), in the order of the layout


@dataclass(frozen=True)
class Constants:
    """The public constants of one model."""

    softmax: str
    layers: tuple[LayerConstants, ...]
    embedding_bits: int  # |centred embedding sum| < 2^bits
    embedding_variance: VarianceWindow
    word_bits: int  # |centred word row| < 2^bits
    quad_shift: float = 0.0

    def check(self, config: ModelConfig) -> None:
        """Raise CalibrationError unless these can be the constants of a model of this shape."""
        if (self.softmax, self.quad_shift) != (config.softmax, config.quad_shift):
            raise CalibrationError(f"this calibration was made for softmax '{self.softmax}', not '{config.softmax}'")
        names = set(neuron_windows(config))
        fits = (
            len(self.layers) == config.layers
            and all(len(layer.windows) == config.heads for layer in self.layers)
            and all(sum(count for _, count in layer.classes) == config.intermediate for layer in self.layers)
            and all(name in names and count > 0 for layer in self.layers for name, count in layer.classes)
        )
        if not fits:
            raise CalibrationError("this calibration was made for a model of another shape: calibrate this one")


@dataclass(frozen=True)
class Layout:
    """The provider's secret: for each layer, the order of heads and of neurons that the constants refer to."""

    heads: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...]

    def check(self, config: ModelConfig) -> None:
        heads = all(sorted(order) == list(range(config.heads)) for order in self.heads)
        neurons = all(sorted(order) == list(range(config.intermediate)) for order in self.neurons)
        if not heads or not neurons or {len(self.heads), len(self.neurons)} != {config.layers}:
            raise CalibrationError("the order of heads and neurons does not fit the model: calibrate again")


@dataclass(frozen=True, repr=False)
class WiresCalibration(Calibration):
    """What the provider keeps: the public constants, its secret order, and the ranges both were made from."""

    digest: str
    constants: Constants
    layout: Layout
    longest: int
    ranges: RangeRecord

    def to_data(self) -> dict[str, Any]:
        parts = {"constants": asdict(self.constants), "layout": asdict(self.layout), "ranges": self.ranges.to_data()}
        return {"digest": self.digest, **parts, "longest": self.longest}

    def check(self, config: ModelConfig) -> None:
        self.constants.check(config)
        self.layout.check(config)


def calibrate(record: RangeRecord, config: ModelConfig, word_magnitude: float) -> WiresCalibration:
    """Constants and layout from a range record. `word_magnitude` is the largest centred entry of the word table."""
    layers, heads, neurons = [], [], []
    for index in range(config.layers):
        windows, head_order = _windows(record, index)
        classes, neuron_order = _classes(record, config, index)
        layers.append(_layer(record, config, index, windows, classes))
        heads.append(head_order)
        neurons.append(neuron_order)
    _check_head(record, config)
    outside = -1
    constants = Constants(
        softmax=config.softmax,
        quad_shift=config.quad_shift,
        layers=tuple(layers),
        embedding_bits=_bits(record.values["embedding.centred"][outside].magnitude),
        embedding_variance=_variance(record.values["embedding.variance"][outside], record.tokens),
        word_bits=_bits(word_magnitude),
    )
    return WiresCalibration(record.digest, constants, Layout(tuple(heads), tuple(neurons)), record.longest, record)


def _bits(magnitude: float, margin: float = MARGIN) -> int:
    """Whole bits that hold a magnitude with margin."""
    fraction, exponent = math.frexp(max(magnitude, 2.0**-8) * margin)  # exact, where a logarithm may be rounded
    return exponent if fraction > 0.5 else exponent - 1


def _variance(extremes: Extremes, tokens: int) -> VarianceWindow:
    """Window ends on the half-octave menu; a variance scales with the square of a value, so the margin is squared.

    Few tokens ask for a wider margin, as far as the menu of ratios allows it.
    """
    lowest, highest = max(float(extremes.low.min()), 1e-7), float(extremes.high.max())
    for margin in (min(neuron_margin(tokens), 2.0) ** 2, MARGIN**2):
        low = 2.0 ** (math.floor(2 * math.log2(lowest / margin) - ROUNDING) / 2)
        high = 2.0 ** (math.ceil(2 * math.log2(highest * margin) + ROUNDING) / 2)
        if high / low <= max(INVERSE_SQRT_RATIOS):
            return VarianceWindow(low, high)
    raise CalibrationError(
        f"variances from {lowest:.3g} to {highest:.3g} span more than a ratio of {max(INVERSE_SQRT_RATIOS)} with margin: "
        "no LayerNorm of the menu holds them"
    )


def _windows(record: RangeRecord, index: int) -> tuple[tuple[HeadWindow, ...], tuple[int, ...]]:
    """A window for every head, and the order of heads: narrow windows first."""
    scores, maxima = record.by_part["scores"][index], record.by_part["row_maximum"][index]
    found = []
    for head in range(len(scores.low)):
        low, high = float(scores.low[head]) * LOG2_E, float(scores.high[head]) * LOG2_E
        slack = SCORE_SLACK * (high - low)
        lowest = min(low, float(maxima.low[head]) * LOG2_E - PADDING_OCTAVES) - slack
        span = high + slack - lowest + WINDOW_OVERHEAD
        bits = max(5, math.ceil(math.log2(span)))
        spare = (2.0**bits - span) / 2  # what rounding up leaves goes to both sides alike
        found.append((bits, math.floor(lowest - spare), head))
    found.sort(key=lambda item: item[0])
    windows = tuple(HeadWindow(bits, float(lowest)) for bits, lowest, _ in found)
    return windows, tuple(head for _, _, head in found)


def _classes(
    record: RangeRecord, config: ModelConfig, index: int
) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
    """The narrowest window for every neuron, and the order of neurons: narrow windows first."""
    ranges, margin = record.by_part["preactivation"][index], neuron_margin(record.tokens)
    windows = neuron_windows(config)
    members: dict[str, list[int]] = {name: [] for name in windows}
    for neuron in range(len(ranges.low)):
        low, high = float(ranges.low[neuron]) * margin, float(ranges.high[neuron]) * margin
        members[_class_of(low, high, windows, index)].append(neuron)
    order = tuple(neuron for name in windows for neuron in members[name])
    return tuple((name, len(members[name])) for name in windows if members[name]), order


def neuron_windows(config: ModelConfig) -> Mapping[str, tuple[float, float]]:
    """What a neuron's window may be, narrow ones first."""
    return {"relu": (-RELU_LIMIT, RELU_LIMIT)} if activation_named(config.activation).rectifies else ACTIVATION_WINDOWS


def neuron_margin(tokens: int) -> float:
    """A neuron was seen once a token. Its extremes grow with the logarithm of how often one looks (exponential tails),
    so few calibration tokens need a wider margin to hold for a million."""
    return max(MARGIN, math.log(1e6) / math.log(max(tokens, 3)))


def _class_of(low: float, high: float, windows: Mapping[str, tuple[float, float]], index: int) -> str:
    for name, window in windows.items():
        if window[0] <= low and high <= window[1]:
            return name
    raise CalibrationError(
        f"layer {index}: activations reach {low:.3g} to {high:.3g} with margin, beyond the widest window "
        f"{list(windows.values())[-1]}: calibrate on more texts (the margin shrinks), or rescale the feed-forward weights"
    )


def _check_head(record: RangeRecord, config: ModelConfig) -> None:
    """A head has one fixed window, wide enough for any trained one."""
    outside = -1
    if config.pooler:
        seen, limit = record.values["pooler"][outside].magnitude, _pooler_limit(config)
        if seen * MARGIN > limit:
            raise CalibrationError(
                f"head: the pooler's {config.pooler} reaches {seen:.3g}, with margin beyond its window of "
                f"±{limit:g}: this model's head needs rescaling"
            )
        if _bits(record.values["logits"][outside].magnitude) > LOGIT_BITS:
            raise CalibrationError(f"head: logits beyond 2^{LOGIT_BITS}: this model's classifier needs rescaling")


def _pooler_limit(config: ModelConfig) -> float:
    return TANH_WINDOW if config.pooler == "tanh" else RELU_LIMIT


def _layer(
    record: RangeRecord,
    config: ModelConfig,
    index: int,
    windows: tuple[HeadWindow, ...],
    classes: tuple[tuple[str, int], ...],
) -> LayerConstants:
    values = record.values
    denominator, weighted = values["denominator"][index], values["weighted"][index].magnitude
    if config.softmax == "2quad":
        window = _quad_denominator(denominator, index)
        numerator_bits = _bits(weighted)
    else:
        window = _exact_denominator(float(denominator.high), record.longest)
        numerator_bits = _bits(min(weighted, values["context"][index].magnitude * window[1]))  # N = O·D
    return LayerConstants(
        windows=windows,
        denominator=window,
        numerator_bits=numerator_bits,
        score_bits=_bits(values["scores"][index].magnitude + config.quad_shift),
        attention_bits=_bits(values["attention.centred"][index].magnitude),
        output_bits=_bits(values["output.centred"][index].magnitude),
        attention_variance=_variance(values["attention.variance"][index], record.tokens),
        output_variance=_variance(values["output.variance"][index], record.tokens),
        classes=classes,
    )


def _quad_denominator(seen: Extremes, index: int) -> tuple[float, float]:
    """The window of D = Σ (S + c)², on the half-octave menu."""
    low = 2.0 ** (math.floor(2 * math.log2(max(float(seen.low), 1e-3) / MARGIN)) / 2)
    high = 2.0 ** (math.ceil(2 * math.log2(float(seen.high) * MARGIN)) / 2)
    if high / low > max(RECIPROCAL_RATIOS):
        raise CalibrationError(
            f"layer {index}: 2Quad's row sums range from {low:.3g} to {high:.3g}, a ratio above {max(RECIPROCAL_RATIOS)}: "
            "calibrate on texts of similar length, distil the model for 2Quad, or use suite 'exact'"
        )
    return low, high


def _exact_denominator(highest: float, longest: int) -> tuple[float, float]:
    """The window of D = Σ 2^(S − top), on the menu.

    The top is above the maximum, so D stays below Σ exp(S − maximum); and below what any row of that length can reach.
    """
    high = min(highest * DENOMINATOR_MARGIN, largest_denominator(longest))
    for ratio in sorted(RECIPROCAL_RATIOS):
        if high <= ratio * SMALLEST_DENOMINATOR:
            return SMALLEST_DENOMINATOR, ratio * SMALLEST_DENOMINATOR
    raise CalibrationError(f"attention rows sum to {highest:.0f}: texts this long and flat are beyond the menu")

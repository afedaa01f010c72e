"""Calibration: from measured ranges to the public constants a secure run is built with, and the provider's secrets.

Where a bound exists (bounds.py) it is taken. Elsewhere a measured range gets a margin that follows from how much text was seen:
extremes grow with the logarithm of how often one looks (exponential tails), so few tokens need more. What leaves its range all
the same is counted by the secure run itself (protocols/evidence.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from secformer.errors import CalibrationError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.system import Calibration
from secformer.models.weights import Weights
from secformer.protocols.activation import Window, window_of
from secformer.protocols.attention import LARGEST_VALUE, LOWEST_MAXIMUM, HeadGroup
from secformer.protocols.menu import activation
from secformer.wires import bounds, choices
from secformer.wires.constants import Constants, LayerConstants, NormRange, QuadRange, Secrets, rectifies
from secformer.wires.ranges import Extremes, RangeRecord

LEAST_MARGIN = 1.25
MANY_TOKENS = 1e6
SCORE_SLACK = 1 / 2
"""Of a head's span of scores times what the margin is above one: 0.31 of the span for 5,000 tokens, 0.13 for 60,000.
No bound: foreign texts exceed the span of 256 sentences by more in some heads, and are counted where that leaves the window."""

MAXIMUM_SLACK = 2.0
"""Octaves by which a row maximum may be lower than any seen."""

NEURON_MARGIN = 1.15
"""Of a neuron's input beside the margin all ranges have: there are ten thousand and more, each with a range of its own, and the
farthest leaves first."""

SHRINKING = (1.0, 0.5, 0.25)
"""Of a margin, where the widest window leaves no more."""

SMALLEST_VARIANCE = 1e-7
LOG2_E = math.log2(math.e)
LOGIT_BITS = 19
SERIES_LOGIT_BITS = 11
"""Logits are below 2^19, behind a pooler's series below 2^11, and so are entries of a mapped vector (widths.py)."""


@dataclass(frozen=True, repr=False)
class WiresCalibration(Calibration):
    """What the provider keeps: the public constants, its secrets, and the record to extend."""

    digest: str
    constants: Constants
    secrets: Secrets
    record: RangeRecord

    @property
    def longest(self) -> int:
        return self.record.longest

    def to_data(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "constants": asdict(self.constants),
            "secrets": asdict(self.secrets),
            "record": self.record.to_data(),
        }

    def check(self, config: ModelConfig) -> None:
        self.constants.check(config)
        self.secrets.check(config)


def calibrate(record: RangeRecord, weights: Weights, config: ModelConfig) -> WiresCalibration:
    """Constants and secrets from a range record."""
    residual = _all_residuals(record, config)
    embedding_norm, factor = (
        residual(plain.OUTSIDE)[0] if config.image_size else _embedding_norm(record, weights, config)
    )
    layers, heads, neurons, values, factors = [], [], [], [], [factor]
    for index in range(config.own_layers):
        windows, head_order = _windows(record, weights, config, index)
        classes, neuron_order = _classes(record, weights, config, index)
        (attention, attention_factor), (output, output_factor) = residual(index)
        values.append(_value_factors(record, index))
        bits = _projected_bits(weights, config, index, values[-1])
        layers.append(LayerConstants(windows, _quad(record, config, index), attention, output, classes, *bits))
        heads.append(head_order)
        neurons.append(neuron_order)
        factors += [attention_factor, output_factor]
    constants = Constants(
        softmax=config.softmax,
        layers=tuple(layers),
        embedding_norm=embedding_norm,
        projection_bits=_projection_bits(weights, config),
        pooler=_pooler(weights, config),
        transform_norm=_transform_norm(record, config),
        relu_bits=_relu_bits(weights, config),
        quad_shift=config.quad_shift,
    )
    _check_result(weights, config)
    secrets = Secrets(tuple(heads), tuple(neurons), _key_centres(record, config), tuple(values), tuple(factors))
    return WiresCalibration(record.digest, constants, secrets, record)


def text_margin(tokens: int) -> float:
    """A range was seen once a token; it shall hold for a million."""
    return max(LEAST_MARGIN, math.log(MANY_TOKENS) / math.log(max(tokens, 3)))


# -- attention ----------------------------------------------------------------------------------------------------------


def _windows(
    record: RangeRecord, weights: Weights, config: ModelConfig, index: int
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Window sizes with how many heads have each, and the order of heads: narrow windows first."""
    if config.softmax == "2quad":
        return (), tuple(range(config.heads))
    scores, maxima = record.seen["scores"][index], record.seen["row_maximum"][index]
    slack = SCORE_SLACK * (text_margin(record.tokens) - 1)
    found = []
    for head in range(config.heads):
        low, high = (float(part[head]) * LOG2_E for part in (scores.low, scores.high))
        spare = slack * (high - low)
        lowest_maximum = float(maxima.low[head]) * LOG2_E - MAXIMUM_SLACK
        least, most = _padded_scores(weights, config, head)
        ends = (min(low - spare, least), max(high + spare, most), min(lowest_maximum, least))
        found.append((_window_bits(*ends, index), high - low, head))
    found.sort()
    needed = [sum(bits == size for bits, _, _ in found) for size in choices.WINDOW_BITS]
    counts = choices.rounded_up(needed, choices.HEAD_SHARES)
    windows = tuple((bits, count) for bits, count in zip(choices.WINDOW_BITS, counts, strict=True) if count)
    return windows, tuple(head for _, _, head in found)


def _padded_scores(weights: Weights, config: ModelConfig, head: int) -> tuple[float, float]:
    """Ends of the scores that a query of padding has, in octaves: it is zero, and meets a bias by distance alone. It comes to
    nothing, but would be counted as a row that left its window."""
    if not config.relative_buckets:
        return 0.0, 0.0
    bias = weights["relative"][:, head].double() * LOG2_E
    return float(bias.min()), float(bias.max())


def _window_bits(low: float, high: float, lowest_maximum: float, index: int) -> int:
    for bits in choices.WINDOW_BITS:
        group = HeadGroup(1, bits)
        inside = -group.centre <= low and high <= group.highest - group.centre
        if inside and lowest_maximum >= LOWEST_MAXIMUM - group.centre:
            return bits
    raise CalibrationError(
        f"layer {index}: a head's scores span {low:.0f} to {high:.0f} octaves with margin, beyond the widest window: "
        "this model's attention needs rescaling"
    )


def _quad(record: RangeRecord, config: ModelConfig, index: int) -> QuadRange | None:
    """Row sums from 2^bits / ratio to 2^bits. The highest are those of long texts; the lowest are rare rows whose scores all lie
    near −c, so there the margin is that of scores, squared as they are, or as much of it as the menu has room for."""
    if config.softmax != "2quad":
        return None
    seen = record.seen["denominator"][index]
    low, high = float(seen.low), float(seen.high) * LEAST_MARGIN**2
    scores = record.seen["scores"][index]
    largest = float(torch.maximum(scores.high.max(), -scores.low.min())) * LEAST_MARGIN + config.quad_shift
    fitting = [bits for bits in choices.QUAD_BITS if 2.0 ** score_bits(bits) >= largest]
    bits = choices.smallest(fitting, math.log2(high))
    margin = min(text_margin(record.tokens), 2.0) ** 2
    for spare in (max(margin**share, LEAST_MARGIN) for share in (*SHRINKING, 0.0)):
        ratio = None if bits is None else choices.smallest(choices.QUAD_RATIOS, 2.0**bits * spare / max(low, 1e-3))
        if bits is not None and ratio is not None:
            return QuadRange(bits, ratio)
    raise CalibrationError(
        f"layer {index}: 2Quad's row sums range from {low / LEAST_MARGIN:.3g} to {high:.3g}, a ratio above "
        f"{choices.QUAD_RATIOS[-1]}: calibrate on texts of similar length, distil the model for 2Quad, or use suite 'exact'"
    )


def score_bits(row_sum_bits: int) -> int:
    """log2 of the limit L of 2Quad's scores for row sums below 2^bits. One in [L, 3L/2) that the lift misreads is read as
    5L/2 or more in magnitude (attention.py), so L is such that this square alone exceeds every row sum."""
    return math.ceil((row_sum_bits - math.log2(6.25)) / 2)


def _value_factors(record: RangeRecord, index: int) -> tuple[float, ...]:
    """What makes the longest row of a head's values LARGEST_VALUE, with margin."""
    margin = text_margin(record.tokens)
    return tuple(LARGEST_VALUE / (margin * max(float(length), 1e-6)) for length in record.seen["value"][index].high)


def _key_centres(record: RangeRecord, config: ModelConfig) -> tuple[tuple[tuple[float, ...], ...], ...]:
    centres = record.centres
    if centres is None:
        centres = (torch.zeros(config.heads, config.head_size),) * config.own_layers
    return tuple(tuple(tuple(row) for row in centre.tolist()) for centre in centres)


# -- LayerNorm ----------------------------------------------------------------------------------------------------------


def _norm(
    seen: Extremes,
    tokens: int,
    hidden: int,
    bits: tuple[int, ...] = choices.RESIDUAL_BITS,
    largest: float = 0.0,
    ratios: tuple[int, ...] = choices.VARIANCE_RATIOS,
) -> tuple[NormRange, float]:
    """The range of a scaled residual, and the factor that scales it: √(largest sum of squares) becomes 2^bits."""
    margin = min(text_margin(tokens), 2.0)
    low, high = max(float(seen.low), SMALLEST_VARIANCE) / margin, float(seen.high) * margin**2
    ratio = choices.smallest(ratios, high / low)
    if ratio is None:
        ratio = ratios[-1]
        if high / low > ratio * margin**2:
            raise CalibrationError(
                f"variances from {float(seen.low):.3g} to {float(seen.high):.3g} span more than a ratio of {ratio} with "
                "margin: no LayerNorm of the menu holds them"
            )
    high *= math.sqrt(ratio * low / high)  # what rounding the ratio up leaves goes to both sides alike
    limit = max(math.sqrt(hidden * high), largest)
    chosen = choices.smallest(bits, math.log2(limit) - 1e-9)
    if chosen is None:
        raise CalibrationError(f"residuals up to {limit:.3g} are beyond the menu: this model needs rescaling")
    return NormRange(chosen, ratio), 2.0**chosen / limit


Scaled = tuple[NormRange, float]
Residuals = Callable[[int], tuple[Scaled, Scaled]]
"""By layer: the LayerNorms behind attention and behind the feed-forward block, with their factors."""


def _all_residuals(record: RangeRecord, config: ModelConfig) -> Residuals:
    """By the first menu of ratios that holds all layers; the last one says what it does not hold."""
    of = _stream if config.norm_first else _residuals
    places = (*range(config.own_layers), *[plain.OUTSIDE] * bool(config.image_size))
    for ratios in choices.OUTPUT_RATIOS[:-1]:
        with suppress(CalibrationError):
            residual = of(record, config, ratios)
            for index in places:
                residual(index)
            return residual
    return of(record, config, choices.OUTPUT_RATIOS[-1])


def _residuals(record: RangeRecord, config: ModelConfig, ratios: tuple[int, ...]) -> Residuals:
    def of(index: int) -> tuple[Scaled, Scaled]:
        attention, output = (record.seen[name][index] for name in ("attention.variance", "output.variance"))
        first = _norm(attention, record.tokens, config.hidden)
        return first, _norm(output, record.tokens, config.hidden, ratios=ratios)

    return of


def _stream(record: RangeRecord, config: ModelConfig, ratios: tuple[int, ...]) -> Residuals:
    """One factor for the residuals of all layers, by which the largest becomes one of few sizes. An image's stream begins with
    its embedding, OUTSIDE."""
    seen = [
        record.seen[name][index] for index in range(config.layers) for name in ("attention.variance", "output.variance")
    ]
    largest = max((part for part in seen), key=lambda part: float(part.high))
    _, factor = _norm(largest, record.tokens, config.hidden, ratios=ratios)
    margin = min(text_margin(record.tokens), 2.0)
    size = config.hidden * factor**2

    def window(part: Extremes, index: int) -> NormRange:
        low, high = size * max(float(part.low), SMALLEST_VARIANCE), size * float(part.high)
        for share in SHRINKING:
            spare = margin**share
            bits = choices.smallest(choices.STREAM_BITS, math.log2(high * spare**2) / 2 - 1e-9)
            ratio = None if bits is None else choices.smallest(ratios, 4.0**bits * spare / low)
            if bits is not None and ratio is not None:
                return NormRange(bits, ratio)
        raise CalibrationError(
            f"layer {index}: variances from {float(part.low):.3g} to {float(part.high):.3g} span more than a ratio of "
            f"{ratios[-1]} with margin: no LayerNorm of the menu holds them"
        )

    def of(index: int) -> tuple[Scaled, Scaled]:
        names = ("embedding",) * 2 if index == plain.OUTSIDE else ("attention", "output")
        first, second = ((window(record.seen[f"{name}.variance"][index], index), factor) for name in names)
        return first, second

    return of


def _projected_bits(
    weights: Weights, config: ModelConfig, index: int, value_factors: tuple[float, ...]
) -> tuple[int, int, int]:
    """Of queries and keys, values, and a gate: bounds, where they are lifted."""
    query = value = gate = 0
    if config.rotary_base:
        largest = max(float(bounds.behind_layer(weights, config, index, part).max()) for part in ("query", "key"))
        octaves = LOG2_E if config.softmax == "exact" else 1.0
        query = _projected(largest * math.sqrt(octaves / config.score_divisor), f"layer {index}: queries and keys")
        factors = torch.tensor(value_factors, dtype=torch.float64).repeat_interleave(config.head_size)
        scaled = bounds.behind_layer(weights, config, index, "value") * factors
        value = _projected(float(scaled.max()), f"layer {index}: scaled values")
    if config.gated:
        gate = _projected(bounds.gate(weights, index), f"layer {index}: what activations are multiplied by")
    return query, value, gate


def _projected(largest: float, what: str) -> int:
    return _need(choices.smallest(choices.PROJECTED_BITS, math.log2(largest)), f"{what} may reach {largest:.3g}")


def _embedding_norm(record: RangeRecord, weights: Weights, config: ModelConfig) -> tuple[NormRange, float]:
    seen = record.seen["embedding.variance"][-1]
    return _norm(seen, record.tokens, config.table_size, choices.TABLE_BITS, bounds.embedding(weights))


def _projection_bits(weights: Weights, config: ModelConfig) -> int:
    if not config.embedding_size:
        return 0
    largest = bounds.projection(weights)
    found = choices.smallest(choices.PROJECTION_BITS, math.log2(largest))
    return _need(found, f"the embedding's projection may reach {largest:.3g}")


# -- activations --------------------------------------------------------------------------------------------------------


def _classes(
    record: RangeRecord, weights: Weights, config: ModelConfig, index: int
) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
    """Window names with how many neurons have each, and the order of neurons: narrow windows first."""
    if rectifies(config):
        return (), tuple(range(config.intermediate))
    seen, margin = record.seen["preactivation"][index], NEURON_MARGIN * text_margin(record.tokens)
    windows = [window_of(activation(config.activation, name)) for name in choices.NEURON_CLASSES]
    low, high, farthest = (
        (margin * seen.low).tolist(),
        (margin * seen.high).tolist(),
        bounds.preactivation(weights, index),
    )
    found = []
    for neuron, reach in enumerate(farthest.tolist()):
        number = _class_of(low[neuron], high[neuron], reach, windows, index)
        used = max(high[neuron] / windows[number].high, low[neuron] / windows[number].low)
        found.append((number, used, neuron))
    found.sort()
    needed = [sum(number == part for number, _, _ in found) for part in range(len(windows))]
    counts = choices.rounded_up(needed, choices.NEURON_SHARES)
    classes = tuple((name, count) for name, count in zip(choices.NEURON_CLASSES, counts, strict=True) if count)
    return classes, tuple(neuron for _, _, neuron in found)


def _class_of(low: float, high: float, reach: float, windows: list[Window], index: int) -> int:
    """The narrowest window that holds a neuron, and for which nothing it can reach is taken for something inside."""
    for number, window in enumerate(windows):
        covered = window.low <= -reach and reach <= window.high
        if covered or (window.low <= low and high <= window.high and reach < window.foreign):
            return number
    raise CalibrationError(
        f"layer {index}: activations reach {low:.3g} to {high:.3g} with margin, beyond the widest window "
        f"of ±{windows[-1].high:.0f}: calibrate on more texts (the margin shrinks), or rescale the feed-forward weights"
    )


def _relu_bits(weights: Weights, config: ModelConfig) -> int:
    if not rectifies(config):
        return 0
    largest = max(float(bounds.preactivation(weights, index).max()) for index in range(config.own_layers))
    return _need(choices.smallest(choices.RELU_BITS, math.log2(largest)), f"a ReLU's input may reach {largest:.3g}")


# -- heads --------------------------------------------------------------------------------------------------------------


def _pooler(weights: Weights, config: ModelConfig) -> int:
    if not config.head_activation:
        return 0
    largest, windows = float(bounds.head(weights, config).max()), choices.head_windows(config.head_activation)
    found = choices.smallest(windows, math.log2(largest) if windows == choices.RELU_BITS else largest)
    return _need(found, f"head: the input of its {config.head_activation} may reach {largest:.3g}")


def _transform_norm(record: RangeRecord, config: ModelConfig) -> NormRange | None:
    """The rows behind a head's activation: their size cannot be chosen, so that window is found which holds it."""
    if not config.transform:
        return None
    seen = record.seen["transform.variance"][plain.OUTSIDE]
    size = config.transform_size * row_factor(config.transform_size) ** 2
    low, high = size * max(float(seen.low), SMALLEST_VARIANCE), size * float(seen.high)
    for share in SHRINKING:
        margin = min(text_margin(record.tokens), 2.0) ** share
        bits = choices.smallest(choices.TRANSFORM_BITS, math.log2(high * margin**2) / 2)
        ratio = None if bits is None else choices.smallest(choices.VARIANCE_RATIOS, 4.0**bits * margin / low)
        if bits is not None and ratio is not None:
            return NormRange(bits, ratio)
    raise CalibrationError(
        f"head: variances from {float(seen.low):.3g} to {float(seen.high):.3g} span more than a ratio of "
        f"{choices.VARIANCE_RATIOS[-1]} with margin: no LayerNorm of the menu holds them"
    )


def row_factor(size: int) -> float:
    """What a row times its own size is, at the next power of two: how a row is centred without rounding (encoder.py)."""
    return size / 2.0 ** math.ceil(math.log2(size))


def _check_result(weights: Weights, config: ModelConfig) -> None:
    bits = LOGIT_BITS
    if config.dense_size or (config.pooler and choices.head_windows(config.pooler) != choices.RELU_BITS):
        bits = SERIES_LOGIT_BITS
    if (config.outputs or config.dense_size) and (largest := bounds.result(weights, config)) > 2.0**bits:
        raise CalibrationError(f"head: its results may reach {largest:.3g}: this model's last map needs rescaling")


def _need(found: int | None, what: str) -> int:
    if found is None:
        raise CalibrationError(f"{what}, beyond the menu: this model needs rescaling")
    return found

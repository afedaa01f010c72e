"""The uploaded tensors of our encoder: one table for planning, folding and the program.

Everything linear and constant goes into the weights: γ and β of the LayerNorm before, the centring of the LayerNorm
behind, 1/√d and log2 e (the exponential works in octaves), the factors that turn a preactivation into period units, and
the secret order of heads and neurons. A bias is an extra row, multiplied by the column that holds the padding bit m, so
that padded rows stay zero. Secret factors bring ranges to their public size: a head's values are scaled (undone in `out`), and
so is every residual (a LayerNorm undoes it by itself, but for its ε, which is uploaded scaled).

    X′ = (x − μ)/σ·m        x = γ·X′ + β·m
    [X′ m] @ qkv            (h+1, 3h)       Q, K less a head's centre, V scaled
    X′ ⊙ gain − X′ @ mean   residual, centred and scaled (β is in the bias row of `out`)
    S + relative·m          (heads, c)      a bias of scores by class of distance, if there is one
    [O m] @ out             (h+1, h)        centred output projection, scaled
    [X₁′ m] @ up            (h+1, f)        preactivations in period units
    [G m] @ down            (f+1, h)        centred and scaled

Behind an embedding's projection the first layer's X′ is x itself. A layer that is used again is uploaded once for every
LayerNorm it stands behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch
from torch import Tensor

from secformer.engine.form import masked
from secformer.engine.values import Masked, Value, need
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding
from secformer.models.plain import distance_rows
from secformer.models.statics import Source, Static
from secformer.models.weights import Linear, Norm
from secformer.protocols.normalise import NormSetting
from secformer.wires import widths as w
from secformer.wires.calibration import LOG2_E
from secformer.wires.widths import EncoderSetting, LayerSetting

Item = TypeVar("Item")
EMBEDDING_EPSILON, PROJECTION = "embedding_epsilon", "projection"


@dataclass(frozen=True)
class LayerTensors(Generic[Item]):
    """A layer's tensors: `Static`s in the table, wires in the program. Their names come from here alone."""

    qkv: Item
    out: Item
    attention_epsilon: Item
    up: Item
    down: Item
    output_epsilon: Item
    in_gain: Item | None = None  # without these four the residual is a stream of its own
    in_mean: Item | None = None
    middle_gain: Item | None = None
    middle_mean: Item | None = None
    relative: Item | None = None
    gate: Item | None = None
    distance_keys: Item | None = None
    distance_queries: Item | None = None

    def named(self, index: int) -> dict[str, Item]:
        found = {f"{index}.{field.name}": getattr(self, field.name) for field in fields(self)}
        return {name: item for name, item in found.items() if item is not None}


def first_use(config: ModelConfig, index: int) -> int:
    """The first layer with the same weights behind the same LayerNorm: what this one's tensors are called by."""
    uses = [(config.own_layer(number), config.layer_before(number)) for number in range(index + 1)]
    return uses.index(uses[index])


def layer_wires(inputs: Mapping[str, Value], config: ModelConfig, index: int) -> LayerTensors[Masked]:
    """The wires of one layer among a program's inputs."""
    prefix = f"{first_use(config, index)}."
    names = {field.name: prefix + field.name for field in fields(LayerTensors)}
    return LayerTensors(**{ours: need(inputs[name], Masked) for ours, name in names.items() if name in inputs})


def encoder_statics(config: ModelConfig, setting: EncoderSetting, embedding: Embedding) -> dict[str, Static]:
    """Every uploaded tensor by name."""
    table = embedding.statics()
    table[EMBEDDING_EPSILON] = _epsilon(config, setting.embedding_norm, 0, config.table_size)
    if config.embedding_size:
        shape, width = (config.embedding_size + 1, config.hidden), setting.projection_width + w.WEIGHT_SCALE
        table[PROJECTION] = _static(shape, width, _folded("embedding_norm", "projection"))
    for index, layer in enumerate(setting.layers):
        if first_use(config, index) == index:
            table.update(_Layer(config, layer, config.own_layer(index), _before(config, index)).table().named(index))
    return table | _head(config, config.output_norm(config.layers - 1))


def _before(config: ModelConfig, index: int) -> str | None:
    """The LayerNorm that a layer stands behind, if any."""
    if index:
        return config.output_norm(index - 1)
    return None if config.embedding_size else "embedding_norm"


def _static(
    shape: tuple[int, ...], width: int, make: Callable[[Source], Tensor], scale: int = w.WEIGHT_SCALE
) -> Static:
    return Static(masked(shape, width, scale), make)


def _epsilon(config: ModelConfig, setting: NormSetting, number: int, size: int = 0) -> Static:
    """n·ε of a LayerNorm whose residual is scaled, at the scale of its squares."""

    def make(source: Source) -> Tensor:
        scaled = config.layer_norm_eps * source.layout.norm_factors[number] ** 2
        return torch.tensor([(size or config.hidden) * scaled], dtype=torch.float64)

    return _static((1,), w.RING, make, 2 * setting.residual_scale)


@dataclass(frozen=True)
class _Layer:
    """The table of one layer, by the number of its weights; `before` names the LayerNorm whose γ and β it takes in."""

    config: ModelConfig
    setting: LayerSetting
    index: int
    before: str | None

    def table(self) -> LayerTensors[Static]:
        hidden, inner, setting = self.config.hidden, self.config.intermediate, self.setting
        attention, output, scale = 2 * self.index + 1, 2 * self.index + 2, w.weight_scale(self.config)
        return LayerTensors(
            **self._skipped(),
            **self._distance_tables(),
            qkv=_static((hidden + 1, 3 * hidden), setting.hidden_width, self._qkv, w.INNER_SCALE),
            out=_static((hidden + 1, hidden), setting.context_width, self._out, scale),
            attention_epsilon=_epsilon(self.config, setting.attention_norm, attention),
            up=_static((hidden + 1, inner), setting.middle_width, self._up, w.INNER_SCALE),
            down=_static((inner + 1, hidden), setting.activation_width, self._down, w.down_scale(self.config)),
            output_epsilon=_epsilon(self.config, setting.output_norm, output),
            relative=self._relative_table(),
            gate=_static((hidden + 1, inner), setting.middle_width, self._gate, scale) if self.config.gated else None,
        )

    @property
    def _streams(self) -> tuple[bool, bool]:
        """Whether what attention is added to is a stream, and what the feed-forward block is."""
        return self.config.norm_first and (self.index > 0 or self.config.image_size > 0), self.config.norm_first

    def _skipped(self) -> dict[str, Static]:
        """What makes the residual of a LayerNorm's output: before attention, and before the feed-forward block."""
        hidden, setting, (first, second) = self.config.hidden, self.setting, self._streams
        attention, output, middle = 2 * self.index + 1, 2 * self.index + 2, self._name("attention_norm")
        found = {}
        if not first:
            gain = _gain(self.before, attention, hidden)
            found["in_gain"] = _static((hidden,), setting.hidden_width, gain, w.weight_scale(self.config))
            mean = _mean(self.before, attention, hidden)
            found["in_mean"] = _static((hidden, 1), setting.hidden_width, mean, w.MEAN_SCALE)
        if not second:
            found["middle_gain"] = _static((hidden,), setting.middle_width, _gain(middle, output, hidden))
            mean = _mean(middle, output, hidden)
            found["middle_mean"] = _static((hidden, 1), setting.middle_width, mean, w.MEAN_SCALE)
        return found

    def _name(self, part: str) -> str:
        return f"layers.{self.index}.{part}"

    def _relative_table(self) -> Static | None:
        """The scores' bias by class of distance, in the order of the layer's heads and at the scale of its scores."""
        if not self.config.relative_buckets:
            return None

        def make(source: Source) -> Tensor:
            order = list(source.layout.heads[self.index])
            return source.weights["relative"].double().T[order] * self._octaves

        shape = (self.config.heads, self.config.relative_buckets)
        return _static(shape, self.setting.query_width, make, 2 * w.QUERY_SCALE)

    def _distance_tables(self) -> dict[str, Static]:
        """Keys and queries of every distance, (heads, d, classes), in the order of the layer's heads."""
        if not self.config.distance_span:
            return {}
        shape = (self.config.heads, self.config.head_size, 2 * self.config.distance_span)
        width = self.setting.query_width
        return {
            "distance_keys": _static(shape, width, lambda source: self._of_distances(source, "key"), w.QUERY_SCALE),
            "distance_queries": _static(
                shape, width, lambda source: self._of_distances(source, "query"), w.QUERY_SCALE
            ),
        }

    def _of_distances(self, source: Source, part: str) -> Tensor:
        rows = distance_rows(source.weights, self.config).double()
        made = rows @ source.weights[f"{self._name(part)}.weight"].double() + source.weights[f"{self._name(part)}.bias"]
        columns = self._score_factor * made[:, self._head_columns(source)]
        return columns.unflatten(-1, (self.config.heads, self.config.head_size)).permute(1, 2, 0)

    @property
    def _score_factor(self) -> float:
        """Of queries and of keys, half of the scores' each: their roundings count alike then."""
        return math.sqrt(self._octaves / self.config.score_divisor)

    @property
    def _octaves(self) -> float:
        """Scores in what they are exponentiated in."""
        return LOG2_E if self.config.softmax == "exact" else 1.0

    def _qkv(self, source: Source) -> Tensor:
        columns = self._head_columns(source)
        parts = [
            _after(_norm(source, self.before, len(columns)), source.weights.linear(self._name(part)))[:, columns]
            for part in ("query", "key", "value")
        ]
        centres = torch.tensor(source.layout.key_centres[self.index], dtype=torch.float64)
        parts[1][-1] -= centres.reshape(-1)[columns]
        for part in parts[:2]:
            part *= self._score_factor
        parts[2] *= self._value_factors(source)
        return torch.cat(parts, 1)

    def _value_factors(self, source: Source) -> Tensor:
        """By column, heads in their secret order."""
        factors = torch.tensor(source.layout.value_factors[self.index], dtype=torch.float64)
        return factors.repeat_interleave(self.config.head_size)[self._head_columns(source)]

    def _out(self, source: Source) -> Tensor:
        weight, bias = source.weights.linear(self._name("output"))
        skipped = 0.0 if self._streams[0] else _norm(source, self.before, len(bias)).bias
        rows = weight.double()[self._head_columns(source)] / self._value_factors(source)[:, None]
        return _centred(_with_row(rows, bias + skipped)) * source.layout.norm_factors[2 * self.index + 1]

    def _up(self, source: Source) -> Tensor:
        folded = _after(source.weights.norm(self._name("attention_norm")), source.weights.linear(self._name("up")))
        return folded[:, self._neurons(source)] * self._period_factors()

    def _gate(self, source: Source) -> Tensor:
        folded = _after(source.weights.norm(self._name("attention_norm")), source.weights.linear(self._name("gate")))
        return folded[:, self._neurons(source)]

    def _down(self, source: Source) -> Tensor:
        weight, bias = source.weights.linear(self._name("down"))
        skipped = 0.0 if self._streams[1] else source.weights.norm(self._name("attention_norm")).bias
        rows = weight.double()[self._neurons(source)]
        return _centred(_with_row(rows, bias + skipped)) * source.layout.norm_factors[2 * self.index + 2]

    def _head_columns(self, source: Source) -> Tensor:
        size = self.config.head_size
        heads = source.layout.heads[self.index]
        return torch.cat([torch.arange(head * size, (head + 1) * size) for head in heads])

    def _neurons(self, source: Source) -> Tensor:
        return torch.tensor(source.layout.neurons[self.index])

    def _period_factors(self) -> Tensor:
        """Factor of each neuron that makes its class's period 2^5: 17 bits at 12 fraction bits."""
        if self.setting.activation is None:
            return torch.ones(1, dtype=torch.float64)
        period = 2.0**w.PERIOD_BITS
        parts = [torch.full((part.count,), period / part.fit.period) for part in self.setting.activation.classes]
        return torch.cat(parts).double()


def _head(config: ModelConfig, norm: str) -> dict[str, Static]:
    """What turns the last X′ into the result."""
    if config.head == "embedding":
        return _vector(config, norm)
    found, first = {}, "pooler" if config.pooler else "transform" if config.transform else ""
    size = config.transform_size or config.hidden
    last = _folded("transform_norm" if config.transform else norm, "classifier")
    if first:
        found[first] = _static((config.hidden + 1, size), w.RING, _folded(norm, first))
    if config.pooler:
        last = _unfolded("classifier")
    return found | {"classifier": _static((size + 1, config.outputs), w.RING, last)}


def _vector(config: ModelConfig, norm: str) -> dict[str, Static]:
    hidden = config.hidden
    if config.dense_size:
        return {"dense": _static((hidden + 1, config.dense_size), w.RING, _folded(norm, "dense"))}
    return {
        "final_gain": _static((hidden,), w.RING, lambda source: source.weights.norm(norm).gain),
        "final_bias": _static((1, hidden), w.RING, lambda source: source.weights.norm(norm).bias[None]),
    }


# -- folding ------------------------------------------------------------------------------------------------------------


def _centred(matrix: Tensor) -> Tensor:
    """Rows minus their mean."""
    return matrix - matrix.mean(-1, keepdim=True)


def _with_row(weight: Tensor, bias: Tensor) -> Tensor:
    """(inputs + 1, outputs)."""
    return torch.cat((weight.double(), bias.double()[None]), 0)


def _after(norm: Norm, linear: Linear) -> Tensor:
    """γ and β of the LayerNorm before, folded into a linear map: (inputs + 1, outputs)."""
    weight = linear.weight.double()
    return _with_row(norm.gain.double()[:, None] * weight, linear.bias.double() + norm.bias.double() @ weight)


def _unfolded(linear: str) -> Callable[[Source], Tensor]:
    return lambda source: _with_row(*source.weights.linear(linear))


def _folded(norm: str, linear: str) -> Callable[[Source], Tensor]:
    return lambda source: _after(source.weights.norm(norm), source.weights.linear(linear))


def _norm(source: Source, name: str | None, size: int) -> Norm:
    """A LayerNorm's γ and β; 1 and 0 where there is none."""
    if name is None:
        return Norm(torch.ones(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64))
    return source.weights.norm(name)


def _gain(norm: str | None, number: int, size: int) -> Callable[[Source], Tensor]:
    """γ, for X′⊙γ, times the factor of the residual it goes to."""
    return lambda source: _norm(source, norm, size).gain.double() * source.layout.norm_factors[number]


def _mean(norm: str | None, number: int, size: int) -> Callable[[Source], Tensor]:
    """γ/n as a column: the row mean of X′⊙γ as a product."""

    def make(source: Source) -> Tensor:
        return (_gain(norm, number, size)(source) / size)[:, None]

    return make

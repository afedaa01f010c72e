"""A layer on wires: attention, feed-forward block and the LayerNorm behind each. (encoder.py lists what it opens.)

X′ goes in and the next X′ comes out. Where LayerNorms come last, a residual is what the block before it started from, γX′ + β.
Where they come first, residuals are one *stream*: the sum itself goes on, centred (no LayerNorm minds), beside the X′ that is
made of it. It needs no opening of its own, since a LayerNorm opens and lifts it anyway.

Queries and keys that are turned by their position are opened narrow first, which a bound allows, and lifted: cosines and
sines take fraction bits that the product of X′ does not have. One round more, beside which V is lifted too. An activation with
a gate is opened narrow, beside the gate, and lifted: one round more and a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Public, Shared
from secformer.models.config import ModelConfig
from secformer.models.embedding import Padding
from secformer.models.positions import bias_classes, distance_classes, half_turned, is_local, near_keys, turns
from secformer.protocols.activation import activate
from secformer.protocols.attention import ExactSetting, exact_attention, quad_attention, watch_values
from secformer.protocols.evidence import Evidence
from secformer.protocols.lift import lift, lift_wire, multiply_lifted, unmask_lifted
from secformer.protocols.multiply import matmul, multiply, unmask
from secformer.protocols.normalise import NormSetting, Witness, normalise_stream
from secformer.protocols.rectifier import relu
from secformer.wires import widths as w
from secformer.wires.statics import LayerTensors
from secformer.wires.widths import LayerSetting


@dataclass(frozen=True)
class Layer:
    """One layer of one query."""

    config: ModelConfig
    index: int
    setting: LayerSetting
    static: LayerTensors[Masked]
    padding: Padding
    evidence: Evidence

    def run(self, runtime: Runtime, normal: Shared, stream: Shared | None = None) -> tuple[Shared, Shared | None]:
        """X′ to the next X′, (batch, n, hidden), unopened; and the stream, where residuals are one."""
        static, setting, column = self.static, self.setting, self.padding.column
        with runtime.scope("linear"):
            (hidden,) = runtime.open(normal.at(w.HIDDEN_SCALE, setting.hidden_width))
        context = self._attention(runtime, hidden)
        with runtime.scope("linear"):
            (opened,) = runtime.open(context.at(w.OUTPUT_SCALE, setting.context_width))
            projected = matmul(runtime, opened.beside(column), static.out)
            residual = projected + _before(runtime, hidden, static.in_gain, static.in_mean, stream, projected.scale)
        normal, stream = self._norm(
            runtime, residual, setting.attention_norm, static.attention_epsilon, "attention norm"
        )
        with runtime.scope("linear"):
            (middle,) = runtime.open(normal.at(w.HIDDEN_SCALE, setting.middle_width))
            up = matmul(runtime, self._narrow(middle).beside(column), static.up)  # (batch, n, intermediate)
        activated = self._activate(runtime, up, middle)
        with runtime.scope("linear"):
            (opened,) = runtime.open(activated.at(w.ACTIVATION_SCALE, setting.activation_width))
            down = matmul(runtime, opened.beside(column), static.down)
            residual = down + _before(runtime, middle, static.middle_gain, static.middle_mean, stream, down.scale)
        return self._norm(runtime, residual, setting.output_norm, static.output_epsilon, "output norm")

    def _norm(
        self, runtime: Runtime, residual: Shared, setting: NormSetting, epsilon: Masked, kind: str
    ) -> tuple[Shared, Shared | None]:
        with runtime.scope("layernorm"):
            witness = Witness(self.evidence, kind, self.padding.share)
            secret = unmask(runtime, epsilon)
            normal, lifted = normalise_stream(runtime, residual, setting, self.padding.gate, secret, witness)
            return normal, unmask_lifted(runtime, lifted) if self.config.norm_first else None

    # -- attention --------------------------------------------------------------------------------------------------

    def _attention(self, runtime: Runtime, hidden: Masked) -> Shared:
        """O = Softmax(S)·V, (batch, n, hidden)."""
        with runtime.scope("linear"):
            product = matmul(runtime, hidden.beside(self.padding.column), self.static.qkv)  # (batch, n, 3 · hidden)
            queries, keys, values = (self._heads(part) for part in _thirds(product))
            query, key, value = self._open(runtime, queries, keys, values)
            scores = matmul(runtime, query, key.map(lambda tensor: tensor.transpose(-1, -2)))  # (batch, heads, n, n)
            if self.static.relative is not None:
                scores = scores + self._relative(runtime, self.static.relative)
            if self.config.distance_span:
                scores = self._with_distances(runtime, scores, query, key)
        with runtime.scope("softmax"):
            watch_values(runtime, value, self.evidence)
            context = self._softmax(runtime, scores, value)
        return context.map(lambda tensor: tensor.transpose(1, 2).flatten(-2))  # heads back into hidden

    def _open(self, runtime: Runtime, queries: Shared, keys: Shared, values: Shared) -> tuple[Masked, ...]:
        """Wires of Q, K and V, (batch, heads, n, d)."""
        setting = self.setting
        if self.config.rotary_base:
            queries, keys, values = self._lifted(runtime, queries, keys, values)
            queries, keys = self._turned(queries), self._turned(keys)
        return runtime.open(
            queries.at(w.QUERY_SCALE, setting.query_width),
            keys.at(w.QUERY_SCALE, setting.query_width),
            values.at(setting.value_scale, setting.value_width),
        )

    def _lifted(self, runtime: Runtime, queries: Shared, keys: Shared, values: Shared) -> tuple[Shared, Shared, Shared]:
        """A bound holds all three: nothing is watched."""
        setting = self.setting
        query, key, value = runtime.open(
            queries.at(w.QUERY_SCALE, setting.turned_width),
            keys.at(w.QUERY_SCALE, setting.turned_width),
            values.at(setting.value_scale, setting.narrow_value_width),
        )
        width = setting.query_width + w.ROTARY_SCALE
        return lift(runtime, query, width), lift(runtime, key, width), lift(runtime, value, setting.value_width)

    def _turned(self, rows: Shared) -> Shared:
        cosine, sine = (
            Public(turn, w.ROTARY_SCALE)
            for turn in turns(self.config, self.index, rows.shape[-2], w.ROTARY_SCALE, rows.device)
        )
        return rows * cosine + rows.map(half_turned) * sine

    def _softmax(self, runtime: Runtime, scores: Shared, value: Masked) -> Shared:
        keys = self.padding.keys
        if is_local(self.config, self.index):
            seen = near_keys(self.config, scores.shape[-1], scores.device)
            own = torch.eye(len(seen), dtype=torch.int64, device=seen.device)
            scores = scores * Public(seen)
            keys = _with_own(runtime, keys, seen - own, own)
        setting, rows = self.setting.attention, self.padding.rows
        gate = None
        if self.config.norm_first:  # a padded row of a stream stays zero
            shape = (-1, self.config.heads, -1, -1)
            gate = self.padding.gate.map(lambda tensor: tensor[:, None].expand(shape).contiguous())
        if isinstance(setting, ExactSetting):
            return exact_attention(runtime, scores, value, keys, setting, self.evidence, rows, gate)
        return quad_attention(runtime, scores, value, keys, setting, self.evidence, rows, gate)

    def _relative(self, runtime: Runtime, table: Masked) -> Shared:
        """The bias of every score, zero for padded keys (batch, heads, n, n)."""
        keys = self.padding.column.map(lambda tensor: tensor.transpose(-1, -2)[:, None])  # (batch, 1, 1, n)

        def spread(tensor: Tensor) -> Tensor:
            return tensor[:, bias_classes(self.config, keys.shape[-1], tensor.device)][None]

        return multiply(runtime, table.map(spread), keys)

    def _with_distances(self, runtime: Runtime, scores: Shared, query: Masked, key: Masked) -> Shared:
        """Scores with those of content and distance. Keys that are padded are zero, but distances are not: what queries make of
        them is opened, and multiplied by the padding."""
        static, tokens = self.static, scores.shape[-1]
        assert static.distance_keys is not None and static.distance_queries is not None

        def of_used(table: Masked) -> Masked:
            """(1, heads, d, classes used)"""
            return table.map(lambda tensor: tensor[None, ..., distance_classes(self.config, tokens, tensor.device)[0]])

        def picked(rows: Shared, index: Tensor) -> Shared:
            return rows.map(lambda tensor: tensor.gather(-1, index.expand(*tensor.shape[:-1], tokens)))

        _, classes = distance_classes(self.config, tokens, scores.device)
        by_key = picked(matmul(runtime, key, of_used(static.distance_queries)), classes.T)  # of keys by queries
        whole = scores + by_key.map(lambda tensor: tensor.transpose(-1, -2))
        by_query = picked(matmul(runtime, query, of_used(static.distance_keys)), classes)
        (opened,) = runtime.open(by_query.at(w.DISTANCE_SCALE))
        keys = self.padding.column.map(lambda tensor: tensor.transpose(-1, -2)[:, None])  # (batch, 1, 1, n)
        return runtime.drop_to(whole, w.DISTANCE_SCALE) + multiply(runtime, opened, keys)

    def _heads(self, rows: Shared) -> Shared:
        """(batch, n, hidden) → (batch, heads, n, d)."""
        shape = (self.config.heads, self.config.head_size)
        return rows.map(lambda tensor: tensor.unflatten(-1, shape).transpose(1, 2))

    # -- the feed-forward block -------------------------------------------------------------------------------------

    def _narrow(self, middle: Masked) -> Masked:
        """All that an activation needs of X₁′: a cheaper product."""
        return middle.narrow(self.setting.preactivation_width)

    def _activate(self, runtime: Runtime, up: Shared, middle: Masked) -> Shared:
        setting = self.setting
        with runtime.scope("gelu"):
            if setting.activation is None:
                lost = w.HIDDEN_SCALE - w.ACTIVATION_SCALE
                return relu(runtime, up, setting.relu_width, w.HIDDEN_SCALE, setting.activation_width + lost)
            scale = w.angle_scale(self.config)
            activated = activate(runtime, up, scale, setting.activation, self.evidence)
            return activated if self.static.gate is None else self._gated(runtime, activated, middle, self.static.gate)

    def _gated(self, runtime: Runtime, activated: Shared, middle: Masked, gate: Masked) -> Shared:
        """The activation times its gate."""
        setting = self.setting
        gates = matmul(runtime, middle.beside(self.padding.column), gate)
        left, right = runtime.open(
            activated.at(w.GATE_SCALE, setting.factor_width), gates.at(w.GATE_SCALE, setting.gate_width)
        )
        width = setting.activation_width + 2 * w.GATE_SCALE - w.ACTIVATION_SCALE
        return multiply_lifted(runtime, lift_wire(runtime, left, width), lift_wire(runtime, right, width), width)


def _with_own(runtime: Runtime, keys: Shared, others: Tensor, own: Tensor) -> Shared:
    """Masks of near keys (batch, 1, n, n), with 1 for a query's own: one of padding may have no other."""
    return keys * Public(others) + runtime.constant(Public(own), keys.width)


def _before(
    runtime: Runtime, hidden: Masked, gain: Masked | None, mean: Masked | None, stream: Shared | None, scale: int
) -> Shared:
    """What a block's output is added to, at the scale of that: the stream, or X′⊙γ minus its row mean."""
    if gain is None or mean is None:
        assert stream is not None
        return stream.raise_scale(scale - stream.scale)
    scaled = multiply(runtime, hidden, gain)
    average = matmul(runtime, hidden, mean)
    return runtime.drop_to(scaled, scale) - runtime.drop_to(average, scale)


def _thirds(product: Shared) -> tuple[Shared, Shared, Shared]:
    size = product.shape[-1] // 3
    return product[..., :size], product[..., size : 2 * size], product[..., 2 * size :]

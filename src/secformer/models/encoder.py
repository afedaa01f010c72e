"""The secure encoder on wires: suites `exact` and `fast`. One query, top to bottom.

A layer opens, in order (widths for real encoders at the right; see settings.py):

     1  X′        51–53 bits   9  O           33
     2  Q, K, V   35–37       10  residual    19, lifted
     3  S         18–21       11  variance    28
     4  counts    10          12  1/σ         20
     5  bits      2           13  X₁′         44
     6  maximum   19          14  z           17, modulo the period
     7  P, D      35–37, 30   15  G           37
     8  N, 1/D    24–26, 26   16–18  residual, variance, 1/σ

(`fast` skips 4–6.) Weights are wires, opened once at upload. Padding: the client's bit m is a column beside X′, O and G.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from secformer.engine.program import InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared, Value, as_masked, merge_sources
from secformer.models import settings as s
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding, Padding
from secformer.models.settings import EncoderSetting, LayerSetting
from secformer.protocols.activation import activate, activate_one
from secformer.protocols.attention import ExactSetting, exact_attention, quad_attention
from secformer.protocols.menu import entry
from secformer.protocols.multiply import matmul, multiply
from secformer.protocols.normalise import normalise
from secformer.protocols.rectifier import relu_ours

PRODUCT_SCALE = s.HIDDEN_SCALE + s.WEIGHT_SCALE


def with_column(wire: Masked, column: Masked) -> Masked:
    """[wire, m]: the padding column beside a wire, at the wire's scale and width."""
    scaled = column * (1 << wire.scale)
    return Masked(
        torch.cat((wire.public, scaled.public), -1),
        torch.cat((wire.mask, scaled.mask), -1),
        wire.width,
        wire.scale,
        merge_sources(wire, column),
    )


@dataclass(frozen=True)
class Encoder:
    """A secure encoder for one shape of query. `body` is the program."""

    config: ModelConfig
    setting: EncoderSetting
    batch: int
    tokens: int
    private_table: bool = True

    def body(self, runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        with runtime.scope("embedding"), runtime.scope("embedding"):
            residual, padding = self.embedding.read(runtime, inputs)
        with runtime.scope("embedding"), runtime.scope("layernorm"):
            normal = normalise(runtime, residual, self.setting.embedding_norm, padding.gate, padding.share)
        for index, setting in enumerate(self.setting.layers):
            static = {name[len(f"{index}.") :]: wire for name, wire in inputs.items() if name.startswith(f"{index}.")}
            with runtime.scope(f"layer {index}"):
                normal = self.layer(runtime, normal, static, padding, setting)
        with runtime.scope("head"), runtime.scope("other"):
            return {"result": self._head(runtime, normal, inputs, padding)}

    # -- a layer ----------------------------------------------------------------------------------------------------

    def layer(
        self, runtime: Runtime, normal: Shared, static: dict[str, Value], padding: Padding, setting: LayerSetting
    ) -> Shared:
        with runtime.scope("linear"):
            (hidden,) = runtime.open(runtime.drop_to(normal, s.HIDDEN_SCALE, setting.hidden_width))
        context = self._attention(runtime, hidden, as_masked(static["qkv"]), padding, setting)
        with runtime.scope("linear"):
            (opened,) = runtime.open(runtime.drop_to(context, s.OUTPUT_SCALE, setting.context_width))
            projected = matmul(runtime, with_column(opened, padding.column), as_masked(static["out"]))
            residual = projected + self._residual(runtime, hidden, static, "in", projected.scale)
        with runtime.scope("layernorm"):
            normal = normalise(runtime, residual, setting.attention_norm, padding.gate, padding.share)
        with runtime.scope("linear"):
            (middle,) = runtime.open(runtime.drop_to(normal, s.HIDDEN_SCALE, setting.middle_width))
            narrow = middle.narrow(setting.preactivation_width)  # all the activation needs: a cheaper product
            up = matmul(runtime, with_column(narrow, padding.column), as_masked(static["up"]))
        activated = self._activate(runtime, up, setting)
        with runtime.scope("linear"):
            (opened,) = runtime.open(runtime.drop_to(activated, s.ACTIVATION_SCALE, setting.activation_width))
            down = matmul(runtime, with_column(opened, padding.column), as_masked(static["down"]))
            residual = down + self._residual(runtime, middle, static, "middle", down.scale)
        with runtime.scope("layernorm"):
            return normalise(runtime, residual, setting.output_norm, padding.gate, padding.share)

    def _residual(self, runtime: Runtime, hidden: Masked, static: dict[str, Value], name: str, scale: int) -> Shared:
        """X′⊙γ minus its row mean, at the scale of what it is added to."""
        scaled = multiply(runtime, hidden, as_masked(static[f"{name}.gain"]))
        mean = matmul(runtime, hidden, as_masked(static[f"{name}.mean"]))
        return runtime.drop(scaled, scaled.scale - scale) - runtime.drop(mean, mean.scale - scale)

    def _attention(
        self, runtime: Runtime, hidden: Masked, qkv: Masked, padding: Padding, setting: LayerSetting
    ) -> Shared:
        with runtime.scope("linear"):
            product = matmul(runtime, with_column(hidden, padding.column), qkv)
            queries, keys, values = (self._split(part) for part in _thirds(product))
            query, key, value = runtime.open(
                runtime.drop_to(queries, s.QUERY_SCALE, setting.query_width),
                runtime.drop_to(keys, s.QUERY_SCALE, setting.query_width),
                runtime.drop_to(values, s.VALUE_SCALE, setting.value_width),
            )
            scores = matmul(runtime, query, key.map(lambda tensor: tensor.transpose(-1, -2)))
        with runtime.scope("softmax"):
            function = exact_attention if isinstance(setting.attention, ExactSetting) else quad_attention
            context = function(runtime, scores, value, padding.keys, setting.attention, padding.rows)  # type: ignore[arg-type]
        return context.map(lambda tensor: tensor.transpose(1, 2).flatten(-2))

    def _split(self, rows: Shared) -> Shared:
        """(batch, n, h) → (batch, heads, n, d)."""
        shape = (self.config.heads, self.config.head_size)
        return rows.map(lambda tensor: tensor.unflatten(-1, shape).transpose(1, 2))

    def _activate(self, runtime: Runtime, up: Shared, setting: LayerSetting) -> Shared:
        with runtime.scope("gelu"):
            if setting.activation is None:
                bits = s.HIDDEN_SCALE + s.RELU_BITS
                lost = s.HIDDEN_SCALE - s.ACTIVATION_SCALE
                return relu_ours(runtime, up, bits, s.HIDDEN_SCALE, setting.activation_width + lost)
            angles = runtime.drop_to(up, s.HIDDEN_SCALE)
            start = 0
            for part in setting.activation.classes:  # simulation checks each class against its window
                piece = angles[..., start : start + part.count]
                runtime.expect(piece, part.fit.low, part.fit.high, unit=part.fit.period / 2.0**s.PERIOD_BITS)
                start += part.count
            return activate(runtime, angles, setting.activation)

    # -- heads ------------------------------------------------------------------------------------------------------

    def _head(self, runtime: Runtime, normal: Shared, inputs: Mapping[str, Value], padding: Padding) -> Shared:
        if self.config.head == "embedding":
            return self._pooled(runtime, normal, inputs, padding)
        if self.config.head == "tokens":
            wire = self._open_hidden(runtime, normal, padding.column)
            return self._finish(runtime, matmul(runtime, wire, as_masked(inputs["classifier"])))
        first = normal.map(lambda tensor: tensor[:, 0])
        column = padding.column.map(lambda tensor: tensor[:, 0])
        pooled = matmul(runtime, self._open_hidden(runtime, first, column), as_masked(inputs["pooler"]))
        return self._classify(runtime, pooled, column, inputs)

    def _open_hidden(self, runtime: Runtime, normal: Shared, column: Masked) -> Masked:
        width = normal.width - (normal.scale - s.HIDDEN_SCALE)
        (wire,) = runtime.open(runtime.drop_to(normal, s.HIDDEN_SCALE, width))
        return with_column(wire, column)

    def _classify(self, runtime: Runtime, pooled: Shared, column: Masked, inputs: Mapping[str, Value]) -> Shared:
        """The pooler's activation, one opening for tanh, and the classifier."""
        width = 38  # a logit below 2^11 at the product's scale
        if self.config.pooler_activation == "tanh":
            activated = activate_one(runtime, pooled, entry("tanh"), bits=22, dealt_scale=20, public_scale=18)
        else:
            activated = relu_ours(runtime, pooled, s.HIDDEN_SCALE + s.RELU_BITS, s.HIDDEN_SCALE, width + 10)
        (wire,) = runtime.open(runtime.drop_to(activated, s.HIDDEN_SCALE, width))
        return self._finish(runtime, matmul(runtime, with_column(wire, column), as_masked(inputs["classifier"])))

    def _pooled(self, runtime: Runtime, normal: Shared, inputs: Mapping[str, Value], padding: Padding) -> Shared:
        """γ·ΣX′ + β·Σm over a sentence; the client, who knows its length, divides. (`cls`: the first row alone.)"""
        if self.config.pooling == "cls":
            rows, column = normal.map(lambda tensor: tensor[:, 0]), padding.column.map(lambda tensor: tensor[:, 0])
        else:
            rows, column = normal.map(lambda tensor: tensor.sum(1)), padding.column.map(lambda tensor: tensor.sum(1))
        width = normal.width - (normal.scale - s.HIDDEN_SCALE)
        (wire,) = runtime.open(runtime.drop_to(rows, s.HIDDEN_SCALE, width))
        scaled = multiply(runtime, wire, as_masked(inputs["final.gain"]))
        shift = matmul(runtime, column * (1 << s.HIDDEN_SCALE), as_masked(inputs["final.bias"]))
        return self._finish(runtime, scaled + Shared(shift.share, shift.width, scaled.scale))

    def _finish(self, runtime: Runtime, result: Shared) -> Shared:
        """Drop to the declared scale; the servers re-randomise before the client gets its shares."""
        return runtime.drop(result, result.scale - self.setting.result_scale)

    # -- the program ------------------------------------------------------------------------------------------------

    @property
    def embedding(self) -> Embedding:
        return Embedding(
            self.config, s.EMBEDDING_SCALE, self.setting.embedding_width, self.setting.word_bits, self.private_table
        )

    def program(self, static: Mapping[str, InputSpec], settings: str) -> Program:
        return Program(
            "encoder", self.body, {**static, **self.embedding.query_specs(self.batch, self.tokens)}, settings
        )


def _thirds(product: Shared) -> tuple[Shared, Shared, Shared]:
    size = product.shape[-1] // 3
    return product[..., :size], product[..., size : 2 * size], product[..., 2 * size :]

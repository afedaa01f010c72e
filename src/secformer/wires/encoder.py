"""The secure encoder on wires: suites `exact` and `fast`. One query, top to bottom.

A layer opens, in order (widths of the preset of `exact` at 512 tokens at the right; see widths.py):

     1  X′        53 bits      9  O           33
     2  Q, K, V   33–37       10  residual    19, lifted
     3  S         19–21       11  variance    28
     4  counts    10          12  1/σ         20
     5  bits      2           13  X₁′         39–43
     6  maximum   18–20       14  z           18, modulo two periods
     7  P, D      37, 30      15  G           32–36
     8  N, 1/D    27, 26      16–18  residual, variance, 1/σ

(`fast` skips 4–6.) Weights are wires, opened once at upload. Padding: the client's bit m is a column beside X′, O and G.
What tells of ranges that were left rides in the same rounds (protocols/evidence.py), and is a second result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secformer.engine.program import Outputs
from secformer.engine.runtime import Runtime
from secformer.engine.values import Disclosed, Masked, Shared, Value, need
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding, Padding
from secformer.models.system import EVIDENCE, RESULT
from secformer.protocols.activation import activate, activate_one
from secformer.protocols.attention import ExactSetting, exact_attention, quad_attention, watch_values
from secformer.protocols.evidence import Evidence, Place
from secformer.protocols.menu import entry
from secformer.protocols.multiply import matmul, multiply, unmask
from secformer.protocols.normalise import NormSetting, Witness, normalise
from secformer.protocols.rectifier import relu
from secformer.wires import widths as w
from secformer.wires.statics import EMBEDDING_EPSILON, LayerTensors, layer_wires
from secformer.wires.widths import EncoderSetting, LayerSetting


@dataclass(frozen=True)
class Encoder:
    """A secure encoder. `body` is the program; `pooler` is the window of the head's tanh, or log2 of its ReLU's limit."""

    config: ModelConfig
    setting: EncoderSetting
    embedding: Embedding
    pooler: int

    @property
    def places(self) -> tuple[Place, ...]:
        """What the counts of the evidence stand for."""
        kinds = ["scores", "values", "attention norm", "activation", "output norm"]
        if self.setting.layers[0].activation is None:  # a ReLU's input has a bound
            kinds.remove("activation")
        layers = ((f"layer {index}", kind) for index in range(self.config.layers) for kind in kinds)
        return (("embedding", "norm"), *layers)

    def body(self, runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        evidence = Evidence()
        with runtime.scope("embedding"), runtime.scope("embedding"):
            residual, padding = self.embedding.read(runtime, inputs)
        with runtime.scope("embedding"), runtime.scope("layernorm"):
            witness = Witness(evidence, "norm", padding.share)
            epsilon = unmask(runtime, need(inputs[EMBEDDING_EPSILON], Masked))
            normal = normalise(runtime, residual, self.setting.embedding_norm, padding.gate, epsilon, witness)
        for index, setting in enumerate(self.setting.layers):
            with runtime.scope(f"layer {index}"):
                normal = self.layer(runtime, normal, layer_wires(inputs, index), padding, setting, evidence)
        with runtime.scope("head"), runtime.scope("other"):
            result = self._head(runtime, normal, inputs, padding)
        with runtime.scope("head"), runtime.scope("evidence"):
            return {RESULT: result, EVIDENCE: evidence.disclosed(runtime, self.places)}

    # -- a layer ----------------------------------------------------------------------------------------------------

    def layer(
        self,
        runtime: Runtime,
        normal: Shared,
        static: LayerTensors[Masked],
        padding: Padding,
        setting: LayerSetting,
        evidence: Evidence,
    ) -> Shared:
        """X′ to the next X′, (batch, n, hidden), unopened."""
        with runtime.scope("linear"):
            (hidden,) = runtime.open(normal.at(w.HIDDEN_SCALE, setting.hidden_width))
        context = self._attention(runtime, hidden, static.qkv, padding, setting, evidence)
        with runtime.scope("linear"):
            (opened,) = runtime.open(context.at(w.OUTPUT_SCALE, setting.context_width))
            projected = matmul(runtime, opened.beside(padding.column), static.out)
            residual = projected + _residual(runtime, hidden, static.in_gain, static.in_mean, projected.scale)
        witness = Witness(evidence, "attention norm", padding.share)
        normal = _normal(runtime, residual, setting.attention_norm, static.attention_epsilon, padding, witness)
        with runtime.scope("linear"):
            (middle,) = runtime.open(normal.at(w.HIDDEN_SCALE, setting.middle_width))
            narrow = middle.narrow(setting.preactivation_width)  # all the activation needs: a cheaper product
            up = matmul(runtime, narrow.beside(padding.column), static.up)  # (batch, n, intermediate)
        activated = self._activate(runtime, up, setting, evidence)
        with runtime.scope("linear"):
            (opened,) = runtime.open(activated.at(w.ACTIVATION_SCALE, setting.activation_width))
            down = matmul(runtime, opened.beside(padding.column), static.down)
            residual = down + _residual(runtime, middle, static.middle_gain, static.middle_mean, down.scale)
        witness = Witness(evidence, "output norm", padding.share)
        return _normal(runtime, residual, setting.output_norm, static.output_epsilon, padding, witness)

    def _attention(
        self,
        runtime: Runtime,
        hidden: Masked,
        qkv: Masked,
        padding: Padding,
        setting: LayerSetting,
        evidence: Evidence,
    ) -> Shared:
        """O = Softmax(S)·V, (batch, n, hidden)."""
        with runtime.scope("linear"):
            product = matmul(runtime, hidden.beside(padding.column), qkv)  # (batch, n, 3 · hidden)
            queries, keys, values = (self._heads(part) for part in _thirds(product))  # (batch, heads, n, d)
            query, key, value = runtime.open(
                queries.at(w.QUERY_SCALE, setting.query_width),
                keys.at(w.QUERY_SCALE, setting.query_width),
                values.at(setting.value_scale, setting.value_width),
            )
            scores = matmul(runtime, query, key.map(lambda tensor: tensor.transpose(-1, -2)))  # (batch, heads, n, n)
        with runtime.scope("softmax"):
            watch_values(runtime, value, evidence)
            if isinstance(setting.attention, ExactSetting):
                context = exact_attention(
                    runtime, scores, value, padding.keys, setting.attention, evidence, padding.rows
                )
            else:
                context = quad_attention(
                    runtime, scores, value, padding.keys, setting.attention, evidence, padding.rows
                )
        return context.map(lambda tensor: tensor.transpose(1, 2).flatten(-2))  # heads back into hidden

    def _heads(self, rows: Shared) -> Shared:
        """(batch, n, hidden) → (batch, heads, n, d)."""
        shape = (self.config.heads, self.config.head_size)
        return rows.map(lambda tensor: tensor.unflatten(-1, shape).transpose(1, 2))

    def _activate(self, runtime: Runtime, up: Shared, setting: LayerSetting, evidence: Evidence) -> Shared:
        with runtime.scope("gelu"):
            if setting.activation is None:
                lost = w.HIDDEN_SCALE - w.ACTIVATION_SCALE
                return relu(runtime, up, setting.relu_width, w.HIDDEN_SCALE, setting.activation_width + lost)
            return activate(runtime, up, w.HIDDEN_SCALE, setting.activation, evidence)

    # -- heads ------------------------------------------------------------------------------------------------------

    def _head(self, runtime: Runtime, normal: Shared, inputs: Mapping[str, Value], padding: Padding) -> Disclosed:
        if self.config.head == "embedding":
            return self._pooled(runtime, normal, inputs, padding)
        if self.config.head == "tokens":
            wire = _open_last(runtime, normal).beside(padding.column)
            return _disclosed(runtime, matmul(runtime, wire, need(inputs["classifier"], Masked)))
        first, column = normal[:, 0], padding.column[:, 0]  # (batch, hidden), (batch, 1)
        pooled = matmul(runtime, _open_last(runtime, first).beside(column), need(inputs["pooler"], Masked))
        return self._classify(runtime, pooled, column, inputs)

    def _classify(self, runtime: Runtime, pooled: Shared, column: Masked, inputs: Mapping[str, Value]) -> Disclosed:
        """The pooler's activation, one opening for tanh, and the classifier."""
        if self.config.pooler == "tanh":
            width, fit = w.TANH_LOGIT_WIDTH, entry(f"tanh {self.pooler}")
            activated = activate_one(runtime, pooled, fit, bits=24, dealt_scale=20, public_scale=18)
        else:
            width = w.LOGIT_WIDTH
            activated = relu(runtime, pooled, w.relu_width(self.pooler), w.HIDDEN_SCALE, width)
        (wire,) = runtime.open(activated.at(w.HIDDEN_SCALE, width))
        return _disclosed(runtime, matmul(runtime, wire.beside(column), need(inputs["classifier"], Masked)))

    def _pooled(self, runtime: Runtime, normal: Shared, inputs: Mapping[str, Value], padding: Padding) -> Disclosed:
        """γ·ΣX′ + β·Σm over a sentence; the client, who knows its length, divides. (`cls`: the first row alone.)"""
        if self.config.pooling == "cls":
            rows, column = normal[:, 0], padding.column[:, 0]
        else:
            rows, column = normal.map(lambda tensor: tensor.sum(1)), padding.column.map(lambda tensor: tensor.sum(1))
        scaled = multiply(runtime, _open_last(runtime, rows), need(inputs["final_gain"], Masked))  # (batch, hidden)
        shift = matmul(runtime, column * (1 << w.HIDDEN_SCALE), need(inputs["final_bias"], Masked))
        return _disclosed(runtime, scaled + shift.rescaled(scaled.scale))


def _normal(
    runtime: Runtime, residual: Shared, setting: NormSetting, epsilon: Masked, padding: Padding, witness: Witness
) -> Shared:
    with runtime.scope("layernorm"):
        return normalise(runtime, residual, setting, padding.gate, unmask(runtime, epsilon), witness)


def _residual(runtime: Runtime, hidden: Masked, gain: Masked, mean: Masked, scale: int) -> Shared:
    """X′⊙γ minus its row mean, at the scale of what it is added to."""
    scaled = multiply(runtime, hidden, gain)
    average = matmul(runtime, hidden, mean)
    return runtime.drop_to(scaled, scale) - runtime.drop_to(average, scale)


def _open_last(runtime: Runtime, normal: Shared) -> Masked:
    (wire,) = runtime.open(normal.at(w.HIDDEN_SCALE))
    return wire


def _disclosed(runtime: Runtime, result: Shared) -> Disclosed:
    """What the client gets: no finer than it is accurate, and no more bits than a result has."""
    width = result.width - (result.scale - w.RESULT_SCALE)
    return runtime.disclose(result, w.RESULT_SCALE, min(width, w.RESULT_WIDTH))


def _thirds(product: Shared) -> tuple[Shared, Shared, Shared]:
    size = product.shape[-1] // 3
    return product[..., :size], product[..., size : 2 * size], product[..., 2 * size :]

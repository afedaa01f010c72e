"""The encoder as the paper's systems compute it: on shares at 16 fraction bits, every product by Beaver.

One program for the four suites of the paper; what differs is the suite's GeLU, Softmax and LayerNorm. A
linear map opens its input at 64 bits; the weights are static wires, opened once a model by `upload_program`.
Q, K and V open X once each, as CrypTen does. Local truncation fails with probability |v|·2^-32 a product
(beaver.py): the paper's arithmetic.

    inputs      embedding   (batch, n, hidden)  the summed embedding rows, or
                one_hot     (batch, n, vocabulary), scale 0, times the word table (`one_hot=True`)
                mask        (batch, n), scale 0, 1 for a token
                weights     under the flat names of weights.py: matrices and gains as wires, biases as shares
    outputs     hidden, result, as in plain.py

**`count_as_published`** traces what the paper's public scripts send instead (errata, Table 3): both operands
of every matmul at every inference, one-hot embedding, the functions of published.py, no mask, no pooler. To
be counted, not used.

`deflation` holds η for a place: "embedding_norm", "layers.0.attention_norm", "layers.0.softmax", "head"; the
suite's default serves where it holds none. `twins.measure_deflation` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from secformer.engine.program import Inputs, InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared
from secformer.errors import SettingsError
from secformer.models.config import ModelConfig
from secformer.models.weights import shapes
from secformer.protocols import newton, published
from secformer.protocols.adder import relu
from secformer.protocols.beaver import (
    FRACTION_BITS,
    RING_BITS,
    matmul,
    multiply,
    open_whole,
    settle,
    square,
)
from secformer.protocols.multiply import matmul as matmul_wires
from secformer.protocols.rows import row_sum, scaled
from secformer.protocols.sigmoid import silu_crypten, tanh_crypten
from secformer.protocols.suites import Suite

HEAD_DEFLATION = {True: 16.0, False: 1.0}  # by Goldschmidt or not: squared lengths of sentence vectors are near 10
EMBEDDING_TABLES = ("word", "position", "token_type")


@dataclass(frozen=True)
class Baseline:
    config: ModelConfig
    suite: Suite
    batch: int
    length: int
    one_hot: bool = False
    count_as_published: bool = False
    deflation: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.suite.ours:
            raise SettingsError(f"suite {self.suite.name} computes on wires: use models.encoder")
        if not 1 <= self.length <= self.config.positions:
            raise SettingsError(f"the model takes 1 to {self.config.positions} tokens, not {self.length}")

    # -- programs --------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """One inference. Weights are the outputs of `upload_program`, in the published count plain shares."""
        name = f"baseline {self.suite.name}"
        settings = f"{self.config}\n{self.suite}\n{sorted(self.deflation.items())}\n{self.count_as_published}"
        return Program(name, self.body, {**self._input_specs(), **self.weight_specs()}, settings)

    def _input_specs(self) -> dict[str, InputSpec]:
        rows = (self.batch, self.length)
        if self.one_hot:
            specs = {"one_hot": InputSpec("shared", (*rows, self.config.vocabulary), RING_BITS, 0)}
        else:
            specs = {"embedding": InputSpec("shared", (*rows, self.config.hidden), RING_BITS, FRACTION_BITS)}
        if not self.count_as_published:
            specs["mask"] = InputSpec("shared", rows, RING_BITS, 0)
        return specs

    def weight_specs(self) -> dict[str, InputSpec]:
        """Every tensor this program reads. Position and type rows belong to whoever sums the embedding."""
        specs = {}
        for name, shape in shapes(self.config).items():
            if name in EMBEDDING_TABLES and not (self.one_hot and name == "word"):
                continue
            opened = (name == "word" or name.endswith((".weight", ".gain"))) and not self.count_as_published
            specs[name] = InputSpec("masked" if opened else "shared", shape, RING_BITS, FRACTION_BITS)
        return specs

    def upload_program(self) -> Program:
        """Open matrices and gains once; biases pass through."""
        forms = self.weight_specs()
        return Program("baseline upload", upload, {name: replace(form, kind="shared") for name, form in forms.items()})

    # -- the encoder -----------------------------------------------------------------------------------------

    def body(self, runtime: Runtime, inputs: Inputs) -> Outputs:
        run = Run(self, runtime, inputs)
        hidden = run.embed()
        for index in range(self.config.layers):
            with runtime.scope(f"layer {index}"):
                hidden = run.layer(hidden, f"layers.{index}")
        if self.count_as_published:
            return {"hidden": hidden}
        with runtime.scope("head"):
            return {"hidden": hidden, "result": run.head(hidden)}


def upload(runtime: Runtime, inputs: Inputs) -> Outputs:
    outputs: Outputs = dict(inputs)
    with runtime.scope("upload"):
        for name in sorted(inputs):
            value = inputs[name]
            assert isinstance(value, Shared)
            if not name.endswith(".bias"):
                outputs[name] = open_whole(runtime, value)[0].as_static()
    return outputs


class Run:
    """One reading of the program: the runtime and the inputs at hand."""

    def __init__(self, model: Baseline, runtime: Runtime, inputs: Inputs) -> None:
        self.model, self.config, self.suite = model, model.config, model.suite
        self.runtime, self.inputs = runtime, inputs
        self.mask = None if model.count_as_published else self._shared("mask")

    def _shared(self, name: str) -> Shared:
        value = self.inputs[name]
        assert isinstance(value, Shared)
        return value

    def _weight(self, name: str) -> Shared | Masked:
        value = self.inputs[name]
        assert isinstance(value, Shared | Masked)
        return value

    def embed(self) -> Shared:
        with self.runtime.scope("embedding"):
            if self.model.one_hot:
                x = self._product(self._shared("one_hot"), self._weight("word"))
            else:
                x = self._shared("embedding")
        return self._norm(x, "embedding_norm")

    def layer(self, x: Shared, name: str) -> Shared:
        attended = self._linear(self._attention(x, name), f"{name}.output")
        x = self._norm(x + attended, f"{name}.attention_norm")
        inner = self._linear(x, f"{name}.up")
        with self.runtime.scope("gelu"):
            inner = self._activate(inner)
        return self._norm(x + self._linear(inner, f"{name}.down"), f"{name}.output_norm")

    def _attention(self, x: Shared, name: str) -> Shared:
        query, key, value = (self._heads(self._linear(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        query = scaled(self.runtime, query, 1 / math.sqrt(self.config.head_size))
        with self.runtime.scope("linear"):
            scores = matmul(self.runtime, query, key.map(lambda tensor: tensor.transpose(-1, -2).contiguous()))
        with self.runtime.scope("softmax"):
            weights = self._softmax(scores, name)
        with self.runtime.scope("linear"):
            context = matmul(self.runtime, weights, value)  # (batch, heads, n, d)
        return context.map(lambda tensor: tensor.transpose(1, 2).flatten(-2))

    def _heads(self, rows: Shared) -> Shared:
        """(batch, n, hidden) → (batch, heads, n, d)."""
        sizes = (self.config.heads, self.config.head_size)
        return rows.map(lambda tensor: tensor.unflatten(-1, sizes).transpose(1, 2).contiguous())

    def _softmax(self, scores: Shared, name: str) -> Shared:
        if self.mask is None:
            if self.suite.softmax in published.SOFTMAX:
                return published.SOFTMAX[self.suite.softmax](self.runtime, scores)
            return self.suite.attention_weights(self.runtime, scores, None)
        keys = self.mask.map(lambda tensor: tensor[:, None, None, :])
        eta = self.model.deflation.get(f"{name}.softmax")
        return self.suite.attention_weights(self.runtime, scores, keys, eta, quad_shift(self.config, self.suite))

    def _activate(self, x: Shared) -> Shared:
        if self.config.activation == "relu":
            return relu(self.runtime, x)
        if self.config.activation == "silu":
            return silu_crypten(self.runtime, x)
        if self.model.count_as_published:
            return published.GELU[self.suite.activation](self.runtime, x)
        return self.suite.activate(self.runtime, x)

    def _norm(self, x: Shared, name: str) -> Shared:
        gain, bias = self._weight(f"{name}.gain"), self._shared(f"{name}.bias")
        eta = self.model.deflation.get(name)
        with self.runtime.scope("layernorm"):
            return self.suite.normalise(self.runtime, x, gain, bias, self.config.layer_norm_eps, eta)

    def _linear(self, x: Shared, name: str) -> Shared:
        with self.runtime.scope("linear"):
            return self._product(x, self._weight(f"{name}.weight")) + self._shared(f"{name}.bias")

    def _product(self, x: Shared, weight: Shared | Masked) -> Shared:
        """x @ weight; only x is opened if the weight is a wire."""
        if isinstance(weight, Shared):
            return matmul(self.runtime, x, weight)
        (opened,) = open_whole(self.runtime, x)
        return settle(self.runtime, matmul_wires(self.runtime, opened, weight))

    # -- heads -----------------------------------------------------------------------------------------------

    def head(self, x: Shared) -> Shared:
        if self.config.head == "embedding":
            with self.runtime.scope("other"):
                pooled = x[:, 0] if self.config.pooling == "cls" else self._mean(x)
                return self._unit_length(pooled) if self.config.normalise else pooled
        if self.config.has_pooler:
            x = self._linear(x[:, 0], "pooler")
            with self.runtime.scope("other"):
                activation = tanh_crypten if self.config.pooler_activation == "tanh" else relu
                x = activation(self.runtime, x)
        return self._linear(x, "classifier")

    def _mean(self, x: Shared) -> Shared:
        """Σ m·x/n divided by Σ m/n, which lies in [1/n, 1]."""
        assert self.mask is not None
        part = 1 / self.model.length
        kept = multiply(self.runtime, x, self.mask.map(lambda tensor: tensor.unsqueeze(-1)))
        total = scaled(self.runtime, kept.map(lambda tensor: tensor.sum(1)), part)
        share = scaled(self.runtime, row_sum(self.mask).raise_scale(FRACTION_BITS), part)
        return multiply(self.runtime, total, newton.reciprocal(self.runtime, share, variant="paper"))

    def _unit_length(self, pooled: Shared) -> Shared:
        eta = self.model.deflation.get("head", HEAD_DEFLATION[self.suite.uses_goldschmidt])
        squared = row_sum(square(self.runtime, pooled))
        return multiply(self.runtime, pooled, self.suite.inverse_sqrt(self.runtime, squared, eta))


def quad_shift(config: ModelConfig, suite: Suite) -> float:
    """A distilled student brings its own c."""
    return config.quad_shift if config.softmax == "2quad" else suite.shift

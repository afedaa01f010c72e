"""The encoder as the paper's systems compute it: on shares at 16 fraction bits, every product by Beaver.

One program for the four suites of the paper; what differs is the suite's GeLU, Softmax and LayerNorm. A
linear map opens its input at 64 bits; the weights are static wires. Q, K and V open X once each, as CrypTen does. Local
truncation fails with probability |v|·2^-32 a product (beaver.py): the paper's arithmetic. Before a result leaves it is cut
to 32 bits, in which such a failure, a multiple of 2^42, is zero.

    inputs      embedding   (batch, n, hidden)  the summed embedding rows, or
                one_hot     (batch, n, vocabulary), scale 0, times the word table (as published)
                mask        (batch, n), scale 0, 1 for a token
                weights     under the flat names of weights.py: matrices and gains as wires, biases as shares
    outputs     result, as in plain.py

**`published`** traces what the paper's public scripts send instead (errata, Table 3): both operands of every matmul at
every inference, one-hot embedding, the functions of published.py, no mask, no pooler. To be counted, not used.

`deflation` holds η for a place: "embedding_norm", "layers.0.attention_norm", "layers.0.softmax", "head"; the
variant's default serves where it holds none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from secformer.engine.form import Form, masked, shared
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared, need
from secformer.errors import SettingsError
from secformer.models.config import ModelConfig
from secformer.models.embedding import ASKED
from secformer.models.positions import bias_classes
from secformer.models.weights import shapes
from secformer.protocols.multiply import matmul as matmul_wires
from secformer_lab.paper import newton
from secformer_lab.paper.beaver import FRACTION_BITS, RING_BITS, matmul, multiply, open_whole, settle, square
from secformer_lab.paper.rows import row_sum, scaled
from secformer_lab.paper.variants import LayerNorm, Softmax, Unary

EMBEDDING_TABLES = ("word", "position", "token_type")
RESULT = "result"
RESULT_SCALE = 11
RESULT_WIDTH = 32


@dataclass(frozen=True)
class Variants:
    """A suite's choice."""

    activation: Unary
    head: Unary
    softmax: Softmax
    layernorm: LayerNorm


@dataclass(frozen=True)
class BaselineEncoder:
    config: ModelConfig
    variants: Variants
    deflation: Mapping[str, float] = field(default_factory=dict)
    published: bool = False

    def weight_forms(self) -> dict[str, Form]:
        """Every tensor this program reads. Position and type rows belong to whoever sums the embedding."""
        found = {}
        for name, shape in shapes(self.config).items():
            if name not in EMBEDDING_TABLES or (self.published and name == "word"):
                wire = name.endswith((".weight", ".gain")) and not self.published
                found[name] = (masked if wire else shared)(shape, RING_BITS, FRACTION_BITS)
        return found

    def program(self, batch: int, tokens: int) -> Program:
        """One inference from the summed embedding (as published: from one-hot rows), weights as inputs."""
        if not 1 <= tokens <= self.config.positions:
            raise SettingsError(f"the model takes 1 to {self.config.positions} tokens, not {tokens}")
        forms = self.weight_forms()
        if self.published:
            forms["one_hot"] = shared((batch, tokens, self.config.vocabulary))
        else:
            forms["embedding"] = shared((batch, tokens, self.config.table_size), RING_BITS, FRACTION_BITS)
            forms["mask"] = shared((batch, tokens))
        settings = f"{self.config}\n{sorted(self.deflation.items())}\n{self.published}"
        return Program("baseline encoder", self.body, forms, {RESULT: RESULT_SCALE}, settings)

    def body(self, runtime: Runtime, inputs: Inputs) -> Outputs:
        run = Run(self, runtime, inputs)
        hidden = run.embed()
        for index in range(self.config.layers):
            with runtime.scope(f"layer {index}"):
                hidden = run.layer(hidden, index)
        if self.published:
            return {RESULT: runtime.disclose(hidden, RESULT_SCALE, RESULT_WIDTH)}
        with runtime.scope("head"):
            return {RESULT: runtime.disclose(run.head(hidden), RESULT_SCALE, RESULT_WIDTH)}


class Run:
    """One reading of the program: the runtime and the inputs at hand."""

    def __init__(self, model: BaselineEncoder, runtime: Runtime, inputs: Inputs) -> None:
        self.model, self.config, self.variants = model, model.config, model.variants
        self.runtime, self.inputs = runtime, inputs
        self.mask = None if model.published else self._shared("mask")

    def _shared(self, name: str) -> Shared:
        return need(self.inputs[name], Shared)

    def _weight(self, name: str) -> Shared | Masked:
        value = self.inputs[name]
        return value if isinstance(value, Masked) else need(value, Shared)

    def embed(self) -> Shared:
        """(batch, n, hidden)."""
        with self.runtime.scope("embedding"):
            if self.model.published:
                x = self._product(self._shared("one_hot"), self._weight("word"))
            else:
                x = self._shared("embedding")
        x = self._norm(x, "embedding_norm", "embedding_norm")
        return self._linear(x, "projection") if self.config.embedding_size else x

    def layer(self, x: Shared, index: int) -> Shared:
        name, place = f"layers.{self.config.own_layer(index)}", f"layers.{index}"
        attended = self._linear(self._attention(x, name, place), f"{name}.output")
        x = self._norm(x + attended, f"{name}.attention_norm", f"{place}.attention_norm")
        inner = self._linear(x, f"{name}.up")  # (batch, n, intermediate)
        with self.runtime.scope("gelu"):
            inner = self._activate(inner)
        return self._norm(x + self._linear(inner, f"{name}.down"), f"{name}.output_norm", f"{place}.output_norm")

    def _attention(self, x: Shared, name: str, place: str) -> Shared:
        query, key, value = (self._heads(self._linear(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        query = scaled(self.runtime, query, 1 / math.sqrt(self.config.head_size))
        with self.runtime.scope("linear"):
            transposed = key.map(lambda tensor: tensor.transpose(-1, -2).contiguous())
            scores = matmul(self.runtime, query, transposed)  # (batch, heads, n, n)
            if self.config.relative_buckets:
                scores = scores + self._relative(scores.shape[-1])
        with self.runtime.scope("softmax"):
            weights = self._softmax(scores, place)
        with self.runtime.scope("linear"):
            context = matmul(self.runtime, weights, value)  # (batch, heads, n, d)
        return context.map(lambda tensor: tensor.transpose(1, 2).flatten(-2))  # (batch, n, hidden)

    def _relative(self, tokens: int) -> Shared:
        """A bias by distance (1, heads, n, n); what padded keys get, Softmax masks."""

        def spread(tensor: Tensor) -> Tensor:
            return tensor.T[:, bias_classes(self.config, tokens, tensor.device)][None]

        return self._shared("relative").map(spread)

    def _heads(self, rows: Shared) -> Shared:
        """(batch, n, hidden) → (batch, heads, n, d)."""
        sizes = (self.config.heads, self.config.head_size)
        return rows.map(lambda tensor: tensor.unflatten(-1, sizes).transpose(1, 2).contiguous())

    def _softmax(self, scores: Shared, place: str) -> Shared:
        variant = self.variants.softmax
        if self.model.published and variant.published is not None:
            return variant.published(self.runtime, scores)
        keys = None if self.mask is None else self.mask.map(lambda tensor: tensor[:, None, None, :])
        eta = self.model.deflation.get(f"{place}.softmax", variant.default_eta)
        return variant.protocol(self.runtime, scores, keys, self.config.quad_shift, eta)

    def _activate(self, x: Shared) -> Shared:
        variant = self.variants.activation
        if self.model.published and variant.published is not None:
            return variant.published(self.runtime, x)
        return variant.protocol(self.runtime, x)

    def _norm(self, x: Shared, name: str, place: str) -> Shared:
        gain, bias = self._weight(f"{name}.gain"), self._shared(f"{name}.bias")
        eta = self.model.deflation.get(place, self.variants.layernorm.default_eta)
        with self.runtime.scope("layernorm"):
            return self.variants.layernorm.protocol(self.runtime, x, gain, bias, self.config.layer_norm_eps, eta)

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
            pooled = self._dense(pooled) if self.config.dense_size else pooled
            with self.runtime.scope("other"):
                return self._unit_length(pooled) if self.config.normalise else pooled
        if self.config.head == "masked":
            with self.runtime.scope("other"):
                x = matmul(self.runtime, self._shared(ASKED).raise_scale(FRACTION_BITS), x)  # (batch, asked, hidden)
        if self.config.pooler:
            x = self._head_activation(self._linear(x[:, 0], "pooler"))
        elif self.config.transform:
            activated = self._head_activation(self._linear(x, "transform"))
            x = self._norm(activated, "transform_norm", "transform_norm")
        return self._linear(x, "classifier")

    def _head_activation(self, x: Shared) -> Shared:
        with self.runtime.scope("other"):
            return self.variants.head.protocol(self.runtime, x)

    def _dense(self, pooled: Shared) -> Shared:
        found = self._linear(pooled, "dense")
        return self._head_activation(found) if self.config.dense_activation else found

    def _mean(self, x: Shared) -> Shared:
        """Σ m·x/n divided by Σ m/n, which lies in [1/n, 1]."""
        assert self.mask is not None
        part = 1 / x.shape[1]
        kept = multiply(self.runtime, x, self.mask.map(lambda tensor: tensor.unsqueeze(-1)))
        total = scaled(self.runtime, kept.map(lambda tensor: tensor.sum(1)), part)  # (batch, hidden)
        share = scaled(self.runtime, row_sum(self.mask).raise_scale(FRACTION_BITS), part)
        return multiply(self.runtime, total, newton.reciprocal(self.runtime, share, variant="paper"))

    def _unit_length(self, pooled: Shared) -> Shared:
        eta = self.model.deflation.get("head", self.variants.layernorm.head_eta)
        squared = row_sum(square(self.runtime, pooled))
        inverse = self.variants.layernorm.inverse_length(self.runtime, squared, eta)
        return multiply(self.runtime, pooled, inverse)

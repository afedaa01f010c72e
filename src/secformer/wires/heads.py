"""What comes behind the last layer: from X′ to the result that the client gets.

    embedding               γ·ΣX′ + β·Σm over a sentence, which the client divides by its length; or the first row alone;
                            with a map behind it that map of it, and with a tanh behind that the mean itself is taken here
    classification, choice  the first row, a map and its activation, the classifier
    tokens, question        the classifier of every row
    masked                  rows that the client's secret one-hot rows choose; a map, its activation, LayerNorm, and the words

A mean before something that is not linear is a product with the client's own shares of the tokens, 1/length each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from secformer.engine.runtime import Runtime
from secformer.engine.values import Disclosed, Masked, MaskedBits, Shared, Value, need
from secformer.models.config import ModelConfig
from secformer.models.embedding import ASKED, Padding
from secformer.protocols.activation import activate_one
from secformer.protocols.evidence import Evidence
from secformer.protocols.lift import lift
from secformer.protocols.menu import entry
from secformer.protocols.multiply import matmul, multiply
from secformer.protocols.normalise import NormSetting, Witness, normalise
from secformer.protocols.rectifier import relu
from secformer.wires import choices
from secformer.wires import widths as w


@dataclass(frozen=True)
class Head:
    """The head of one query. `window` is that of its activation's series, or log2 of its ReLU's limit."""

    config: ModelConfig
    transform_norm: NormSetting | None
    window: int
    inputs: Mapping[str, Value]
    padding: Padding
    evidence: Evidence

    def _static(self, name: str) -> Masked:
        return need(self.inputs[name], Masked)

    def run(self, runtime: Runtime, normal: Shared) -> Disclosed:
        if self.config.head == "embedding":
            return self._vector(runtime, normal)
        rows, column, real, gate = self._rows(runtime, normal)
        if self.config.pooler:
            product = matmul(runtime, rows.beside(column), self._static("pooler"))
            rows = self._pooler(runtime, product)
        elif self.config.transform:
            product = matmul(runtime, rows.beside(column), self._static("transform"))
            rows = self._transformed(runtime, product, gate, Witness(self.evidence, "norm", real))
        logits = matmul(runtime, rows.beside(column), self._static("classifier"))
        return _disclosed(runtime, logits[:, 0] if self.config.one_row else logits)

    def _rows(self, runtime: Runtime, normal: Shared) -> tuple[Masked, Masked, Shared, MaskedBits | None]:
        """What is classified: the first token or the mean, tokens asked for, or all; the column of ones; which rows are real."""
        padding = self.padding
        if self.config.one_row:
            row = self._one_row(runtime, normal).map(lambda tensor: tensor[:, None])  # (batch, 1, hidden)
            return row, padding.column[:, :1], padding.share[:, :1], None
        if self.config.head != "masked":
            return _open_last(runtime, normal), padding.column, padding.share, padding.gate
        chosen = self._asked(runtime, normal)
        (rows,) = runtime.open(chosen.at(w.HIDDEN_SCALE))
        shape = (-1, rows.shape[1], -1)
        column = padding.column[:, :1].map(lambda tensor: tensor.expand(shape))  # a first token is real: its bit is 1
        return rows, column, padding.share[:, :1].map(lambda tensor: tensor.expand(shape)), None

    def _asked(self, runtime: Runtime, normal: Shared) -> Shared:
        """Rows of X′ that the client's one-hot rows choose, or their mean by its shares (batch, asked, hidden)."""
        asked = need(self.inputs[ASKED], Shared)
        hidden, choice = runtime.open(normal.at(w.HIDDEN_SCALE), asked.at(asked.scale, w.FINAL_WIDTH))
        return matmul(runtime, choice, hidden)

    def _pooler(self, runtime: Runtime, product: Shared) -> Masked:
        width = w.LOGIT_WIDTH if self._rectifies_head else w.SERIES_LOGIT_WIDTH
        (wire,) = runtime.open(self._head_activation(runtime, product).at(w.HIDDEN_SCALE, width))
        return wire

    @property
    def _rectifies_head(self) -> bool:
        return choices.head_windows(self.config.head_activation) == choices.RELU_BITS

    def _head_activation(self, runtime: Runtime, product: Shared) -> Shared:
        """One opening for a series. What goes in has a bound: it is not watched."""
        name, window = self.config.head_activation, self.window
        if self._rectifies_head:
            return relu(runtime, product, w.relu_width(window), w.HIDDEN_SCALE, w.LOGIT_WIDTH)
        fit = entry(f"{name} {window if name == 'tanh' else choices.HEAD_WINDOWS[window]}")
        return activate_one(runtime, product, fit, bits=24, dealt_scale=20, public_scale=18)

    def _transformed(self, runtime: Runtime, product: Shared, gate: MaskedBits | None, witness: Witness) -> Masked:
        """X′ of the activation's rows. A row times its size less its sum is the centred one, but for a public factor."""
        assert self.transform_norm is not None
        activated = self._head_activation(runtime, product)
        size = activated.shape[-1]
        total = activated.map(lambda tensor: tensor.sum(-1, keepdim=True).expand(tensor.shape))
        centred = (activated * size - total).rescaled(activated.scale + math.ceil(math.log2(size)))
        normal = normalise(runtime, centred, self.transform_norm, gate, None, witness)
        (wire,) = runtime.open(normal.at(w.HIDDEN_SCALE, w.LOGIT_WIDTH))
        return wire

    def _vector(self, runtime: Runtime, normal: Shared) -> Disclosed:
        """A sentence's vector; but for a tanh behind its mean the sum over the tokens, which the client divides."""
        padding = self.padding
        if self.config.dense_activation:
            rows, column = self._one_row(runtime, normal), padding.column[:, 0]
            product = matmul(runtime, rows.beside(column), self._static("dense"))
            return _disclosed(runtime, self._head_activation(runtime, product))
        if self.config.pooling == "cls":
            summed, column = normal[:, 0], padding.column[:, 0]
        else:
            summed, column = normal.map(lambda tensor: tensor.sum(1)), padding.column.map(lambda tensor: tensor.sum(1))
        rows = _open_last(runtime, summed)
        if self.config.dense_size:
            return _disclosed(runtime, matmul(runtime, rows.beside(column), self._static("dense")))
        scaled = multiply(runtime, rows, self._static("final_gain"))  # (batch, hidden)
        shift = matmul(runtime, column * (1 << w.HIDDEN_SCALE), self._static("final_bias"))
        return _disclosed(runtime, scaled + shift.rescaled(scaled.scale))

    def _one_row(self, runtime: Runtime, normal: Shared) -> Masked:
        """The mean of X′ over a sentence, or its first row: (batch, hidden). |X′| ≤ √hidden, a mean's too: it is lifted."""
        if not self.config.shares_in_mean:
            return _open_last(runtime, normal[:, 0])
        mean = self._asked(runtime, normal)[:, 0]
        bits = math.ceil(math.log2(self.config.hidden) / 2) + 1
        (narrow,) = runtime.open(mean.at(w.HIDDEN_SCALE, w.HIDDEN_SCALE + bits + 2))
        return _open_last(runtime, lift(runtime, narrow, w.FINAL_WIDTH))


def _open_last(runtime: Runtime, normal: Shared) -> Masked:
    (wire,) = runtime.open(normal.at(w.HIDDEN_SCALE))
    return wire


def _disclosed(runtime: Runtime, result: Shared) -> Disclosed:
    """What the client gets: no finer than it is accurate, and no more bits than a result has."""
    width = result.width - (result.scale - w.RESULT_SCALE)
    return runtime.disclose(result, w.RESULT_SCALE, min(width, w.RESULT_WIDTH))

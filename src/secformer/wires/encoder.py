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
What tells of ranges that were left rides in the same rounds (protocols/evidence.py), and is a second result. layers.py has a
layer, heads.py what comes behind the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secformer.engine.program import Outputs
from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared, Value, need
from secformer.models.config import ModelConfig
from secformer.models.embedding import Embedding, Padding
from secformer.models.system import EVIDENCE, RESULT
from secformer.protocols.evidence import Evidence, Place
from secformer.protocols.lift import lift, unmask_lifted
from secformer.protocols.multiply import matmul, unmask
from secformer.protocols.normalise import Witness, normalise_stream
from secformer.wires import widths as w
from secformer.wires.heads import Head
from secformer.wires.layers import Layer
from secformer.wires.statics import EMBEDDING_EPSILON, PROJECTION, layer_wires
from secformer.wires.widths import EncoderSetting


@dataclass(frozen=True)
class Encoder:
    """A secure encoder. `body` is the program; `head_window` is that of the head's series, or log2 of its ReLU's limit."""

    config: ModelConfig
    setting: EncoderSetting
    embedding: Embedding
    head_window: int

    @property
    def places(self) -> tuple[Place, ...]:
        """What the counts of the evidence stand for."""
        kinds = ["scores", "values", "attention norm", "activation", "output norm"]
        if self.setting.layers[0].activation is None:  # a ReLU's input has a bound
            kinds.remove("activation")
        layers = ((f"layer {index}", kind) for index in range(self.config.layers) for kind in kinds)
        return (("embedding", "norm"), *layers, *([("head", "norm")] if self.config.transform else []))

    def body(self, runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        evidence = Evidence()
        with runtime.scope("embedding"), runtime.scope("embedding"):
            residual, padding = self.embedding.read(runtime, inputs)
        with runtime.scope("embedding"), runtime.scope("layernorm"):
            witness = Witness(evidence, "norm", padding.share)
            epsilon = unmask(runtime, need(inputs[EMBEDDING_EPSILON], Masked))
            norm = self.setting.embedding_norm
            normal, lifted = normalise_stream(runtime, residual, norm, padding.gate, epsilon, witness)
            stream = unmask_lifted(runtime, lifted) if self.config.image_size else None
        if self.config.embedding_size:
            with runtime.scope("embedding"), runtime.scope("linear"):
                normal = self._project(runtime, normal, need(inputs[PROJECTION], Masked), padding)
        for index, setting in enumerate(self.setting.layers):
            with runtime.scope(f"layer {index}"):
                layer = Layer(self.config, index, setting, layer_wires(inputs, self.config, index), padding, evidence)
                normal, stream = layer.run(runtime, normal, stream)
        with runtime.scope("head"), runtime.scope("other"):
            head = Head(self.config, self.setting.transform_norm, self.head_window, inputs, padding, evidence)
            result = head.run(runtime, normal)
        with runtime.scope("head"), runtime.scope("evidence"):
            return {RESULT: result, EVIDENCE: evidence.disclosed(runtime, self.places)}

    def _project(self, runtime: Runtime, normal: Shared, projection: Masked, padding: Padding) -> Shared:
        """From the embedding's size to that of the layers. A bound holds the result: it is lifted, not watched."""
        (wire,) = runtime.open(normal.at(w.HIDDEN_SCALE, projection.width))
        product = matmul(runtime, wire.beside(padding.column), projection)  # (batch, n, hidden)
        (narrow,) = runtime.open(product.at(w.HIDDEN_SCALE, self.setting.projection_width))
        return lift(runtime, narrow, w.RING)

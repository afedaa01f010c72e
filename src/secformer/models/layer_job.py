"""One encoder layer as a program of its own, for `secformer bench layer`: hidden states in, hidden states out.

Two short rounds come before it, which open the padding bits; a whole model does that once, beside its embedding.
"""

from __future__ import annotations

from collections.abc import Mapping

from secformer.engine.program import InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Masked, Shared, Value
from secformer.models import settings as s
from secformer.models.baseline import Run
from secformer.models.embedding import Padding
from secformer.models.encoder import Encoder
from secformer.models.job import Card, ModelCard
from secformer.models.paper_job import PaperCard, as_baseline
from secformer.protocols.bits import bit_to_arithmetic

RESULT_SCALE = 16


def layer_program(card: Card, batch: int, tokens: int) -> Program:
    """Layer 0 of a model. Input `x` is X′ for our suites (before γ and β), the hidden state itself for the paper's."""
    build = _wire_layer if isinstance(card, ModelCard) else _paper_layer
    return build(card, batch, tokens)  # type: ignore[arg-type]


def _padding(runtime: Runtime, mask: Value) -> Padding:
    assert isinstance(mask, Bits)
    with runtime.scope("padding"), runtime.scope("other"):
        (gate,) = runtime.open(mask)
        share = bit_to_arithmetic(runtime, gate)
        (column,) = runtime.open(share)
    return Padding(gate, column, share)


def _wire_layer(card: ModelCard, batch: int, tokens: int) -> Program:
    encoder = Encoder(card.config, card.widths(tokens), batch, tokens)
    setting = encoder.setting.layers[0]

    def body(runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        padding = _padding(runtime, inputs["mask"])
        static = {name.removeprefix("0."): wire for name, wire in inputs.items() if name.startswith("0.")}
        x = inputs["x"]
        assert isinstance(x, Shared)
        with runtime.scope("layer 0"):
            normal = encoder.layer(runtime, x, static, padding, setting)
        return {"result": runtime.drop(normal, normal.scale - RESULT_SCALE)}

    static = {name: spec for name, spec in card.static_specs().items() if name.startswith("0.")}
    shape = (batch, tokens, card.config.hidden)
    x = InputSpec("shared", shape, setting.hidden_width, s.HIDDEN_SCALE)
    mask = InputSpec("bits", (batch, tokens, 1), 1)
    return Program("layer", body, {**static, "x": x, "mask": mask}, card.to_json())


def _paper_layer(card: PaperCard, batch: int, tokens: int) -> Program:
    model = card.model(batch, tokens)

    def body(runtime: Runtime, inputs: Mapping[str, Value]) -> Outputs:
        padding = _padding(runtime, inputs["mask"])
        x = inputs["x"]
        assert isinstance(x, Shared)
        weights = {
            name: as_baseline(runtime, model, name, wire) for name, wire in inputs.items() if isinstance(wire, Masked)
        }
        mask = padding.share.map(lambda tensor: tensor.squeeze(-1))
        run = Run(model, runtime, {**weights, "mask": mask})
        with runtime.scope("layer 0"):
            return {"result": run.layer(x, "layers.0")}

    static = {name: spec for name, spec in card.static_specs().items() if name.startswith("layers.0.")}
    x = InputSpec("shared", (batch, tokens, card.config.hidden), 64, card.embedding.scale)
    mask = InputSpec("bits", (batch, tokens, 1), 1)
    return Program("layer", body, {**static, "x": x, "mask": mask}, card.to_json())

"""The first layer of a model by itself, for measurements. A suite registers how its cards give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

from secformer.engine.form import Form, shared
from secformer.engine.program import Inputs
from secformer.engine.runtime import Runtime
from secformer.engine.values import Shared
from secformer.models.embedding import Padding
from secformer.models.system import Card
from secformer.protocols.evidence import Evidence
from secformer.wires import widths as w
from secformer.wires.card import WiresCard
from secformer.wires.layers import Layer
from secformer.wires.statics import layer_wires
from secformer_lab.paper.beaver import FRACTION_BITS, RING_BITS
from secformer_lab.paper.encoder import Run
from secformer_lab.paper.suites import BaselineCard


@dataclass(frozen=True)
class LayerPart:
    """A layer: hidden states (batch, n, hidden) in and out."""

    prefix: str
    """The beginning of the names of its uploaded tensors."""
    form: Callable[[int, int], Form]
    """The form of the hidden states that go in, by batch and length."""
    run: Callable[[Runtime, Inputs, Shared, Padding], Shared]
    norms: tuple[str, str] | None = None
    """The LayerNorms before and after it, if their γ and β are not in the states that go in and come out."""


@singledispatch
def layer_part(card: Card, tokens: int) -> LayerPart:
    """Return the first layer of a model under its suite."""
    raise TypeError(f"no layer of suite {card.suite} can be measured by itself")


@layer_part.register
def _(card: WiresCard, tokens: int) -> LayerPart:
    setting = card.encoder(tokens).setting.layers[0]

    def form(batch: int, length: int) -> Form:
        return shared((batch, length, card.config.hidden), setting.hidden_width, w.HIDDEN_SCALE)

    def run(runtime: Runtime, inputs: Inputs, x: Shared, padding: Padding) -> Shared:
        static = layer_wires(inputs, card.config, 0)
        return Layer(card.config, 0, setting, static, padding, Evidence()).run(runtime, x)[0]

    return LayerPart("0.", form, run, ("embedding_norm", card.config.output_norm(0)))


@layer_part.register
def _(card: BaselineCard, tokens: int) -> LayerPart:
    def form(batch: int, length: int) -> Form:
        return shared((batch, length, card.config.hidden), RING_BITS, FRACTION_BITS)

    def run(runtime: Runtime, inputs: Inputs, x: Shared, padding: Padding) -> Shared:
        mask = padding.share.map(lambda tensor: tensor.squeeze(-1))  # (batch, n)
        return Run(card.encoder, runtime, {**card.weights(runtime, inputs), "mask": mask}).layer(x, 0)

    return LayerPart("layers.0.", form, run)

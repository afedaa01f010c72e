"""One BERT-base layer between real processes on this machine: the figure everybody compares.

Random weights of the true shapes with activations in a realistic range; the dealer works first, so that online and dealer
seconds are apart, and the servers compute meanwhile what masks alone decide (engine/ahead.py). The result is compared with
the layer in float64 (for a paper suite: with its own twin).

The servers run `python -m secformer_lab.bench.layer`: theirs is the catalogue below, in the place of uploads and queries.
Two short rounds come before the layer, which open the padding bits; a whole model does that once, beside its embedding.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from secformer.engine.form import Form, bits
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded
from secformer.engine.values import Bits, Shared, need
from secformer.errors import InputError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.embedding import MASK, open_padding
from secformer.models.shapes import PRESETS
from secformer.models.system import Card
from secformer.models.tokens import Batch
from secformer.models.weights import Weights, assemble
from secformer.parties import serve
from secformer.parties.planner import Catalogue, read_parameters, upload_program
from secformer.parties.store import StoredModel
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import Settings
from secformer.systems import card_from_json, suite_named
from secformer_lab.bench.parts import layer_part
from secformer_lab.paper.suites import Baseline

BERT_LAYER = replace(PRESETS["bert-base"], layers=1, vocabulary=64)
CALIBRATION_BATCHES = 16
MATERIAL_LIMIT = 4 << 30
UPLOAD, LAYER = "upload layer", "layer"
INPUT, RESULT = "x", "result"
RESULT_SCALE = 16


# -- the program ----------------------------------------------------------------------------------------------------------


def layer_program(card: Card, batch: int, tokens: int) -> Program:
    part = layer_part(card, tokens)

    def body(runtime: Runtime, inputs: Inputs) -> Outputs:
        with runtime.scope("padding"), runtime.scope("other"):
            (gate,) = runtime.open(need(inputs[MASK], Bits))
            padding, _ = open_padding(runtime, gate)
        with runtime.scope("layer 0"):
            result = part.run(runtime, inputs, need(inputs[INPUT], Shared), padding)
        return {RESULT: runtime.disclose(result, RESULT_SCALE)}

    forms = {**layer_forms(card, tokens), INPUT: part.form(batch, tokens), MASK: bits((batch, tokens, 1))}
    return Program("layer", body, forms, {RESULT: RESULT_SCALE}, card.to_json())


def layer_forms(card: Card, tokens: int) -> dict[str, Form]:
    prefix = layer_part(card, tokens).prefix
    return {name: form for name, form in card.static_forms().items() if name.startswith(prefix)}


class _Parameters(Struct, frozen=True, forbid_unknown_fields=True):
    card: str
    tokens: int


def _upload(given: Mapping[str, Any], model: StoredModel | None) -> Program:
    wanted = read_parameters(_Parameters, given)
    forms = layer_forms(card_from_json(wanted.card), wanted.tokens)
    return upload_program({name: form.as_share() for name, form in forms.items()})


def _layer(given: Mapping[str, Any], model: StoredModel | None) -> Program:
    wanted = read_parameters(_Parameters, given)
    if model is None:
        raise InputError("a layer is one of a stored model")
    return layer_program(card_from_json(wanted.card), 1, wanted.tokens)


CATALOGUE: Catalogue = {UPLOAD: _upload, LAYER: _layer}


# -- the measurement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerTiming:
    suite: str
    tokens: int
    seconds: float
    dealer_seconds: float
    rounds: int
    online_bytes: int
    dealer_bytes: int
    max_error: float


def measure_layer(
    tokens: int,
    suite: str,
    repetitions: int = 3,
    progress: Callable[[str], None] = lambda step: None,
    device: str = "cpu",
) -> LayerTiming:
    """Best of a few runs, after one that warms everything up."""
    from secformer.parties.caller import Caller
    from secformer.parties.launch import launch
    from secformer.parties.messages import ANYBODY, Job, Placing

    subject = Subject(suite, tokens)
    parameters = {"card": subject.card.to_json(), "tokens": tokens}
    settings = Settings(threads=1, device=device, deal_first=True, receive_buffer=MATERIAL_LIMIT)
    with launch(settings, "secformer_lab.bench.layer") as servers:
        progress("uploading weights")
        provider = Caller(servers.network(PROVIDER), servers.settings)
        provider.run(Job(UPLOAD, parameters, stores=Placing("layer", secrets.token_hex(16), [ANYBODY])), subject.folded)
        client = Caller(servers.network(CLIENT), servers.settings)
        runs = []
        for number in range(repetitions + 1):
            progress(f"run {number} of {repetitions}")
            inputs = {INPUT: subject.input, MASK: torch.ones(1, tokens, 1, dtype=torch.int64)}
            runs.append(client.run(Job(LAYER, parameters, uses="layer"), inputs))
    best = min(runs[1:], key=lambda run: run.online_seconds)
    return LayerTiming(
        suite=suite,
        tokens=tokens,
        seconds=best.online_seconds,
        dealer_seconds=min(run.dealer_seconds for run in runs[1:]),
        rounds=best.rounds,
        online_bytes=best.online_bytes,
        dealer_bytes=best.dealer_bytes,
        max_error=max(float((run.outputs[RESULT] - subject.expected).abs().max()) for run in runs),
    )


class Subject:
    """A layer with weights, an input in its range, and what it should give."""

    def __init__(self, suite: str, tokens: int, config: ModelConfig = BERT_LAYER) -> None:
        system = suite_named(suite)
        config = system.adapt(config)
        weights = random_weights(config, wide=not isinstance(system, Baseline))
        ids = torch.arange(tokens).remainder(config.vocabulary)[None]
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
        others = [replace(batch, ids=ids.roll(shift, 1)) for shift in range(CALIBRATION_BATCHES)]
        calibration = system.calibrate(weights, config, others)
        self.card = system.card(config, calibration)
        names = layer_forms(self.card, tokens)
        folded = self.card.fold(system.source(weights, calibration))
        self.folded = {name: Encoded(folded[name].form.as_share(), folded[name].ring) for name in names}
        seen = _hidden_states(weights, config, batch, system.functions(config, calibration))
        self.input, self.expected = seen["input"], seen["hidden"]
        norms = layer_part(self.card, tokens).norms
        if norms is not None:
            before, after = (weights.norm(name) for name in norms)
            self.input = (self.input - before.bias) / before.gain
            self.expected = (self.expected - after.bias) / after.gain


def _hidden_states(
    weights: Weights, config: ModelConfig, batch: Batch, functions: plain.Functions
) -> dict[str, Tensor]:
    """What the layer starts from and what it gives, in the clear."""
    seen: dict[str, Tensor] = {}

    def observe(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        if name in ("input", "hidden"):
            seen[name] = tensor

    plain.forward(weights, config, batch, observe, functions)
    return seen


def random_weights(config: ModelConfig, wide: bool) -> Weights:
    """Deterministic test data as BERT is initialised (0.02), gains near 1, and if `wide`, one neuron in 32 eight times as
    wide: real encoders have 1 to 3 % wide neurons.

    CrypTen's GeLU diverges on them, and its reciprocal on row sums above 256, which even attention over 512 keys has. What a
    paper suite costs does not depend on values, so those are measured without wide neurons and with scores nine times as far
    apart: sums stay below 90 in twelve layers. With three times they reach 244, and `crypten` was wrong in several runs.
    """
    generator = torch.Generator().manual_seed(0)

    def source(name: str, shape: tuple[int, ...]) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("gain"):
            return 1 + 0.1 * numbers
        numbers *= 0.1 if name.endswith("bias") else 0.02
        if wide and name.endswith("up.weight"):
            numbers[:, ::32] *= 8
        if not wide and name.endswith(("query.weight", "key.weight")):
            numbers *= 9**0.5
        return numbers

    return assemble(config, source)


if __name__ == "__main__":
    serve.main(sys.argv[1:], CATALOGUE)

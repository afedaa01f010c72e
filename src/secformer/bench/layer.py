"""One BERT-base layer between real processes on this machine: the figure everybody compares.

Random weights of the true shapes with activations in a realistic range; the dealer works first, so that online and dealer
seconds are apart. The result is compared with the layer in float64 (for a paper suite: with its own twin).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from secformer.models import plain, twins
from secformer.models.calibration import calibrate
from secformer.models.config import PRESETS, ModelConfig
from secformer.models.folding import Static, centred_words, fold
from secformer.models.job import Card, ModelCard
from secformer.models.layer_job import layer_program
from secformer.models.paper_job import PaperCard, fold_paper
from secformer.models.ranges import RangeRecord
from secformer.models.tokens import Batch
from secformer.models.weights import Weights, assemble
from secformer.protocols.suites import Suite, suite_named
from secformer.settings import Settings

VOCABULARY = 64
CALIBRATION_BATCHES = 16
MATERIAL_LIMIT = 4 << 30


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_layer(
    tokens: int, suite_name: str, repetitions: int = 3, progress: Callable[[str], None] = lambda step: None
) -> LayerTiming:
    """Best of a few runs, after one that warms everything up."""
    from secformer.parties.client import Client
    from secformer.parties.launch import launch
    from secformer.parties.messages import Job
    from secformer.parties.provider import Provider, Weight

    suite = suite_named(suite_name)
    subject = _Subject(suite, tokens)
    settings = Settings(threads=1, deal_first=True, receive_buffer=MATERIAL_LIMIT)
    with launch(settings) as servers:
        progress("uploading weights")
        weights = {
            name: Weight(static.ring, static.scale, static.width, "bits" if static.boolean else "shared")
            for name, static in subject.folded.items()
        }
        Provider(servers.settings).upload("layer", weights, {"layer": {"card": subject.card.to_json()}})
        job = Job("layer", {"card": subject.card.to_json(), "batch": 1, "tokens": tokens}, uses="layer")
        runs = []
        for number in range(repetitions + 1):
            progress(f"run {number} of {repetitions}")
            inputs = {"x": subject.input, "mask": torch.ones(1, tokens, 1, dtype=torch.int64)}
            runs.append(Client(servers.settings).run(job, inputs))
    best = min(runs[1:], key=lambda run: run.online_seconds)
    return LayerTiming(
        suite=suite_name,
        tokens=tokens,
        seconds=best.online_seconds,
        dealer_seconds=min(run.dealer_seconds for run in runs[1:]),
        rounds=best.rounds,
        online_bytes=best.online_bytes,
        dealer_bytes=best.dealer_bytes,
        max_error=max(float((run.outputs["result"] - subject.expected).abs().max()) for run in runs),
    )


class _Subject:
    """A layer with weights, an input in its range, and what it should give."""

    def __init__(self, suite: Suite, tokens: int) -> None:
        kind = suite.softmax_kind if suite.ours else "exact"
        config = replace(
            PRESETS["bert-base"],
            layers=1,
            vocabulary=VOCABULARY,
            softmax=kind,
            quad_shift=suite.shift if kind == "2quad" else 0.0,
        )
        weights = _random_weights(config)
        ids = torch.arange(tokens).remainder(VOCABULARY)[None]
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
        hidden = plain.embed(weights, config, batch)
        if suite.ours:
            self._ours(config, weights, batch, hidden)
        else:
            self._paper(config, weights, batch, hidden, suite)

    def _ours(self, config: ModelConfig, weights: Weights, batch: Batch, hidden: Tensor) -> None:
        others = [replace(batch, ids=batch.ids.roll(shift, 1)) for shift in range(CALIBRATION_BATCHES)]
        record = RangeRecord.empty(weights, config).measure(weights, config, others)
        calibration, layout = calibrate(record, config, float(centred_words(weights).abs().max()))
        card = ModelCard(config, calibration)
        self.card: Card = card
        folded = fold(weights, config, card.widths(config.positions), layout)
        self.folded = _only(folded, layer_program(card, 1, batch.ids.shape[1]).inputs)
        before, after = weights.embedding_norm, weights.layers[0].output_norm
        self.input = (hidden - before.bias) / before.gain
        result = plain.encoder_layer(weights.layers[0], config, hidden, batch.mask)
        self.expected = (result - after.bias) / after.gain

    def _paper(self, config: ModelConfig, weights: Weights, batch: Batch, hidden: Tensor, suite: Suite) -> None:
        deflation = twins.measure_deflation(weights, config, batch, suite)
        card = PaperCard(config, suite.name, tuple(sorted(deflation.items())))
        self.card = card
        self.folded = _only(fold_paper(weights, card), layer_program(card, 1, batch.ids.shape[1]).inputs)
        seen: dict[str, Tensor] = {}

        def observe(name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
            if (name, layer) in (("input", 0), ("hidden", -1)):
                seen[name] = tensor

        twins.forward(weights, config, batch, suite, deflation, observe)
        self.input, self.expected = seen["input"], seen["hidden"]


def _only(folded: dict[str, Static], inputs: Any) -> dict[str, Static]:
    return {name: static for name, static in folded.items() if name in inputs}


def _random_weights(config: ModelConfig) -> Weights:
    """Deterministic test data as BERT is initialised (0.02), gains near 1, and one neuron in 32 eight times as wide:
    real encoders have 1 to 3 % wide neurons."""
    generator = torch.Generator().manual_seed(0)

    def source(name: str, shape: tuple[int, ...]) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("gain"):
            return 1 + 0.1 * numbers
        numbers *= 0.1 if name.endswith("bias") else 0.02
        if name.endswith("up.weight"):
            numbers[:, ::32] *= 8
        return numbers

    return replace(assemble(config, source), digest="benchmark")

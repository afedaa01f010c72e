"""A whole inference between real processes on this machine, from token keys to the client's result.

Random weights of the true shapes (layer.py) and random tokens; calibrated on texts like them, of every length that is measured:
one model serves them all. The dealer works first, so that online and dealer seconds are apart, and its corrections wait at S1,
on its device or in the host's memory; or nothing waits, and they are streamed while the servers compute. The result is compared
with the model in float64 (for a paper suite: with its own twin). What each operation sends and is dealt comes from the plan, its
seconds from S0's clock in the fastest run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from secformer.engine.tracing import trace
from secformer.errors import SettingsError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.cost import plan_dict
from secformer.models.query import check_query
from secformer.models.shapes import PRESETS
from secformer.models.tokens import Batch, for_query
from secformer.parties.client import Client
from secformer.parties.launch import SERVING, launch
from secformer.parties.messages import ANYBODY
from secformer.parties.prediction import Prediction, prediction
from secformer.parties.provider import Provider
from secformer.ring.devices import device_named
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import NetworkProfile, Settings
from secformer.systems import suite_named
from secformer_lab.bench.layer import random_weights
from secformer_lab.paper.suites import Baseline

CALIBRATION_BATCHES = 2
"""Of every length; the first of them is the query."""
MATERIAL_LIMIT = 64 << 30
MESSAGE_LIMIT = 4 << 30

Progress = Callable[[str], None]
Place = Literal["device", "host", "streamed"]
"""Where what T deals is when the clock starts."""


@dataclass(frozen=True)
class Arrangement:
    """Where and how often a model is measured."""

    device: str = "cpu"
    network: NetworkProfile = "none"
    material: Place = "device"
    connections: int = Settings().connections
    runs: int = 3

    @property
    def chosen(self) -> dict[str, Any]:
        """The servers' settings that differ between arrangements."""
        return {
            "device": self.device,
            "network": self.network,
            "connections": self.connections,
            "deal_first": self.material != "streamed",
            "material_on_device": self.material != "host",
        }

    @property
    def warm_up(self) -> int:
        """Runs that do not count: the first makes tables; on a GPU the second waits for the recording."""
        return 1 if self.device == "cpu" else 2


class Subject:
    """A model of these shapes, with a query of each length and what it should give."""

    def __init__(self, config: ModelConfig, lengths: Sequence[int], suite: str) -> None:
        for tokens in lengths:
            check_query(config, 1, tokens)
        system = suite_named(suite)
        self.suite, self.config = suite, system.adapt(config)
        weights = random_weights(self.config, wide=not isinstance(system, Baseline))
        batches = {
            tokens: [random_batch(self.config, tokens, seed) for seed in range(CALIBRATION_BATCHES)]
            for tokens in lengths
        }
        self.queries = {tokens: few[0] for tokens, few in batches.items()}
        calibration = system.calibrate(weights, self.config, [batch for few in batches.values() for batch in few])
        functions = system.functions(self.config, calibration)
        self.card = system.card(self.config, calibration)
        self.folded = self.card.fold(system.source(weights, calibration))
        self.expected = {
            tokens: prediction(
                self.config, query, plain.forward(weights, self.config, query, functions=functions).result
            ).result
            for tokens, query in self.queries.items()
        }


def measure_model(
    model: str,
    lengths: Sequence[int],
    suite: str,
    arrangements: Sequence[Arrangement],
    progress: Progress = lambda step: None,
) -> Iterator[dict[str, Any]]:
    """A row for each length and arrangement: best and median of a few runs."""
    if model not in PRESETS:
        raise SettingsError(f"{model!r} is none of {', '.join(PRESETS)}")
    if PRESETS[model].image_size:
        raise SettingsError(f"{model!r} takes images: this measures texts")
    for each in arrangements:
        device_named(each.device)
    progress("weights and calibration")
    subject = Subject(PRESETS[model], lengths, suite)
    for row in measure(subject, arrangements, progress):
        yield {"model": model, **row}


def measure(
    subject: Subject, arrangements: Sequence[Arrangement], progress: Progress, module: str = SERVING
) -> Iterator[dict[str, Any]]:
    """The weights are uploaded once; the servers, which run `module`, keep them while they are started anew for every
    arrangement."""
    settings = Settings(threads=1, receive_buffer=MATERIAL_LIMIT, message_limit=MESSAGE_LIMIT)
    with launch(replace(settings, **arrangements[0].chosen), module) as servers:
        progress("uploading weights")
        Provider(servers.network(PROVIDER), servers.settings).upload(
            "model", subject.card, subject.folded, readers=[ANYBODY]
        )
        for number, arrangement in enumerate(arrangements):
            if number:
                servers.change(**arrangement.chosen)
            client = Client(servers.network(CLIENT), servers.settings, "model", subject.card, None)
            for tokens in subject.queries:
                yield _row(subject, arrangement, tokens, _runs(client, subject, arrangement, tokens, progress))


def _runs(
    client: Client, subject: Subject, arrangement: Arrangement, tokens: int, progress: Progress
) -> list[Prediction]:
    where = f"{subject.suite}, {tokens} tokens, network {arrangement.network}, material {arrangement.material}"
    runs = []
    for number in range(arrangement.warm_up + arrangement.runs):
        progress(f"{where}, run {number}")
        runs.append(client.predict_batch(subject.queries[tokens]))
    return runs


def _row(subject: Subject, arrangement: Arrangement, tokens: int, runs: Sequence[Prediction]) -> dict[str, Any]:
    outcomes = [run.outcome for run in runs[arrangement.warm_up :] if run.outcome is not None]
    online, expected = [outcome.online_seconds for outcome in outcomes], subject.expected[tokens]
    fastest = min(outcomes, key=lambda outcome: outcome.online_seconds)
    errors = [float((run.result - expected).abs().max()) for run in runs]
    query = for_query(subject.queries[tokens], subject.config)
    return {
        "suite": subject.suite,
        "tokens": tokens,
        "device": arrangement.device,
        "network": arrangement.network,
        "material": arrangement.material,
        "connections": arrangement.connections,
        "variant": "mps" if arrangement.device != "cpu" and side_by_side() else "",
        "runs": arrangement.runs,
        "online_seconds": min(online),
        "median_online_seconds": median(online),
        "operation_seconds": fastest.operation_seconds,
        "exchange_seconds": fastest.exchange_seconds,
        "dealer_seconds": min(outcome.dealer_seconds for outcome in outcomes),
        "session_seconds": min(outcome.seconds for outcome in outcomes),
        "max_error": max(errors),
        "median_error": median(errors),
        "counted": {"rounds": outcomes[0].rounds, "online_bytes": outcomes[0].online_bytes},
        "plan": plan_dict(trace(subject.card.query_program(*query.ids.shape))),
    }


def side_by_side() -> bool:
    """Does NVIDIA's Multi-Process Service run here? Then kernels of several processes share the GPU instead of taking turns. (Its
    file outlives it: what is measured in turns is measured before it is started.)"""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()


def random_batch(config: ModelConfig, tokens: int, seed: int) -> Batch:
    ids = torch.randint(config.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))

"""A whole inference between real processes on this machine, from token keys to the client's result.

Random weights of the true shapes (layer.py) and random tokens; calibrated on texts like them. The dealer works first, so that
online and dealer seconds are apart, and its corrections wait in S1's memory. The result is compared with the model in float64
(for a paper suite: with its own twin). What each operation sends and is dealt comes from the plan, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from secformer.bench.layer import random_weights
from secformer.engine.tracing import trace
from secformer.errors import SettingsError
from secformer.models import plain
from secformer.models.config import PRESETS, ModelConfig
from secformer.models.cost import plan_dict
from secformer.models.query import check_query
from secformer.models.tokens import Batch, for_query
from secformer.parties.client import Client
from secformer.parties.launch import launch
from secformer.parties.messages import ANYBODY
from secformer.parties.prediction import prediction
from secformer.parties.provider import Provider
from secformer.ring.devices import device_named
from secformer.roles import CLIENT, PROVIDER
from secformer.settings import Settings
from secformer.systems import suite_named

CALIBRATION_BATCHES = 4
MATERIAL_LIMIT = 64 << 30
MESSAGE_LIMIT = 4 << 30


def measure_model(
    model: str,
    tokens: int,
    suite: str,
    device: str = "cpu",
    repetitions: int = 3,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Best and median of a few runs, after one that warms everything up."""
    if model not in PRESETS:
        raise SettingsError(f"{model!r} is none of {', '.join(PRESETS)}")
    if PRESETS[model].image_size:
        raise SettingsError(f"{model!r} takes images: this measures texts")
    return {"model": model, **measure(PRESETS[model], tokens, suite, device, repetitions, progress)}


def measure(
    config: ModelConfig, tokens: int, suite: str, device: str, repetitions: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    check_query(config, 1, tokens)
    device_named(device)
    system = suite_named(suite)
    config = system.adapt(config)
    progress("weights and calibration")
    weights = random_weights(config)
    query, *others = (random_batch(config, tokens, seed) for seed in range(CALIBRATION_BATCHES + 1))
    calibration = system.calibrate(weights, config, [query, *others])
    card = system.card(config, calibration)
    functions = system.functions(config, calibration)
    expected = prediction(config, query, plain.forward(weights, config, query, functions=functions).result).result
    folded = card.fold(system.source(weights, calibration))
    settings = Settings(
        threads=1, device=device, deal_first=True, receive_buffer=MATERIAL_LIMIT, message_limit=MESSAGE_LIMIT
    )
    with launch(settings) as servers:
        progress("uploading weights")
        Provider(servers.network(PROVIDER), servers.settings).upload("model", card, folded, readers=[ANYBODY])
        client = Client(servers.network(CLIENT), servers.settings, "model", card, None)
        runs = []
        for number in range(repetitions + 1):
            progress(f"run {number} of {repetitions}")
            runs.append(client.predict_batch(query))
    outcomes = [run.outcome for run in runs[1:] if run.outcome is not None]
    online = [outcome.online_seconds for outcome in outcomes]
    return {
        "suite": suite,
        "tokens": tokens,
        "device": device,
        "online_seconds": min(online),
        "median_online_seconds": median(online),
        "dealer_seconds": min(outcome.dealer_seconds for outcome in outcomes),
        "session_seconds": min(outcome.seconds for outcome in outcomes),
        "max_error": max(float((run.result - expected).abs().max()) for run in runs),
        "counted": {"rounds": outcomes[0].rounds, "online_bytes": outcomes[0].online_bytes},
        "plan": plan_dict(trace(card.query_program(*for_query(query, config).ids.shape))),
    }


def random_batch(config: ModelConfig, tokens: int, seed: int) -> Batch:
    ids = torch.randint(config.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))

"""A tiny BERT in each of the paper's suites, on real shares, against the suite's own plaintext twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from secformer.engine.local import Run, run_locally, share
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import trace
from secformer.engine.values import Masked, Shared
from secformer.errors import SettingsError
from secformer.models import plain, twins
from secformer.models.baseline import Baseline
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.models.weights import Weights, assemble
from secformer.protocols.suites import PAPER_SUITES, SUITES, suite_named
from secformer.ring.fixed_point import decode, encode

CONFIG = ModelConfig(
    family="bert",
    layers=2,
    heads=2,
    hidden=16,
    intermediate=24,
    vocabulary=30,
    positions=16,
    token_types=2,
    head="classification",
    labels=("no", "yes"),
)
LENGTH = 6


def random_weights(config: ModelConfig, seed: int = 1) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith(".gain"):
            return 1 + 0.2 * normal
        if name.endswith(".bias"):
            return 0.1 * normal
        return 0.5 * normal if len(shape) == 2 and "." not in name else 1.3 * normal / math.sqrt(shape[0])

    return assemble(config, draw)


def random_batch(seed: int = 2) -> Batch:
    """Two sentences, of 6 and of 4 tokens."""
    ids = torch.randint(0, CONFIG.vocabulary, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 4:] = False
    return Batch(ids, mask, torch.zeros_like(ids))


def embedding_of(weights: Weights, batch: Batch) -> Tensor:
    rows = weights.word[batch.ids] + weights.position[: batch.ids.shape[1]]
    return rows if weights.token_type is None else rows + weights.token_type[batch.token_types]


def reals(model: Baseline, weights: Weights, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """The query's own inputs, with their scales."""
    if model.one_hot:
        hot = torch.nn.functional.one_hot(batch.ids, model.config.vocabulary).double()
        return {"one_hot": (hot, 0), "mask": (batch.mask.double(), 0)}
    return {"embedding": (embedding_of(weights, batch), 16), "mask": (batch.mask.double(), 0)}


def on_shares(model: Baseline, weights: Weights, batch: Batch) -> tuple[Run, Run]:
    named = dict(weights.named())
    upload = run_locally(model.upload_program(), {name: share(named[name], 16) for name in model.weight_specs()})
    inputs = {name: (upload.outputs[0][name], upload.outputs[1][name]) for name in model.weight_specs()}
    inputs |= {name: share(real, scale) for name, (real, scale) in reals(model, weights, batch).items()}
    static = {name: value for name, value in upload.dealt.items() if isinstance(value, Masked)}
    return upload, run_locally(model.program(), inputs, static)


def simulated(model: Baseline, weights: Weights, batch: Batch) -> Tensor:
    named = dict(weights.named())
    absent = {name: encode(named[name], 16) for name in model.weight_specs()}
    inputs = {
        name: Masked(absent[name], torch.empty_like(absent[name], device="meta"), 64, 16)
        if spec.kind == "masked"
        else Shared(absent[name], 64, 16)
        for name, spec in model.weight_specs().items()
    }
    for name, (real, scale) in reals(model, weights, batch).items():
        inputs[name] = Shared(encode(real, scale), 64, scale)
    result = Simulating().run(model.program(), inputs)["result"]
    assert isinstance(result, Shared)
    return decode(result.share, result.scale)


@pytest.mark.parametrize("name", PAPER_SUITES)
def test_a_suite_gives_what_its_twin_gives(name):
    weights, batch, suite = random_weights(CONFIG), random_batch(), suite_named(name)
    deflation = twins.measure_deflation(weights, CONFIG, batch, suite)
    model = Baseline(CONFIG, suite, 2, LENGTH, deflation=deflation)
    twin = twins.forward(weights, CONFIG, batch, suite, deflation)
    upload, run = on_shares(model, weights, batch)
    assert (run.value("result") - twin.result).abs().max() < 1e-2
    assert (run.value("hidden") - twin.hidden).abs()[batch.mask].max() < 2e-2
    assert (simulated(model, weights, batch) - twin.result).abs().max() < 1e-2
    assert upload.plan.cost.rounds == sum(spec.kind == "masked" for spec in model.weight_specs().values())
    assert run.counters[0].payload_sent == run.plan.cost.opened_bytes


@pytest.mark.parametrize("name", ["crypten", "puma"])
def test_suites_with_a_true_softmax_stay_near_the_plain_model(name):
    weights, batch, suite = random_weights(CONFIG), random_batch(), suite_named(name)
    deflation = twins.measure_deflation(weights, CONFIG, batch, suite)
    exact = plain.forward(weights, CONFIG, batch).result
    assert (twins.forward(weights, CONFIG, batch, suite, deflation).result - exact).abs().max() < 5e-2


@pytest.mark.parametrize("name", ["fast", "exact"])
def test_our_suites_have_the_plain_model_as_twin(name):
    weights, batch = random_weights(CONFIG), random_batch()
    config = replace(CONFIG, softmax="2quad", quad_shift=5.0) if name == "fast" else CONFIG
    twin = twins.forward(weights, CONFIG, batch, SUITES[name])
    assert torch.equal(twin.result, plain.forward(weights, config, batch).result)


HEADS = [
    replace(CONFIG, head="embedding", labels=(), pooling="mean", normalise=True, layers=1),
    replace(CONFIG, head="embedding", labels=(), pooling="cls", layers=1),
    replace(CONFIG, head="tokens", layers=1, activation="relu"),
    replace(CONFIG, family="distilbert", token_types=0, layers=1, activation="silu"),
]


@pytest.mark.parametrize("config", HEADS, ids=lambda config: f"{config.head} {config.pooling} {config.activation}")
def test_heads_and_activations(config):
    weights, batch, suite = random_weights(config), random_batch(), suite_named("secformer")
    deflation = twins.measure_deflation(weights, config, batch, suite)
    twin = twins.forward(weights, config, batch, suite, deflation)
    model = Baseline(config, suite, 2, LENGTH, deflation=deflation)
    _, run = on_shares(model, weights, batch)
    real = batch.mask if config.head == "tokens" else slice(None)
    assert (run.value("result") - twin.result)[real].abs().max() < 1e-2
    assert (simulated(model, weights, batch) - twin.result)[real].abs().max() < 1e-2


def test_one_hot_embedding():
    config = replace(CONFIG, layers=1, token_types=0, family="distilbert", head="embedding", labels=())
    weights, batch, suite = random_weights(config), random_batch(), suite_named("mpcformer")
    weights = replace(weights, position=torch.zeros_like(weights.position))  # the program knows the word table alone
    deflation = twins.measure_deflation(weights, config, batch, suite)
    model = Baseline(config, suite, 2, LENGTH, one_hot=True, deflation=deflation)
    _, run = on_shares(model, weights, batch)
    twin = twins.forward(weights, config, batch, suite, deflation)
    assert (run.value("result") - twin.result).abs().max() < 1e-2


def test_the_2relu_of_mpcformer():
    weights, batch = random_weights(CONFIG), random_batch()
    suite = suite_named("mpcformer", softmax="2relu-newton", softmax_kind="2relu")
    deflation = twins.measure_deflation(weights, CONFIG, batch, suite)
    twin = twins.forward(weights, CONFIG, batch, suite, deflation).result
    assert (
        simulated(Baseline(CONFIG, suite, 2, LENGTH, deflation=deflation), weights, batch) - twin
    ).abs().max() < 1e-2


def test_scopes_name_layer_and_operation():
    plan = trace(Baseline(CONFIG, suite_named("puma"), 2, LENGTH).program())
    by_operation = plan.ledger.grouped()
    assert set(by_operation) == {"linear", "softmax", "gelu", "layernorm", "other"}
    assert {"layer 0/gelu", "layer 1/softmax", "layernorm", "head/linear"} <= set(plan.ledger.scopes)


def test_published_count_opens_both_operands_every_time():
    """A layer's openings as the recipe for Table 3 has them, at any size."""
    n, h, inner, heads, words = LENGTH, CONFIG.hidden, CONFIG.intermediate, CONFIG.heads, CONFIG.vocabulary
    layer = 4 * (n * h + h * h) + 2 * n * h + (heads * n * n + n * h) + (n * h + h * inner) + (n * inner + inner * h)
    model = Baseline(CONFIG, suite_named("secformer"), 1, n, one_hot=True, count_as_published=True)
    groups = trace(model.program()).ledger.grouped()
    assert groups["linear"].online_bytes == 16 * CONFIG.layers * layer
    assert groups["embedding"].online_bytes == 16 * (n * words + words * h)
    assert groups["gelu"].online_bits == 7552 * CONFIG.layers * n * inner


def test_refusals():
    with pytest.raises(SettingsError, match=r"models\.encoder"):
        Baseline(CONFIG, SUITES["exact"], 1, 4)
    with pytest.raises(SettingsError, match="1 to 16 tokens"):
        Baseline(CONFIG, SUITES["puma"], 1, 17)

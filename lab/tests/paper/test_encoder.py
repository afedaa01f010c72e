"""A tiny BERT in each of the paper's suites, on real shares, against the suite's own plaintext twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from case import revealing, simulated
from torch import Tensor

from secformer.engine.local import Run, run_locally
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.engine.tracing import trace
from secformer.errors import SettingsError
from secformer.models import plain
from secformer.models.config import ModelConfig
from secformer.models.tokens import Batch
from secformer.models.weights import Weights, assemble
from secformer.wires.suites import EXACT, FAST
from secformer_lab.paper import variants as v
from secformer_lab.paper.beaver import FRACTION_BITS
from secformer_lab.paper.encoder import RESULT, BaselineEncoder
from secformer_lab.paper.encoder import Run as Reading
from secformer_lab.paper.suites import CRYPTEN, MPCFORMER, PUMA, SECFORMER, Baseline, Deflation

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
    pooler="tanh",
    labels=("no", "yes"),
)
LENGTH = 6
PAPER_SUITES = (CRYPTEN, PUMA, MPCFORMER, SECFORMER)


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
    rows = weights["word"][batch.ids] + weights["position"][: batch.ids.shape[1]]
    return rows + weights["token_type"][batch.token_types] if "token_type" in weights else rows


class Measured:
    """A suite calibrated on a batch: its encoder, and its twin's answer to the same batch."""

    def __init__(self, suite: Baseline, config: ModelConfig = CONFIG) -> None:
        self.config, self.weights, self.batch = suite.adapt(config), random_weights(config), random_batch()
        deflation = suite.calibrate(self.weights, self.config, [self.batch])
        self.encoder = BaselineEncoder(self.config, suite.variants(self.config), deflation.eta)
        functions = suite.functions(self.config, deflation)
        self.twin = plain.forward(self.weights, self.config, self.batch, functions=functions)

    def inputs(self) -> dict[str, Encoded]:
        query = {
            "embedding": Encoded.numbers(embedding_of(self.weights, self.batch), FRACTION_BITS),
            "mask": Encoded.ring_elements(self.batch.mask.long()),
        }
        return query | encoded_weights(self.encoder, self.weights)

    def with_hidden(self) -> Program:
        """The encoder with its last hidden state revealed beside the result."""

        def body(runtime, inputs):
            reading = Reading(self.encoder, runtime, inputs)
            hidden = reading.embed()
            for index in range(self.config.layers):
                hidden = reading.layer(hidden, index)
            return {RESULT: reading.head(hidden), "hidden": hidden}

        return revealing("baseline with hidden", body, self.encoder.program(2, LENGTH).inputs)

    def run(self) -> Run:
        return run_locally(self.encoder.program(2, LENGTH), self.inputs())

    def simulate(self) -> Tensor:
        return simulated(self.encoder.program(2, LENGTH), self.inputs())[RESULT]


def encoded_weights(encoder: BaselineEncoder, weights: Weights) -> dict[str, Encoded]:
    return {
        name: Encoded.numbers(weights[name], form.scale, form.width, form.kind)
        for name, form in encoder.weight_forms().items()
    }


@pytest.mark.parametrize("suite", PAPER_SUITES, ids=lambda suite: suite.name)
def test_a_suite_gives_what_its_twin_gives(suite):
    measured = Measured(suite)
    run, twin = measured.run(), measured.twin
    assert (run.value(RESULT) - twin.result).abs().max() < 1e-2
    assert (measured.simulate() - twin.result).abs().max() < 1e-2
    assert run.counters[0].payload_sent == run.plan.cost.opened_bytes
    revealed = run_locally(measured.with_hidden(), measured.inputs())
    assert (revealed.value(RESULT) - twin.result).abs().max() < 1e-2
    assert (revealed.value("hidden") - twin.hidden).abs()[measured.batch.mask].max() < 2e-2


@pytest.mark.parametrize("suite", [CRYPTEN, PUMA], ids=lambda suite: suite.name)
def test_suites_with_a_true_softmax_stay_near_the_plain_model(suite):
    measured = Measured(suite)
    exact = plain.forward(measured.weights, CONFIG, measured.batch).result
    assert (measured.twin.result - exact).abs().max() < 5e-2


@pytest.mark.parametrize("suite", [FAST, EXACT], ids=lambda suite: suite.name)
def test_our_suites_have_the_plain_model_as_twin(suite):
    weights, batch = random_weights(CONFIG), random_batch()
    config = replace(CONFIG, softmax="2quad", quad_shift=5.0) if suite is FAST else CONFIG
    assert suite.adapt(CONFIG) == config
    twin = plain.forward(weights, config, batch, functions=suite.functions(config, None))
    assert torch.equal(twin.result, plain.forward(weights, config, batch).result)


def test_a_place_that_was_not_measured_has_the_papers_eta():
    """And one that was measured has its own, in the twin as in the protocol."""
    measured = Measured(SECFORMER)
    unmeasured = SECFORMER.functions(measured.config, None)
    empty = SECFORMER.functions(measured.config, Deflation("", {}))
    for functions in (unmeasured, empty):
        result = plain.forward(measured.weights, measured.config, measured.batch, functions=functions).result
        assert not torch.equal(result, measured.twin.result)
    encoder = replace(measured.encoder, deflation={})
    given = simulated(encoder.program(2, LENGTH), measured.inputs())[RESULT]
    expected = plain.forward(measured.weights, measured.config, measured.batch, functions=unmeasured).result
    assert (given - expected).abs().max() < 1e-2


BARE = replace(CONFIG, pooler="", layers=1)
HEADS = [
    replace(BARE, head="embedding", labels=(), pooling="mean", normalise=True),
    replace(BARE, head="embedding", labels=(), pooling="cls"),
    replace(BARE, head="tokens", activation="relu"),
    replace(BARE, family="distilbert", pooler="relu", token_types=0, activation="silu"),
]


@pytest.mark.parametrize("config", HEADS, ids=lambda config: f"{config.head} {config.pooling} {config.activation}")
def test_heads_and_activations(config):
    measured = Measured(SECFORMER, config)
    real = measured.batch.mask if config.head == "tokens" else slice(None)
    assert (measured.run().value(RESULT) - measured.twin.result)[real].abs().max() < 1e-2
    assert (measured.simulate() - measured.twin.result)[real].abs().max() < 1e-2


def test_one_hot_embedding():
    """As published: one-hot rows times the word table, both opened."""
    measured = Measured(MPCFORMER, replace(BARE, head="embedding", labels=()))
    weights, batch = measured.weights, measured.batch
    encoder = replace(measured.encoder, published=True)

    def body(runtime, inputs):
        return {"y": Reading(encoder, runtime, inputs).embed()}

    hot = torch.nn.functional.one_hot(batch.ids, CONFIG.vocabulary)
    inputs = {"one_hot": Encoded.ring_elements(hot), **encoded_weights(encoder, weights)}
    run = run_locally(revealing("one-hot", body, encoder.program(2, LENGTH).inputs), inputs)
    expected = torch.nn.functional.layer_norm(
        weights["word"][batch.ids], (CONFIG.hidden,), *weights.norm("embedding_norm"), CONFIG.layer_norm_eps
    )
    assert (run.value("y") - expected).abs().max() < 1e-2


def test_the_2relu_of_mpcformer():
    measured = Measured(replace(MPCFORMER, softmax=v.RELU2_MPCFORMER))
    assert (measured.simulate() - measured.twin.result).abs().max() < 1e-2


def encoder_of(suite: Baseline, published: bool = False) -> BaselineEncoder:
    return BaselineEncoder(suite.adapt(CONFIG), suite.variants(CONFIG), published=published)


def test_scopes_name_layer_and_operation():
    plan = trace(encoder_of(PUMA).program(2, LENGTH))
    by_operation = plan.ledger.grouped()
    assert set(by_operation) == {"linear", "softmax", "gelu", "layernorm", "other"}
    assert {"layer 0/gelu", "layer 1/softmax", "layernorm", "head/linear"} <= set(plan.ledger.scopes)


def test_published_count_opens_both_operands_every_time():
    """A layer's openings as the recipe for Table 3 has them, at any size."""
    n, h, inner, heads, words = LENGTH, CONFIG.hidden, CONFIG.intermediate, CONFIG.heads, CONFIG.vocabulary
    layer = 4 * (n * h + h * h) + 2 * n * h + (heads * n * n + n * h) + (n * h + h * inner) + (n * inner + inner * h)
    groups = trace(encoder_of(SECFORMER, published=True).program(1, n)).ledger.grouped()
    assert groups["linear"].online_bytes == 16 * CONFIG.layers * layer
    assert groups["embedding"].online_bytes == 16 * (n * words + words * h)
    assert groups["gelu"].online_bits == 7552 * CONFIG.layers * n * inner


def test_refusals():
    with pytest.raises(SettingsError, match="1 to 16 tokens"):
        encoder_of(PUMA).program(1, 17)

"""Plans: the promised costs of BERT-base, the documented keys, and a client's bytes as a client really sends them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from secformer.crypto import dpf
from secformer.engine.tracing import trace
from secformer.errors import ModelError, SettingsError
from secformer.models.cost import OPERATIONS, by_operation, client_bytes, cost_dict, plan_dict
from secformer.models.query import private_query
from secformer.models.shapes import PRESETS
from secformer.models.tokens import Batch
from secformer.parties.inputs import split
from secformer.parties.planner import caller_forms, result_forms
from secformer.planning import plan_for
from secformer.systems import suite_names
from secformer.wires.suites import EXACT

GB = 1e9
# (suite, tokens): rounds, online GB (sent and received by one server), dealer GB
PROMISED = {
    ("fast", 512): (188, 1.09, 4.65),
    ("fast", 128): (188, 0.185, 1.0),
    ("exact", 512): (224, 1.16, 10.3),
    ("exact", 128): (224, 0.19, 1.36),
}


@pytest.fixture(scope="module", params=PROMISED, ids=lambda key: f"{key[0]} {key[1]}")
def planned(request):
    suite, tokens = request.param
    return suite, tokens, plan_for("bert-base", tokens, 1, suite)


def test_bert_base_costs_no_more_than_promised(planned):
    suite, tokens, plan = planned
    rounds, online, dealer = PROMISED[suite, tokens]
    assert plan.cost.rounds <= rounds
    assert plan.cost.online_bytes <= online * GB
    assert plan.cost.dealer_bytes <= dealer * GB
    evidence = by_operation(plan)["evidence"]
    assert evidence.rounds == 0 and 0 < evidence.online_bytes <= 0.03 * plan.cost.online_bytes


def test_the_readme_says_what_is_planned(planned):
    suite, tokens, plan = planned
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| `{suite}` | {plan.cost.rounds} |"))
    said = row.split(" | ")[2 + (tokens == 512)].strip(" |")
    assert said == f"{plan.cost.online_bytes / GB:.3f} + {plan.cost.dealer_bytes / GB:.3f} GB"


def test_a_client_sends_at_most_a_kilobyte_a_token(planned):
    """To both servers together. What comes back, shares of two logits, is counted beside."""
    _, tokens, plan = planned
    returned = sum(2 * 8 * form.elements for form in plan.outputs.values())
    assert client_bytes(plan) - returned <= 1000 * tokens
    assert client_bytes(plan) >= 2 * dpf.key_bytes(30522, tokens)


def test_documented_keys(planned):
    _, _, plan = planned
    content = json.loads(json.dumps(plan_dict(plan)))
    assert list(content) == ["rounds", "online_bytes", "dealer_bytes", "client_bytes", "by_operation"]
    assert tuple(content["by_operation"]) == OPERATIONS
    assert OPERATIONS == ("embedding", "gelu", "softmax", "layernorm", "linear", "evidence", "other")
    assert all(set(cost) == {"rounds", "online_bytes", "dealer_bytes"} for cost in content["by_operation"].values())
    assert {name: content[name] for name in cost_dict(plan.cost)} == cost_dict(plan.cost)


def test_operations_add_up_to_the_total(planned):
    _, _, plan = planned
    operations = by_operation(plan)
    for part in ("rounds", "online_bytes", "dealer_bytes"):
        assert sum(getattr(cost, part) for cost in operations.values()) == getattr(plan.cost, part)
    assert plan.cost.rounds == plan.tape.rounds


def test_an_opening_is_charged_to_the_operation_that_consumes_it(planned):
    """z is opened for GeLU (18 bits a neuron), the residual for LayerNorm, one-hot and rows for the embedding."""
    suite, tokens, plan = planned
    operations = by_operation(plan)
    assert operations["gelu"].opened_bits == 12 * 3072 * tokens * 18
    assert operations["gelu"].rounds == 12
    assert operations["layernorm"].rounds == 3 * (1 + 2 * 12)
    assert operations["softmax"].rounds == (6 if suite == "exact" else 3) * 12
    assert operations["embedding"].rounds == 2
    assert operations["embedding"].opened_bits >= 30522 * tokens


@pytest.fixture
def folder(tmp_path):
    """A config of odd sizes; no weights: a plan reads none."""
    settings = {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": 1, "num_attention_heads": 3}
    settings |= {"hidden_size": 24, "intermediate_size": 5, "vocab_size": 50, "max_position_embeddings": 40}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return str(tmp_path)


def test_costs_of_every_suite_add_up(folder):
    for suite in suite_names():
        plan = plan_for(folder, 40, 2, suite)
        assert sum(cost.online_bytes for cost in by_operation(plan).values()) == plan.cost.online_bytes
        assert sum(cost.rounds for cost in by_operation(plan).values()) == plan.cost.rounds
        assert client_bytes(plan) > 0


def test_rounds_do_not_depend_on_batch_or_length():
    rounds = {plan_for("bert-base", tokens, batch, "exact").cost.rounds for tokens, batch in ((8, 1), (33, 3))}
    assert len(rounds) == 1


# The client's bytes


@pytest.mark.parametrize("private_table", [True, False])
@pytest.mark.parametrize("vocabulary", [97, 128, 300, 30522])
@pytest.mark.parametrize("head", ["classification", "tokens"])
def test_client_bytes_are_what_a_client_sends(private_table, vocabulary, head):
    """The payloads parties/inputs.py makes of a real query, and the results' shares. The public part of a session (the
    job with the card's hash, the servers' answers, frame headers) is not counted: it does not grow with the text."""
    config = replace(
        PRESETS["bert-base"], layers=1, hidden=48, heads=4, intermediate=40, vocabulary=vocabulary, head=head
    )
    card = replace(EXACT.preset(config), private_table=private_table)
    plan = trace(card.query_program(2, 7))
    ids = torch.randint(0, vocabulary, (2, 7))
    batch = Batch(ids, torch.ones(2, 7, dtype=torch.bool), torch.zeros(2, 7, dtype=torch.int64))
    words = None if private_table else torch.zeros(vocabulary, 48, dtype=torch.float64)
    inputs = private_query(card.embedding, batch, words)
    parts = split(inputs, caller_forms(plan), b"session")
    sent = sum(_length(part.payload) for own in parts for part in own.values())
    returned = sum(2 * -(-form.elements * form.width // 8) for form in result_forms(plan).values())
    assert set(result_forms(plan)) == {"result", "evidence"}
    assert client_bytes(plan) == sent + returned


def _length(payload) -> int:
    return payload.numel() * payload.element_size() if isinstance(payload, torch.Tensor) else len(payload)


# What is planned


def test_rounds_follow_the_layers(folder):
    """2 for the lookup, 3 for its LayerNorm, 15 a layer, 3 for tanh and the classifier or 1 for a sentence's sum."""
    assert plan_for("bert-large", 16, 1, "fast").cost.rounds == 2 + 3 + 15 * 24 + 3
    assert plan_for(folder, 16, 1, "fast").cost.rounds == 2 + 3 + 15 + 1
    assert plan_for(folder, 16, 1, "exact").cost.rounds == 2 + 3 + 18 + 1


@pytest.mark.parametrize(
    ("model", "tokens", "rounds"),
    [
        ("xlm-roberta-base", 16, 2 + 3 + 18 * 12 + 3),
        ("electra-base", 16, 2 + 3 + 18 * 12 + 3),
        ("albert-base-v2", 16, 2 + 3 + 2 + 18 * 12 + 3),  # 2 for the projection
        ("all-mpnet-base-v2", 16, 2 + 3 + 18 * 12 + 1),
        ("deberta-v3-base", 16, 2 + 3 + 19 * 12 + 3),  # 1 for scores of content with distance
        ("ModernBERT-base", 16, 2 + 3 + 20 * 22 + 6),  # 1 for turning, 1 for the gate; a head with a LayerNorm
        ("vit-base-patch16-224", 197, 2 + 3 + 18 * 12 + 1),
    ],
)
def test_published_shapes_are_planned(model, tokens, rounds):
    assert plan_for(model, tokens, 1, "exact").cost.rounds == rounds


def test_what_cannot_be_planned(tmp_path):
    for model, tokens, batch, suite, error, complaint in (
        ("bert-huge", 8, 1, "exact", SettingsError, "neither a folder nor one of bert-base, bert-large"),
        (str(tmp_path), 8, 1, "exact", ModelError, r"config\.json' is missing"),
        ("bert-base", 513, 1, "exact", SettingsError, "1 to 512 tokens, not 513"),
        ("bert-base", 0, 1, "exact", SettingsError, "1 to 512 tokens, not 0"),
        ("bert-base", 8, 0, "exact", SettingsError, "at least one text"),
        ("vit-base-patch16-224", 16, 1, "exact", SettingsError, "an image has 197 rows"),
        ("ModernBERT-base", 513, 1, "exact", SettingsError, "1 to 512 tokens, not 513"),
        ("ModernBERT-base", 16, 1, "crypten", ModelError, "not those of model type 'modernbert'"),
        ("bert-base", 8, 1, "exakt", SettingsError, "did you mean exact"),
    ):
        with pytest.raises(error, match=complaint):
            plan_for(model, tokens, batch, suite)

"""Whole encoders on wires, on two real shares: every class, head and activation against transformers or the twin."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from case import revealing
from checkpoints import CLASSES, HEADS, TEXTS
from secure import (
    ask,
    ask_texts,
    assert_cost_as_declared,
    calibrated,
    relative_error,
    transformers_result,
    upload,
)

from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded
from secformer.engine.values import Disclosed, Masked
from secformer.errors import InputError
from secformer.models.shapes import PRESETS
from secformer.models.tokens import tokenise
from secformer.protocols.attention import LARGEST_VALUE, quad_attention
from secformer.wires.constants import QuadRange
from secformer.wires.widths import QUAD_VALUE_SCALE, RESULT_SCALE, _quad

TOLERANCE = 1e-2
PAIRS = ["the dog", "a good film was on", "it", "cats"]
SIZES = [
    dict(heads=3, hidden=24, intermediate=40, layers=2),
    dict(heads=1, hidden=17, intermediate=29, layers=1),
    dict(heads=5, hidden=35, intermediate=53, layers=2),
    dict(heads=2, hidden=22, intermediate=31, layers=3),
]
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")


# Twelve kinds of checkpoint; sizes and activations take turns.
KINDS = [
    pytest.param(family, head, ACTIVATIONS[(row + column) % 4], SIZES[(2 * row + column) % 4], id=f"{family} {head}")
    for row, family in enumerate(CLASSES)
    for column, head in enumerate(HEADS)
]


@pytest.fixture
def built(tmp_path):
    return partial(calibrated, tmp_path)


# Suite exact: what transformers gives


@pytest.mark.parametrize(("family", "head", "activation", "sizes"), KINDS)
def test_exact_gives_what_transformers_gives(built, family, head, activation, sizes):
    reference, model = built(family, head, activation=activation, seed=2, **sizes)
    batch = model._batch(TEXTS, None)
    assert len(set(batch.lengths.tolist())) >= 3  # of different length
    expected = transformers_result(reference, model, batch)
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, expected) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="simulate").result, expected) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="plain").result, expected) <= 1e-6
    assert_cost_as_declared(run)
    for index, text in enumerate(TEXTS):  # a row of the padded batch is what the sentence gives alone
        alone = transformers_result(reference, model, model._batch([text], None))[0]
        row = secure[index, : len(alone)] if head == "tokens" else secure[index]
        assert float((row - alone).abs().max()) <= TOLERANCE * float(expected.abs().max())


@pytest.mark.parametrize("family", CLASSES)
def test_pairs_of_texts(built, family):
    reference, model = built(family, "classification", pairs=PAIRS, seed=3, layers=1)
    batch = model._batch(TEXTS, PAIRS)
    secure, run = ask(model, upload(model), batch)
    assert relative_error(secure, transformers_result(reference, model, batch)) <= TOLERANCE
    assert_cost_as_declared(run)
    if model.config.token_types > 1:
        assert int(batch.token_types.sum()) > 0


@pytest.mark.parametrize("suite", ["exact", "fast"])
def test_padding_changes_nothing(built, suite):
    """The same sentence alone, in a batch, and padded to the model's longest input."""
    _, model = built("bert", "tokens", suite, layers=1, positions=40)
    uploaded, text = upload(model), TEXTS[0]
    twin = model.predict([text], mode="plain").result[0]
    alone, _ = ask_texts(model, [text], uploaded=uploaded)
    together, _ = ask_texts(model, TEXTS, uploaded=uploaded)
    padded = tokenise(model.tokenizer, model.config, [text], pad_to=40)
    longest, _ = ask(model, uploaded, padded)
    for result in (alone[0], together[0, : len(twin)], longest[0, : len(twin)]):
        assert relative_error(result, twin) <= TOLERANCE
    assert torch.all(longest[0, len(twin) :] == 0)


def test_padded_rows_come_out_as_exact_zeros(built):
    """Not by the client's mask alone: the servers' own result is zero there, up to the last bits of the fixed point."""
    _, model = built("distilbert", "tokens", layers=1)
    batch = model._batch(TEXTS, None)
    _, run = ask(model, upload(model), batch)
    rows = run.value("result")[~batch.mask].abs().amax(-1)
    # The exception is the drop's own: it turns a 0 into one unit, 2^-12, with probability 2^-g an element, about once in a
    # thousand rows here. Such a row holds one weight of the classifier times that unit, and no more.
    unit = 2.0**-12 * model.folded()["classifier"].ring.abs().max() / 2.0**14
    assert rows.max() <= 2 * unit + 2.0**-RESULT_SCALE
    assert (rows > 2.0**-14).sum() <= 2


def test_a_query_twice_gives_the_same_under_fresh_masks(built):
    _, model = built("bert", "classification", layers=1)
    uploaded, batch = upload(model), model._batch(TEXTS, None)
    first, run = ask(model, uploaded, batch)
    second, again = ask(model, uploaded, batch)
    assert relative_error(first, second) <= TOLERANCE / 2
    zero, one = run.outputs[0]["result"], again.outputs[0]["result"]
    assert isinstance(zero, Disclosed) and isinstance(one, Disclosed)
    assert not torch.equal(zero.value.share, one.value.share)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_with_large_inputs(built, activation):
    """Neurons of all windows, the widest included."""
    reference, model = built("bert", "tokens", activation=activation, layers=1, intermediate=64, seed=5)
    weights = model.weights["layers.0.up.weight"]
    weights *= 0.1 + 3 * torch.linspace(0, 1, weights.shape[1], dtype=torch.float64) ** 30  # few are wide
    with torch.no_grad():
        reference.bert.encoder.layer[0].intermediate.dense.weight.copy_(weights.T)
    model.calibrate(TEXTS, few=True)
    if activation != "relu":
        assert len(model.card.public.layers[0].classes) >= 3
    secure, _ = ask_texts(model, TEXTS)
    expected = transformers_result(reference, model, model._batch(TEXTS, None))
    assert relative_error(secure, expected) <= TOLERANCE


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalise", [False, True])
def test_sentence_vectors(built, pooling, normalise):
    _, model = built("bert", "embedding", layers=1)
    model.config = replace(model.config, pooling=pooling, normalise=normalise)
    model.calibrate(TEXTS, few=True)
    expected = model.predict(TEXTS, mode="plain").result
    secure, _ = ask_texts(model, TEXTS)
    assert relative_error(secure, expected) <= TOLERANCE
    if normalise:
        torch.testing.assert_close(secure.norm(dim=-1), torch.ones(len(TEXTS), dtype=torch.float64))


def test_half_precision_checkpoint(built):
    reference, model = built("roberta", "classification", dtype=torch.float16, layers=1)
    secure, _ = ask_texts(model, TEXTS)
    assert relative_error(secure, transformers_result(reference, model, model._batch(TEXTS, None))) <= TOLERANCE


def test_one_token_texts_and_the_longest_text(built):
    """Shapes at the edge: a batch of one, a text that fills the position table."""
    reference, model = built("bert", "classification", layers=1, positions=24, texts=[*TEXTS[:2], "cat " * 22])
    uploaded = upload(model)
    for text in ("a", "cat " * 22):
        batch = model._batch([text], None)
        secure, _ = ask(model, uploaded, batch)
        assert relative_error(secure, transformers_result(reference, model, batch)) <= TOLERANCE
    assert batch.ids.shape == (1, 24)
    with pytest.raises(InputError, match="25 tokens, 24 are allowed"):
        model.predict(["cat " * 23], mode="secure")


# Suite fast: what its own twin gives

FAST = [param for param in KINDS if param.id.split()[1] in ("embedding", "tokens")] + [
    pytest.param("bert", "classification", "relu", SIZES[0], id="bert classification"),
    pytest.param("distilbert", "regression", "gelu", SIZES[0], id="distilbert regression"),
]


@pytest.mark.parametrize(("family", "head", "activation", "sizes"), FAST)
def test_fast_gives_what_its_twin_gives(built, family, head, activation, sizes):
    _, model = built(family, head, "fast", activation=activation, seed=4, **sizes)
    twin = model.predict(TEXTS, mode="plain").result
    secure, run = ask_texts(model, TEXTS)
    assert relative_error(secure, twin) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="simulate").result, twin) <= TOLERANCE
    assert_cost_as_declared(run)


def test_a_distilled_student_brings_2quad_and_its_shift(built):
    _, model = built("bert", "classification", "fast", layers=1, softmax="2quad", quad_shift=3.5)
    assert (model.config.softmax, model.config.quad_shift) == ("2quad", 3.5)
    secure, _ = ask_texts(model, TEXTS)
    assert relative_error(secure, model.predict(TEXTS, mode="plain").result) <= TOLERANCE


def test_fast_divides_by_large_row_sums():
    """2Quad's row sums reach 2^19 in real encoders; 1/D must keep its digits there."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.linspace(5, 100, 24, dtype=torch.float64)[None, None, :, None]  # rows of all sizes
    scores = sizes * torch.randn(1, 1, 24, 32, generator=generator, dtype=torch.float64)
    value = torch.randn(1, 1, 32, 4, generator=generator, dtype=torch.float64)
    value *= LARGEST_VALUE / value.norm(dim=-1).max()  # as a head's are scaled
    weights = (scores + 5).square()
    expected = (weights @ value) / weights.sum(-1, keepdim=True)
    largest = math.ceil(math.log2(float(weights.sum(-1).max())))
    assert largest > 18
    setting = _quad(QuadRange(largest, 1200), replace(PRESETS["bert-base"], quad_shift=5.0), 33, 512)

    def body(runtime, inputs):
        (wire,) = runtime.open(inputs["value"])
        return {"y": quad_attention(runtime, inputs["scores"], wire, inputs["mask"], setting)}

    inputs = {
        "scores": Encoded.numbers(scores, setting.score_scale + 16, setting.score_width + 16),
        "value": Encoded.numbers(value, QUAD_VALUE_SCALE, setting.weight_width),
        "mask": Encoded.numbers(torch.ones(1, 1, 1, 32, dtype=torch.float64), 0),
    }
    program = revealing("quad", body, {name: encoded.form for name, encoded in inputs.items()})
    result = run_locally(program, inputs).value("y")
    errors, unit = (result - expected).abs(), 2.0**-setting.weight_scale / weights.sum(-1, keepdim=True)
    # Each of P's elements is off by the difference of two roundings, a variance of 1/6: of their sum six deviations. Then P·V is
    # rounded, to the same unit, V was, and 1/D has an error of its own. In the smallest row a unit of P is 1e-3 of D.
    allowed = 6 * unit * value.norm(dim=-2, keepdim=True) / math.sqrt(6) + 2 * unit + 1e-3 * expected.abs()
    allowed += 2.0**-QUAD_VALUE_SCALE
    assert (errors < allowed).all() and errors.amax(-1).median() < 2e-4 * LARGEST_VALUE


# The word table in the client's hands


@pytest.mark.parametrize("suite", ["exact", "fast"])
def test_a_word_table_that_is_handed_out(built, suite):
    reference, model = built("bert", "classification", suite, private_table=False, layers=1)
    uploaded, batch = upload(model), model._batch(TEXTS, None)
    assert "word" not in uploaded.wires
    secure, run = ask(model, uploaded, batch)
    assert set(run.plan.program.inputs) >= {"words", "mask"} and "one_hot" not in run.plan.program.inputs
    assert relative_error(secure, model.predict(TEXTS, mode="plain").result) <= TOLERANCE
    assert relative_error(model.predict(TEXTS, mode="simulate").result, secure) <= TOLERANCE
    if suite == "exact":
        assert relative_error(secure, transformers_result(reference, model, batch)) <= TOLERANCE
    assert_cost_as_declared(run)


# Uploading


def test_weights_are_opened_once_and_every_mask_is_another(built):
    _, model = built("bert", "classification", layers=1)
    uploaded = upload(model)
    assert_cost_as_declared(uploaded.run)
    assert uploaded.run.plan.cost.rounds == 1
    assert set(uploaded.wires) == set(model.folded())
    program = model.card.query_program(1, 5)
    kinds = {name: form.kind for name, form in program.inputs.items() if name in uploaded.wires}
    assert set(kinds.values()) == {"masked", "masked_bits"}
    _, run = ask_texts(model, TEXTS[:1], uploaded=uploaded)
    largest = max(encoded.ring.numel() for encoded in model.folded().values())
    assert all(opening.form.packed_bytes < largest for opening in run.plan.tape.openings)
    again = upload(model)
    for name, sharing in uploaded.wires.items():
        zero, other = sharing.pair[0], again.wires[name].pair[0]
        if isinstance(zero, Masked) and zero.public.numel() > 8:
            assert isinstance(other, Masked) and not torch.equal(zero.public, other.public)

"""Widths from ranges: every wire is as wide as the design's rules ask, and all parties derive the same program."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from secformer.engine.form import Form
from secformer.engine.tracing import trace
from secformer.errors import CalibrationError, SettingsError
from secformer.models.config import ModelConfig
from secformer.models.query import check_query
from secformer.models.shapes import PRESETS
from secformer.models.statics import Source
from secformer.models.weights import assemble
from secformer.parties import planner
from secformer.protocols.attention import (
    FACTOR_SCALE,
    LARGEST_VALUE,
    SMALLEST_DENOMINATOR,
    TABLE_SCALE,
    ExactSetting,
    largest_denominator,
)
from secformer.systems import card_from_json
from secformer.wires import choices
from secformer.wires import widths as w
from secformer.wires.calibration import score_bits
from secformer.wires.card import WiresCard
from secformer.wires.constants import NormRange, Secrets
from secformer.wires.presets import preset_constants
from secformer.wires.suites import EXACT, FAST
from secformer.wires.widths import encoder_setting

BASE = PRESETS["bert-base"]
CONFIGS = {"exact": BASE, "fast": replace(BASE, softmax="2quad", quad_shift=5.0)}
TINY = replace(BASE, layers=2, heads=3, hidden=24, intermediate=40, vocabulary=99, positions=32, labels=("a", "b", "c"))
BARE = replace(TINY, pooler="")
HEADS: dict[str, ModelConfig] = {
    "bert classification": TINY,
    "bert embedding": replace(BARE, head="embedding", labels=()),
    "bert tokens": replace(BARE, head="tokens"),
    "roberta regression": replace(TINY, family="roberta", token_types=1, head="regression", labels=("score",)),
    "distilbert classification": replace(TINY, family="distilbert", token_types=0, activation="relu", pooler="relu"),
    "distilbert tokens": replace(BARE, family="distilbert", token_types=0, head="tokens", activation="silu"),
}


def preset(config: ModelConfig) -> WiresCard:
    return (EXACT if config.softmax == "exact" else FAST).preset(config)


def bits(magnitude: float) -> int:
    return math.ceil(math.log2(magnitude))


@pytest.fixture(params=CONFIGS)
def model(request):
    """The preset's config, constants and widths."""
    config = CONFIGS[request.param]
    constants = preset_constants(config)
    return config, constants, encoder_setting(constants, config, 512)


# The design's rules, wire by wire


def test_wires_between_matmuls_hold_what_is_dropped_and_what_is_left(model):
    """w ≥ w_next + dropped bits."""
    _, _, setting = model
    product, mean = w.HIDDEN_SCALE + w.WEIGHT_SCALE, w.HIDDEN_SCALE + w.MEAN_SCALE
    for layer in setting.layers:
        rows = layer.attention.rows
        residual, output = layer.attention_norm.residual_width, layer.output_norm.residual_width
        assert layer.hidden_width >= layer.query_width + product - w.QUERY_SCALE
        assert layer.hidden_width >= layer.value_width + product - layer.value_scale
        assert layer.hidden_width >= residual + mean - w.HIDDEN_SCALE  # X′'s row mean
        product_scale = layer.attention.weight_scale + layer.value_scale
        assert min(layer.attention.weight_width, layer.value_width) >= (
            rows.numerator_width + product_scale - rows.numerator_scale
        )
        assert layer.context_width >= residual + w.OUTPUT_SCALE + w.WEIGHT_SCALE - w.HIDDEN_SCALE
        assert layer.middle_width >= layer.preactivation_width
        assert layer.middle_width >= output + mean - w.ACTIVATION_SCALE
        assert layer.activation_width >= output + w.WEIGHT_SCALE
        assert rows.width >= layer.context_width + rows.numerator_scale + rows.reciprocal_scale - w.OUTPUT_SCALE


def test_wires_into_periods_hold_the_period(model):
    """w ≥ s_A + s_B + log2(period)."""
    config, constants, setting = model
    for layer, ranges in zip(setting.layers, constants.layers, strict=True):
        assert layer.preactivation_width >= w.HIDDEN_SCALE + w.WEIGHT_SCALE + w.PERIOD_BITS + 1  # two periods
        if isinstance(layer.attention, ExactSetting):
            widest = max(window for window, _ in ranges.windows)
            assert layer.query_width >= 2 * w.QUERY_SCALE + widest + 1  # a bit above it for the evidence
        else:
            opened = layer.attention.score_width + 1
            assert layer.query_width >= opened + 2 * w.QUERY_SCALE - layer.attention.score_scale
        assert layer.activation is not None and layer.activation.neurons == config.intermediate
        opened = layer.activation.bits
        assert opened == w.HIDDEN_SCALE + w.PERIOD_BITS  # z modulo its period, 17 bits


def norms_of(setting, constants):
    """Every LayerNorm with its range."""
    found = [(setting.embedding_norm, constants.embedding_norm)]
    for layer, ranges in zip(setting.layers, constants.layers, strict=True):
        found += [(layer.attention_norm, ranges.attention_norm), (layer.output_norm, ranges.output_norm)]
    return found


def test_lifted_wires_hold_their_range(model):
    """w ≥ scale + log2|x| + 2."""
    config, constants, setting = model
    assert setting.embedding_width >= w.EMBEDDING_SCALE + constants.embedding_norm.bits + 2
    assert setting.word_bits >= w.EMBEDDING_SCALE + constants.embedding_norm.bits + 1  # a sign
    for layer, ranges in zip(setting.layers, constants.layers, strict=True):
        rows = layer.attention.rows
        low, high = SMALLEST_DENOMINATOR, largest_denominator(512)
        if ranges.quad is not None:
            low, high = 2.0**ranges.quad.bits / ranges.quad.ratio, 2.0**ranges.quad.bits
            assert layer.attention.score_width >= layer.attention.score_scale + score_bits(ranges.quad.bits) + 2
        assert rows.numerator_width >= rows.numerator_scale + bits(high * LARGEST_VALUE) + 2
        assert rows.reciprocal_width >= rows.reciprocal_scale + bits(1 / low) + 2
    for norm, ranges in norms_of(setting, constants):
        assert norm.residual_width >= norm.residual_scale + ranges.bits + 2
        largest = math.sqrt(config.hidden * ranges.ratio) * 2.0**-ranges.bits  # 1/σ
        assert norm.factor_width >= norm.factor_scale + bits(largest) + 2


def test_fits_cover_the_calibrated_windows(model):
    config, constants, setting = model
    for layer, ranges in zip(setting.layers, constants.layers, strict=True):
        fit = layer.attention.rows.fit
        if ranges.quad is None:
            assert fit.low <= SMALLEST_DENOMINATOR * (1 + 1e-9) and fit.high >= largest_denominator(512)
        else:
            high = 2.0**ranges.quad.bits
            assert fit.low <= high / ranges.quad.ratio * (1 + 1e-9) and fit.high >= high
    for norm, ranges in norms_of(setting, constants):  # of the sum of squares, n·v
        low, high = 4.0**ranges.bits / ranges.ratio, 4.0**ranges.bits
        assert norm.fit.low <= low * (1 + 1e-9) and norm.fit.high >= high * (1 - 1e-9)
        squares = torch.tensor([low, high], dtype=torch.float64)
        inverse = norm.fit(squares) * (squares / config.hidden).sqrt()
        torch.testing.assert_close(inverse, torch.ones_like(squares), rtol=0, atol=1e-3)


def test_products_of_lifted_wires_fit_the_ring(model):
    _, _, setting = model
    starts = [layer.hidden_width for layer in setting.layers] + [w.FINAL_WIDTH]
    after = [(setting.embedding_norm, starts[0])]
    for layer, next_start in zip(setting.layers, starts[1:], strict=True):
        after += [(layer.attention_norm, layer.middle_width), (layer.output_norm, next_start)]
        assert layer.attention.rows.width <= 64 and layer.activation is not None and layer.activation.width <= 64
        if isinstance(layer.attention, ExactSetting):
            assert layer.attention.weight_width + TABLE_SCALE + FACTOR_SCALE - layer.attention.weight_scale <= 64
    for norm, width in after:
        assert width + norm.residual_scale + norm.factor_scale - w.HIDDEN_SCALE <= norm.width <= 64
        assert norm.factor_scale >= 8


def test_real_encoders_need_the_bits_of_the_design():
    """gte-small's ranges at 512 tokens."""
    layers = encoder_setting(preset_constants(BASE), BASE, 512).layers
    widths = {
        "X′": ({layer.hidden_width for layer in layers}, {54}),
        "QK": ({layer.query_width for layer in layers}, {33, 34, 35}),
        "V": ({layer.value_width for layer in layers}, {37}),
        "P": ({layer.attention.weight_width for layer in layers}, {37}),
        "N": ({layer.attention.rows.numerator_width for layer in layers}, {27}),
        "O": ({layer.context_width for layer in layers}, {33}),
        "c": ({layer.attention_norm.residual_width for layer in layers}, {19}),
        "X₁′": ({layer.middle_width for layer in layers}, {39, 41, 43}),
        "G": ({layer.activation_width for layer in layers}, {32, 34, 36}),
        "c₂": ({layer.output_norm.residual_width for layer in layers}, {17, 19, 21}),
    }
    assert all(found == expected for found, expected in widths.values()), widths


def test_a_layer_opens_what_the_encoder_says():
    """Eighteen openings for `exact`, fifteen for `fast`, in the order of encoder.py."""
    for name, config in CONFIGS.items():
        card = preset(config)
        openings = [
            each
            for each in trace(card.query_program(1, 16)).tape.openings
            if each.scope.startswith("layer 5/") and not each.scope.endswith("/evidence")
        ]
        rounds = sorted({opening.round for opening in openings})
        assert len(rounds) == (18 if name == "exact" else 15)
        by_round = [sorted({each.form.width for each in openings if each.round == place}) for place in rounds]
        layer = card.widths(16).layers[5]
        assert by_round[0] == [layer.hidden_width]
        assert by_round[1] == sorted({layer.query_width, layer.value_width})
        assert by_round[-5] == [18] and by_round[-4] == [layer.activation_width]
        assert by_round[-3:] == [[layer.output_norm.residual_width], [28], [layer.output_norm.factor_width]]


def test_a_range_too_large_for_the_ring_is_refused():
    constants = preset_constants(BASE)
    wild = replace(constants.layers[0], output_norm=NormRange(30, 32))
    with pytest.raises(CalibrationError, match="too few bits"):
        encoder_setting(replace(constants, layers=(wild, *constants.layers[1:])), BASE, 128)


def test_what_is_uploaded_serves_every_length(model):
    """Weights are uploaded once, masked for the longest query: a shorter one needs no wire wider, and has its LayerNorms of
    the layer alike."""
    config, constants, longest = model
    for tokens in (1, 2, 7, 64, 300):
        short = encoder_setting(constants, config, tokens)
        assert (short.embedding_width, short.word_bits) == (longest.embedding_width, longest.word_bits)
        for one, other in zip(short.layers, longest.layers, strict=True):
            assert one.hidden_width <= other.hidden_width
            assert one.value_width - one.value_scale <= other.value_width - other.value_scale  # what X′·W has to hold
            rows, others = one.attention.rows, other.attention.rows
            assert rows.numerator_width - rows.numerator_scale <= others.numerator_width - others.numerator_scale
            for name in ("query_width", "context_width", "middle_width", "activation_width", "attention_norm"):
                assert getattr(one, name) == getattr(other, name)


def test_the_widest_ratio_serves_every_length_and_leaves_digits_to_the_largest_rows():
    """Uploaded once, ε is at one scale; 1/σ of the largest row, where a text is longest, still has two decimal digits."""
    constants = preset_constants(BASE)
    widest = NormRange(11, max(choices.OUTPUT_RATIOS[-1]))
    wide = replace(constants, layers=tuple(replace(layer, output_norm=widest) for layer in constants.layers))
    settings = [layer.output_norm for tokens in (16, 128, 512) for layer in encoder_setting(wide, BASE, tokens).layers]
    assert len({setting.residual_scale for setting in settings}) == 1
    for setting in settings:
        smallest = math.sqrt(BASE.hidden) * 2.0 ** (setting.factor_scale - widest.bits)
        assert smallest >= 100 and setting.width <= 64


def test_evidence_rides_in_rounds_that_are_made_anyway():
    for name, config in CONFIGS.items():
        plan = trace(preset(config).query_program(1, 16))
        own = {each.round for each in plan.tape.openings if not each.scope.endswith("/evidence")}
        riding = {each.round for each in plan.tape.openings if each.scope.endswith("/evidence")}
        assert riding and riding <= own, name


# What is uploaded


def secrets_of(config: ModelConfig) -> Secrets:
    centres = (((0.25,) * config.head_size,) * config.heads,) * config.layers
    heads, neurons = (tuple(range(count)) for count in (config.heads, config.intermediate))
    return Secrets(
        (heads,) * config.layers,
        (neurons,) * config.layers,
        centres,
        ((2.0,) * config.heads,) * config.layers,
        (1.0,) * (2 * config.layers + 1),
    )


def weights_of(config: ModelConfig):
    generator = torch.Generator().manual_seed(1)
    return assemble(config, lambda _, shape: 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64))


def source_of(config: ModelConfig) -> Source:
    return Source(weights_of(config), secrets_of(config))


def forms(folded) -> dict[str, Form]:
    return {name: encoded.form for name, encoded in folded.items()}


@pytest.mark.parametrize("softmax", ["exact", "2quad"])
@pytest.mark.parametrize("name", HEADS)
def test_the_card_declares_what_folding_makes(name, softmax):
    config = replace(HEADS[name], softmax=softmax, quad_shift=5.0 if softmax == "2quad" else 0.0)
    card = preset(config)
    declared = card.static_forms()
    assert forms(card.fold(source_of(config))) == declared
    assert all(form.is_wire for form in declared.values())
    handed_out = replace(card, private_table=False).static_forms()
    assert set(declared) - set(handed_out) == {"word"}


def test_folding_is_the_same_function():
    """[X′ m] times the folded matrix is the layer's linear map on γ·X′ + β, values times their secret factor."""
    config = HEADS["bert embedding"]
    source = source_of(config)
    folded = preset(config).fold(source)
    normal = torch.randn(5, config.hidden, dtype=torch.float64)
    gain, bias = source.weights.norm("embedding_norm")
    expected = source.weights.linear("layers.0.value")(normal * gain + bias)
    padded = torch.cat((normal, torch.ones(5, 1)), 1) @ folded["0.qkv"].real
    torch.testing.assert_close(padded[:, 2 * config.hidden :], 2 * expected, rtol=0, atol=2e-3)


# One program for all parties


def digest(card, batch=1, tokens=8) -> str:
    return trace(card.query_program(batch, tokens)).tape.digest()


def test_the_tape_names_the_query_and_the_calibration():
    config = HEADS["bert classification"]
    card = preset(config)
    constants, layers = card.public, card.public.layers
    others = [
        replace(card, public=replace(constants, embedding_norm=NormRange(5, 32))),
        replace(card, public=replace(constants, layers=(layers[1], layers[0]))),
        replace(card, private_table=False),
        replace(card, config=replace(config, layer_norm_eps=1e-5)),
        replace(card, config=replace(config, family="roberta")),
    ]
    digests = [digest(card), digest(card, 2), digest(card, 1, 9), *map(digest, others)]
    assert len(set(digests)) == len(digests)
    assert digest(card) == digest(card_from_json(card.to_json()))  # as another party reads it


def test_a_traced_query_keeps_the_rules_of_the_tape():
    for config in CONFIGS.values():
        small = replace(config, layers=2, vocabulary=300)
        card = preset(small)
        for program in (card.query_program(2, 16), planner.upload({"card": card.to_json()}, None)):
            tape = trace(program).tape
            taken = [draw for opening in tape.openings for draw in opening.draws]
            taken += [dealt.pad for dealt in tape.dealt] + [disclosure.draw for disclosure in tape.disclosed]
            places = [(draw.pair, draw.purpose, draw.index) for draw in taken]
            assert len(places) == len(set(places))
            for opening in tape.openings:  # one fresh mask of exactly the value's shape and width
                form = opening.form
                assert all((draw.shape, draw.width) == (form.shape, form.width) for draw in opening.draws)


def test_queries_beyond_the_model_are_refused():
    check_query(TINY, 1, 32)
    for batch, tokens in ((1, 0), (1, 33), (0, 8), (-1, 8)):
        with pytest.raises(SettingsError, match="a query has"):
            check_query(TINY, batch, tokens)


# Presets


@pytest.mark.parametrize(("intermediate", "heads"), [(1, 1), (2, 5), (3, 16), (5, 1), (40, 5), (3072, 16)])
@pytest.mark.parametrize("softmax", ["exact", "2quad"])
def test_a_preset_lends_itself_to_any_size(intermediate, heads, softmax):
    for activation in ("gelu", "relu"):
        config = replace(TINY, hidden=80, heads=heads, intermediate=intermediate, activation=activation, layers=7)
        config = replace(config, softmax=softmax, quad_shift=4.0 if softmax == "2quad" else 0.0)
        constants = preset_constants(config)
        constants.check(config)
        bits = [[window for window, _ in layer.windows] for layer in constants.layers]
        assert all(row == sorted(row) for row in bits)
        trace(preset(replace(config, layers=1)).query_program(1, 4))

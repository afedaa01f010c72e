"""Attention in shares: true Softmax and 2Quad against plaintext, at the edges of every window; and what they cost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from attending import LOG2_E, Attention, exact_setting, head_group
from case import revealing
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.engine.form import masked, shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Sharing
from secformer.engine.tracing import trace
from secformer.engine.values import Masked, form_of
from secformer.errors import RangeError, ShapeError, WidthError
from secformer.models.shapes import PRESETS
from secformer.protocols.attention import (
    LOWEST_MAXIMUM,
    BlockPower,
    ExactSetting,
    HeadGroup,
    QuadSetting,
    RowSetting,
    exact_attention,
    largest_denominator,
    quad_attention,
)
from secformer.protocols.evidence import Evidence
from secformer.protocols.menu import reciprocal
from secformer.ring.fixed_point import reduce
from secformer.wires.presets import preset_constants
from secformer.wires.widths import OUTPUT_SCALE, QUERY_SCALE, encoder_setting

BOUND = 2e-3


def random_scores(low, high, shape, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def padded(lengths, keys):
    return (torch.arange(keys) < torch.tensor(lengths)[:, None]).double()


def everything(batch, keys):
    return torch.ones(batch, keys, dtype=torch.float64)


def outliers(batch=2, rows=24, keys=24):
    """Three heads: an ordinary one, one from −290 to 290, one whose row maxima lie 250 apart."""
    ordinary, wide = random_scores(-6, 6, (batch, rows, keys)), random_scores(-290, 290, (batch, rows, keys), 6)
    maxima = torch.linspace(-115, 135, rows, dtype=torch.float64)[:, None]
    apart = maxima - random_scores(0, 20, (batch, rows, keys), 7)
    groups = [head_group(-6, 6), head_group(-290, 290), head_group(-135, 135)]
    return torch.stack((ordinary, wide, apart), 1), groups


# -- right -------------------------------------------------------------------------------------------------------------


def test_outlier_heads():
    scores, groups = outliers()
    Attention(scores, everything(2, 24), exact_setting(groups, 24)).check(BOUND)


def test_mixed_lengths_and_padding_that_would_win():
    """A padded key's score is 0, above every real score of rows around −250. Padded query rows are left alone: their
    scores are outside the third head's window, which must not disturb the others."""
    lengths, keys = (24, 9, 1), 24
    scores, groups = outliers(3)
    scores[:, 1] -= 295
    groups[1] = head_group(-585, 0)
    mask = padded(lengths, keys)
    scores = scores * mask[:, None, :, None]
    scores[:, 2] += 300 * (1 - mask)[:, :, None]
    attention = Attention(scores, mask, exact_setting(groups, keys), rows=mask)
    result = attention.check(BOUND)
    at_padding = result * (1 - mask)[:, None, None, :] * mask[:, None, :, None]
    assert at_padding.abs().max() <= 1.1e-3  # a unit of the numerator, 2^-14, over the smallest denominator, 2^-4
    assert (result[2, :, 0, 0] - 1).abs().max() <= BOUND  # one real key


def test_values_are_averaged():
    """With V instead of the identity, several groups, and an odd number of columns."""
    scores = random_scores(-8, 8, (2, 3, 10, 17))
    values = random_scores(-4, 4, (2, 3, 17, 5), 8)
    groups = [HeadGroup(2, 6), HeadGroup(1, 7)]
    mask = padded((17, 6), 17)
    Attention(scores, mask, exact_setting(groups, 17), values * mask[:, None, :, None]).check(4 * BOUND)


@pytest.mark.parametrize("keys", [1, 2, 100, 512])
def test_flat_rows(keys):
    """All scores of a row equal, at every place within a cell: D is anything from 2^-4 to a quarter of the keys."""
    places = torch.linspace(0, 2 / LOG2_E, 41, dtype=torch.float64)
    scores = places[None, None, :, None].expand(1, 1, -1, keys)
    result = Attention(scores, everything(1, keys), exact_setting([head_group(0, 2)], keys)).check(BOUND)
    assert (result.sum(-1) - 1).abs().max() <= BOUND + keys * 2.0**-14 / 8  # every probability is rounded for itself


def test_rows_of_the_largest_denominator():
    """A maximum at the end of its cell and all others just below the cell: without a carry D is nearly a quarter of the
    keys times 4^f, and nothing but the masks decides about the carry."""
    keys, rows = 512, 96
    top = torch.linspace(0.05, 1.95, rows, dtype=torch.float64)[:, None]  # octaves above the floor of the top cell
    octaves = torch.full((rows, keys), -0.01, dtype=torch.float64)
    octaves[:, :1] = top
    group = HeadGroup(1, 6)
    placed = octaves + 30 - group.centre  # cells start at even octaves
    Attention((placed / LOG2_E)[None, None], everything(1, keys), exact_setting([group], keys)).check(BOUND)
    assert float(torch.exp2(octaves - 2).sum(-1).max()) > 99.2  # beyond a window for D a quarter smaller
    assert float(torch.exp2(octaves - 2).sum(-1).max()) <= largest_denominator(keys)


def test_largest_denominator_is_a_bound():
    """The chance that no score in the maximum's cell carries is Π(1 − f); then D = Σ 4^f/4. Whatever the f: D above the
    bound has a chance below 2^-39."""
    places = torch.linspace(1e-4, 1 - 1e-4, 4000, dtype=torch.float64)
    excess, evidence = (4**places - 1) / 4, -torch.log2(1 - places)
    assert float(39 * (excess / evidence).max()) <= 10.0
    assert largest_denominator(8) == 8.0 and largest_denominator(512) == 138.0


@pytest.mark.parametrize("bits", [6, 7, 9, 10])
def test_scores_at_both_edges_of_the_window(bits):
    """Placed at exactly 0 and at the highest score: the lowest power is 2^-(window - 16), and it must not come back as a
    large one. Rows of the lowest maximum, and of the highest."""
    group = HeadGroup(1, bits)
    highest = group.highest - 2.0**-12
    edges = torch.tensor([0.0, highest, LOWEST_MAXIMUM, highest - 1], dtype=torch.float64)
    octaves = torch.stack([edges.roll(turn)[[0, 1, 2, 3, 0, 0]] for turn in range(4)]).repeat(32, 1)
    rows = torch.cat((octaves, torch.full_like(octaves, highest), torch.full_like(octaves, LOWEST_MAXIMUM)))
    scores = (rows - group.centre) / LOG2_E
    Attention(scores[None, None], everything(1, 6), exact_setting([group], 6)).check(BOUND)


def wraps(kind):
    return {
        "half": lambda ring, width: torch.full_like(ring, -1) << (width - 1),
        "ones": lambda ring, width: torch.full_like(ring, -1),
        "itself": lambda ring, width: ring,
        "one more": lambda ring, width: ring + 1,
    }[kind]


@pytest.mark.parametrize("kind", ["half", "ones", "itself", "one more"])
def test_shares_that_wrap(kind):
    scores, groups = outliers(1, 8, 8)
    Attention(scores, padded((6,), 8), exact_setting(groups, 8)).check(BOUND, wraps(kind))
    Attention(random_scores(-4, 4, (1, 1, 8, 8)), padded((6,), 8), quad_setting(20, 500)).check(BOUND, wraps(kind))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_scores(data):
    batch, heads, rows, keys = (data.draw(st.integers(1, most)) for most in (2, 3, 5, 40))
    limits = [data.draw(st.integers(1, 300)) for _ in range(heads)]
    limits.sort()
    seed = data.draw(st.integers(0, 2**20))
    scores = torch.stack([random_scores(-limit, limit, (batch, rows, keys), seed) for limit in limits], 1)
    lengths = [data.draw(st.integers(1, keys)) for _ in range(batch)]
    groups = [head_group(-limit, limit) for limit in limits]
    Attention(scores, padded(lengths, keys), exact_setting(groups, keys)).check(BOUND)


# -- the power ---------------------------------------------------------------------------------------------------------


def test_every_power_under_every_mask():
    """Windows of 64 octaves in steps of a quarter: all valid exponents, all masks, so every block and every wrap. The tops of
    the rows, and their masks, are any."""
    step_bits, width = 2, 8
    window = 1 << width
    exponent = torch.arange(-window + (16 << step_bits), 1)
    plain, mask = (axis.reshape(-1, 1) for axis in torch.meshgrid(exponent, torch.arange(window), indexing="ij"))
    top, top_mask = (torch.randint(window, plain.shape) for _ in range(2))

    def opened(value: torch.Tensor, mask: torch.Tensor) -> Sharing:
        half, public = mask // 3, reduce(value + mask, width)
        pair = tuple(Masked(public, part, width, step_bits) for part in (half, reduce(mask - half, width)))
        dealt = Masked(torch.empty_like(public, device="meta"), half + reduce(mask - half, width), width, step_bits)
        return Sharing(pair, dealt)

    given = {"x": opened(plain + top, mask + top_mask), "top": opened(top, top_mask)}
    gate = BlockPower(step_bits, 56)
    forms = {name: form_of(sharing.pair[0]) for name, sharing in given.items()}
    program = revealing("power", lambda r, v: {"y": r.apply(gate, v["x"], v["top"])}, forms)
    power = run_locally(program, given).value("y")
    exact = torch.exp2(plain.double() / 4)
    assert ((power - exact).abs() <= 2.0**-16 + exact * 2.0**-12).all()


def test_powers_have_one_top_a_row_in_the_window_of_the_scores():
    def wire(width, scale, *shape):
        return Masked(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64), width, scale)

    gate, x = BlockPower(6, 50), wire(12, 6, 3, 40)
    assert gate.result(x, wire(12, 6, 3, 1)).shape == (3, 40)
    for shape in ((3, 40), (1, 1), (1,), (3,), (1, 3, 1)):
        with pytest.raises(ShapeError, match="need one top each"):
            gate.result(x, wire(12, 6, *shape))
    for top in (wire(13, 6, 3, 1), wire(12, 5, 3, 1)):
        with pytest.raises(WidthError, match="another window"):
            gate.result(x, top)


# -- 2Quad -------------------------------------------------------------------------------------------------------------


def quad_setting(low, high):
    return QuadSetting(RowSetting(reciprocal(low, high), reciprocal_scale=24), weight_scale=10, weight_width=37)


def test_quad_with_mixed_lengths():
    scores, mask = random_scores(-4, 4, (3, 2, 12, 12)), padded((12, 5, 2), 12)
    attention = Attention(scores, mask, quad_setting(4, 800), rows=mask)
    result = attention.check(BOUND)
    at_padding = result * (1 - mask)[:, None, None, :] * mask[:, None, :, None]
    assert at_padding.abs().max() <= 1e-3


def test_quad_refuses_row_sums_outside_their_window():
    scores, mask = random_scores(-4, 4, (1, 1, 12, 12)), everything(1, 12)
    with pytest.raises(RangeError, match="leave the range"):
        Attention(scores, mask, quad_setting(4, 100)).simulate(strict=True)
    with pytest.raises(RangeError, match="leave the range"):
        Attention(scores * 100, mask, quad_setting(4, 800)).simulate(strict=True)


# -- what simulation refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [-17.5, 13.5])
def test_scores_outside_their_window_are_named(score):
    scores = random_scores(-3, 3, (1, 1, 6, 6))
    setting = exact_setting([HeadGroup(1, 6)], 6)
    Attention(scores, everything(1, 6), setting).simulate(strict=True)
    scores[0, 0, 3, 4] = score
    with pytest.raises(RangeError, match=r"1 values .* leave the range 0 to 44: calibrate"):
        Attention(scores, everything(1, 6), setting).simulate(strict=True)


def test_a_cell_too_many_is_wrong_in_shares_and_refused_in_simulation():
    """Why the highest score keeps a block and two cells from the top."""
    group = HeadGroup(1, 6)
    placed = torch.tensor([[0.0, group.highest + 8]], dtype=torch.float64).expand(200, -1)
    scores = ((placed - group.centre) / LOG2_E)[None, None]
    attention = Attention(scores, everything(1, 2), exact_setting([group], 2))
    assert attention.error(attention.run().value("y")) > 0.1
    with pytest.raises(RangeError):
        attention.simulate(strict=True)


def test_a_denominator_that_some_mask_would_push_out_is_refused():
    """Simulation sees the row as if a score carried, with a D four times smaller than in the other case."""
    keys = 200
    scores = random_scores(0.55, 0.65, (1, 1, 4, keys))  # near the top of a cell
    Attention(scores, everything(1, keys), exact_setting([head_group(-1, 1)], keys)).simulate(strict=True)
    with pytest.raises(RangeError, match="leave the range"):
        Attention(scores, everything(1, keys), exact_setting([head_group(-1, 1)], keys, 40.0)).simulate(strict=True)


def test_padded_query_rows_may_hold_anything():
    """Scores outside this head's window: refused where the row counts, ignored where it does not."""
    scores = random_scores(-6, 6, (1, 1, 4, 4))
    scores[0, 0, 3] = 60
    setting = exact_setting([head_group(-6, 6)], 4)
    counted = torch.tensor([[1.0, 1, 1, 0]], dtype=torch.float64)
    attention = Attention(scores, everything(1, 4), setting, rows=counted)
    attention.check(BOUND)
    attention.simulate(strict=True)
    with pytest.raises(RangeError):
        Attention(scores, everything(1, 4), setting).simulate(strict=True)


# -- cost --------------------------------------------------------------------------------------------------------------


def attention_cost(layer, config, batch, tokens, evidence=None):
    """From shares of the scores to the opened output, traced."""

    def body(runtime, inputs):
        attend = exact_attention if isinstance(layer.attention, ExactSetting) else quad_attention
        given = (inputs[name] for name in ("scores", "value", "mask"))
        context = attend(runtime, *given, layer.attention, evidence)
        runtime.open(context.at(OUTPUT_SCALE, layer.context_width))
        return {}

    shape = (batch, config.heads, tokens)
    forms = {
        "scores": shared((*shape, tokens), layer.query_width, 2 * QUERY_SCALE),
        "value": masked((*shape, config.head_size), layer.value_width, layer.value_scale),
        "mask": shared((batch, 1, 1, tokens)),
    }
    return trace(revealing("attention", body, forms)).cost


def encoder_layers(softmax, tokens):
    config = replace(PRESETS["bert-base"], softmax=softmax, quad_shift=0.0 if softmax == "exact" else 5.0)
    return encoder_setting(preset_constants(config), config, tokens).layers, config


def layer_costs(softmax, batch, tokens):
    layers, config = encoder_layers(softmax, tokens)
    return [attention_cost(layer, config, batch, tokens) for layer in layers], batch * config.heads * tokens**2


@pytest.mark.parametrize(("batch", "tokens"), [(4, 64), (1, 128), (1, 512)])
def test_cost_of_a_real_encoder_s_windows(batch, tokens):
    exact, scores = layer_costs("exact", batch, tokens)
    fast, _ = layer_costs("2quad", batch, tokens)
    assert {cost.rounds for cost in exact} == {7}
    assert {cost.rounds for cost in fast} == {4}
    online, fast_online = (sum(cost.online_bytes for cost in costs) for costs in (exact, fast))
    assert online <= 1.5 * fast_online
    assert sum(cost.dealer_bytes for cost in exact) <= 170 * scores * len(exact)


@pytest.mark.parametrize("softmax", ["exact", "2quad"])
def test_evidence_costs_no_round_a_bit_a_score_and_a_word_a_row(softmax):
    layers, config = encoder_layers(softmax, 128)
    rows = config.heads * 128
    for layer in layers:
        bare, watched = (attention_cost(layer, config, 1, 128, evidence) for evidence in (None, Evidence()))
        more = rows * (128 + 16 + 3)  # the word, and its test: three digits
        if softmax == "2quad":
            more += rows * (row_sum_bits(layer.attention) + 2 * 7)  # and two signs
        assert watched.rounds == bare.rounds
        assert watched.opened_bits == bare.opened_bits + more


def row_sum_bits(setting):
    """D in units of a sixteenth of the lowest one or less: what is known of it, but not more than one round compares."""
    scale = min(2 * setting.score_scale, 4 - math.floor(math.log2(setting.rows.fit.low)))
    return min(25, setting.square_width - 2 * setting.score_scale + scale)


def test_declared_cost_is_what_the_links_carry():
    scores, groups = outliers(1, 8, 8)
    run = Attention(scores, everything(1, 8), exact_setting(groups, 8)).run()
    cost = run.plan.cost
    assert (run.counters[0].payload_sent, run.counters[0].rounds) == (cost.opened_bytes, cost.rounds)
    assert run.dealer.payload_sent == cost.dealer_bytes


def test_groups_share_their_rounds():
    one = Attention(random_scores(-5, 5, (1, 3, 4, 4)), everything(1, 4), exact_setting([HeadGroup(3, 6)], 4))
    scores, groups = outliers(1, 4, 4)
    three = Attention(scores, everything(1, 4), exact_setting(groups, 4))
    assert trace(one.program(True)).cost.rounds == trace(three.program(True)).cost.rounds == 7

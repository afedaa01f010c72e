"""The histogram maximum: M is the cell of a row's maximum or the next, for all rows, masks and shares."""

from __future__ import annotations

import pytest
import torch
from case import revealing
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.engine.form import shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing, share
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import trace
from secformer.engine.values import Disclosed, Masked, Shared, form_of
from secformer.protocols.maximum import empty_from, top_cell
from secformer.ring.fixed_point import reduce


def draw(shape, width, cell_bits, seed=1):
    """Anywhere below the last cell."""
    generator = torch.Generator().manual_seed(seed)
    highest = (1 << width) - (1 << (width - cell_bits))
    return torch.randint(0, highest, shape, generator=generator)


def program(shapes, cell_bits, widths, result=24):
    """One maximum for each shape, from shares, all together."""
    forms = {str(place): shared(shape, widths[place]) for place, shape in enumerate(shapes)}

    def body(runtime, inputs):
        wires = runtime.open(*inputs.values())
        empty = empty_from(runtime, [(wire, cell_bits[place], result) for place, wire in enumerate(wires)])
        return {str(place): top_cell(runtime, each) for place, each in enumerate(empty)}

    return revealing("maximum", body, forms)


def tops(rows, cell_bits, width, forced=None):
    built = program([tuple(rows.shape)], [cell_bits], [width])
    return run_locally(built, {"0": share(secret(rows, width), forced)}).value("0").long()


def secret(rows, width):
    return Encoded.ring_elements(rows, width=width)


def cells(rows, cell_bits, width):
    return rows.amax(-1, keepdim=True) >> (width - cell_bits)


def assert_near(found, rows, cell_bits, width):
    above = found - cells(rows, cell_bits, width)
    assert ((above == 0) | (above == 1)).all()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_maximum_s_cell_or_the_next(data):
    cell_bits = data.draw(st.integers(1, 7))
    width = cell_bits + data.draw(st.integers(1, 14))
    shape = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 70)))
    rows = draw(shape, width, cell_bits, data.draw(st.integers(0, 2**20)))
    assert_near(tops(rows, cell_bits, width), rows, cell_bits, width)


@pytest.mark.parametrize("keys", [1, 2, 3, 4, 7, 8, 15, 16, 63, 64])
def test_rows_of_equal_elements(keys):
    """Counts reach the number of keys, at powers of two the largest that the ring of counts must tell from zero."""
    rows = draw((40, 1), 12, 5).expand(-1, keys).contiguous()
    assert_near(tops(rows, 5, 12), rows, 5, 12)


def test_both_cells_occur_and_nothing_but_the_masks_decides():
    """At a fraction f of its cell a lone element is put into the next with probability f."""
    width, cell_bits, trials = 12, 4, 6000
    for eighths in (0, 1, 4, 7):
        rows = torch.full((trials, 1), (5 << 8) + (eighths << 5))
        above = (tops(rows, cell_bits, width) - 5).double().mean()
        assert abs(float(above) - eighths / 8) < 0.04


def test_every_element_under_every_mask():
    """M = cell(S) + the carry of the low parts of S + r."""
    width, cell_bits = 6, 3
    low = width - cell_bits
    grid = torch.meshgrid(torch.arange((1 << width) - (1 << low)), torch.arange(1 << width), indexing="ij")
    plain, mask = (axis.reshape(-1, 1) for axis in grid)
    half, other = mask // 5, reduce(mask - mask // 5, width)
    public = reduce(plain + mask, width)
    pair = Masked(public, half, width), Masked(public, other, width)
    dealt = Masked(torch.empty_like(public, device="meta"), half + other, width)

    def body(runtime, inputs):
        (empty,) = empty_from(runtime, [(inputs["x"], cell_bits, 20)])
        return {"top": top_cell(runtime, empty), "empty": empty}

    run = run_locally(revealing("top", body, {"x": form_of(pair[0])}), {"x": Sharing(pair, dealt)})
    carry = ((plain & ((1 << low) - 1)) + (mask & ((1 << low) - 1))) >> low
    top = (plain >> low) + carry
    assert torch.equal(run.value("top").long(), top)
    assert torch.equal(run.value("empty").long(), (torch.arange(1, 1 << cell_bits) > top).long())


@pytest.mark.parametrize("first", [0, -1, 1 << 13, (1 << 13) - 1])
def test_shares_that_wrap(first):
    rows = draw((50, 9), 14, 5)
    assert_near(tops(rows, 5, 14, lambda ring, width: torch.full_like(ring, first)), rows, 5, 14)


def test_groups_share_their_rounds():
    shapes, cell_bits, widths = [(3, 5, 8), (2, 8), (1, 30)], [4, 6, 3], [16, 18, 20]
    built = program(shapes, cell_bits, widths)
    values = [draw(shape, width, bits) for shape, bits, width in zip(shapes, cell_bits, widths, strict=True)]
    run = run_locally(built, {str(place): secret(rows, widths[place]) for place, rows in enumerate(values)})
    assert run.counters[0].rounds == 3  # the wires, the counts, the test bits
    for place, rows in enumerate(values):
        found = run.value(str(place)).long()
        assert found.shape == (*shapes[place][:-1], 1)
        assert_near(found, rows, cell_bits[place], widths[place])


@pytest.mark.parametrize(("keys", "count_bits", "digits"), [(8, 4, 1), (63, 6, 1), (64, 7, 2), (512, 10, 2)])
def test_bits_each_way(keys, count_bits, digits):
    rows, cell_bits, width = 3, 5, 17
    cost = trace(program([(rows, keys)], [cell_bits], [width])).cost
    assert cost.opened_bits == rows * (keys * width + 31 * (count_bits + digits))


def test_long_tensors_are_dealt_in_blocks():
    """More one-hot entries than a block holds."""
    rows = draw((70, 512), 16, 7)
    built = program([(70, 512)], [7], [16])
    assert len([1 for dealt in trace(built).tape.dealt if "Histogram" in dealt.gate]) > 1
    assert_near(tops(rows, 7, 16), rows, 7, 16)


def test_simulation_takes_the_upper_cell():
    """Of the two outcomes the one that a long row meets, and the one with the lower powers."""
    rows = draw((20, 6), 16, 5)
    built = program([(20, 6)], [5], [16])
    found = Simulating().run(built, {"0": Shared(rows, 16)})["0"]
    assert isinstance(found, Disclosed) and isinstance(found.value, Shared)
    assert torch.equal(found.value.share, cells(rows, 5, 16) + 1)

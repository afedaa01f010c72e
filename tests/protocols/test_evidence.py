"""What counts rows that left a range: exact where it must be, at every cell, under every mask and wrap."""

from __future__ import annotations

import itertools

import pytest
import torch
from case import revealing
from simulation import simulation

from secformer.engine.form import masked
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing, share
from secformer.engine.tracing import trace
from secformer.engine.values import Masked, form_of
from secformer.protocols.evidence import (
    INTERVAL_BITS,
    WORD_BITS,
    Evidence,
    Outside,
    bit_steps,
    interval_steps,
    outside_steps,
)
from secformer.protocols.evidence import (
    hashes as row_hashes,
)
from secformer.ring.fixed_point import reduce

FORCED = [0, -1, 1 << 11, (1 << 11) - 1]
LOW_BITS = 2  # of an element, below its cell


def wires_under_every_mask(values, width):
    """(values, masks, 1): both servers' views, and T's."""
    plain, mask = torch.meshgrid(values, torch.arange(1 << width), indexing="ij")
    plain, mask = plain.unsqueeze(-1), mask.unsqueeze(-1)
    half = (mask * 5 + plain) & ((1 << width) - 1)
    public, other = reduce(plain + mask, width), reduce(mask - half, width)
    pair = Masked(public, half, width), Masked(public, other, width)
    return mask, Sharing(pair, Masked(torch.empty_like(public, device="meta"), half + other, width))


def apply(gate, sharing):
    built = revealing("outside", lambda r, v: {"y": r.apply(gate, v["x"])}, {"x": form_of(sharing.pair[0])})
    return run_locally(built, {"x": sharing}).value("y")


def bounds(cells):
    """[first, last] for every number of cells: all of them, a middle part, one end, one cell."""
    return {(0, cells - 1), (0, 0), (cells // 4, cells // 2), (cells - 1, cells - 1), (0, cells // 2)}


# -- the gate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell_bits", range(1, 7))
def test_every_element_under_every_mask(cell_bits):
    """A flag is that of the element's cell or of the one above, as the carry of the low parts decides."""
    width, cells = cell_bits + LOW_BITS, 1 << cell_bits
    low = (1 << LOW_BITS) - 1
    values = torch.arange(1 << width)
    mask, sharing = wires_under_every_mask(values, width)
    for (first, last), shift in itertools.product(sorted(bounds(cells)), (0, 1, 5)):
        found = apply(Outside(cell_bits, first, last, shift, single=True), sharing)
        shifted = reduce(values + shift, width)[:, None, None]
        carry = ((shifted & low) + (mask & low)) >> LOW_BITS
        cell = ((shifted >> LOW_BITS) + carry) % cells
        assert torch.equal(found, ((cell < first) | (cell > last)).long().squeeze(-1))


@pytest.mark.parametrize("first_share", FORCED)
@pytest.mark.parametrize("cell_bits", range(1, 7))
def test_rows_with_none_one_and_two_elements_outside(cell_bits, first_share):
    """The range [first, last] with the cell below it free as well: inside is never flagged, outside always."""
    width, cells = 12, 1 << cell_bits
    size = width - cell_bits
    inside = (
        0,
        cells // 2 - 1,
    )  # an element in the last of these may be seen in the guard cell, which counts as inside
    gate = Outside(cell_bits, 0, cells // 2)
    length, rows = 9, 40
    generator = torch.Generator().manual_seed(3)

    def anywhere(low_cell, high_cell, shape):
        return torch.randint(low_cell << size, (high_cell + 1) << size, shape, generator=generator)

    quiet = anywhere(*inside, (rows, length))
    quiet[0], quiet[1] = 0, (cells // 2 << size) - 1  # both ends
    outside = (cells // 2 + 1, cells - 2)  # the last cell may be seen in the first: the other guard
    tests = [(quiet, False)]
    if outside[0] <= outside[1]:
        for count in (1, 2):
            loud = quiet.clone()
            for place in torch.combinations(torch.arange(length), count):
                loud[:, place] = anywhere(*outside, (rows, count))
                tests.append((loud.clone(), True))
                loud = quiet.clone()
    for values, expected in tests:
        secret = Encoded.ring_elements(values, width=width)
        built = revealing("rows", lambda r, v: {"y": r.apply(gate, *r.open(v["x"]))}, {"x": secret.form})
        run = run_locally(built, {"x": share(secret, lambda ring, width: torch.full_like(ring, first_share))})
        for words in (run.value("y"), simulation(built, {"x": secret}).results["y"]):
            assert ((words != 0) == expected).all()


@pytest.mark.parametrize("cell_bits", range(1, 7))
def test_a_guard_cell_is_ambiguous(cell_bits):
    """Just above the range: flagged with the chance that the low parts carry, a quarter, a half, three quarters."""
    width, last = 12, (1 << cell_bits) - 2
    size = width - cell_bits
    for quarters in (0, 1, 2, 3):
        values = torch.full((4000, 1), (last << size) + (quarters << (size - 2)))
        secret = Encoded.ring_elements(values, width=width)
        gate = Outside(cell_bits, 0, last, single=True)
        built = revealing("guard", lambda r, v, g=gate: {"y": r.apply(g, *r.open(v["x"]))}, {"x": secret.form})
        flagged = run_locally(built, {"x": secret}).value("y").double().mean()
        assert abs(float(flagged) - quarters / 4) < 0.05


def test_the_words_of_elements_differ_and_none_is_zero():
    hashes = row_hashes(0, (1 << WORD_BITS) - 1, torch.device("cpu"))
    assert len(set(hashes.tolist())) == len(hashes)
    assert int(hashes.min()) > 0 and int(hashes.max()) < 1 << WORD_BITS
    assert torch.equal(row_hashes(700, 30, torch.device("cpu")), hashes[700:730])


def test_material_is_a_table_an_element():
    for cell_bits in range(1, 7):
        forms = {"x": masked((3, 7), 12)}
        built = revealing("cost", lambda r, v, c=cell_bits: {"y": r.apply(Outside(c, 0, 0), v["x"])}, forms)
        assert trace(built).cost.dealer_bits == 21 << cell_bits


# -- counting --------------------------------------------------------------------------------------------------------------


def counting(forms, steps, kinds=("kind",)):
    """Counts by kind, from steps that run at once."""

    def body(runtime, inputs):
        evidence = Evidence()
        with runtime.scope("place"):
            runtime.at_once(steps(runtime, evidence, inputs))
        return {"counts": evidence.disclosed(runtime, [("place", kind) for kind in kinds]).value}

    return revealing("counting", body, forms)


def counts(built, secrets, forced=None):
    """On shares, which must agree with simulation."""
    run = run_locally(built, {name: share(secret, forced) for name, secret in secrets.items()})
    plain = simulation(built, secrets).results["counts"]
    assert torch.equal(run.value("counts"), plain)
    return plain.long()


@pytest.mark.parametrize("first_share", [None, *FORCED])
def test_rows_are_counted_by_text_and_groups_are_added(first_share):
    """Cells of 256: inside up to 512, in pieces of different ranges."""
    width, generator = 12, torch.Generator().manual_seed(8)
    values = torch.randint(0, 512, (3, 4, 5, 10), generator=generator)
    values[0, 0, 0, 0] = 1500  # in the first piece
    values[0, 2, 1, 9] = 3000  # in the second
    values[0, 2, 1, 2] = 3000  # the same row
    values[2, :, :, 7] = 2048
    secret = Encoded.ring_elements(values, width=width)

    def steps(runtime, evidence, inputs):
        (wire,) = runtime.open(inputs["x"])
        pieces = [(Outside(4, 0, 2), wire[..., :4]), (Outside(4, 0, 2, start=4), wire[..., 4:])]
        yield from outside_steps(runtime, evidence, "kind", [pieces, pieces])

    forced = None if first_share is None else lambda ring, width: torch.full_like(ring, first_share)
    found = counts(counting({"x": secret.form}, steps), {"x": secret}, forced)
    assert found.tolist() == [[2 * 2], [0], [2 * 20]]


def test_two_elements_in_different_pieces_do_not_cancel():
    """Each piece goes on with the words where the last one stopped."""
    values = torch.full((2, 6, 12), 100)
    for row, (left, right) in enumerate(((0, 6), (1, 7), (5, 11), (2, 6), (0, 11), (3, 9))):
        values[1, row, [left, right]] = 2000
    secret = Encoded.ring_elements(values, width=12)

    def steps(runtime, evidence, inputs):
        (wire,) = runtime.open(inputs["x"])
        pieces = [(Outside(4, 0, 2, start=start), wire[..., start : start + 6]) for start in (0, 6)]
        yield from outside_steps(runtime, evidence, "kind", [pieces])

    assert counts(counting({"x": secret.form}, steps), {"x": secret}).tolist() == [[0], [6]]


@pytest.mark.parametrize("first_share", [None, *FORCED])
@pytest.mark.parametrize(("low", "high"), [(2.0, 40.0), (None, 40.0), (0.25, 4000.0)])
def test_intervals(low, high, first_share):
    """Whatever is outside is counted, be it by a tenth of a unit; what is two units inside is not."""
    scale = 4
    unit, top = 2.0**-scale, 2.0 ** (INTERVAL_BITS - 1 - scale)
    near = [high + unit / 10, high + unit, top / 2, top - high - 1]
    near += [-1.0, -300.0] if low is None else [low - unit / 10, low - unit, -1.0, -300.0]
    inside = [high - 2.1 * unit, (low or 0.0) + 2.1 * unit, high / 2]
    outside = [value for value in near if value > high or (low is not None and value < low)]
    rows = [near + inside, inside + inside[:1] * len(near), outside + inside[:1] * (len(near + inside) - len(outside))]
    values = torch.tensor(rows, dtype=torch.float64)[..., None]
    secret = Encoded.numbers(values, scale + 8, INTERVAL_BITS + 12)

    def steps(runtime, evidence, inputs):
        yield from interval_steps(runtime, evidence, "kind", inputs["x"].at(scale, INTERVAL_BITS), low, high)

    forced = None if first_share is None else lambda ring, width: torch.full_like(ring, first_share << 20)
    built = counting({"x": secret.form}, steps)
    expected = [len(outside), 0, len(outside)]
    assert counts(built, {"x": secret}, forced).flatten().tolist() == expected
    assert simulation(built, {"x": secret}).results["counts"].flatten().tolist() == expected


def test_an_interval_needs_two_rounds_and_a_sign_for_each_end():
    for low, signs in ((1.0, 2), (None, 1)):

        def steps(runtime, evidence, inputs, low=low):
            yield from interval_steps(runtime, evidence, "kind", inputs["x"].at(4, INTERVAL_BITS), low, 9.0)

        secret = Encoded.numbers(torch.ones(2, 3, 1, dtype=torch.float64), 4, 40)
        cost = trace(counting({"x": secret.form}, steps)).cost
        assert (cost.rounds, cost.opened_bits) == (2, 6 * (INTERVAL_BITS + 7 * signs))


@pytest.mark.parametrize("first_share", [None, *FORCED])
def test_single_bits(first_share):
    """Cells of 16, 64 of them; inside are the first and, as its guard, the second."""
    values = torch.tensor([[0, 15, 1, 8], [32, 100, 1000, 0], [1023 - 16, 512, 33, 40]])[..., None]
    secret = Encoded.ring_elements(values, 2, 14)

    def steps(runtime, evidence, inputs):
        yield from bit_steps(runtime, evidence, "kind", inputs["x"].at(2, 10), Outside(6, 0, 1, single=True))

    forced = None if first_share is None else lambda ring, width: torch.full_like(ring, first_share)
    built = counting({"x": secret.form}, steps)
    assert counts(built, {"x": secret}, forced).tolist() == [[0], [3], [4]]
    cost = trace(built).cost
    assert (cost.rounds, cost.opened_bits) == (2, 12 * (10 + 1))


def test_kinds_are_kept_apart_and_counts_are_added():
    values = torch.tensor([[[0], [2000]], [[2000], [2000]]])
    secret = Encoded.ring_elements(values, width=12)

    def steps(runtime, evidence, inputs):
        for kind in ("a", "b", "a"):
            yield from bit_steps(runtime, evidence, kind, inputs["x"].at(0), Outside(4, 0, 2, single=True))

    built = counting({"x": secret.form}, steps, ("b", "a"))
    assert counts(built, {"x": secret}).tolist() == [[1, 2], [2, 4]]

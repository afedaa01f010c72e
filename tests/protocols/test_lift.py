"""Lifting: exact for every value, every mask and every split of it in small rings, and at the ends of wide ones."""

import pytest
import torch
from case import revealing
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import simulation

from secformer.engine.form import shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing
from secformer.engine.tracing import trace
from secformer.engine.values import Masked, form_of
from secformer.errors import RangeError, WidthError
from secformer.protocols.lift import lift, lift_wire, multiply_lifted, row_squares_lifted
from secformer.ring.fixed_point import reduce


def wires(plain, mask, half, width):
    """The wire of `plain` under `mask`, whose S0 half is given: both servers' views, and T's."""
    other = reduce(mask - half, width)
    public = reduce(plain + mask, width)
    dealt = Masked(torch.empty_like(public, device="meta"), half + other, width)
    return Sharing((Masked(public, half, width), Masked(public, other, width)), dealt)


def run_on_wires(body, **inputs):
    forms = {name: form_of(sharing.pair[0]) for name, sharing in inputs.items()}
    program = revealing("wires", lambda runtime, values: {"y": body(runtime, **values)}, forms)
    return run_locally(program, inputs).value("y")


def everything(width, halves):
    limit = 1 << (width - 2)
    grid = torch.meshgrid(torch.arange(-limit, limit), torch.arange(1 << width), halves, indexing="ij")
    return [axis.reshape(-1) for axis in grid]


@pytest.mark.parametrize("wide", [64, 20])
@pytest.mark.parametrize("width", [3, 4, 5, 6, 7, 8])
def test_every_value_and_every_mask(width, wide):
    halves = torch.arange(1 << width) if width < 6 else torch.tensor([0, 1, 5, (1 << width - 1) - 1, (1 << width) - 1])
    plain, mask, half = everything(width, halves)
    lifted = run_on_wires(lambda runtime, x: lift(runtime, x, wide), x=wires(plain, mask, half, width))
    assert torch.equal(lifted, plain.double())


@pytest.mark.parametrize(("left", "right", "wide"), [(3, 4, 64), (4, 4, 9), (5, 3, 8), (4, 3, 7)])
def test_every_product_of_small_wires(left, right, wide):
    """Also where the widths add up to more than the ring, and the last cross term vanishes."""
    x, mask_x = (axis.reshape(-1) for axis in torch.meshgrid(*ranges(left), indexing="ij"))
    y, mask_y = (axis.reshape(-1) for axis in torch.meshgrid(*ranges(right), indexing="ij"))
    product = run_on_wires(
        lambda runtime, x, y: multiply_lifted(runtime, lift_wire(runtime, x, wide), lift_wire(runtime, y, wide)),
        x=wires(x[:, None], mask_x[:, None], mask_x[:, None] // 3, left),
        y=wires(y[None], mask_y[None], mask_y[None] // 2, right),
    )
    assert torch.equal(product, (x[:, None] * y[None]).double())


def ranges(width):
    limit = 1 << (width - 2)
    return torch.arange(-limit, limit), torch.arange(1 << width)


@pytest.mark.parametrize("width", [3, 5, 8])
def test_every_square(width):
    plain, mask, half = everything(width, torch.tensor([0, (1 << width) - 1]))
    squares = run_on_wires(
        lambda runtime, x: row_squares_lifted(runtime, lift_wire(runtime, x, 40)),
        x=wires(plain[:, None], mask[:, None], half[:, None], width),
    )
    assert torch.equal(squares[:, 0], (plain * plain).double())


@settings(max_examples=40, deadline=None)
@given(width=st.integers(3, 54), data=st.data())
def test_ends_of_wide_rings(width, data):
    limit = 1 << (width - 2)
    inside = st.integers(-limit, limit - 1) | st.sampled_from([-limit, limit - 1, 0, -1])
    plain = torch.tensor(data.draw(st.lists(inside, min_size=1, max_size=40)))
    secret = Encoded.ring_elements(plain, width=width)
    program = revealing("lift", lambda r, v: {"y": lift(r, *r.open(v["x"]))}, {"x": secret.form})
    assert torch.equal(run_locally(program, {"x": secret}).value("y"), plain.double())


@pytest.mark.parametrize("value", [1 << 17, -(1 << 17) - 1])
def test_simulation_names_a_value_out_of_range(value):
    secret = Encoded.ring_elements(torch.tensor([0, value]), 12, 19)
    program = revealing("lift", lambda runtime, v: {"y": lift(runtime, *runtime.open(v["x"]))}, {"x": secret.form})
    with pytest.raises(RangeError, match=r"1 values .* leave the range -32 to 32"):
        simulation(program, {"x": secret}, strict=True)
    (departure,) = simulation(program, {"x": secret}).departures
    assert (departure.count, departure.low) == (1, -32.0)


@pytest.mark.parametrize(("narrow", "wide", "bound"), [(2, 64, None), (20, 20, None), (20, 65, None), (19, 64, 33.0)])
def test_impossible_widths_are_refused_while_tracing(narrow, wide, bound):
    forms = {"x": shared((2,), narrow, 12)}
    program = revealing("lift", lambda runtime, v: {"y": lift(runtime, *runtime.open(v["x"]), wide, bound)}, forms)
    with pytest.raises(WidthError):
        trace(program)

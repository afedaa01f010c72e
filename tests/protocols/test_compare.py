"""Comparison: exact for every value and every mask in small rings, and at the ends of the widest."""

import pytest
import torch
from case import revealing
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.engine.form import masked, shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing
from secformer.engine.tracing import trace
from secformer.engine.values import Masked
from secformer.errors import RangeError, WidthError
from secformer.protocols.compare import are_zero, less_than, sign_bit
from secformer.ring.fixed_point import reduce


def on_every_wire(protocol, width):
    """The result for every value (rows) under every mask (columns) of `width` bits; the masks are split in halves."""
    values = torch.arange(-(1 << (width - 1)), 1 << (width - 1))
    plain, mask = torch.meshgrid(values, torch.arange(1 << width), indexing="ij")
    half = (mask * 5 + plain) & ((1 << width) - 1)
    public, other = reduce(plain + mask, width), reduce(mask - half, width)
    form = masked(tuple(plain.shape), width)
    program = revealing("wires", lambda runtime, v: {"y": protocol(runtime, v["x"])}, {"x": form})
    views = (Masked(public, half, width), Masked(public, other, width))
    sharing = Sharing(views, Masked(form.empty(), half + other, width))
    return plain, run_locally(program, {"x": sharing}).value("y")


@pytest.mark.parametrize("width", range(2, 9))
def test_sign_of_every_value_under_every_mask(width):
    plain, result = on_every_wire(sign_bit, width)
    assert torch.equal(result, (plain < 0).double())


@pytest.mark.parametrize("width", range(1, 9))
def test_zero_test_of_every_value_under_every_mask(width):
    plain, result = on_every_wire(lambda runtime, x: are_zero(runtime, [(x, 64)])[0], width)
    assert torch.equal(result, (plain == 0).double())


def compare(x, y, width):
    inputs = {"x": Encoded.ring_elements(x, width=width)}
    if isinstance(y, torch.Tensor):
        inputs["y"] = Encoded.ring_elements(y, width=width)
    forms = {name: value.form for name, value in inputs.items()}
    program = revealing("compare", lambda r, v: {"z": less_than(r, v["x"], v.get("y", y))}, forms)
    return run_locally(program, inputs).value("z")


@settings(max_examples=40, deadline=None)
@given(width=st.integers(2, 64), data=st.data())
def test_ends_of_the_range(width, data):
    top = 1 << (width - 1)
    edges = st.sampled_from([-top, -top + 1, -1, 0, 1 if width > 1 else 0, top - 1, top - 2])
    values = data.draw(st.lists(st.integers(-top, top - 1) | edges, min_size=1, max_size=30))
    x = torch.tensor(values, dtype=torch.int64)
    assert torch.equal(compare(x, 0.0, width), (x < 0).double())


@settings(max_examples=25, deadline=None)
@given(width=st.sampled_from([20, 24, 40, 64]), data=st.data())
def test_secrets_that_are_close_or_far(width, data):
    top = 1 << (width - 2)
    number = st.integers(-top, top - 1)
    left = data.draw(st.lists(number, min_size=1, max_size=20))
    steps = data.draw(st.lists(st.integers(-2, 2), min_size=len(left), max_size=len(left)))
    x = torch.tensor(left)
    y = torch.tensor([max(-top, min(top - 1, value + step)) for value, step in zip(left, steps, strict=True)])
    assert torch.equal(compare(x, y, width), (x < y).double())
    assert torch.equal(compare(x, -x, width), (x < -x).double())


@pytest.mark.parametrize("constant", [float("nan"), float("inf"), 2.0**30])
def test_a_constant_that_does_not_fit_is_refused(constant):
    program = revealing("compare", lambda r, v: {"z": less_than(r, v["x"], constant)}, {"x": shared((2,), 24, 12)})
    with pytest.raises(RangeError):
        trace(program)


def test_a_ring_of_one_bit_has_no_sign():
    program = revealing("compare", lambda r, v: {"z": less_than(r, v["x"], 0.0)}, {"x": shared((2,), 1)})
    with pytest.raises(WidthError):
        trace(program)

"""The short way of opening a few elements sends the same bytes and gives the same wires as the general one."""

import pytest
import torch
from uniformity import recording

from secformer.crypto.prg import Seed, Stream
from secformer.engine import local
from secformer.engine.local import run_locally, share_bits, share_ring
from secformer.engine.program import InputSpec, Program
from secformer.protocols.bits import bit_to_arithmetic
from secformer.protocols.multiply import square
from secformer.ring import small


@pytest.fixture
def fixed_randomness(monkeypatch):
    """Every run draws the same: an insecure session, so that two runs can be compared."""
    monkeypatch.setattr(local.os, "urandom", lambda size: bytes(range(size)))
    monkeypatch.setattr(local.Seed, "from_os", classmethod(lambda cls: cls(bytes(range(32)))))


def transcript(program, pair):
    wrap, recorders = recording()
    run = run_locally(program, {"x": pair}, wrap=wrap)
    return [[bytes(sent.numpy()) for sent in recorder.sent] for recorder in recorders], run.value("y")


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 4), (small.LIMIT,)])
@pytest.mark.parametrize("width", [2, 8, 20, 33, 63, 64])
def test_same_bytes_for_numbers(fixed_randomness, monkeypatch, shape, width):
    plain = torch.arange(torch.Size(shape).numel()).reshape(shape)
    pair = share_ring(plain, width)
    program = Program("square", lambda r, v: {"y": square(r, *r.open(v["x"]))}, {"x": InputSpec.of(pair[0])})
    short, result = transcript(program, pair)
    monkeypatch.setattr(small, "LIMIT", 0)
    assert transcript(program, pair)[0] == short
    assert torch.equal(transcript(program, pair)[1], result)


@pytest.mark.parametrize("shape", [(1,), (5, 3)])
def test_same_bytes_for_bits(fixed_randomness, monkeypatch, shape):
    plain = torch.arange(torch.Size(shape).numel()).reshape(shape) & 1
    pair = share_bits(plain)
    program = Program("bits", lambda r, v: {"y": bit_to_arithmetic(r, *r.open(v["x"]))}, {"x": InputSpec.of(pair[0])})
    short, result = transcript(program, pair)
    monkeypatch.setattr(small, "LIMIT", 0)
    assert transcript(program, pair)[0] == short
    assert torch.equal(result, plain.double())


def test_shares_that_are_views_are_opened_in_their_own_order():
    plain = torch.arange(12).reshape(3, 4)
    zero, one = share_ring(plain, 30)
    program = Program(
        "transposed",
        lambda r, v: {"y": square(r, *r.open(v["x"].map(lambda tensor: tensor.T)))},
        {"x": InputSpec.of(zero)},
    )
    assert torch.equal(run_locally(program, {"x": (zero, one)}).value("y"), (plain.T**2).double())


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64])
@pytest.mark.parametrize("count", [1, 3, 64, 300])
def test_arrays_and_tensors_are_drawn_from_the_same_stream(width, count):
    streams = [Stream(Seed(bytes(range(32))), b"session", "pair", "mask") for _ in range(2)]
    for index in (0, 1, 5):
        array = streams[0].draw_array(index, count, width)
        assert torch.equal(torch.from_numpy(array), streams[1].draw(index, (count,), width))

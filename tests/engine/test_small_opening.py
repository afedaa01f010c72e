"""The short way of opening a few elements sends the same bytes and gives the same wires as the general one."""

import pytest
import torch
from case import revealing
from uniformity import recording

from secformer.crypto.prg import Draw, Seed, Stream
from secformer.engine import local
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, share
from secformer.protocols.bits import bit_to_arithmetic
from secformer.protocols.multiply import square
from secformer.ring import small
from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import cpu, reference
from secformer.ring.kernels.steps import Closing
from secformer.ring.packing import unpack


@pytest.fixture
def fixed_randomness(monkeypatch):
    """Every run draws the same: an insecure session, so that two runs can be compared."""
    monkeypatch.setattr(local.os, "urandom", lambda size: bytes(range(size)))
    monkeypatch.setattr(local.Seed, "from_os", classmethod(lambda cls: cls(bytes(range(32)))))


def transcript(program, sharing):
    wrap, recorders = recording()
    run = run_locally(program, {"x": sharing}, wrap=wrap)
    return [[bytes(sent.numpy()) for sent in recorder.sent] for recorder in recorders], run.value("y")


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 4), (small.LIMIT,)])
@pytest.mark.parametrize("width", [2, 8, 20, 33, 63, 64])
def test_same_bytes_for_numbers(fixed_randomness, monkeypatch, shape, width):
    secret = Encoded.ring_elements(torch.arange(torch.Size(shape).numel()).reshape(shape), width=width)
    sharing = share(secret)
    program = revealing("square", lambda r, v: {"y": square(r, *r.open(v["x"]))}, {"x": secret.form})
    short, result = transcript(program, sharing)
    monkeypatch.setattr(small, "LIMIT", 0)
    assert transcript(program, sharing)[0] == short
    assert torch.equal(transcript(program, sharing)[1], result)


@pytest.mark.parametrize("shape", [(1,), (5, 3)])
def test_same_bytes_for_bits(fixed_randomness, monkeypatch, shape):
    plain = torch.arange(torch.Size(shape).numel()).reshape(shape) & 1
    secret = Encoded.ring_elements(plain, width=1, kind="bits")
    sharing = share(secret)
    program = revealing("bits", lambda r, v: {"y": bit_to_arithmetic(r, *r.open(v["x"]))}, {"x": secret.form})
    short, result = transcript(program, sharing)
    monkeypatch.setattr(small, "LIMIT", 0)
    assert transcript(program, sharing)[0] == short
    assert torch.equal(result, plain.double())


def test_shares_that_are_views_are_opened_in_their_own_order():
    plain = torch.arange(12).reshape(3, 4)
    secret = Encoded.ring_elements(plain, width=30)
    program = revealing(
        "transposed",
        lambda r, v: {"y": square(r, *r.open(v["x"].map(lambda tensor: tensor.T)))},
        {"x": secret.form},
    )
    assert torch.equal(run_locally(program, {"x": secret}).value("y"), (plain.T**2).double())


WIDTHS = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64]
COUNTS = [1, 3, 64, 300]


def keystream(count, width, index=0):
    """The same one every time: an insecure stream."""
    return Stream(Seed(bytes(range(32))), b"session", "pair", "mask").spend(entry(count, width, index))


def entry(count, width, index=0):
    return Draw("pair", "mask", index, (count,), width)


def words(count, seed):
    return torch.empty(count, dtype=torch.int64).random_(
        -(1 << 63), None, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_both_halves_of_an_opening_are_those_of_the_reference(width, count):
    """Every party, with and without a drop: the same bytes out, the same mask, the same wire; the mask is the stream's."""
    dropped = [Closing(party, width, False, drop, width + drop) for party in (0, 1) for drop in (1, 64 - width)]
    plain = [Closing(party, width, boolean) for party in (0, 1) for boolean in (False, True)]
    for closing in (*plain, *(one for one in dropped if 0 < one.drop <= 64 - width)):
        share = words(count, width)
        ours, theirs = (module.close(share.clone(), closing, keystream(count, width)) for module in (cpu, reference))
        assert bytes(memoryview(theirs.packed.numpy())) == bytes(memoryview(_bytes(ours.packed)))
        drawn = Stream(Seed(bytes(range(32))), b"session", "pair", "mask").draw(entry(count, width))
        assert torch.equal(ours.mask, theirs.mask) and torch.equal(ours.mask, drawn)
        received = reference.close(words(count, 1), closing, keystream(count, width, 1)).packed
        assert torch.equal(cpu.reveal(ours, received, closing), reference.reveal(theirs, received, closing))


def _bytes(packed):
    return packed if isinstance(packed, bytes) else packed.numpy()


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_correction_is_what_the_pad_leaves(width, count, boolean):
    value, pad = words(count, width), cpu.draw(keystream(count, width), (count,), width, torch.device("cpu"))
    ours, theirs = (module.correct(value, width, boolean, keystream(count, width)) for module in (cpu, reference))
    assert torch.equal(ours, theirs)
    assert torch.equal(unpack(ours, count, width), reduce(value ^ pad if boolean else value - pad, width))

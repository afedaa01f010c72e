"""The drop: to one of the two neighbours, exact where there is nothing to round, and unbiased, in 10^8 trials."""

import pytest
import torch

from secformer.crypto.prg import Draw, Seed, Stream
from secformer.engine.computing import Computing, seeded_material
from secformer.engine.form import shared
from secformer.engine.program import Program
from secformer.engine.tracing import trace
from secformer.engine.values import Shared
from secformer.errors import WidthError
from secformer.ring import kernels
from secformer.ring.fixed_point import reduce, shift_right
from secformer.ring.kernels.steps import Closing
from secformer.ring.packing import pack
from secformer.transport.memory import memory_pair

BLOCK = 1 << 21
# (width, dropped): 6 of them, 8 blocks each, 100.7 million trials together
RINGS = [(64, 16), (64, 1), (64, 62), (44, 8), (33, 31), (20, 12)]
BLOCKS = 8


def dropping(party):
    """A computing server that only drops: nobody answers its channel and nothing is dealt."""
    session, seed = bytes(16), Seed.from_os()
    channel = memory_pair("server0", "server1", session)[party]
    material = seeded_material(seed, session, torch.device("cpu"))
    plan = trace(Program("drop", lambda runtime, values: {}, {"x": shared((1,))}))
    return Computing(party, plan, channel, seed, seed, material)


ZERO, ONE = dropping(0), dropping(1)


def rounded_up(plain, share, width, bits):
    """Drop both shares; 1 where the result is floor + 1, 0 where it is floor; anything else fails."""
    halves = [runtime.drop(Shared(half, width, bits), bits) for runtime, half in ((ZERO, share), (ONE, plain - share))]
    assert all(half.width == width - bits and half.scale == 0 for half in halves)
    excess = reduce(halves[0].share + halves[1].share - shift_right(plain, bits, width), width - bits)
    low, high = torch.aminmax(excess)
    assert low >= 0
    assert high <= 1
    assert not excess[reduce(plain, bits) == 0].any()
    return excess


def words(generator, size):
    return torch.empty(size, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)


@pytest.mark.parametrize(("width", "bits"), RINGS)
def test_within_one_unit_and_unbiased(width, bits):
    generator = torch.Generator().manual_seed(width * 100 + bits)
    total = 0.0
    for _ in range(BLOCKS):
        plain = words(generator, BLOCK)
        excess = rounded_up(plain, words(generator, BLOCK), width, bits)
        fraction = reduce(plain, bits).double() * 2.0**-bits
        total += float((excess.double() - fraction).sum())
    trials = BLOCKS * BLOCK
    assert abs(total / trials) < 6 * 0.5 * trials**-0.5  # an error below one has a deviation of at most 1/2


@pytest.mark.parametrize(("width", "bits"), RINGS)
def test_every_fixed_value_is_rounded_without_bias(width, bits):
    """One value at a time, its shares fresh: P(up) is the fraction. (It was a unit of that more: half a unit where one bit is
    dropped, as from a word's vector, and the same half for every element of a row.)"""
    generator = torch.Generator().manual_seed(bits)
    trials = 1 << 18
    top = 1 << bits
    for remainder in {0, 1, top // 2, top - 1, top // 3}:
        plain = torch.full((trials,), remainder + top, dtype=torch.int64)
        share = float(rounded_up(plain, words(generator, trials), width, bits).double().mean())
        assert abs(share - remainder / top) < 6 * 0.5 * trials**-0.5


@pytest.mark.parametrize(("width", "bits"), [*RINGS, (3, 1), (8, 6)])
def test_corners(width, bits):
    powers = [1 << place for place in {0, bits - 1, bits, width - 2, width - 1} if place < 63]
    corners = {0, -1, -(1 << (width - 1)), (1 << (width - 1)) - 1}
    corners |= {sign * power + step for power in powers for sign in (1, -1) for step in (-1, 0, 1)}
    values = torch.tensor(sorted(corners), dtype=torch.int64)
    plain, share = torch.meshgrid(values, values, indexing="ij")
    rounded_up(plain, share, width, bits)


@pytest.mark.parametrize(("width", "bits"), [(3, 1), (6, 4), (8, 3)])
def test_every_value_with_every_share(width, bits):
    values = torch.arange(1 << width)
    plain, share = torch.meshgrid(values, values, indexing="ij")
    rounded_up(plain, share, width, bits)


@pytest.mark.parametrize("count", [5, 1000])
@pytest.mark.parametrize(("width", "bits"), [*RINGS, (3, 1), (8, 6)])
def test_an_opening_drops_alike(width, bits, count):
    """What is opened at a coarser scale is the dropped share, under its mask."""
    cpu, narrow = torch.device("cpu"), width - bits
    for party, runtime in ((0, ZERO), (1, ONE)):
        share = words(torch.Generator().manual_seed(party), count)
        keystream = Stream(Seed.from_os(), b"session", "pair", "mask").spend(Draw("pair", "mask", 0, (count,), narrow))
        closing = Closing(party, narrow, False, bits, width)
        closed = kernels.step("close", cpu)(share, closing, keystream)
        alone = kernels.step("reveal", cpu)(closed, pack(torch.zeros_like(share), narrow), closing)
        dropped = runtime.drop(Shared(share, width, bits), bits).share
        assert torch.equal(alone, reduce(dropped + closed.mask, narrow))


@pytest.mark.parametrize("bits", [20, 21, -1])
def test_an_exhausted_ring_is_refused(bits):
    with pytest.raises(WidthError, match="20 bits"):
        ZERO.drop(Shared(torch.zeros(2, dtype=torch.int64), 20, 10), bits)
    with pytest.raises(WidthError, match="20 bits"):
        Shared(torch.zeros(2, dtype=torch.int64), 20, 10).at(10 - bits)

# ruff: noqa: E402
"""Products on Hopper: what is planned fits the machine and cannot overflow; on such a GPU, every bit (`make test-gpu`)."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton comes with torch's builds for CUDA; without it there is nothing to test")

from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import digits, hopper
from secformer.ring.kernels.digits import ALONE, CHUNK, STEP, Combination

DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
on_hopper = pytest.mark.skipif(not (GPU and hopper.serves(DEVICE)), reason="needs an H100 or H200")
COUNTS = [hopper.needed(*counts) for counts in product(range(1, 9), repeat=3)]
GENERATOR = torch.Generator().manual_seed(0)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=GENERATOR).to(DEVICE)


def value(cut: torch.Tensor) -> torch.Tensor:
    """(batch, rows, terms) out of digits."""
    places = 256 ** torch.arange(cut.shape[1])
    batch, _, chunks, rows, size = cut.shape
    return torch.einsum("bdcrt,d->brct", cut.cpu().long(), places).reshape(batch, rows, chunks * size)


# -- plans ----------------------------------------------------------------------------------------------------------------


def test_two_groups_of_warps_share_every_sum_evenly():
    for counts in COUNTS:
        first, second = hopper.halves(counts)
        assert first ^ second == first | second == (1 << counts.limbs) - 1
        shares = [sum(n for s, n in enumerate(counts.pairs) if half >> s & 1) for half in (first, second)]
        assert sum(shares) == sum(i + j < counts.limbs for i in range(counts.left) for j in range(counts.right))
        assert max(shares) - min(shares) <= 1 or max(shares) == max(counts.pairs)
    assert hopper.halves(hopper.Digits(8, 8, 8)) == (0b00111100, 0b11000011)


def test_tiles_fit_a_processor():
    for counts, cluster in product(COUNTS, (1, 2)):
        tiles = hopper.tiles(counts, cluster)
        assert tiles
        for tile in tiles:
            assert hopper.shared_bytes(counts, tile) + 1024 <= 232_448
            sums = max(half.bit_count() for half in hopper.halves(counts))
            assert sums * tile.columns // 2 <= 192


@pytest.mark.parametrize(
    "batch, rows, inner, columns", [(1, 512, 768, 3072), (1, 1, 1, 1), (12, 99, 64, 128), (1, 2, 70_000, 2)]
)
def test_no_sum_of_a_plan_can_overflow(batch, rows, inner, columns):
    chunks = -(-inner // STEP) * (STEP // CHUNK)
    for counts in {hopper.needed(n, n, n) for n in range(1, 9)}:
        plan = hopper.plan(counts, batch, rows, columns, chunks, 132)
        steps = chunks * CHUNK // STEP
        assert 1 <= plan.pieces <= steps
        assert counts.limbs * -(-steps // plan.pieces) * STEP * 2**14 < 2**31


def test_few_tiles_are_cut_to_fill_the_processors():
    plan = hopper.plan(hopper.Digits(8, 8, 8), 1, 128, 768, 48, 132)
    tiles = -(-128 // 64) * -(-768 // plan.tile.columns)
    assert 66 <= tiles * plan.pieces <= 132


# -- bits -----------------------------------------------------------------------------------------------------------------


@on_hopper
@pytest.mark.parametrize(
    "batch, rows, inner", [(1, 5, 37), (2, 33, 16), (3, 70, 5), (2, 40, 64), (1, 1, 1), (2, 34, 100)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_digits_are_those_of_triton(batch, rows, inner, turned):
    x, y = (words(batch, inner, rows).transpose(1, 2) if turned else words(batch, rows, inner) for _ in range(2))
    both = (Combination(1, -1), Combination(-1, 0))
    for limbs, (second, parts) in product(
        (1, 5, 8), ((None, ALONE), (y, both), (y, (Combination(1, 0), Combination(0, 1))))
    ):
        cleared = torch.full((2049,), 3, device=DEVICE)
        got = hopper.cut(x, limbs, second, parts, cleared)
        assert torch.equal(got, digits.cut(x, limbs, second, parts))
        assert not cleared.any()


@on_hopper
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("left, right, limbs", [(8, 8, 8), (5, 5, 5), (4, 7, 4), (2, 3, 8), (1, 1, 1)])
def test_products_are_exact_with_every_tile(left, right, limbs, cluster):
    a, b = words(3, 130, 100), words(3, 100, 201)
    a[0, 0], b[0, :, 0], a[0, 1], b[0, :, 1] = -(2**63), -(2**63), 2**63 - 1, -0x7F7F7F7F7F7F7F80
    extra = words(3, 130, 201)
    x, y = hopper.cut(a, left), hopper.cut(b.transpose(1, 2), right)
    expected = reduce(value(x) @ value(y).transpose(1, 2) + extra.cpu(), 8 * limbs)
    for tile, pieces in product(hopper.tiles(hopper.needed(left, right, limbs), cluster), (1, 3)):
        out = torch.zeros(3, 130, 201, dtype=torch.int64, device=DEVICE)
        hopper.multiply(x, y, limbs, out, extra, hopper.Plan(tile, pieces))
        assert torch.equal(reduce(out.cpu(), 8 * limbs), expected), (tile, pieces)


@on_hopper
def test_one_right_operand_serves_a_batch():
    a, b = words(3, 70, 64), words(1, 64, 40)
    out = torch.empty(3, 70, 40, dtype=torch.int64, device=DEVICE)
    plan = hopper.plan(hopper.Digits(8, 8, 8), 3, 70, 40, 4, 132)._replace(pieces=1)
    hopper.multiply(hopper.cut(a, 8), hopper.cut(b.transpose(1, 2), 8), 8, out, None, plan)
    assert torch.equal(out.cpu(), a.cpu() @ b.cpu())

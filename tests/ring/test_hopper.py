# ruff: noqa: E402
"""Products on Hopper: what is planned fits the machine and cannot overflow; on such a GPU, every bit (`make test-gpu`)."""

from __future__ import annotations

import ctypes
import os
from itertools import product

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton comes with torch's builds for CUDA; without it there is nothing to test")

from secformer.errors import KernelError
from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import compiled, digits, hopper, products
from secformer.ring.kernels.digits import CHUNK, STEP
from secformer.ring.limbs import Prepared

DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
on_hopper = pytest.mark.skipif(not hopper.present(DEVICE), reason="needs an H100 or H200")
without_gpu = pytest.mark.skipif(GPU, reason="the CPU passes for a GPU: through Triton's interpreter")
COUNTS = [hopper.needed(*counts) for counts in product(range(1, 9), repeat=3)]
GENERATOR = torch.Generator().manual_seed(0)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=GENERATOR).to(DEVICE)


def value(cut: torch.Tensor) -> torch.Tensor:
    """(batch, rows, terms) out of digits."""
    places = 256 ** torch.arange(cut.shape[1])
    batch, _, chunks, rows, size = cut.shape
    return torch.einsum("bdcrt,d->brct", cut.long(), places).reshape(batch, rows, chunks * size)


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


# -- trust ----------------------------------------------------------------------------------------------------------------


class Standing:
    """In for the kernel, which only such a GPU can run: the same sums, in torch operations."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.uses = wrong, 0

    def __call__(self, a, b, limbs, out, extra, plan) -> None:
        self.uses += 1
        if self.wrong == "refused":
            raise KernelError("no such instruction")
        total = value(a) @ value(b).transpose(1, 2) + (0 if extra is None else extra)
        if self.wrong == "in pieces" and plan.pieces > 1:
            total[-1, -1, -1] += 1 << 8 * limbs - 1
        out += total if plan.pieces > 1 else total - out


@pytest.fixture
def hopper_here(monkeypatch):
    """The CPU passes for a Hopper GPU."""
    monkeypatch.setattr(hopper, "present", lambda device: True)
    monkeypatch.setattr(hopper, "processors", lambda device: 132)
    monkeypatch.setattr(hopper, "_tried", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def stand_in(wrong: str = "") -> Standing:
        standing = Standing(wrong)
        monkeypatch.setattr(hopper, "multiply", standing)
        return standing

    return stand_in


def matmul(width: int = 64) -> bool:
    """Is a product of this width exact?"""
    a, b = (torch.randint(-(2**63), 2**63 - 1, shape, generator=GENERATOR) for shape in ((5, 70), (70, 3)))
    return torch.equal(reduce(products.matmul(a, Prepared(b, width, width), width, width), width), reduce(a @ b, width))


@without_gpu
def test_a_kernel_that_gives_the_bits_is_tried_once_and_used(hopper_here, caplog):
    kernel = hopper_here()
    assert matmul() and kernel.uses == 3  # with one piece, with two, and for the product
    assert matmul() and kernel.uses == 4
    assert matmul(35) and kernel.uses == 7  # another form of it
    assert not caplog.records


@without_gpu
@pytest.mark.parametrize("wrong", ["in pieces", "refused"])
def test_a_kernel_that_does_not_is_never_used(hopper_here, caplog, wrong):
    kernel = hopper_here(wrong)
    assert matmul()
    uses = kernel.uses
    assert 1 <= uses <= 2
    assert matmul() and matmul(35) and kernel.uses == uses
    (record,) = caplog.records
    assert "left to the slower kernel" in record.getMessage()


@without_gpu
def test_nothing_is_tried_while_work_is_captured(hopper_here, monkeypatch):
    kernel = hopper_here()
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert matmul() and kernel.uses == 0
    assert matmul() and kernel.uses == 3


def test_a_launch_lies_in_memory_as_the_driver_reads_it():
    """CUlaunchConfig and CUlaunchAttribute of cuda.h."""
    launch, attribute = compiled._Launch, compiled._Attribute
    assert (ctypes.sizeof(launch), ctypes.sizeof(attribute)) == (56, 72)
    assert (launch.shared_bytes.offset, launch.stream.offset) == (24, 32)
    assert (launch.attributes.offset, launch.attribute_count.offset) == (40, 48)
    assert (attribute.id.offset, attribute.value.offset) == (0, 8)


def test_the_cpu_is_no_hopper():
    assert not hopper.present(torch.device("cpu"))
    assert not hopper.trusted(hopper.Digits(8, 8, 8), hopper.Tile(96, 4, 1), torch.device("cpu"))


# -- bits -----------------------------------------------------------------------------------------------------------------


@on_hopper
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("left, right, limbs", [(8, 8, 8), (5, 5, 5), (4, 7, 4), (2, 3, 8), (1, 1, 1)])
def test_products_are_exact_with_every_tile(left, right, limbs, cluster):
    a, b = words(3, 130, 100), words(3, 100, 201)
    a[0, 0], b[0, :, 0], a[0, 1], b[0, :, 1] = -(2**63), -(2**63), 2**63 - 1, -0x7F7F7F7F7F7F7F80
    extra = words(3, 130, 201)
    for each, pieces in product(hopper.tiles(hopper.needed(left, right, limbs), cluster), (1, 3)):
        out = torch.empty(3, 130, 201, dtype=torch.int64, device=DEVICE)
        x, y = digits.cut(a, left, clear=out), digits.cut(b.transpose(1, 2), right)
        hopper.multiply(x, y, limbs, out, extra, hopper.Plan(each, pieces))
        expected = value(x.cpu()) @ value(y.cpu()).transpose(1, 2) + extra.cpu()
        assert torch.equal(reduce(out.cpu(), 8 * limbs), reduce(expected, 8 * limbs)), (each, pieces)


@on_hopper
def test_one_right_operand_serves_a_batch():
    a, b = words(3, 70, 64), words(1, 64, 40)
    out = torch.empty(3, 70, 40, dtype=torch.int64, device=DEVICE)
    plan = hopper.plan(hopper.Digits(8, 8, 8), 3, 70, 40, 4, 132)._replace(pieces=1)
    hopper.multiply(digits.cut(a, 8), digits.cut(b.transpose(1, 2), 8), 8, out, None, plan)
    assert torch.equal(out.cpu(), a.cpu() @ b.cpu())


@on_hopper
def test_every_form_of_the_kernel_can_be_trusted():
    for counts in (hopper.Digits(8, 8, 8), hopper.Digits(5, 5, 5)):
        assert all(hopper.trusted(counts, tile, DEVICE) for tile in hopper.tiles(counts, 2))

"""What the GPU's kernels take for granted about gates (ring/kernels/tables.py, series.py): tested here without a GPU or Triton.

A gate that stops being such a table fails here, wherever the tests run, before a GPU computes something else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from secformer.engine.values import Masked, MaskedBits
from secformer.protocols import fourier
from secformer.protocols.attention import BlockPower
from secformer.protocols.bits import BitPolynomials, DisjointSum, SignedSum
from secformer.protocols.fourier import Fourier
from secformer.protocols.maximum import Histogram
from secformer.protocols.menu import activation
from secformer.ring import kernels
from secformer.ring.fixed_point import reduce

KERNELS = Path(kernels.__file__).parent
TERMS = ((0, 1), (2,))
FIT = activation("gelu", "tight")
GENERATOR = torch.Generator().manual_seed(0)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=GENERATOR)


def wire(kind, width: int, *shape: int):
    return kind(words(*shape), words(*shape), width) if kind is Masked else kind(*2 * [words(*shape) % 2**width], width)


TABLES = [
    (Fourier(FIT, 15, 13, 54), lambda: [wire(Masked, 9, 50)]),
    (DisjointSum(TERMS, 20), lambda: [wire(MaskedBits, 3, 50)]),
    (SignedSum(TERMS, 20), lambda: [wire(MaskedBits, 3, 50), wire(Masked, 20, 50)]),
]


@pytest.mark.parametrize("gate, wires", TABLES, ids=lambda each: type(each).__name__)
def test_a_share_is_a_sum_of_dealt_values_times_what_the_public_number_says(gate, wires):
    given = wires()
    x = given[0]
    (dealt,) = [words(*form.shape) for form in gate.materials(*given)]
    numbers = torch.arange(1 << x.width)
    every = [type(x)(numbers, numbers, x.width)] * len(gate.takes)
    units = torch.eye(dealt.shape[-1], dtype=torch.int64)
    table = torch.stack([gate.evaluate(0, every, (unit.expand(len(numbers), -1),)) for unit in units], -1)
    constant = gate.evaluate(1, every, (torch.zeros_like(table),))
    public = x.public % (1 << x.width)
    for party in (0, 1):
        expected = gate.evaluate(party, given, (dealt,))
        assert torch.equal((table[public] * dealt).sum(-1) + party * constant[public], expected)


@pytest.mark.parametrize("gate, kind, width", [
    (Fourier(FIT, 15, 13, 54), Masked, 9),
    (DisjointSum(TERMS, 20), MaskedBits, 3),
    (BitPolynomials((TERMS,)), MaskedBits, 3),
])  # fmt: skip
def test_what_is_dealt_is_a_row_for_every_mask(gate, kind, width):
    numbers = torch.arange(1 << width)
    (rows,) = gate.deal(kind(numbers, numbers, width))
    x = wire(kind, width, 7, 9)
    (dealt,) = gate.deal(x)
    assert torch.equal(rows[x.mask % (1 << width)], dealt)


def nothing(width: int) -> Masked:
    return Masked(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), width)


def test_blocks_of_powers_are_one_table_rotated():
    gate, x, top = BlockPower(6, 50), wire(Masked, 12, 3, 40), wire(Masked, 12, 3, 1)
    (dealt,) = gate.deal(x, top)
    blocks = dealt.shape[-1]
    step = (1 << x.width) // blocks
    numbers = torch.arange(1 << x.width)
    first = gate.deal(Masked(numbers, numbers, x.width), nothing(x.width))[0][:, 0]
    for block in range(blocks):
        assert torch.equal(dealt[..., block], first[(x.mask - top.mask - block * step) % (1 << x.width)])


def test_a_power_is_one_dealt_value_times_a_public_factor():
    gate, x, top = BlockPower(6, 50), wire(Masked, 12, 3, 40), wire(Masked, 12, 3, 1)
    (form,) = gate.materials(x, top)
    step = (1 << x.width) // form.shape[-1]
    numbers = Masked(torch.arange(step), torch.arange(step), x.width)
    factors = gate.evaluate(0, (numbers, nothing(x.width)), (torch.ones(step, form.shape[-1]).long(),))
    dealt, public = words(*form.shape), (x.public - top.public) % (1 << x.width)
    picked = dealt.gather(-1, (public // step).unsqueeze(-1)).squeeze(-1)
    for party in (0, 1):
        assert torch.equal(gate.evaluate(party, (x, top), (dealt,)), picked * factors[public % step])


@pytest.mark.parametrize("length", [20, 15])  # by cell, one by one
@pytest.mark.parametrize("width, dtype", [(9, torch.int16), (9, torch.int64), (19, torch.int64), (20, torch.int64)])
def test_a_histogram_counts_rotated_one_hots(width, dtype, length):
    gate, x = Histogram(3, width), wire(Masked, 10, 2, length)
    (hot,) = gate.deal(x)
    coarse = x.mask % (1 << 10) >> 7
    assert torch.equal(hot, (coarse[..., None] == torch.arange(8)).long())
    dealt = reduce(words(2, length, 8), width)
    dealt[0] = (1 << width) - 1  # sums as large as they can be
    turned = (x.public % (1 << 10) >> 7)[..., None] - torch.arange(8)
    assert torch.equal(gate.evaluate(1, (x,), (dealt.to(dtype),)), dealt.gather(-1, turned % 8).sum(-2))


def test_the_series_kernel_cuts_its_coefficients_as_the_protocol_does():
    (size,) = re.findall(r"^_COEFFICIENT_SIZE = (\d+)", (KERNELS / "series.py").read_text(), re.M)
    assert int(size) == fourier.COEFFICIENT_SIZE


def test_every_gate_named_by_a_kernel_exists():
    """`evaluate_X` for a gate X that was renamed would never be found."""
    names = set(re.findall(r"\b(?:evaluate|deal)_([A-Z]\w+)", (KERNELS / "cuda.py").read_text()))
    sources = "\n".join(path.read_text() for path in (KERNELS.parents[1] / "protocols").glob("*.py"))
    assert names and names <= set(re.findall(r"^class (\w+)\(", sources, re.M))

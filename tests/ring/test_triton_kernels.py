# ruff: noqa: E402
"""Every Triton kernel against its reference, bit for bit: on a GPU where there is one, else through Triton's interpreter.

`make test-gpu` runs this file where it must not be skipped. On the interpreter sizes are small: an element costs a microsecond
or more there.
"""

from __future__ import annotations

import os

import pytest
import torch
from guarded import place

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton comes with torch's builds for CUDA; without it there is nothing to test")

from secformer.engine.values import Lifted, Masked, MaskedBits
from secformer.protocols.attention import BlockPower
from secformer.protocols.bits import BitPolynomials, DisjointSum, SignedSum
from secformer.protocols.compare import DigitTables, cut, digits_of
from secformer.protocols.evidence import Outside
from secformer.protocols.fourier import Fourier, GatedFourier
from secformer.protocols.lift import Carry, MultiplyLifted, SquareLifted, UnmaskLifted
from secformer.protocols.lookup import SelectRows, SignedWords
from secformer.protocols.maximum import Histogram
from secformer.protocols.menu import activation
from secformer.protocols.multiply import MatMul, Multiply, Square
from secformer.ring import gf2
from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import (
    bit_planes,
    cipher,
    covering,
    cuda,
    int8,
    lifted,
    products,
    reference,
    series,
    tables,
    wires,
)
from secformer.ring.kernels import words as looked_up
from secformer.ring.kernels.steps import Closing, material_type
from secformer.ring.keystream import Keystream, torch_elements
from secformer.ring.limbs import Prepared
from secformer.ring.packing import TINY, by_planes, packed_bytes
from secformer.ring.packing import packed as packed_plainly
from secformer.transport.channel import FrameType
from secformer.transport.memory import memory_pair

DEVICE = torch.device("cuda" if GPU else "cpu")
KEYSTREAM = Keystream(bytes(range(200, 232)), bytes(range(120, 132)))
GENERATOR = torch.Generator().manual_seed(0)
WIDTHS = range(1, 65) if GPU else (1, 7, 8, 13, 32, 35, 63, 64)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The interpreter's arrays are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def words(*shape: int, bits: int = 64) -> torch.Tensor:
    half = 2 ** (bits - 1)
    return torch.randint(-half, half - 1, shape, generator=GENERATOR).to(DEVICE)


def wire(kind, width: int, *shape: int):
    return kind(reduce(words(*shape), width), words(*shape), width)


def packed(x: torch.Tensor, width: int) -> torch.Tensor:
    return by_planes(x, width) if width < 64 else x.contiguous().view(torch.uint8)


# -- products -------------------------------------------------------------------------------------------------------------

SHAPES = [
    ((5, 37), (37, 3)),
    ((2, 3, 20, 65), (2, 1, 65, 33)),
    ((5, 40, 65), (65, 33)),
    ((1, 1), (1, 1)),
    ((2, 0, 13), (13, 5)),
    ((3, 0), (0, 4)),
]
BERT = [((512, 768), (768, 3072)), ((128, 3072), (3072, 768)), ((12, 512, 64), (12, 64, 512)), ((1, 768), (768, 768))]


@pytest.mark.parametrize("width", [1, 8, 9, 35, 64])
@pytest.mark.parametrize("left, right", SHAPES + (BERT if GPU else []))
def test_products_are_exact_for_any_shape(left, right, width):
    a, b = words(*left), words(*right)
    got = products.matmul(a, Prepared(b, width, width), width, width)
    expected = (a.cpu() @ b.cpu()).to(DEVICE)
    assert got.shape == expected.shape
    assert torch.equal(reduce(got, width), reduce(expected, width))


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 15, 16, 17, 31])
def test_small_operands_have_fewer_digits(bits):
    half = 2 ** (bits - 1)
    a, b = (torch.randint(-half, half, shape, generator=GENERATOR) for shape in ((6, 130), (130, 5)))
    a[0], a[1], b[:, 0], b[:, 1] = -half, half - 1, -half, half - 1
    got = products.matmul(a.to(DEVICE), Prepared(b.to(DEVICE), 64, bits), 64, bits)
    assert torch.equal(got.cpu(), a @ b)


@pytest.mark.parametrize("value", [LOWEST, HIGHEST, -1, -0x7F7F7F7F7F7F7F80, 0x7F7F7F7F7F7F7F7F])
def test_the_longest_sums_stay_exact(value):
    """17,000 terms exceed what one int32 accumulator holds at 64 bits: the inner dimension is cut."""
    inner = 17_000 if GPU else 2100
    a, b = torch.full((2, inner), value), torch.full((inner, 2), value)
    got = products.matmul(a.to(DEVICE), Prepared(b.to(DEVICE), 64, 64), 64, 64)
    assert torch.equal(got.cpu(), a @ b)


def test_no_piece_can_overflow():
    for limbs in range(1, 9):
        span = int8.longest_span(limbs)
        assert span >= 1
        assert limbs * span * int8.SPAN * 2**14 < 2**31


def test_a_prepared_operand_is_cut_once_and_serves_narrower_products():
    a, b = words(9, 100), words(100, 8)
    prepared = Prepared(b, 51, 51, static=True)
    expected = a.cpu() @ b.cpu()
    for width in (51, 30, 8):
        got = products.matmul(a, prepared, width, width).cpu()
        assert torch.equal(reduce(got, width), reduce(expected, width))
    assert list(prepared.derived) == ["int8"]


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("left, right", [((5, 37), (37, 3)), ((2, 3, 9, 65), (2, 3, 65, 13)), ((2, 9, 65), (65, 13))])
def test_a_gate_takes_one_product(left, right, party):
    x, y = wire(Masked, 51, *left), wire(Masked, 51, *right).as_static()
    gate = MatMul()
    dealt = (words(*gate.shape(x, y)),)
    for _ in range(2):  # the second time with what was kept
        got = products.evaluate_matmul(gate, party, (x, y), dealt).cpu()
        own, other = (each.map(lambda tensor: tensor.cpu()) for each in (x, y))
        assert torch.equal(reduce(got, 51), reduce(gate.evaluate(party, (own, other), [dealt[0].cpu()]), 51))
    assert list(y.cache) == ["limbs 7"]


@pytest.mark.parametrize(
    "rows, bits, columns", [(1, 1, 1), (3, 70, 5), (40, 300, 70), *([(512, 3001, 240)] if GPU else [])]
)
def test_products_over_gf2(rows, bits, columns):
    selectors = torch.randint(0, 256, (rows, -(-bits // 8)), dtype=torch.uint8, generator=GENERATOR).to(DEVICE)
    table = words(bits, columns)
    if bits % 8:
        selectors[:, -1] &= (1 << (bits % 8)) - 1
    expected = gf2.four_russians(selectors, table)
    assert torch.equal(bit_planes.gf2_matmul(selectors, table), expected)
    assert torch.equal(bit_planes.selected(selectors, table), expected)
    assert torch.equal(by_words(bit_planes.upright(selectors, bits), bit_planes.laid(table))[:rows, :columns], expected)
    assert not GPU or bit_planes.trusted(DEVICE)


def by_words(selectors, table):
    """What parities.cu computes of what it is given."""
    total = torch.zeros((selectors.shape[1], table.shape[1]), dtype=torch.int32, device=DEVICE)
    for chosen, line in zip(selectors, table, strict=True):
        total ^= chosen[:, None] & line[None, :]
    for shift in (16, 8, 4, 2, 1):
        total ^= total >> shift
    places = torch.arange(64, device=DEVICE)
    return ((total & 1).long().unflatten(1, (-1, 64)) << places).sum(-1)


@pytest.mark.skipif(not GPU, reason="C++ has no interpreter")
@pytest.mark.parametrize("rows, bits, columns", [(1, 1, 1), (64, 512, 2), (130, 5001, 33), (512, 30522, 264)])
def test_products_over_gf2_in_pieces(rows, bits, columns):
    selectors = torch.randint(0, 256, (rows, -(-bits // 8)), dtype=torch.uint8, generator=GENERATOR).to(DEVICE)
    if bits % 8:
        selectors[:, -1] &= (1 << (bits % 8)) - 1
    table = words(bits, columns)
    expected = bit_planes.selected(selectors, table)
    for pieces in (1, 2, None):
        assert torch.equal(bit_planes.combined(selectors, table, pieces), expected)


@pytest.mark.parametrize("rows, bits, columns", [(5, 70, 3), (66, 530, 5), *([(512, 30522, 264)] if GPU else [])])
def test_a_lookup_is_one_product_whose_table_is_laid_out_once(rows, bits, columns, monkeypatch):
    def added(selectors, table, out, pieces=None):
        out ^= by_words(selectors, table)[: out.shape[0], : out.shape[1]]

    if not GPU:
        monkeypatch.setattr(bit_planes, "trusted", lambda device: True)
        monkeypatch.setattr(bit_planes, "_add_parities", added)
    table = wire(MaskedBits, 64, bits, columns).as_static()
    for party in (0, 1):
        given = [wire(MaskedBits, 8, rows, -(-bits // 8)), table]
        dealt = [words(rows, columns)]
        before = dealt[0].clone()
        got = bit_planes.evaluate_select(SelectRows(), party, given, dealt)
        assert torch.equal(got, SelectRows().evaluate(party, given, dealt)) and torch.equal(dealt[0], before)
    assert list(table.cache) == ["columns"]


# -- streams and openings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_draws_are_the_same_stream(width):
    for count in (1, 7, 300, 5000):
        got = cipher.draw(KEYSTREAM, (count,), width, DEVICE)
        assert torch.equal(got, torch_elements(KEYSTREAM, count, width, DEVICE))


PLACES = [(width, torch.int64) for width in WIDTHS] + [(width, torch.int16) for width in (1, 7, 10, 15)]


@pytest.mark.parametrize("width, dtype", PLACES)
@pytest.mark.parametrize("shape", [(5, 7), (61, 7), (3, 5, 301)])
def test_a_draw_into_its_place(width, dtype, shape):
    with place(shape, dtype, DEVICE) as out:
        assert cipher.draw(KEYSTREAM, shape, width, DEVICE, dtype, out) is out
        assert torch.equal(out, reference.draw(KEYSTREAM, shape, width, DEVICE, dtype))


@pytest.mark.parametrize("width, dtype", PLACES)
@pytest.mark.parametrize("shape", [(5, 7), (61, 7), (3, 5, 301)])
def test_residues_unpacked_into_their_place(width, dtype, shape):
    x = words(*shape)
    buffer = packed(x.flatten(), width) if x.numel() > TINY else packed_plainly(x.flatten(), width)
    with place(shape, dtype, DEVICE) as out:
        assert covering.unpack(buffer, x.numel(), width, dtype, out) is out
        assert torch.equal(out, reduce(x, width).to(dtype))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [257, 1003])
def test_packing_has_the_same_layout(width, count):
    x = words(count)
    buffer = covering.pack(x, width)
    assert buffer.numel() == packed_bytes(count, width)
    assert torch.equal(buffer, packed(x, width))
    assert torch.equal(covering.unpack(buffer, count, width), reduce(x, width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("drop, party, boolean", [(0, 0, False), (0, 1, True), (5, 1, False), (9, 0, False)])
def test_openings_have_the_same_halves(width, drop, party, boolean):
    if width + drop > 64:
        pytest.skip("nothing that wide is left after the drop")
    closing = Closing(party, width, boolean, drop, min(64, width + drop + 3))
    for rows in (3, 43) if GPU or width in (1, 35) else (3,):  # few elements, and many
        share, theirs = words(rows, 101), packed(words(rows * 101), width)
        expected, got = reference.close(share, closing, KEYSTREAM), covering.close(share, closing, KEYSTREAM)
        assert torch.equal(got.packed, expected.packed)
        assert torch.equal(got.mask, expected.mask)
        assert torch.equal(covering.reveal(got, theirs, closing), reference.reveal(expected, theirs, closing))


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_corrections_are_the_same(width, boolean):
    value = words(7, 60).t()  # any strides
    assert torch.equal(
        covering.correct(value, width, boolean, KEYSTREAM), reference.correct(value, width, boolean, KEYSTREAM)
    )


@pytest.mark.parametrize("count", [1, 7, 33, TINY])
@pytest.mark.parametrize("width", [1, 3, 8, 13, 35, 64])
def test_few_elements_are_a_stream_of_bits(width, count):
    share, theirs = words(count), packed_plainly(words(count), width)
    for closing in (Closing(1, width, False, 64 - width, 64), Closing(0, width, True)):
        got, expected = (module.close(share, closing, KEYSTREAM) for module in (covering, reference))
        assert torch.equal(got.packed, expected.packed)
        assert torch.equal(got.mask, expected.mask)
        assert torch.equal(covering.reveal(got, theirs, closing), reference.reveal(expected, theirs, closing))
    assert torch.equal(
        covering.correct(share, width, False, KEYSTREAM), reference.correct(share, width, False, KEYSTREAM)
    )
    assert torch.equal(covering.pack(share, width), packed_plainly(share, width))
    assert torch.equal(reduce(covering.unpack(covering.pack(share, width), count, width), width), reduce(share, width))


# -- gates ----------------------------------------------------------------------------------------------------------------

BITS = 17 if GPU else 8
COUNT = 5000 if GPU else 40
TERMS = ((0, 1), (2,))
FIT = activation("gelu", "tight")
GATES = [
    (Fourier(FIT, 15, 13, 54), "rows", lambda: [wire(Masked, BITS, COUNT)]),
    (
        Fourier(FIT, 15, 13, 54),
        "rows",
        lambda: [wire(Masked, 20, 3, 5)],
    ),  # too wide for a table
    (DisjointSum(TERMS, 20), "rows", lambda: [wire(MaskedBits, 3, 13, 7)]),
    (BlockPower(6, 50), "power", lambda: [wire(Masked, 12, 11, COUNT), wire(Masked, 12, 11, 1)]),
    (Histogram(4, 9), "histogram", lambda: [wire(Masked, 12, 3, 300)]),
    (Histogram(1, 9), "histogram", lambda: [wire(Masked, 9, 2, 5, 3)]),
]


@pytest.mark.parametrize("gate, name, wires", GATES, ids=lambda each: type(each).__name__)
def test_gates_give_the_same_bits(gate, name, wires):
    given = wires()
    dealt = [reduce(words(*form.shape), form.width) for form in gate.materials(*given)]
    for party in (0, 1):
        got = getattr(tables, f"evaluate_{name}")(gate, party, given, dealt)
        assert torch.equal(got, gate.evaluate(party, given, dealt))
    for got, expected in zip(getattr(tables, f"deal_{name}")(gate, *given), gate.deal(*given), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("width", [1, 7, 10, 15])
def test_counts_in_the_type_that_a_histogram_asks_for(width):
    gate, given = Histogram(4, width), [wire(Masked, 12, 3, 300)]
    dtype = material_type("Histogram", width)
    assert dtype == torch.int16 and material_type("Histogram", 16) == torch.int64
    (form,) = gate.materials(*given)
    drawn = cipher.draw(KEYSTREAM, form.shape, width, DEVICE, dtype)
    wide = cipher.draw(KEYSTREAM, form.shape, width, DEVICE)
    assert drawn.dtype == dtype and torch.equal(drawn.long(), wide)
    packed = covering.pack(wide, width)
    unpacked = covering.unpack(packed, form.elements, width, dtype)
    assert unpacked.dtype == dtype and torch.equal(unpacked.long(), wide.flatten())
    assert torch.equal(tables.evaluate_histogram(gate, 0, given, [drawn]), gate.evaluate(0, given, [wide]))


def test_gates_with_a_table_on_one_side():
    polynomials = BitPolynomials((TERMS, ((1, 2, 3),)))
    word = wire(MaskedBits, 4, 13, 7)
    assert torch.equal(tables.deal_rows(polynomials, word)[0], polynomials.deal(word)[0])
    signed = SignedSum(TERMS, 20)
    given = [wire(MaskedBits, 3, 13, 7), wire(Masked, 20, 13, 7)]
    dealt = [words(*form.shape) for form in signed.materials(*given)]
    assert torch.equal(tables.evaluate_rows(signed, 1, given, dealt), signed.evaluate(1, given, dealt))


def lifted_wire(narrow: int, *shape: int) -> Lifted:
    """Its public part is x̂ − 2^(w−2) for any x̂ of w bits: half of them wrap."""
    public = (words(*shape) & ((1 << narrow) - 1)) - (1 << (narrow - 2))
    return Lifted(public, words(*shape), words(*shape), 64, 12, narrow)


def test_public_parts_of_lifted_wires():
    for width in (3, 19, 63):
        x = wire(Masked, width, 7, 401)
        quarter = 1 << (width - 2)
        expected = reduce(x.public + quarter, width) - quarter
        assert torch.equal(lifted.lifted_public(x.public.t(), width), expected.t())


EVALUATIONS = [
    (Carry(60), lifted.evaluate_carry, lambda: [wire(Masked, 19, 3, 401)]),
    (UnmaskLifted(), lifted.evaluate_unmask, lambda: [lifted_wire(19, 3, 401)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 3, 5, 77), wire(Masked, 50, 77)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 3, 77), wire(Masked, 50, 3, 77)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 3, 77), wire(Masked, 50, 3, 1)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 1, 77), wire(Masked, 50, 3, 77)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 77), wire(Masked, 50, 1, 77)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 3, 77), wire(Masked, 50, 1, 1, 77)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40, 3, 77), wire(Masked, 50)]),
    (Multiply(), wires.evaluate_multiply, lambda: [wire(Masked, 40), wire(Masked, 50, 1)]),
    (Square(), wires.evaluate_square, lambda: [wire(Masked, 60, 3, 401)]),
    (Square(rows=True), wires.evaluate_square, lambda: [wire(Masked, 60, 3, 5, 77)]),
    (SquareLifted(58), lifted.evaluate_square, lambda: [lifted_wire(21, 3, 401)]),
    (SquareLifted(64, rows=True), lifted.evaluate_square, lambda: [lifted_wire(19, 3, 5, 77)]),
    (MultiplyLifted(53), lifted.evaluate_multiply, lambda: [lifted_wire(24, 3, 5, 77), lifted_wire(26, 3, 5, 1)]),
    (MultiplyLifted(53), lifted.evaluate_multiply, lambda: [lifted_wire(19, 3, 77), lifted_wire(20, 3, 77)]),
    (MultiplyLifted(53), lifted.evaluate_multiply, lambda: [lifted_wire(19, 3, 7), lifted_wire(20, 1, 7)]),
    (Outside(6, 3, 40, shift=77), looked_up.evaluate_outside, lambda: [wire(Masked, 18, 2, 3, 150)]),
    (Outside(4, 1, 5, start=9), looked_up.evaluate_outside, lambda: [wire(Masked, 21, 5, 1)]),
    (Outside(6, 0, 1, single=True), looked_up.evaluate_outside, lambda: [wire(Masked, 10, 3, 7, 1)]),
    (DigitTables(digits_of(24)), looked_up.evaluate_digits, lambda: [wire(Masked, 25, 3, 401)]),
    (DigitTables(cut(16, 3), False), looked_up.evaluate_digits, lambda: [wire(MaskedBits, 16, 41)]),
    (DigitTables(digits_of(63)), looked_up.evaluate_digits, lambda: [wire(Masked, 64, 7)]),
    (SignedWords(7, 22, 48, 12), looked_up.evaluate_signed, lambda: [wire(MaskedBits, 64, 5, 3)]),
    (SignedWords(64, 3, 64, 0), looked_up.evaluate_signed, lambda: [wire(MaskedBits, 64, 7, 3)]),
    (Fourier(FIT, 24, 26, 64), series.evaluate_fourier, lambda: [wire(Masked, 28, 77)]),
    (Fourier(FIT, 15, 13, 54), series.evaluate_fourier, lambda: [wire(Masked, BITS, COUNT)]),
    (GatedFourier(FIT, 24, 26, 64), series.evaluate_gated, lambda: [wire(Masked, 30, 3, 7), wire(MaskedBits, 1, 3, 7)]),
    (GatedFourier(FIT, 24, 26, 64), series.evaluate_gated, lambda: [wire(Masked, 12, 3, 7), wire(MaskedBits, 1, 3, 7)]),
]


@pytest.mark.parametrize("gate, evaluate, wires", EVALUATIONS, ids=lambda each: type(each).__name__)
def test_evaluations_give_the_same_bits(gate, evaluate, wires):
    given = wires()
    dealt = [words(*form.shape) for form in gate.materials(*given)]
    for party in (0, 1):
        assert torch.equal(evaluate(gate, party, given, dealt), gate.evaluate(party, given, dealt))


# -- on the GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("count", [1, TINY, TINY + 1, 5000])
def test_an_opening_on_the_gpu_is_that_of_the_cpu(count):
    share, theirs = words(count), words(count)
    closing = Closing(1, 35, False, 4, 50)
    expected = reference.close(share.cpu(), closing, KEYSTREAM)
    answer = reference.close(theirs.cpu(), closing, KEYSTREAM).packed
    got = cuda.close(share, closing, KEYSTREAM)
    assert got.mask.is_cuda and torch.equal(got.mask.cpu(), expected.mask)
    sent = bytes(got.packed) if isinstance(got.packed, bytes) else bytes(got.packed.cpu().tolist())
    assert sent == bytes(expected.packed.tolist())
    assert torch.equal(cuda.reveal(got, answer, closing).cpu(), reference.reveal(expected, answer, closing))
    correction = cuda.correct(share, 35, False, KEYSTREAM)
    outgoing, incoming = memory_pair("dealer", "server1", bytes(16))
    outgoing.send(FrameType.MATERIAL, correction, (count,), 35)
    sent = incoming.receive(FrameType.MATERIAL, (count,), 35)
    assert correction.is_cuda and sent.is_cpu
    assert torch.equal(sent, reference.correct(share.cpu(), 35, False, KEYSTREAM))

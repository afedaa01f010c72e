import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.errors import DtypeError, ShapeError, WidthError
from secformer.ring.fixed_point import reduce
from secformer.ring.kernels import cpu, cuda, float64, reference, register, step, unregister
from secformer.ring.limbs import plan
from secformer.ring.matmul import Prepared, matmul, prepare

LOWEST, HIGHEST = -(2**63), 2**63 - 1


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny products lose more at the barriers of a busy machine than threads can win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def words(*shape: int, bits: int = 64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * bits + sum(shape))
    half = 2 ** (bits - 1)
    return torch.randint(-half, half - 1, shape, generator=generator) if bits > 1 else torch.zeros(shape).long()


def exact(a: torch.Tensor, b: torch.Tensor, width: int) -> torch.Tensor:
    """The product with Python's integers, as a residue (wrapped into int64 for width 64)."""
    product = np.matmul(a.numpy().astype(object), b.numpy().astype(object)) % 2**width
    return torch.from_numpy((product - (product >> 63) * 2**64).astype(np.int64))


def by_digits(a: torch.Tensor, b: torch.Tensor, width: int, a_bits: int = 64, b_bits: int = 64) -> torch.Tensor:
    return float64.matmul(a, Prepared(b, width, min(b_bits, width)), width, min(a_bits, width))


@pytest.mark.parametrize("width", range(1, 65))
def test_both_ways_are_exact_for_every_width(width: int) -> None:
    a, b = words(5, 37, seed=width), words(37, 3, seed=width + 99)
    expected = exact(a, b, width)
    assert torch.equal(reduce(by_digits(a, b, width), width), expected)
    assert torch.equal(reduce(matmul(a, b, width), width), expected)


@pytest.mark.parametrize("inner", [1, 2, 3, 64, 127, 128, 129, 768, 1000, 1536, 1537, 3072, 4096])
@pytest.mark.parametrize("width", [16, 22, 33, 35, 44, 51, 58, 64])
def test_the_worst_values_stay_exact(inner: int, width: int) -> None:
    """Every digit at the extreme of its range and every product of one sign: the largest sums possible."""
    for a, b in _extremes(inner, width):
        expected = (a @ b) & (2**width - 1 if width < 64 else -1)
        chosen = plan(inner, width, width, width)
        got = float64.multiply(a, Prepared(b, width, width), chosen)
        assert torch.equal(reduce(got, width), expected)


def _extremes(inner: int, width: int):
    """Operands whose digits all lie within 3 of -2^(l-1), or of 2^(l-1) - 1.

    Within 3 and not on it: a sum of equal powers of two would look exact far beyond 2^53.
    """
    chosen = plan(inner, width, width, width)
    lefts = [column.left for column in chosen.columns]
    generator = torch.Generator().manual_seed(inner + width)
    for column in chosen.columns:
        for sign in (-1, 1):
            yield _near((4, inner), lefts, sign, generator), _near((inner, 4), column.right, sign, generator)
    for value in (LOWEST, HIGHEST, -1, 0x5555555555555555):
        yield torch.full((2, inner), value), torch.full((inner, 2), value)


def _near(shape: tuple[int, int], digits, sign: int, generator: torch.Generator) -> torch.Tensor:
    total = torch.zeros(shape, dtype=torch.int64)
    for digit in digits:
        half = 1 << (64 - digit.drop - digit.start - 1)
        offset = torch.randint(0, min(4, half), shape, generator=generator)
        total += (offset - half if sign < 0 else half - 1 - offset) << digit.start
    return total


@pytest.mark.parametrize("inner", [1, 5, 64, 700, 768, 769, 3072, 4096, 100_000])
def test_no_plan_can_leave_the_exact_range_of_float64(inner: int) -> None:
    for width in range(1, 65):
        for left_bits, right_bits in ((width, width), (1, width), (width, max(1, width // 3)), (7, 9)):
            left_bits, right_bits = min(left_bits, width), min(right_bits, width)
            chosen = plan(inner, width, left_bits, right_bits)
            length = -(-inner // chosen.chunks)
            for column in chosen.columns:
                size = _bits(column.left, left_bits)
                for digit in column.right:
                    assert length * 2 ** (size - 1 + _bits(digit, right_bits) - 1) <= 2**53


def _bits(digit, content: int) -> int:
    return 64 - digit.drop - digit.start if digit.drop or digit.start + content >= 64 else content - digit.start


@pytest.mark.parametrize(
    ("inner", "width", "products"),
    [
        (768, 22, 1),
        (768, 33, 2),
        (768, 44, 3),
        (768, 52, 4),
        (768, 64, 6),
        (3072, 37, 3),
        (64, 35, 2),
        (128, 64, 5),
    ],
)
def test_the_number_of_products_is_as_documented(inner: int, width: int, products: int) -> None:
    assert plan(inner, width, width, width).products == products


def test_equal_digits_are_shared_between_columns() -> None:
    assert plan(768, 64, 64, 64).digits == 6


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_promised_bits_keep_products_exact(width: int, a_bits: int, b_bits: int, inner: int, seed: int) -> None:
    a, b = words(3, inner, bits=a_bits, seed=seed), words(inner, 2, bits=b_bits, seed=seed + 1)
    # The ends of the promised range; -2^63 is allowed where all 64 bits are promised.
    a[0, :] = 2 ** (a_bits - 1) - 1
    b[:, 0] = 2 ** (b_bits - 1) - 1
    a[1, :] = 1 - 2 ** (a_bits - 1)
    assert torch.equal(reduce(by_digits(a, b, width, a_bits, b_bits), width), exact(a, b, width))


def test_small_plain_numbers_take_one_product() -> None:
    assert plan(768, 64, 22, 23).products == 1
    a, b = words(200, 768, bits=22), words(768, 64, bits=23)
    assert torch.equal(matmul(a, b, a_bits=22, b_bits=23), a @ b)


@pytest.mark.parametrize("width", [20, 51, 64])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((7, 13), (13, 5)),
        ((1, 1), (1, 1)),
        ((1, 50), (50, 3)),
        ((2, 3, 7, 13), (13, 5)),
        ((4, 7, 13), (4, 13, 5)),
        ((7, 13), (4, 13, 5)),
        ((3, 1, 7, 13), (1, 2, 13, 5)),
        ((2, 0, 13), (13, 5)),
        ((3, 0), (0, 4)),
        ((0, 3, 4), (4, 2)),
    ],
)
def test_shapes_follow_torch(left: tuple[int, ...], right: tuple[int, ...], width: int) -> None:
    a, b = words(*left, seed=1), words(*right, seed=2)
    expected = a @ b
    for got in (matmul(a, b, width), matmul(a, prepare(b, width), width), by_digits(a, b, width)):
        assert got.shape == expected.shape
        assert torch.equal(reduce(got, width), reduce(expected, width))


def test_strided_operands() -> None:
    a, b = words(40, 33, seed=3), words(20, 40, seed=4)
    assert torch.equal(matmul(a.t(), b.t()), a.t() @ b.t())
    assert torch.equal(by_digits(a.t(), b.t(), 64), a.t() @ b.t())


def test_a_prepared_operand_is_cut_once_and_serves_narrower_products() -> None:
    a, b = words(9, 100, seed=5), words(100, 8, seed=6)
    prepared = prepare(b, 51)
    first = float64.matmul(a, prepared, 51, 51)
    kept = dict(prepared.derived)
    again = float64.matmul(a, prepared, 51, 51)
    assert kept and all(prepared.derived[key] is value for key, value in kept.items())
    assert len(prepared.derived) == len(kept)
    assert all(value.dtype == torch.float64 for value in kept.values())
    assert torch.equal(first, again)
    assert torch.equal(reduce(matmul(a, prepared, 30), 30), exact(a, b, 30))


def test_a_part_can_be_added_at_every_place() -> None:
    for place in range(64):
        got = float64._add_shifted(torch.tensor([5, -7]), torch.tensor([3, -(2**52)]), place)
        assert [g % 2**64 for g in got.tolist()] == [(5 + (3 << place)) % 2**64, (-7 - (1 << 52 + place)) % 2**64]


@pytest.mark.parametrize("fast", ["int64", "float64"])
def test_the_cpu_takes_the_faster_way(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = cpu.Speed(1.0, 1e-12, 1.0, 1e-12) if fast == "int64" else cpu.Speed(1.0, 1.0, 1e-12, 1e-12)
    monkeypatch.setattr(cpu, "_speed", lambda threads: speed)
    a, b = words(64, 64, seed=7), prepare(words(64, 64, seed=8), 64)
    assert torch.equal(matmul(a, b), a @ b.tensor)
    assert bool(b.derived) == (fast == "float64")


@pytest.mark.parametrize("width", [1, 7, 31, 32])
@pytest.mark.parametrize("shape", [((64, 300), (300, 70)), ((2, 3, 40, 65), (2, 1, 65, 33)), ((5, 40, 65), (65, 33))])
def test_narrow_rings_go_through_int32(width: int, shape: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_speed", lambda threads: cpu.Speed(1e-12, 1.0, 1.0, 1e-12))
    a, b = words(*shape[0], seed=11), words(*shape[1], seed=12)
    prepared = prepare(b, width)
    assert torch.equal(reduce(matmul(a, prepared, width), width), reduce(a @ b, width))
    assert "int32" in prepared.derived
    assert torch.equal(
        reduce(matmul(a.transpose(-1, -2).contiguous().transpose(-1, -2), b, width), width), reduce(a @ b, width)
    )


def test_speeds_are_measured() -> None:
    assert all(0 < value < 1e-3 for value in cpu._speed(torch.get_num_threads()))


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_speed", lambda threads: cpu.Speed(1.0, 1e-12, 1.0, 1e-12))
    monkeypatch.setattr(cpu, "_SMALL", 0)
    monkeypatch.setattr(cpu, "_CACHED", 10)
    monkeypatch.setattr(cpu, "_BLOCK", 7)
    a, b = words(2, 3, 11, seed=9), words(11, 30, seed=10)
    assert torch.equal(cpu.matmul(a, Prepared(b, 64, 64), 64, 64), reference.matmul(a, Prepared(b, 64, 64), 64, 64))
    assert torch.equal(reference.matmul(a, Prepared(b, 64, 64), 64, 64), a @ b)


def test_kernels_are_found_by_device() -> None:
    assert step("matmul", torch.device("cpu")) is cpu.matmul
    assert step("matmul", torch.device("cuda")) is cuda.matmul
    assert step("reveal", torch.device("cuda")) is cuda.reveal
    assert step("matmul", torch.device("meta")) is reference.matmul
    assert step("reveal", torch.device("meta")) is reference.reveal


def test_what_is_registered_comes_first_until_it_is_taken_away() -> None:
    class Own:
        matmul = staticmethod(float64.matmul)

    device = torch.device("cpu")
    register("cpu", Own)
    try:
        assert step("matmul", device) is float64.matmul
        assert step("close", device) is cpu.close
        assert step("matmul", torch.device("meta")) is reference.matmul
    finally:
        unregister("cpu", Own)
    assert step("matmul", device) is cpu.matmul


def test_meta_tensors_give_the_shape() -> None:
    a, b = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((12, 128, 64), (64, 4096)))
    assert matmul(a, b, 51).shape == (12, 128, 4096)


def test_wrong_input_is_refused() -> None:
    a, b = words(2, 3), words(3, 4)
    with pytest.raises(DtypeError):
        matmul(a.double(), b)
    with pytest.raises(ShapeError):
        matmul(a, a)
    with pytest.raises(ShapeError):
        matmul(a[0], b)
    with pytest.raises(WidthError):
        matmul(a, b, 65)
    with pytest.raises(WidthError):
        matmul(a, prepare(b, 30), 31)
    with pytest.raises(WidthError):
        matmul(a, b, a_bits=0)


def test_printing_a_prepared_operand_hides_its_content() -> None:
    assert "1234567" not in repr(prepare(torch.full((2, 2), 1234567), 51))

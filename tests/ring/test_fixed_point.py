import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secformer.errors import DtypeError, RangeError, ShapeError, WidthError
from secformer.ring.fixed_point import check_width, decode, encode, reduce, shift_right, signed

WIDTHS = st.integers(1, 64)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)


@given(WORDS, WIDTHS)
def test_reduce_gives_the_residue(words: list[int], width: int) -> None:
    got = reduce(torch.tensor(words), width).tolist()
    assert [g % 2**64 for g in got] == [word % 2**width for word in words]


@given(WORDS, WIDTHS)
def test_signed_gives_the_signed_residue(words: list[int], width: int) -> None:
    half = 2 ** (width - 1)
    assert signed(torch.tensor(words), width).tolist() == [(word + half) % 2**width - half for word in words]


@given(WORDS, WIDTHS, st.data())
def test_shift_right_is_logical_for_every_representative(words: list[int], width: int, data) -> None:
    bits = data.draw(st.integers(0, width))
    got = shift_right(torch.tensor(words), bits, width).tolist()
    assert [g % 2**64 for g in got] == [(word % 2**width) >> bits for word in words]


def test_shift_right_for_every_width_and_shift() -> None:
    words = [-1, -(2**63), 2**62, 7, -8]
    for width in range(1, 65):
        for bits in range(width + 1):
            got = shift_right(torch.tensor(words), bits, width).tolist()
            assert [g % 2**64 for g in got] == [(word % 2**width) >> bits for word in words], (width, bits)


def test_nothing_is_copied_modulo_2_64() -> None:
    x = torch.tensor([-5, 7])
    assert reduce(x, 64) is x
    assert signed(x, 64) is x
    assert shift_right(x, 0, 64) is x


@pytest.mark.parametrize("width", [0, -1, 65, 128])
def test_impossible_widths_are_refused(width: int) -> None:
    with pytest.raises(WidthError):
        check_width(width)
    for operation in (reduce, signed):
        with pytest.raises(WidthError):
            operation(torch.tensor([1]), width)


@pytest.mark.parametrize("bits", [-1, 9])
def test_impossible_shifts_are_refused(bits: int) -> None:
    with pytest.raises(WidthError):
        shift_right(torch.tensor([1]), bits, 8)


@given(st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=20), st.integers(0, 30))
def test_encode_rounds_to_nearest(values: list[float], scale: int) -> None:
    got = encode(torch.tensor(values, dtype=torch.float64), scale).tolist()
    assert got == [round(math.ldexp(value, scale)) for value in values]


@given(st.lists(st.integers(-(2**51), 2**51 - 1), min_size=1, max_size=20), st.integers(-5, 40))
def test_decode_inverts_encode(whole: list[int], scale: int) -> None:
    values = torch.tensor(whole, dtype=torch.float64) * 2.0**-scale
    ring = encode(values, scale, 52)
    assert torch.equal(decode(ring, scale, 52), values)
    assert torch.equal(decode(ring + 2**52, scale, 52), values)


@pytest.mark.parametrize("width", [1, 2, 17, 53, 63, 64])
def test_the_signed_range_is_exact_at_both_ends(width: int) -> None:
    half = 2.0 ** (width - 1)
    below = math.nextafter(half, 0) if width > 53 else half - 1
    ends = torch.tensor([-half, below], dtype=torch.float64)
    assert encode(ends, 0, width).tolist() == [int(-half), int(below)]
    with pytest.raises(RangeError):
        encode(torch.tensor([0.0, half], dtype=torch.float64), 0, width)
    low = math.nextafter(-half, -math.inf) if width > 53 else -half - 1
    with pytest.raises(RangeError):
        encode(torch.tensor([low], dtype=torch.float64), 0, width)


def test_a_value_that_rounds_out_of_range_is_refused() -> None:
    assert encode(torch.tensor([127.49], dtype=torch.float64), 0, 8).tolist() == [127]
    with pytest.raises(RangeError):
        encode(torch.tensor([127.51], dtype=torch.float64), 0, 8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(RangeError, match="NaN or infinity"):
        encode(torch.tensor([1.0, bad, 2.0]), 16)


def test_the_message_names_the_limit_and_not_the_value() -> None:
    with pytest.raises(RangeError) as caught:
        encode(torch.tensor([98765.0]), 16, 32)
    assert "32768" in str(caught.value)
    assert "98765" not in str(caught.value)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16]
)
def test_plain_types_are_accepted(dtype: torch.dtype) -> None:
    assert encode(torch.tensor([0, 1], dtype=dtype), 10).tolist() == [0, 1024]


def test_integers_do_not_pass_through_float() -> None:
    assert encode(torch.tensor([2**53 + 1, -(2**62) - 1]), 0).tolist() == [2**53 + 1, -(2**62) - 1]
    assert encode(torch.tensor([2**52 + 1]), 10).tolist() == [(2**52 + 1) << 10]
    assert encode(torch.tensor([0, 0]), 100).tolist() == [0, 0]


def test_integers_out_of_range_are_refused() -> None:
    for value, scale, width in ((2**7, 0, 8), (-(2**7) - 1, 0, 8), (1, 63, 64), (2**62, 1, 64), (1, 100, 64)):
        with pytest.raises(RangeError):
            encode(torch.tensor([value]), scale, width)
    with pytest.raises(RangeError):
        encode(torch.tensor([2**63], dtype=torch.uint64), 0)


def test_empty_and_complex_are_refused() -> None:
    with pytest.raises(ShapeError):
        encode(torch.empty(0, 3), 16)
    with pytest.raises(DtypeError):
        encode(torch.tensor([1j]), 16)


def test_meta_tensors_keep_their_shape() -> None:
    values = torch.empty(2, 3, device="meta")
    assert encode(values, 16).shape == (2, 3)
    assert shift_right(encode(values, 16), 4, 51).dtype == torch.int64

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.errors import DtypeError, FrameError, WidthError
from secformer.ring import packing
from secformer.ring.fixed_point import reduce
from secformer.ring.packing import pack, packed_bytes, unpack

# Sizes around every boundary of the format: lanes of 8, the bit stream's end at 256.
SIZES = [*range(0, 21), 63, 64, 65, 255, 256, 257, 258, 263, 264, 265, 1000, 1003]


def words(count: int) -> torch.Tensor:
    x = torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(count))
    x[::7] = -1
    return x


@pytest.mark.parametrize("width", range(1, 65))
def test_unpack_inverts_pack_in_exactly_the_bits_needed(width: int) -> None:
    for count in SIZES:
        x = words(count)
        buffer = pack(x, width)
        assert buffer.dtype == torch.uint8
        assert buffer.shape == (-(-count * width // 8),)
        assert buffer.numel() == packed_bytes(count, width)
        assert torch.equal(unpack(buffer, count, width), reduce(x, width)), count


@pytest.mark.parametrize("width", range(1, 65))
def test_arrays_and_tensors_share_the_format(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (257, 263, 264, 1001):
        x = words(count)
        by_numpy = pack(x, width)
        monkeypatch.setattr(packing, "_LARGE", 0)
        assert torch.equal(pack(x, width), by_numpy)
        assert torch.equal(unpack(by_numpy, count, width), reduce(x, width))
        monkeypatch.undo()


@pytest.mark.parametrize("width", range(1, 64))
def test_every_representative_packs_the_same(width: int) -> None:
    for count in (5, 300):
        x = words(count)
        buffer = pack(x, width)
        above = torch.tensor(1) << width  # as int64, where 2^63 is its own negative
        for other in (x + above, x - 3 * above, reduce(x, width)):
            assert torch.equal(pack(other, width), buffer)


@given(st.integers(1, 64), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300))
@settings(max_examples=60)
def test_any_values_survive(width: int, values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.int64)
    assert torch.equal(unpack(pack(x, width), len(values), width), reduce(x, width))


@pytest.mark.parametrize("count", [9, 256])
def test_few_elements_are_a_little_endian_stream_of_bits(count: int) -> None:
    x = reduce(words(count), 19)
    stream = sum(value << (19 * place) for place, value in enumerate(x.tolist()))
    assert bytes(pack(x, 19).tolist()) == stream.to_bytes(packed_bytes(count, 19), "little")


def test_the_format_is_pinned() -> None:
    """Two versions must understand each other: a known input keeps its bytes."""
    x = torch.arange(266) * 0x0123456789AB
    buffer = pack(x, 13)
    # Bytes 0 of all elements, then lanes of 5 bits of eight elements: 4-byte plane first.
    assert buffer[33 * 4 : 33 * 4 + 266].tolist() == (x & 255).tolist()
    rest = [(value >> 8) & 31 for value in x.tolist()]
    lane = sum(value << (5 * place) for place, value in enumerate(rest[:8]))
    assert bytes(buffer[:4].tolist()) == (lane & 0xFFFFFFFF).to_bytes(4, "little")
    assert buffer[33 * 4 + 266].item() == lane >> 32
    tail = rest[264] | rest[265] << 5
    assert bytes(buffer[-2:].tolist()) == tail.to_bytes(2, "little")


@pytest.mark.parametrize("width", [1, 13, 32, 51, 64])
def test_any_shape_and_layout_packs_in_row_order(width: int) -> None:
    x = words(300).view(15, 20)
    assert torch.equal(pack(x.t(), width), pack(x.t().contiguous().view(-1), width))
    assert torch.equal(pack(x[:, ::2], width), pack(x[:, ::2].reshape(-1), width))


@pytest.mark.parametrize("large", [0, 1 << 19])
@pytest.mark.parametrize("width", [10, 32, 44, 64])
def test_a_buffer_may_start_anywhere(width: int, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_LARGE", large)
    x = words(500)
    frame = torch.cat([torch.zeros(3, dtype=torch.uint8), pack(x, width)])
    assert torch.equal(unpack(frame[3:], 500, width), reduce(x, width))


def test_meta_tensors_keep_their_size() -> None:
    assert pack(torch.empty(7, 11, dtype=torch.int64, device="meta"), 19).shape == (packed_bytes(77, 19),)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(DtypeError):
        pack(torch.tensor([1.0]), 8)
    for width in (0, 65):
        with pytest.raises(WidthError):
            pack(torch.tensor([1]), width)
    buffer = pack(torch.arange(10), 10)
    for wrong in (buffer[:-1], buffer.view(1, -1), buffer.to(torch.int16)):
        with pytest.raises(FrameError):
            unpack(wrong, 10, 10)

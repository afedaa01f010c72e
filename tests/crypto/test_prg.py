"""Streams: layout, uniformity, independence, and that nothing is drawn twice."""

import copy
import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.crypto.prg import Draw, Seed, Stream, derive, single_draw
from secformer.errors import DtypeError, InputError, MaterialError, ShapeError, WidthError
from secformer.ring import keystream
from secformer.ring.kernels import cuda
from secformer.ring.keystream import Keystream, native_cipher, stream_bytes, torch_elements

SEED = Seed(bytes(range(32)))
WIDTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 51, 63, 64]


def make_stream(session=b"session", pair="dealer-server0", purpose="mask", seed=SEED) -> Stream:
    return Stream(seed, session, pair, purpose)


def draw(stream: Stream, index: int, shape, width: int) -> torch.Tensor:
    return stream.draw(Draw(stream.pair, stream.purpose, index, shape, width))


def torch_draw(stream: Stream, index: int, count: int, width: int) -> torch.Tensor:
    bare = Keystream(stream._key.bytes, index.to_bytes(12, "little"))
    return torch_elements(bare, count, width, torch.device("cpu"))


# ---- seeds


def test_seed_hides_its_content():
    secret = bytes(range(100, 132))
    seed = Seed(secret)
    assert repr(seed) == str(seed) == "Seed(hidden)"
    assert seed.bytes == secret


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_seeds_and_streams_are_not_duplicated(duplicate):
    for item in (Seed.from_os(), make_stream()):
        with pytest.raises(MaterialError):
            duplicate(item)


def test_seed_checks_its_input():
    for wrong in (b"", bytes(31), bytes(33)):
        with pytest.raises(InputError):
            Seed(wrong)
    with pytest.raises(DtypeError):
        Seed("x" * 32)  # type: ignore[arg-type]


def test_seed_equality_and_os_randomness():
    assert Seed(bytes(32)) == Seed(bytes(32))
    assert Seed.from_os() != Seed.from_os()
    assert Seed(bytes(32)) != bytes(32)
    with pytest.raises(TypeError):
        hash(SEED)


# ---- derivation


def test_derive_is_hkdf_expand():
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    def length(size: int) -> bytes:
        return size.to_bytes(8, "little")

    info = b"secformer derive 1" + b"s" + length(4) + b"mask" + b"i" + length(1) + b"\x07"
    assert derive(SEED, "mask", 7).bytes == HKDFExpand(SHA256(), 32, info).derive(SEED.bytes)


def test_derived_labels_are_unambiguous():
    texts = [(), ("",), ("", ""), ("ab", "c"), ("a", "bc"), ("abc",), ("1",)]
    contents = [(b"",), (b"abc",), (b"1",), (b"\x01",), (b"\x01", b"\x00"), (b"\x01\x00",)]
    numbers = [(n,) for n in (0, 1, -1, 127, 128, 255, 256, -256, 65535, 1 << 100, -(1 << 100))]
    lists = texts + contents + numbers
    derived = {derive(SEED, *labels).bytes for labels in lists}
    assert len(derived) == len(lists)
    assert derive(Seed(bytes(32)), "a").bytes != derive(SEED, "a").bytes


@pytest.mark.parametrize("label", [True, 1.0, None, ("a",)])
def test_derive_refuses_other_labels(label):
    with pytest.raises(DtypeError):
        derive(SEED, label)


# ---- layout


@pytest.mark.parametrize("width", WIDTHS)
def test_layout_is_the_documented_one(width):
    pytest.importorskip("cryptography")
    stream = make_stream()
    drawn = draw(stream, 5, (37,), width).tolist()
    cipher = native_cipher(stream._key.bytes)
    cipher.reset_nonce(bytes(4) + (5).to_bytes(12, "little"))
    raw = cipher.update(bytes(stream_bytes(37, width)))
    if width == 1:
        expected = [raw[i // 8] >> (i % 8) & 1 for i in range(37)]
    else:
        size = len(raw) // 37
        assert size == next(s for s in (1, 2, 4, 8) if 8 * s >= width)
        words = [int.from_bytes(raw[i * size : (i + 1) * size], "little") for i in range(37)]
        expected = [word % (1 << width) for word in words]
    assert [value % (1 << 64) for value in drawn] == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 300), st.integers(0, 2**96 - 1))
def test_both_ciphers_draw_the_same(width, count, index):
    stream = make_stream()
    assert torch.equal(torch_draw(stream, index, count, width), draw(stream, index, (count,), width))


@pytest.mark.parametrize("width", [1, 8, 17, 51, 64])
def test_both_ciphers_agree_over_several_pieces(width, monkeypatch):
    monkeypatch.setattr(keystream, "_DEVICE_PIECE_BYTES", 1 << 13)
    count = 150_001
    stream = make_stream()
    assert torch.equal(torch_draw(stream, 0, count, width), draw(stream, 0, (count,), width))


def test_without_cryptography_the_stream_is_the_same(monkeypatch):
    expected = [draw(make_stream(), 3, (5, 7), width) for width in WIDTHS]
    monkeypatch.setattr(keystream, "_native_available", lambda: False)
    for width, values in zip(WIDTHS, expected, strict=True):
        stream = make_stream()
        assert stream._cipher is None
        assert torch.equal(draw(stream, 3, (5, 7), width), values)


@pytest.mark.parametrize("width", WIDTHS)
def test_range_and_type(width):
    drawn = draw(make_stream(), 0, (20_000,), width)
    assert drawn.dtype == torch.int64 and drawn.device.type == "cpu"
    if width < 64:
        smallest, largest = int(drawn.min()), int(drawn.max())
        assert smallest >= 0 and (1 << width) * 0.99 - 1 <= largest < 1 << width
    else:
        assert drawn.min() < -(1 << 62) and drawn.max() > 1 << 62


def test_draws_are_writable_and_apart():
    stream = make_stream()
    first, second = draw(stream, 0, (4,), 64), draw(stream, 1, (4,), 64)
    before = second.clone()
    first.add_(1)
    assert torch.equal(second, before)


# ---- shapes and widths


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), torch.Size([2, 1, 5]), [6]])
@pytest.mark.parametrize("width", [1, 20, 64])
def test_shapes(shape, width):
    drawn = draw(make_stream(), 0, shape, width)
    assert drawn.shape == torch.Size(shape)
    count = drawn.numel()
    assert torch.equal(drawn.reshape(-1), draw(make_stream(), 0, (count,), width))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0), (-1,), (-2, -3)])
def test_empty_shapes_are_refused(shape):
    with pytest.raises(ShapeError):
        draw(make_stream(), 0, shape, 8)


@pytest.mark.parametrize("width", [0, -1, 65])
def test_widths_are_checked(width):
    with pytest.raises(WidthError):
        draw(make_stream(), 0, (2,), width)


# ---- nothing twice


def test_indices_must_rise():
    stream = make_stream()
    draw(stream, 4, (2,), 8)
    for index in (4, 3, 0, -1):
        with pytest.raises(MaterialError, match="rise"):
            draw(stream, index, (2,), 8)
    draw(stream, 5, (2,), 8)
    draw(stream, 2**96 - 1, (2,), 8)
    with pytest.raises(MaterialError):
        draw(stream, 2**96, (2,), 8)


def test_a_refused_draw_spends_nothing():
    stream = make_stream()
    with pytest.raises(ShapeError):
        draw(stream, 0, (0,), 8)
    assert torch.equal(draw(stream, 0, (3,), 8), draw(make_stream(), 0, (3,), 8))


def test_spent_is_spent_however_it_was():
    stream, other = make_stream(), make_stream()
    bare = stream.spend(Draw(stream.pair, stream.purpose, 3, (5,), 20))
    assert torch.equal(torch_elements(bare, 5, 20, torch.device("cpu")), draw(other, 3, (5,), 20))
    assert "hidden" in repr(bare) and bare.key.hex() not in repr(bare)
    with pytest.raises(MaterialError, match="rise"):
        draw(stream, 3, (5,), 20)


@pytest.mark.parametrize("other", [{"pair": "dealer-server1"}, {"purpose": "pad"}])
def test_a_stream_takes_its_own_entries_only(other):
    stream = make_stream()
    entry = Draw(stream.pair, stream.purpose, 0, (3,), 8)
    with pytest.raises(MaterialError, match="is not one of"):
        stream.draw(entry._replace(**other))
    assert torch.equal(stream.draw(entry), draw(make_stream(), 0, (3,), 8))


def test_a_seed_for_one_tensor_gives_the_first_draw():
    single = single_draw(SEED, b"session", "dealer-server0", "mask", (4, 5), 30, "cpu")
    assert torch.equal(single, draw(make_stream(), 0, (4, 5), 30))


@pytest.mark.parametrize(("count", "width"), [(2**35 + 1, 64), (2**36 + 1, 32), (2**41 + 1, 1)])
def test_more_than_a_nonce_covers_is_refused_before_allocating(count, width):
    assert stream_bytes(count - 1, width) == 256 << 30
    with pytest.raises(MaterialError, match="256 GiB"):
        draw(make_stream(), 0, (count,), width)


def test_threads_never_share_a_draw():
    stream, drawn, refused = make_stream(), [], []

    def work() -> None:
        for index in range(300):
            try:
                drawn.append((index, draw(stream, index, (50,), 64)))
            except MaterialError:
                refused.append(index)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    indices = [index for index, _ in drawn]
    assert len(indices) == len(set(indices)) and len(drawn) + len(refused) == 1200
    reference = make_stream()
    for index, values in sorted(drawn, key=lambda pair: pair[0]):
        assert torch.equal(values, draw(reference, index, (50,), 64))


# ---- uniform, independent


@pytest.mark.parametrize("width", [8, 16, 64])
def test_bytes_are_uniform(width):
    drawn = draw(make_stream(seed=Seed.from_os()), 0, (100_000,), width)
    for shift in range(0, width, 8):
        counts = torch.bincount((drawn >> shift) & 255, minlength=256).double()
        expected = counts.sum() / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 400  # 255 degrees of freedom: exceeded with probability 2e-8


def test_bits_are_balanced():
    bits = draw(make_stream(seed=Seed.from_os()), 0, (8, 100_000), 1)
    for row in bits.double().mean(-1):
        assert abs(row - 0.5) < 0.01  # 6.3 standard deviations


@pytest.mark.parametrize(
    "other",
    [
        {"session": b"session2"},
        {"pair": "dealer-server1"},
        {"purpose": "pad"},
        {"seed": Seed(bytes(32))},
        {"session": b"sessiondealer", "pair": "-server0"},
    ],
)
def test_streams_are_independent(other):
    first = draw(make_stream(), 0, (20_000,), 8)
    second = draw(make_stream(**other), 0, (20_000,), 8)
    agreement = (first == second).double().mean()
    assert agreement < 0.008  # 1/256 + 9 standard deviations
    assert torch.equal(first, draw(make_stream(), 0, (20_000,), 8))


def test_indices_are_independent():
    stream = make_stream()
    first, second = draw(stream, 1, (20_000,), 8), draw(stream, 1 << 32, (20_000,), 8)
    assert (first == second).double().mean() < 0.008


def test_a_stream_needs_its_names():
    for names in ({"session": b""}, {"pair": ""}, {"purpose": ""}):
        with pytest.raises(InputError):
            make_stream(**names)
    assert "session" not in repr(make_stream()) and "mask" in repr(make_stream())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1000, (1 << 20) + 3])
def test_gpu_draws_the_same(width, count, monkeypatch):
    monkeypatch.setattr(cuda, "_COPY_LIMIT_BYTES", 0)
    stream = Stream(SEED, b"session", "dealer-server0", "mask", device="cuda")
    drawn = draw(stream, 9, (count,), width)
    assert drawn.device.type == "cuda"
    assert torch.equal(drawn.cpu(), draw(make_stream(), 9, (count,), width))

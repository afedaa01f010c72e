import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secformer.errors import FrameError, ShapeError
from secformer.transport import frame
from secformer.transport.frame import HEADER_BYTES, FrameType, decode, encode, payload_bytes, session_of
from secformer.version import PROTOCOL_VERSION

SESSION = bytes(range(16))
LIMIT = 1 << 32


def header(kind=FrameType.OPENING, sequence=7, shape=(3, 5), width=17, length=None, session=SESSION):
    return encode(kind, sequence, shape, width, payload_bytes(shape, width) if length is None else length, session)


def patched(offset: int, layout: str, value) -> bytearray:
    data = bytearray(header())
    struct.pack_into("<" + layout, data, offset, value)
    return data


TENSORS = (FrameType.OPENING, FrameType.MATERIAL, FrameType.INPUT, FrameType.OUTPUT)
SMALL = {FrameType.HELLO: 1 << 10, FrameType.ABORT: 1 << 10, FrameType.CONTROL: 1 << 20, FrameType.ALIVE: 0}


@pytest.mark.parametrize("kind", FrameType)
def test_only_tensors_may_be_large(kind):
    """Whoever is let in may announce any length: what is no tensor is refused before memory is given to it."""
    largest = SMALL.get(kind, LIMIT)
    assert decode(header(kind, shape=(largest // 64, 64), width=8), SESSION, LIMIT).length == largest
    with pytest.raises(FrameError, match="length"):
        decode(header(kind, shape=(largest // 64 + 1, 64), width=8), SESSION, LIMIT)
    with pytest.raises(FrameError, match="length"):
        decode(header(kind, shape=(101,), width=8), SESSION, 100)


@given(
    kind=st.sampled_from(TENSORS),
    sequence=st.integers(0, 2**64 - 1),
    shape=st.lists(st.integers(0, 9), max_size=8).map(tuple),
    width=st.integers(1, 64),
    session=st.binary(min_size=16, max_size=16),
)
def test_round_trip(kind, sequence, shape, width, session):
    data = header(kind, sequence, shape, width, session=session)
    assert len(data) == HEADER_BYTES == 76
    assert decode(data, session, LIMIT) == (kind, sequence, shape, width, payload_bytes(shape, width))
    assert session_of(data) == session


def test_payload_bytes_rounds_up_and_counts_a_scalar_as_one_element():
    assert payload_bytes((), 17) == 3
    assert payload_bytes((3, 5), 17) == 32  # 255 bits
    assert payload_bytes((4, 0), 64) == 0
    assert payload_bytes((8,), 1) == 1


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("magic", patched(0, "4s", b"HTTP")),
        ("version", patched(4, "H", PROTOCOL_VERSION - 1)),
        ("version", patched(4, "H", PROTOCOL_VERSION + 1)),
        ("kind", patched(6, "B", 0)),
        ("kind", patched(6, "B", 99)),
        ("width", patched(7, "B", 0)),
        ("width", patched(7, "B", 65)),
        ("session", patched(8, "16s", bytes(16))),
        ("length", patched(32, "Q", 33)),
        ("length", patched(32, "Q", 1 << 60)),
        ("dimensions", patched(40, "I", 9)),
        ("dimensions", patched(40, "I", 2**32 - 1)),
        ("shape", patched(40, "I", 1)),  # the second dimension lies beyond the last
        ("length", patched(44, "I", 2**32 - 1)),
        ("header", bytearray(header()[:-1])),
    ],
)
def test_every_malformed_field_is_named(field, data):
    with pytest.raises(FrameError, match=f"^{field}:"):
        decode(data, SESSION, LIMIT)


def test_a_consistent_but_oversized_length_is_refused():
    data = header(shape=(2**31, 2**29), width=8)  # 2^60 bytes, as the shape says
    with pytest.raises(FrameError, match="length: 1152921504606846976 bytes exceed the limit"):
        decode(data, SESSION, LIMIT)
    small = header(shape=(100,), width=8)
    assert decode(small, SESSION, 100).length == 100
    with pytest.raises(FrameError, match="limit of 99"):
        decode(small, SESSION, 99)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_is_refused(data):
    with pytest.raises(FrameError):
        decode(b"\xff" + data[1:], SESSION, LIMIT)


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_what_the_channel_checks(position, flip):
    original = header()
    data = bytearray(original)
    data[position] ^= flip
    try:
        changed = decode(data, SESSION, LIMIT)
    except FrameError:
        return
    assert changed != decode(original, SESSION, LIMIT)


@pytest.mark.parametrize(("shape", "width"), [((1,) * 9, 8), ((2**32,), 8), ((-1, -8), 8), ((1,), 256)])
def test_what_a_header_cannot_express_is_the_senders_error(shape, width):
    with pytest.raises(ShapeError):
        encode(FrameType.OPENING, 1, shape, width, 8, SESSION)


def test_the_protocol_version_is_the_packages():
    assert struct.unpack_from("<H", header(), 4)[0] == PROTOCOL_VERSION == frame.PROTOCOL_VERSION

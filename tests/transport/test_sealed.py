"""Records of a sealed connection: what was sent arrives, and nothing else opens."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from secformer.errors import FrameError
from secformer.transport.sealed import KEY_BYTES, RECORD, Sealing

KEY = bytes(range(KEY_BYTES))
TAG = 16


@pytest.fixture
def ends():
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def carried(ends, data: bytes) -> bytes:
    """The bytes on the wire for `data`."""
    sender = Sealing(ends[0], KEY)
    size = len(data) + TAG * -(-len(data) // RECORD)
    wire = bytearray()

    def drain() -> None:
        while len(wire) < size:
            wire.extend(ends[1].recv(1 << 20))

    reader = threading.Thread(target=drain)
    reader.start()
    sender.sendall(memoryview(data))
    reader.join(10)
    return bytes(wire)


def opened(wire: bytes, sizes: list[int]) -> list[bytes]:
    """What a receiver makes of these bytes, reading records of these sizes."""
    there, here = socket.socketpair()
    with there, here:

        def send() -> None:
            with suppress(OSError):  # the receiver may have seen enough
                there.sendall(wire)
                there.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        receiver = Sealing(here, KEY)
        parts = []
        for size in sizes:
            buffer = bytearray(size)
            count = receiver.read(memoryview(buffer))
            parts.append(bytes(buffer[:count]))
        sender.join(10)
        return parts


@pytest.mark.parametrize("size", [1, 1000, RECORD, RECORD + 1, 3 * RECORD - 5])
def test_what_is_sent_arrives_and_is_hidden(ends, size):
    data = bytes(number % 251 for number in range(size))
    wire = carried(ends, data)
    assert data[:64] not in wire or size < 8
    sizes = [min(RECORD, size - start) for start in range(0, size, RECORD)]
    assert b"".join(opened(wire, sizes)) == data


@pytest.mark.parametrize("place", [0, 500, 999, 1000, 1015])
def test_a_changed_byte_is_noticed(ends, place):
    wire = bytearray(carried(ends, bytes(1000)))
    wire[place] ^= 1
    with pytest.raises(FrameError, match="changed"):
        opened(bytes(wire), [1000])


def test_records_open_once_and_in_their_order(ends):
    wire = carried(ends, bytes(2 * RECORD))
    first, second = wire[: RECORD + TAG], wire[RECORD + TAG :]
    assert first != second  # the same content under another nonce
    for mixed in (second + first, first + first):
        with pytest.raises(FrameError, match="next"):
            opened(mixed, [RECORD, RECORD])


def test_a_cut_record_is_a_lost_connection(ends):
    wire = carried(ends, bytes(1000))
    with pytest.raises(ConnectionResetError):
        opened(wire[:-1], [1000])


def test_another_key_opens_nothing(ends):
    there, here = ends
    Sealing(there, bytes(KEY_BYTES)).sendall(memoryview(b"content"))
    with pytest.raises(FrameError):
        Sealing(here, KEY).read(memoryview(bytearray(7)))

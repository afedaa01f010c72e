"""What every channel promises, whatever carries it: memory, TLS with one or more connections, and shaped."""

import threading
import time

import pytest
import torch
from talking import SESSION, Deployment, both

from secformer.errors import (
    ConnectionLostError,
    DtypeError,
    FrameError,
    PeerAbortedError,
    PeerTimeoutError,
    SettingsError,
    ShapeError,
    WidthError,
)
from secformer.transport.channel import Counters, FrameType
from secformer.transport.frame import HEADER_BYTES, payload_bytes
from secformer.transport.memory import memory_pair
from secformer.transport.shaped import Profile, shaped

KINDS = ["memory", "shaped", "tls-1", "tls-2", "tls-3"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return Deployment(tmp_path_factory.mktemp("identities"))


@pytest.fixture(params=KINDS)
def pair(request, deployment):
    """(server0's end, server1's end)"""
    if request.param.startswith("tls"):
        with deployment.channels(int(request.param[-1])) as ends:
            yield ends
        return
    ends = memory_pair("server0", "server1", SESSION)
    if request.param == "shaped":
        fast = Profile(bandwidth=100e9, round_trip=1e-5)
        ends = (shaped(ends[0], fast), shaped(ends[1], fast))
    yield ends
    for end in ends:
        end.close()


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def test_both_ends_know_each_other(pair):
    assert [end.peer for end in pair] == ["server1", "server0"]
    assert all(end.session == SESSION for end in pair)


@pytest.mark.parametrize(
    ("shape", "width"), [((), 17), ((), 64), ((0,), 8), ((5,), 8), ((3, 5), 17), ((2, 1, 3, 1, 2, 2, 1, 2), 1)]
)
def test_payloads_arrive_with_their_shape(pair, shape, width):
    zero, one = pair
    payload = noise(payload_bytes(shape, width))
    zero.send(FrameType.MATERIAL, payload.clone(), shape, width)
    received = one.receive(FrameType.MATERIAL, shape, width)
    assert received.dtype == torch.uint8 and received.ndim == 1 and received.is_cpu
    assert torch.equal(received, payload)


def test_bytes_of_any_length_arrive(pair):
    zero, one = pair
    for size in (0, 1, 31 << 10, 33 << 10, (256 << 10) - 1, 256 << 10, (1 << 20) + 5, 3_000_001):
        payload = noise(size)
        one.send(FrameType.INPUT, payload.numpy().tobytes())
        assert torch.equal(zero.receive(FrameType.INPUT), payload)


def test_order_is_kept_between_small_and_large_frames(pair):
    zero, one = pair
    payloads = [noise(size) for size in (10, 2_000_000, 10, 500_000, 0, 300_000, 7)]
    for payload in payloads:
        zero.send(FrameType.OUTPUT, payload.clone())
    for payload in payloads:
        assert torch.equal(one.receive(FrameType.OUTPUT), payload)


def test_a_view_is_sent_as_what_it_shows(pair):
    zero, one = pair
    whole = noise(100)
    zero.send(FrameType.INPUT, whole[1::2])
    assert torch.equal(one.receive(FrameType.INPUT, shape=(50,)), whole[1::2])


def test_exchange_is_one_round_and_counters_are_exact(pair):
    shape, width = (6, 7), 19
    size = payload_bytes(shape, width)
    payloads = noise(size), noise(size)
    got = both(*(lambda end=end, p=p: end.exchange(p.clone(), shape, width) for end, p in zip(pair, payloads)))
    assert torch.equal(got[0], payloads[1]) and torch.equal(got[1], payloads[0])
    pair[0].send(FrameType.CONTROL, b"hello")
    pair[1].receive(FrameType.CONTROL)
    assert pair[0].counters == Counters(
        payload_sent=size + 5,
        payload_received=size,
        wire_sent=size + 5 + 2 * HEADER_BYTES,
        wire_received=size + HEADER_BYTES,
        messages_sent=2,
        messages_received=1,
        rounds=1,
    )
    assert pair[1].counters.rounds == 1
    assert pair[1].counters.wire_received == pair[0].counters.wire_sent
    assert pair[1].counters.payload_sent == pair[0].counters.payload_received


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("kind", {"kind": FrameType.MATERIAL}),
        ("shape", {"shape": (4, 4)}),
        ("width", {"width": 9}),
        ("length", {"limit": 15}),
    ],
)
def test_a_frame_that_is_not_the_expected_one_stops_both_sides(pair, field, expected):
    zero, one = pair
    zero.send(FrameType.OPENING, bytes(16), (2, 8), 8)
    with pytest.raises(FrameError, match=f"^{field}: .*from server0"):
        one.receive(**({"kind": FrameType.OPENING} | expected))
    with pytest.raises(PeerAbortedError, match=rf"server1 stopped with \[transport.frame\] {field}"):
        zero.receive(FrameType.OPENING)


def test_what_cannot_be_sent_is_refused_and_does_not_count(pair):
    zero, one = pair
    with pytest.raises(ShapeError):
        zero.send(FrameType.OPENING, bytes(16), (3, 5), 8)
    with pytest.raises(ShapeError):
        zero.send(FrameType.OPENING, torch.zeros(2, 2, dtype=torch.uint8))
    with pytest.raises(DtypeError):
        zero.send(FrameType.OPENING, torch.zeros(2))
    zero.send(FrameType.OPENING, b"fine")
    assert one.receive(FrameType.OPENING).tolist() == list(b"fine")
    assert zero.counters.messages_sent == 1


def test_abort_carries_the_code_and_a_safe_text(pair):
    zero, one = pair
    zero.abort(WidthError("layer 3 needs 52 bits\n\x1b[31mand has 51"))
    with pytest.raises(PeerAbortedError, match=r"server0 stopped with \[width\] layer 3 needs 52 bits"):
        one.receive(FrameType.OPENING)


def test_abort_keeps_foreign_texts_to_itself(pair):
    zero, one = pair
    zero.abort(ValueError("the secret is 42"))
    with pytest.raises(PeerAbortedError) as caught:
        one.receive(FrameType.OPENING)
    assert "[internal] ValueError" in str(caught.value) and "42" not in str(caught.value)


def test_an_abort_ends_the_channel_for_a_sender_and_whoever_watches(pair):
    zero, one = pair
    zero.send(FrameType.OPENING, b"before")
    zero.abort(WidthError("too narrow"))
    zero.close()
    deadline = time.monotonic() + 5
    while one.ended is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert isinstance(one.ended, PeerAbortedError)
    with pytest.raises(PeerAbortedError, match="too narrow"):
        one.send(FrameType.OPENING, b"late")
    assert one.receive(FrameType.OPENING).tolist() == list(b"before")
    with pytest.raises(PeerAbortedError, match="too narrow"):
        one.receive(FrameType.OPENING)


def test_closing_waits_for_another_threads_abort(pair, monkeypatch):
    zero, one = pair
    send, begun = zero.send, threading.Event()

    def slowly(*parts):
        begun.set()
        time.sleep(0.1)
        send(*parts)

    monkeypatch.setattr(zero, "send", slowly)
    reader = threading.Thread(target=zero.abort, args=(WidthError("too narrow"),))
    reader.start()
    begun.wait()
    zero.abort(ConnectionLostError("not the reason"))
    zero.close()
    reader.join()
    with pytest.raises(PeerAbortedError, match="too narrow"):
        one.receive(FrameType.OPENING)


def test_leaving_a_with_block_by_an_error_aborts(pair):
    zero, one = pair
    with pytest.raises(WidthError), zero:
        raise WidthError("too narrow")
    with pytest.raises(PeerAbortedError, match="too narrow"):
        one.receive(FrameType.OPENING)


@pytest.mark.parametrize("closer", [0, 1])
def test_close_delivers_what_was_sent_and_wakes_both_sides(pair, closer):
    closing, other = pair[closer], pair[1 - closer]
    payload = noise(1_000_000)
    closing.send(FrameType.OUTPUT, payload.clone())
    waiting = threading.Timer(0.2, closing.close)
    waiting.start()
    start = time.monotonic()
    with pytest.raises(ConnectionLostError):
        closing.receive(FrameType.OUTPUT)
    assert torch.equal(other.receive(FrameType.OUTPUT), payload)
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            other.receive(FrameType.OUTPUT)
    with pytest.raises(ConnectionLostError):
        closing.send(FrameType.OUTPUT, b"late")
    with pytest.raises(ConnectionLostError):
        for _ in range(3):  # the first may still leave
            other.send(FrameType.OUTPUT, b"late")
            time.sleep(0.05)
    waiting.join()
    closing.close()
    other.close()
    assert time.monotonic() - start < 5


def test_timeout_is_typed_and_counts_from_the_last_byte(pair):
    one = pair[1]
    one.timeout = 0.3
    start = time.monotonic()
    with pytest.raises(PeerTimeoutError, match=r"nothing from server0 for 0\.3 s"):
        one.receive(FrameType.OPENING)
    assert 0.25 < time.monotonic() - start < 3


def test_a_session_has_sixteen_bytes():
    with pytest.raises(SettingsError):
        memory_pair("server0", "server1", b"short")


def test_many_threads_may_send(pair):
    zero, one = pair

    def send_many():
        for _ in range(50):
            zero.send(FrameType.CONTROL, bytes(100))

    threads = [threading.Thread(target=send_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):  # a gap or a repetition in the sequence would raise
        one.receive(FrameType.CONTROL, shape=(100,))
    for thread in threads:
        thread.join()
    assert zero.counters.messages_sent == one.counters.messages_received == 200

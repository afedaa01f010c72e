"""What only a channel over TLS can show: two processes, gigabytes both ways, back-pressure, the lobby."""

import gc
import hashlib
import multiprocessing
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from talking import SESSION, Deployment, both, join_from_folder

from secformer.errors import ConnectionLostError, FrameError, PeerAbortedError, PeerTimeoutError, SettingsError
from secformer.transport import lanes, quick, tls, tls_channel
from secformer.transport.buffers import BufferPool
from secformer.transport.channel import FrameType
from secformer.transport.frame import HEADER_BYTES, encode
from secformer.transport.lanes import stripes
from secformer.transport.shaped import Profile, shaped
from secformer.transport.tls import ChannelOptions, TlsChannel

MIB = 1 << 20


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return Deployment(tmp_path_factory.mktemp("identities"))


def answer_from_another_process(folder: str, address: tuple[str, int]) -> None:
    with join_from_folder(folder, address) as channel:
        for number in range(20):
            channel.exchange(bytes([number]) * 100, (10, 10), 8)
        large = channel.exchange(torch.full((8 * MIB,), 7, dtype=torch.uint8))
        channel.send(FrameType.CONTROL, hashlib.sha256(large.numpy()).digest())
        channel.receive(FrameType.CONTROL)


def test_two_processes(deployment):
    with deployment.listen() as listener:
        arguments = (str(deployment.folder), listener.address)
        process = multiprocessing.get_context("spawn").Process(target=answer_from_another_process, args=arguments)
        process.start()
        with listener.accept("server1", SESSION) as channel:
            for number in range(20):
                assert set(channel.exchange(bytes(100), (10, 10), 8).tolist()) == {number}
            large = torch.randint(0, 256, (8 * MIB,), dtype=torch.uint8)
            received = channel.exchange(large)
            assert received.eq(7).all()
            digest = channel.receive(FrameType.CONTROL)
            assert bytes(digest.tolist()) == hashlib.sha256(large.numpy()).digest()
            assert channel.counters.rounds == 21
            channel.send(FrameType.CONTROL, b"done")
            process.join(20)
        assert process.exitcode == 0


def test_both_sides_may_send_a_quarter_of_a_gibibyte_at_once(deployment):
    payload = torch.zeros(256 * MIB, dtype=torch.uint8)
    payload[::4096] = torch.arange(65536).to(torch.uint8)

    def send_then_receive(end: TlsChannel) -> bool:
        end.send(FrameType.OUTPUT, payload)
        end.send(FrameType.CONTROL, b"after it")
        same = torch.equal(end.receive(FrameType.OUTPUT), payload)
        return same and end.receive(FrameType.CONTROL).tolist() == list(b"after it")

    with deployment.channels() as (zero, one):
        assert both(lambda: send_then_receive(zero), lambda: send_then_receive(one)) == (True, True)


def test_small_frames_both_ways_do_not_fill_the_line(deployment):
    def flood(end: TlsChannel) -> None:
        for _ in range(300):  # 60 MB, far more than the sockets hold
            end.send(FrameType.CONTROL, bytes(200_000))
        for _ in range(300):
            end.receive(FrameType.CONTROL, shape=(200_000,))

    with deployment.channels(connections=1) as (zero, one):
        assert both(lambda: flood(zero), lambda: flood(one)) == (None, None)


def test_a_bounded_receiver_stops_the_dealer(deployment):
    options = ChannelOptions(receive_buffer=4 * MIB, send_buffer=2 * MIB)
    sent = []

    def deal(end: TlsChannel) -> None:
        for number in range(64):
            end.send(FrameType.MATERIAL, bytes(MIB))
            sent.append(number)
        end.send(FrameType.MATERIAL, bytes(10 * MIB))  # more than either bound

    with deployment.channels(connections=1, options=options) as (zero, one):
        dealer = threading.Thread(target=deal, args=(zero,))
        dealer.start()
        time.sleep(1.0)
        stopped_at = len(sent)
        assert 6 <= stopped_at < 40  # both buffers, and what the kernel holds (at most 16 MiB and overheads)
        time.sleep(0.2)
        assert len(sent) == stopped_at
        for _ in range(64):
            one.receive(FrameType.MATERIAL, shape=(MIB,))
        one.receive(FrameType.MATERIAL, shape=(10 * MIB,))
        dealer.join(10)
        assert len(sent) == 64


def test_closing_wakes_a_dealer_that_waits(deployment):
    options = ChannelOptions(receive_buffer=MIB, send_buffer=MIB)
    caught = []

    def deal(end: TlsChannel) -> None:
        try:
            while True:
                end.send(FrameType.MATERIAL, bytes(MIB))
        except ConnectionLostError as error:
            caught.append(error)

    with deployment.channels(options=options) as (zero, one):
        dealer = threading.Thread(target=deal, args=(zero,))
        dealer.start()
        time.sleep(0.5)
        one.close()
        dealer.join(5)
        assert len(caught) == 1


def test_progress_puts_the_timeout_off(deployment):
    with deployment.channels() as (zero, one):
        one.timeout = 1.0

        def dribble():
            connection = zero._outgoing[0].connection
            data = _frame_bytes(1000)
            for start in range(0, len(data), 200):
                connection.sendall(data[start : start + 200])
                time.sleep(0.3)

        slow = threading.Thread(target=dribble)
        slow.start()
        assert one.receive(FrameType.OUTPUT).numel() == 1000  # 1.8 s in all, never 1 s without a byte
        slow.join()


def _frame_bytes(size: int) -> bytes:
    from secformer.transport.frame import encode

    return encode(FrameType.OUTPUT, 1, (size,), 8, size, SESSION) + bytes(size)


def test_shaping_works_over_tls_while_the_receiver_is_busy(deployment):
    with deployment.channels() as (zero, one):
        shaped(one, Profile(bandwidth=1e9, round_trip=0.2))
        zero.send(FrameType.OPENING, bytes(100))
        time.sleep(0.15)  # the frame arrives meanwhile, and is on the line for 0.1 s
        start = time.monotonic()
        one.receive(FrameType.OPENING)
        assert time.monotonic() - start < 0.05


def test_a_dialer_waits_for_a_listener_that_starts_later(deployment):
    with deployment.listen() as first:
        address = first.address

    def listen_later():
        time.sleep(0.5)
        with deployment.listen(port=address[1]) as listener:
            return listener.accept("server1", SESSION, timeout=10)

    ends = both(listen_later, lambda: join_from_folder(str(deployment.folder), address))
    for end in ends:
        assert isinstance(end, TlsChannel), end
        end.close()


def test_callers_wait_in_the_lobby_in_any_order(deployment):
    with deployment.listen(roles=("server1", "client")) as listener:
        sessions = [bytes([number]) * 16 for number in (1, 2)]
        dialled: dict[tuple[str, bytes], TlsChannel] = {}

        def dial(role: str, session: bytes) -> None:
            dialled[role, session] = deployment.connect(listener, role=role, session=session, timeout=10)

        asked = [("client", sessions[0]), ("client", sessions[1]), ("server1", sessions[0])]
        threads = [threading.Thread(target=dial, args=item) for item in asked]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        for role, session in reversed(asked):
            accepted = listener.accept(role, session, timeout=10)
            assert (accepted.peer, accepted.session) == (role, session)
            accepted.send(FrameType.CONTROL, session)
            accepted.close()
        for thread in threads:
            thread.join()
        for (_role, session), channel in dialled.items():
            assert bytes(channel.receive(FrameType.CONTROL).tolist()) == session
            channel.close()


def test_the_listener_may_learn_the_session_from_the_caller(deployment):
    with deployment.listen(roles=("client",)) as listener:
        ends = both(
            lambda: listener.accept("client", None, timeout=10),
            lambda: deployment.connect(listener, role="client", session=b"a" * 16),
        )
        assert [end.session for end in ends] == [b"a" * 16] * 2
        for end in ends:
            end.close()


def test_nobody_calls(deployment):
    with deployment.listen() as listener, pytest.raises(PeerTimeoutError, match="server1 did not call server0"):
        listener.accept("server1", SESSION, timeout=0.2)


def test_nobody_listens(deployment):
    with deployment.listen() as listener:
        pass
    with pytest.raises(PeerTimeoutError, match="server0 cannot be reached"):
        deployment.connect(listener, timeout=0.3)


def test_closing_the_listener_wakes_accept(deployment):
    listener = deployment.listen()
    threading.Timer(0.2, listener.close).start()
    with pytest.raises(ConnectionLostError):
        listener.accept("server1", SESSION, timeout=10)


def test_a_channel_needs_a_connection(deployment):
    with deployment.listen() as listener, pytest.raises(SettingsError):
        deployment.connect(listener, connections=0)


def test_connections_are_dialled_side_by_side(deployment, monkeypatch):
    """The first, then four at a time: each takes several journeys there and back."""
    greet, lock, at_once = tls._greet, threading.Lock(), []
    waiting = threading.Barrier(4)

    def greet_together(connection, session, hello, timeout):
        with lock:
            at_once.append(hello.number)
        if 0 < hello.number <= 8:
            waiting.wait(20)  # for three others, or nobody goes on
        greet(connection, session, hello, timeout)

    monkeypatch.setattr(tls, "_greet", greet_together)
    with deployment.channels(connections=5) as (zero, one):
        assert at_once[0] == 0 and sorted(at_once) == list(range(10))
        assert len({end.fileno() for end in one._connections}) == 10
        assert both(lambda: zero.exchange(b"there"), lambda: one.exchange(b"again"))[0].tolist() == list(b"again")


def test_many_sessions_at_one_door_do_not_push_each_other_out(deployment, monkeypatch):
    """Eight lanes over a long line, of five connections each way: more than a door greets at once."""
    greet = tls._greet
    monkeypatch.setattr(tls, "_greet", lambda *given: (time.sleep(0.2), greet(*given)))
    sessions = [bytes([number]) * 16 for number in range(8)]
    with deployment.listen() as listener, ThreadPoolExecutor(16) as pool:
        accepted = [
            pool.submit(listener.accept, "server1", session, 5, timeout=60, options=ChannelOptions())
            for session in sessions
        ]
        dialled = [
            pool.submit(deployment.connect, listener, session=session, connections=5, timeout=60.0)
            for session in sessions
        ]
        for ends in zip(accepted, dialled, strict=True):
            for end in ends:
                end.result().close()


def test_a_channel_lacks_no_connection(deployment, monkeypatch):
    """One that cannot be had: none is kept, no more are tried, and why is said."""
    greet, dialled, failed = tls._greet, [], threading.Event()

    def greet_all_but_one(connection, session, hello, timeout):
        dialled.append(connection)
        if hello.number == 1:
            failed.set()
            raise ConnectionLostError("server0 went away")
        if hello.number:
            failed.wait(20)
            time.sleep(0.2)
        greet(connection, session, hello, timeout)

    monkeypatch.setattr(tls, "_greet", greet_all_but_one)
    with deployment.listen() as listener:
        with pytest.raises(ConnectionLostError, match="server0 went away"):
            deployment.connect(listener, connections=5)
        assert 2 <= len(dialled) < 7 and all(connection.fileno() < 0 for connection in dialled)


def test_whoever_stands_too_long_at_a_crowded_door_is_told(deployment):
    with deployment.listen() as listener:
        places = [tls._places(listener.address) for _ in range(4)]
        for place in places:
            assert place.acquire(timeout=0)
        with pytest.raises(PeerTimeoutError, match="other sessions of this party are at its door"):
            deployment.connect(listener, connections=2, timeout=0.3)
        for place in places:
            place.release()


@pytest.mark.parametrize("size", [100, 40_000, 300_000, 5 * MIB])
def test_memory_that_was_lent_is_the_lenders_after_flush(deployment, size):
    """And a channel on which nobody exchanges openings has no quick lane: all its connections carry stripes."""
    memory, received = torch.zeros(size, dtype=torch.uint8), []
    with deployment.channels(connections=3, options=ChannelOptions(rounds=False)) as (zero, one):
        assert zero._quick is one._quick is None
        for number in range(20):
            memory.fill_(number)
            zero.lend(FrameType.MATERIAL, memory, (size,), 8)
            if number % 2:
                received.append(one.receive(FrameType.MATERIAL))  # of the one before
            zero.flush()
        received += [one.receive(FrameType.MATERIAL) for _ in range(10)]
    assert all(payload.eq(number).all() for number, payload in enumerate(received))


def test_no_thread_outlives_its_channel(deployment):
    def transport_threads() -> int:
        return sum(thread.name.startswith("transport") for thread in threading.enumerate())

    before = transport_threads()
    with deployment.channels(connections=3) as (zero, one):
        zero.send(FrameType.OUTPUT, bytes(MIB))
        one.receive(FrameType.OUTPUT)
    deadline = time.monotonic() + 3
    while transport_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert transport_threads() <= before  # a thread of an earlier test may have ended meanwhile


@pytest.mark.parametrize("size", [0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 10 * MIB + 3])
@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_stripes_cover_a_payload_once(size, lanes):
    parts = stripes(size, lanes)
    assert len(parts) <= lanes
    assert parts[0].start == 0 and parts[-1].stop == size
    assert all(before.stop == after.start for before, after in pairwise(parts))


def rounds(end: TlsChannel, sizes: list[int], offset: int) -> bool:
    """Exchange payloads of these sizes, each with its own content."""
    for number, size in enumerate(sizes):
        own, theirs = (torch.full((size,), (number + who) % 251, dtype=torch.uint8) for who in (offset, 7 - offset))
        if not torch.equal(end.exchange(own), theirs):
            return False
    return True


@pytest.mark.parametrize("connections", [1, 2, 3, 4])
def test_rounds_of_all_sizes(deployment, connections):
    """Some by the quick lane, if there is one, some not, and other frames between them."""
    sizes = [1, 100_000, 3 * MIB, 1, MIB - 1, MIB, 5, 300_000]
    with deployment.channels(connections) as (zero, one):
        assert both(lambda: rounds(zero, sizes, 3), lambda: rounds(one, sizes, 4)) == (True, True)
        zero.send(FrameType.OUTPUT, torch.ones(2 * MIB, dtype=torch.uint8))
        assert one.receive(FrameType.OUTPUT).all()
        assert both(lambda: rounds(zero, sizes, 3), lambda: rounds(one, sizes, 4)) == (True, True)
        assert zero.counters.rounds == one.counters.rounds == 2 * len(sizes)
        assert (zero._quick is not None) == (connections >= 3)


def test_a_quick_lane_whose_sockets_are_full_blocks_nobody(deployment):
    with deployment.channels(3) as (zero, one):
        for end in (zero, one):
            for sealing in (end._quick.outgoing.connection, end._quick.incoming.connection):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    sealing._connection.setsockopt(socket.SOL_SOCKET, option, 1 << 16)
        sizes = [MIB - 1] * 5
        assert both(lambda: rounds(zero, sizes, 3), lambda: rounds(one, sizes, 4)) == (True, True)


def test_lanes_whose_sockets_are_full_block_nobody(deployment):
    with deployment.channels(4) as (zero, one):
        for end in (zero, one):
            for lane in (*end._outgoing[1:], *end._incoming[1:]):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    lane.connection._connection.setsockopt(socket.SOL_SOCKET, option, 1 << 16)
        sizes = [3 * MIB] * 3
        assert both(lambda: rounds(zero, sizes, 3), lambda: rounds(one, sizes, 4)) == (True, True)
        for end in (zero, one):
            end.flush()
            assert end._outbox._inside == 0


def test_a_quick_lane_ends_with_the_channel(deployment):
    with deployment.channels(3) as (zero, one):
        threading.Timer(0.2, one.close).start()
        with pytest.raises(ConnectionLostError):
            zero.exchange(b"is there anybody?")
    with deployment.channels(3) as (zero, one):
        threading.Timer(0.2, lambda: one.abort(SettingsError("enough"))).start()
        with pytest.raises(PeerAbortedError, match="enough"):
            zero.exchange(b"is there anybody?")


@pytest.fixture
def hurried(monkeypatch):
    """Parties that say so every fifth of a second when they have nothing to say."""
    for module in (lanes, quick, tls_channel):
        monkeypatch.setattr(module, "HEARTBEAT", 0.2)


def test_a_quick_lane_that_is_silent_is_given_up(deployment, hurried):
    with deployment.channels(3) as (zero, one):
        zero.timeout, one._outgoing[0]._idle = 0.5, lambda: None  # it does not even say that it is there
        with pytest.raises(PeerTimeoutError, match="nothing from server1"):
            zero.exchange(b"is there anybody?")


def test_a_changed_record_on_the_quick_lane_ends_the_channel(deployment):
    with deployment.channels(3) as (zero, one):
        one._quick.outgoing.connection._connection.sendall(bytes(HEADER_BYTES + 16))
        with pytest.raises(FrameError, match="record"):
            zero.exchange(b"an opening")
        with pytest.raises(PeerAbortedError, match="record"):
            one.receive(FrameType.CONTROL)


def test_an_opening_that_nobody_expects_is_noticed(deployment, hurried):
    """By whoever waits for something else, and by whoever waits for an opening when something else has come."""
    with deployment.channels(3) as (zero, one):
        ends = both(lambda: zero.exchange(b"an opening"), lambda: one.receive(FrameType.CONTROL))
        assert isinstance(ends[1], FrameError) and "out of step" in str(ends[1])
        assert isinstance(ends[0], PeerAbortedError)
    with deployment.channels(3) as (zero, one):
        one.send(FrameType.CONTROL, b"something else")
        with pytest.raises(FrameError, match="CONTROL instead of a short OPENING"):
            zero.exchange(b"an opening")


def test_whoever_was_stopped_for_seconds_is_not_out_of_step(deployment):
    """It finds several signs of life at once, and behind them what it waits for; the next opening may be there already."""
    with deployment.channels(3) as (zero, one):

        def others():
            time.sleep(0.2)  # until the other one waits
            one._quick.send(encode(FrameType.OPENING, 2, (5,), 8, 5, one.session), memoryview(b"later"))
            for _ in range(3):
                one._outgoing[0].connection.sendall(one._alive)
            time.sleep(0.1)
            one.send(FrameType.CONTROL, b"first")

        received, _ = both(lambda: zero.receive(FrameType.CONTROL), others)
        assert bytes(received.tolist()) == b"first"


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_a_frame_lands_where_it_is_wanted_and_no_later_one_does(deployment, size):
    with deployment.channels(connections=3) as (left, right):
        place, payload = torch.zeros(size, dtype=torch.uint8), torch.full((size,), 7, dtype=torch.uint8)
        right.land(place)
        left.send(FrameType.OUTPUT, payload)
        assert right.receive(FrameType.OUTPUT) is place and torch.equal(place, payload)
        place.zero_()
        left.send(FrameType.OUTPUT, payload)  # nothing was said about this one
        assert torch.equal(right.receive(FrameType.OUTPUT), payload) and not place.any()
        right.land(place)
        left.send(FrameType.OUTPUT, payload[1:].clone())
        assert torch.equal(right.receive(FrameType.OUTPUT), payload[1:]) and not place.any()


def test_a_buffer_is_used_again_only_when_nobody_looks_at_it():
    pool = BufferPool(capacity=8 * MIB)
    first = pool.take(2 * MIB)
    address = first.data_ptr()
    view = first[5:10]
    del first
    gc.collect()
    assert pool.take(2 * MIB).data_ptr() != address
    del view
    gc.collect()
    again = [pool.take(2 * MIB - 7), pool.take(2 * MIB)]
    assert address in [tensor.data_ptr() for tensor in again]
    assert again[0].numel() == 2 * MIB - 7
    del again


def test_the_pool_keeps_no_more_than_its_capacity():
    pool = BufferPool(capacity=4 * MIB)
    held = [pool.take(MIB) for _ in range(10)]
    del held
    gc.collect()
    assert sum(buffer.size for buffer in pool._free) <= 4 * MIB


def test_flush_gives_up_a_peer_that_takes_nothing(deployment):
    """It is alive and reads nothing: its receive buffer is full."""
    with deployment.channels(2, ChannelOptions(receive_buffer=1 << 10)) as (zero, one):
        zero.send(FrameType.MATERIAL, bytes(1 << 10))
        zero.lend(FrameType.MATERIAL, torch.zeros(64 * MIB, dtype=torch.uint8), (64 * MIB,), 8)
        zero.timeout = 0.5
        with pytest.raises(PeerTimeoutError, match="does not take"):
            zero.flush()
        zero.timeout, zero.deadline = None, time.monotonic() + 0.3
        with pytest.raises(PeerTimeoutError, match="does not take"):
            zero.flush()
        zero.deadline = None
        both(zero.flush, lambda: [one.receive(FrameType.MATERIAL) for _ in range(2)])
        assert all(lane.idle for lane in zero._senders)

"""Everything that can be wrong with a peer: the right error on every side, within 5 s, and the next session works."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue

import pytest
import torch
from rogue import Rogue, frame, patched
from talking import SESSION, Deployment, both, join_from_folder

from secformer.crypto.identity import PinnedPeers, create_identity
from secformer.errors import (
    AgreementError,
    ConnectionLostError,
    FrameError,
    IdentityError,
    PeerAbortedError,
    PeerTimeoutError,
)
from secformer.transport import connection as connection_module
from secformer.transport.buffers import BufferPool
from secformer.transport.channel import FrameType
from secformer.transport.frame import HEADER_BYTES
from secformer.transport.tls import ChannelOptions, TlsChannel, connect
from secformer.version import PROTOCOL_VERSION

PROMPT = 5.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return Deployment(tmp_path_factory.mktemp("identities"))


@pytest.fixture
def listener(deployment):
    """server0's listener; whatever the test did to it, the next session must work."""
    with deployment.listen() as listening:
        yield listening
        ends = both(
            lambda: listening.accept("server1", b"n" * 16, timeout=5),
            lambda: deployment.connect(listening, session=b"n" * 16),
        )
        for end in ends:
            assert isinstance(end, TlsChannel), f"the next session failed: {end!r}"
        got = both(lambda: ends[0].exchange(b"01"), lambda: ends[1].exchange(b"10"))
        assert [part.tolist() for part in got] == [list(b"10"), list(b"01")]
        for end in ends:
            end.close()


@contextmanager
def promptly(seconds: float = PROMPT):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def rogue_session(deployment, listener, **options):
    """(server0's channel, the rogue)"""
    ends = both(
        lambda: listener.accept("server1", SESSION, 1, timeout=5, options=ChannelOptions(**options)),
        lambda: Rogue(deployment, listener),
    )
    channel, rogue = ends
    assert isinstance(channel, TlsChannel) and isinstance(rogue, Rogue), ends
    with promptly():
        yield channel, rogue
        channel.close()
    rogue.hang_up()


# Frames


MALFORMED = {
    "magic": patched(frame(), 0, "4s", b"HTTP"),
    "version": patched(frame(), 4, "H", PROTOCOL_VERSION + 1),
    "kind": patched(frame(), 6, "B", 77),
    "width": patched(frame(), 7, "B", 65),
    "session": frame(session=b"x" * 16),
    "length": patched(frame(), 32, "Q", 101),
    "dimensions": patched(frame(), 40, "I", 9),
    "shape": patched(frame(), 48, "I", 5),
    "sequence": frame(sequence=2),
}


@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_frame(deployment, listener, field):
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(MALFORMED[field])
        with pytest.raises(FrameError, match=f"^{field}:"):
            channel.receive(FrameType.OPENING)
        kind, text = rogue.heard()
        assert kind is FrameType.ABORT and text.startswith(f"transport.frame\n{field}".encode())


def test_a_forged_length_allocates_nothing(deployment, listener, monkeypatch):
    asked = []
    monkeypatch.setattr(BufferPool, "take", lambda _, size: asked.append(size))
    header = frame(shape=(1, 1))[:HEADER_BYTES]
    forged = patched(patched(patched(header, 32, "Q", 1 << 60), 44, "I", 1 << 31), 48, "I", 1 << 29)
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(forged)
        with pytest.raises(FrameError, match="length: 1152921504606846976 bytes exceed the limit of 4294967296"):
            channel.receive(FrameType.OPENING)
    assert asked == []


def test_the_limit_of_a_channel_is_its_own(deployment, listener):
    with rogue_session(deployment, listener, message_limit=1000) as (channel, rogue):
        rogue.send(frame(sequence=1, shape=(1000,)))
        assert channel.receive(FrameType.OPENING).numel() == 1000
        rogue.send(frame(sequence=2, shape=(1001,)))
        with pytest.raises(FrameError, match="limit of 1000"):
            channel.receive(FrameType.OPENING)


@pytest.mark.parametrize("sequences", [(1, 1), (1, 2, 1), (1, 3, 2)], ids=["replayed", "replayed later", "reordered"])
def test_a_replayed_or_reordered_frame(deployment, listener, sequences):
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(b"".join(frame(sequence) for sequence in sequences))
        with pytest.raises(FrameError, match=r"sequence: .* replayed or reordered"):
            for _ in sequences:
                channel.receive(FrameType.OPENING)
        assert channel.counters.messages_received < len(sequences)
        assert rogue.heard()[0] is FrameType.ABORT


@pytest.mark.parametrize("size", [10, HEADER_BYTES, HEADER_BYTES + 50], ids=["header", "between", "payload"])
def test_a_truncated_frame(deployment, listener, size):
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(frame()[:size])
        threading.Timer(0.2, rogue.end_properly).start()
        with pytest.raises(FrameError, match="truncated"):
            channel.receive(FrameType.OPENING)


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES + 50], ids=["nothing", "header", "payload"])
def test_a_line_cut_anywhere(deployment, listener, size):
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(frame() + frame(sequence=2)[:size])
        channel.receive(FrameType.OPENING)
        threading.Timer(0.2, rogue.hang_up).start()
        with pytest.raises(ConnectionLostError):
            channel.receive(FrameType.OPENING)
        with pytest.raises(ConnectionLostError):
            channel.send(FrameType.OPENING, b"too late")


def test_bytes_injected_into_the_encrypted_stream(deployment, listener):
    with rogue_session(deployment, listener) as (channel, rogue):
        record = b"\x17\x03\x03\x00\x40" + bytes(64)
        socket.socket.send(rogue.connections[0], record)
        with pytest.raises(FrameError, match="record: the encrypted stream from server1 is damaged"):
            channel.receive(FrameType.OPENING)


def test_an_abort_interrupts_a_blocked_sender(deployment, listener):
    with rogue_session(deployment, listener, send_buffer=1 << 20) as (channel, rogue):
        threading.Timer(0.5, rogue.send, (frame(kind=FrameType.ABORT, shape=(9,), payload=b"width\nbad"),)).start()
        with pytest.raises(PeerAbortedError, match=r"server1 stopped with \[width\] bad"):
            while True:  # nobody reads
                channel.send(FrameType.OUTPUT, bytes(1 << 20))


def test_an_abort_with_terminal_codes_is_made_printable(deployment, listener):
    payload = b"\x1b[2J\ninno\x1b[31mcent\xff"
    with rogue_session(deployment, listener) as (channel, rogue):
        rogue.send(frame(kind=FrameType.ABORT, shape=(len(payload),), payload=payload))
        with pytest.raises(PeerAbortedError, match=r"\[unknown\] inno") as caught:
            channel.receive(FrameType.OPENING)
    assert str(caught.value).isprintable()


# Greetings


class Refusals(logging.Handler):
    """Why a listener refused callers: the errors it logged."""

    def __init__(self):
        super().__init__()
        self.errors: SimpleQueue = SimpleQueue()

    def emit(self, record):
        self.errors.put(record.args[-1])


def meet(deployment, listener, accept=None, dial=None):
    """Why server0 refuses the caller and what the caller gets, both in time; whom `accept` waits for may still come."""
    accepting = {"expected_role": "server1", "session": SESSION, "timeout": 1} | (accept or {})
    refusals, log = Refusals(), logging.getLogger("secformer.transport.listener")
    log.addHandler(refusals)
    try:
        with promptly():
            waiting, caller = both(
                lambda: listener.accept(**accepting),
                dial if callable(dial) else lambda: deployment.connect(listener, **(dial or {})),
            )
            assert isinstance(waiting, PeerTimeoutError)
            return refusals.errors.get(timeout=PROMPT), caller
    finally:
        log.removeHandler(refusals)


def test_a_caller_of_another_session_waits_for_its_own(deployment, listener):
    with promptly():
        ends = both(
            lambda: [listener.accept("server1", session, timeout=5) for session in (SESSION, b"y" * 16)],
            lambda: [deployment.connect(listener, session=session) for session in (SESSION, b"y" * 16)],
        )
    for channel in (*ends[0], *ends[1]):
        channel.close()
    assert [channel.session for channel in ends[0]] == [SESSION, b"y" * 16]


def test_another_number_of_connections(deployment, listener):
    ends = meet(deployment, listener, dial={"connections": 3})
    assert [type(end) for end in ends] == [AgreementError, AgreementError], ends
    assert all("server1 uses 3 connections, server0 2" in str(end) for end in ends)


def test_another_protocol_version(deployment, listener, monkeypatch):
    original = connection_module.encode
    dialer = threading.local()

    def encode_as_of_tomorrow(*arguments):
        data = original(*arguments)
        return patched(data, 4, "H", PROTOCOL_VERSION + 1) if getattr(dialer, "newer", False) else data

    monkeypatch.setattr(connection_module, "encode", encode_as_of_tomorrow)

    def dial():
        dialer.newer = True
        return deployment.connect(listener)

    ends = meet(deployment, listener, dial=dial)
    assert [type(end) for end in ends] == [FrameError, FrameError], ends
    versions = f"version: the peer speaks protocol {PROTOCOL_VERSION + 1}, this side {PROTOCOL_VERSION}"
    assert all(versions in str(end) for end in ends)


def test_the_wrong_role_calls(deployment, listener):
    ends = meet(deployment, listener, dial={"role": "client"})
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends
    assert all("client called server0, which expects server0, server1" in str(end) for end in ends)


def test_the_wrong_role_answers(deployment, listener):
    ends = meet(deployment, listener, dial={"role": "server1", "expected_role": "client"})
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends
    assert "should be client" in str(ends[1])


def test_an_unknown_certificate(deployment, listener, tmp_path):
    stranger = create_identity("server1", tmp_path)
    ends = meet(
        deployment,
        listener,
        dial=lambda: connect(stranger, deployment.peers, "server0", listener.address, SESSION, timeout=5),
    )
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends
    assert "unknown" in str(ends[0]) and "pin it there" in str(ends[1])


def test_a_server_nobody_knows(deployment, listener, tmp_path):
    create_identity("server0", tmp_path)
    strangers = PinnedPeers.load_folder(tmp_path)
    ends = meet(
        deployment,
        listener,
        dial=lambda: connect(
            deployment.identities["server1"], strangers, "server0", listener.address, SESSION, timeout=5
        ),
    )
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends


@pytest.fixture
def deployment_with_expired_caller(tmp_path):
    expired = Deployment(tmp_path, roles=("server0",))
    long_ago = datetime.now(UTC) - timedelta(days=10)
    expired.identities["server1"] = create_identity("server1", tmp_path, valid_days=1, valid_from=long_ago)
    return expired


def test_an_expired_certificate(deployment_with_expired_caller):
    expired = deployment_with_expired_caller
    with expired.listen() as listener:
        ends = meet(expired, listener)
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends
    assert all("expired" in str(end) for end in ends)


def test_a_server_with_an_expired_certificate(deployment_with_expired_caller):
    expired = deployment_with_expired_caller
    with expired.listen("server1") as listener:
        ends = meet(
            expired,
            listener,
            accept={"expected_role": "server0"},
            dial={"role": "server0", "expected_role": "server1"},
        )
    assert [type(end) for end in ends] == [IdentityError, IdentityError], ends
    assert all("expired" in str(end) for end in ends)


def test_a_caller_without_tls(deployment, listener):
    def call_in_plain():
        with socket.create_connection(listener.address) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.settimeout(PROMPT)
            while plain.recv(1000):
                pass
            return "hung up"

    ends = meet(deployment, listener, dial=call_in_plain)
    assert isinstance(ends[0], IdentityError) and "does not speak TLS" in str(ends[0])
    assert ends[1] == "hung up" or isinstance(ends[1], ConnectionResetError)


def test_a_caller_with_tls_1_2(deployment, listener):
    def call_with_tls_1_2():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(listener.address) as raw:
            return context.wrap_socket(raw)

    ends = meet(deployment, listener, dial=call_with_tls_1_2)
    assert isinstance(ends[0], IdentityError) and "TLS 1.3" in str(ends[0])
    assert isinstance(ends[1], ssl.SSLError)


@contextmanager
def answering(answer):
    """A server that does `answer(socket)` with its first caller."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            raw, _ = server.accept()
            with raw:
                raw.settimeout(PROMPT)
                with suppress(OSError):
                    answer(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        thread.join(PROMPT)


def dial_address(deployment, address):
    with promptly():
        return connect(deployment.identities["server1"], deployment.peers, "server0", address, SESSION, timeout=5)


def test_a_server_without_tls(deployment):
    def speak_plain(raw):
        raw.recv(1000)
        raw.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        raw.recv(1000)

    with answering(speak_plain) as address, pytest.raises(IdentityError, match="does not speak TLS"):
        dial_address(deployment, address)


def test_a_server_with_tls_1_2(deployment):
    identity = deployment.identities["server0"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity.certificate_path, identity.key_path)

    def speak_tls_1_2(raw):
        context.wrap_socket(raw, server_side=True)

    with answering(speak_tls_1_2) as address, pytest.raises(IdentityError, match=r"TLS 1\.3"):
        dial_address(deployment, address)


def test_peers_that_say_nothing(deployment, listener):
    with socket.create_connection(listener.address), answering(lambda raw: raw.recv(10_000) and time.sleep(5)) as mute:
        ends = meet(deployment, listener, dial=lambda: dial_address(deployment, mute))
    assert all(isinstance(end, PeerTimeoutError) and "TLS handshake" in str(end) for end in ends), ends


def test_a_server_that_hangs_up(deployment):
    with answering(lambda raw: raw.recv(10)) as address, pytest.raises(ConnectionLostError):
        dial_address(deployment, address)


def test_a_listener_for_several_roles_outlives_strangers(deployment, tmp_path, caplog):
    stranger = create_identity("server1", tmp_path)
    with deployment.listen(roles=("server1",)) as listener:
        accepting = threading.Thread(target=lambda: accepted.append(listener.accept("server1", SESSION, timeout=20)))
        accepted: list[TlsChannel] = []
        accepting.start()
        with socket.create_connection(listener.address) as plain:
            plain.sendall(b"hello?" * 10)
        with pytest.raises(IdentityError):
            connect(stranger, deployment.peers, "server0", listener.address, SESSION, timeout=5)
        with pytest.raises(IdentityError, match="client called server0"):
            deployment.connect(listener, role="client")
        channel = deployment.connect(listener)
        accepting.join(5)
        assert len(accepted) == 1
        channel.close()
        accepted[0].close()
    assert sum("refused a caller" in message for message in caplog.messages) == 3


# Killed


def send_half_a_frame(folder, address):
    channel = join_from_folder(folder, address)
    channel._outgoing[0].connection.sendall(frame(shape=(1 << 20,))[: 1 << 19])
    time.sleep(60)


def stop_reading(folder, address):
    channel = join_from_folder(folder, address)
    channel.send(FrameType.CONTROL, b"here")
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("waiting", ["receiver", "sender"])
def test_a_killed_peer(deployment, listener, waiting):
    spawn = multiprocessing.get_context("spawn")
    target = send_half_a_frame if waiting == "receiver" else stop_reading
    process = spawn.Process(target=target, args=(str(deployment.folder), listener.address))
    process.start()
    channel = listener.accept("server1", SESSION, timeout=20)
    assert process.pid is not None
    killed_at = time.monotonic() + 0.5
    threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL)).start()
    with pytest.raises(ConnectionLostError, match="server1 went away"):
        if waiting == "receiver":
            channel.receive(FrameType.OPENING)
        else:
            channel.receive(FrameType.CONTROL)
            while True:
                channel.send(FrameType.OUTPUT, torch.zeros(32 << 20, dtype=torch.uint8))
    assert time.monotonic() - killed_at < PROMPT
    with promptly():
        channel.close()
    process.join(5)

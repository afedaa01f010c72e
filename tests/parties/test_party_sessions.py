"""Whole sessions, the servers as threads, over TLS and in memory: what travels, what is counted, what is kept."""

from __future__ import annotations

import time

import pytest
import torch
from servers import (
    MODEL,
    NETWORKS,
    QUERY,
    WEIGHT,
    Changed,
    X,
    attended,
    promptly,
    settings_in,
    trio,
    weights,
)
from small_programs import upload_job

from secformer.engine.dealing import Dealing
from secformer.engine.form import shared
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.errors import ConnectionLostError, InputError, TransportError
from secformer.parties.caller import Caller
from secformer.parties.inputs import PACKED, Part, send_encodings, send_part
from secformer.parties.messages import Job
from secformer.roles import COMPUTING, DEALER, SERVERS
from secformer.transport.channel import FrameType
from secformer.transport.frame import HEADER_BYTES
from secformer.transport.tls_network import TlsNetwork

ONE_WEIGHT = {"weight": weights()["weight"]}


class Record:
    """Keeps what every party sends, by role and kind."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.sent: dict[str, dict[FrameType, list[bytes]]] = {}

    def of(self, networks):
        return lambda role, settings: Changed(networks(role, settings), lambda channel: self._listen(role, channel))

    def _listen(self, role, channel):
        put = channel._put

        def record(kind, sequence, shape, width, payload):
            self.sent.setdefault(role, {kind: [] for kind in FrameType})[kind].append(payload.numpy().tobytes())
            put(kind, sequence, shape, width, payload)

        channel._put = record
        return channel


RECORD = Record()


@pytest.fixture(scope="module", params=NETWORKS)
def servers(request, tmp_path_factory):
    settings = settings_in(tmp_path_factory.mktemp("deployment") / "identity")
    with trio(settings, networks=RECORD.of(NETWORKS[request.param]())) as running:
        running.upload(weights())
        yield running


def recorded(action):
    """What S0 and S1 sent during an action."""
    RECORD.clear()
    result = action()
    return result, [RECORD.sent[role] for role in COMPUTING]


def test_declared_cost_is_counted_cost(servers):
    for job in (QUERY, Job("dense", {"rows": 3}, uses=MODEL), Job("activation", {"shape": [3, 16]})):
        result = servers.client.run(job, {"x": X})
        zero, one = result.reports["server0"], result.reports["server1"]
        for link in (zero.links["server1"], one.links["server0"]):
            assert link.rounds == link.messages_sent == link.messages_received == result.declared.rounds
            assert link.payload_sent == link.payload_received == result.declared.opened_bytes
            assert link.wire_sent == link.payload_sent + HEADER_BYTES * link.messages_sent
        assert result.rounds == result.declared.rounds
        assert result.online_bytes == result.declared.online_bytes
        assert result.dealer_bytes == result.declared.dealer_bytes == one.links["dealer"].payload_received
        assert zero.links["dealer"].payload_received == 0  # S0 draws its halves from the seed
        assert sum(result.operation_seconds.values()) == pytest.approx(zero.seconds)
        assert 0 < result.exchange_seconds == zero.exchanging < zero.seconds
        assert 0 < result.online_seconds < result.seconds and 0 < result.dealer_seconds < result.seconds


def test_the_client_sends_one_share_and_a_seed(servers):
    result = servers.client.run(QUERY, {"x": X})
    share = -(-X.numel() * 54 // 8)
    assert share + 32 < result.sent < share + 32 + 1000
    outputs = 2 * -(-attended(X).numel() * 32 // 8)
    assert outputs < result.received < outputs + 3000


def test_the_same_query_twice_shows_nothing_twice(servers):
    """Fresh masks for every query, and fresh shares of every result, though input and weights are the same."""
    runs = [recorded(lambda: servers.client.run(QUERY, {"x": X})) for _ in range(2)]
    (first, sent_first), (second, sent_second) = runs
    assert (first.outputs["y"] - second.outputs["y"]).abs().max() < 4e-3
    for before, after in zip(sent_first, sent_second, strict=True):
        assert len(before[FrameType.OPENING]) == QUERY_ROUNDS == len(after[FrameType.OPENING])
        assert not set(before[FrameType.OPENING]) & set(after[FrameType.OPENING])
        assert before[FrameType.OUTPUT] != after[FrameType.OUTPUT]


QUERY_ROUNDS = 7


class Zeros(Caller):
    """Splits its input into two shares of nothing but zeros."""

    def _share(self, links, inputs, ready):
        for role in COMPUTING:
            parts = {
                name: Part(PACKED, bytes(form.packed_bytes), form.shape, form.width)
                for name, form in ready.inputs.items()
            }
            send_encodings(links[role], parts)
            for name in sorted(parts):
                send_part(links[role], parts[name])


def echo(given, model):
    """Discloses its input."""
    return Program(
        "echo", lambda runtime, values: {"y": runtime.disclose(values["x"])}, {"x": shared((4096,), 32)}, {"y": 0}
    )


def test_result_shares_are_made_anew(tmp_path):
    """A program that returns its input: without new shares the caller would get the old ones, here all zero."""
    catalogues = {role: {"echo": echo} for role in SERVERS}
    with trio(settings_in(tmp_path / "identity"), catalogues=catalogues, networks=RECORD.of(TlsNetwork)) as servers:
        result, sent = recorded(lambda: servers.caller(Zeros).run(Job("echo"), {"x": torch.zeros(4096)}))
    assert not result.outputs["y"].any()
    for shares in sent:
        content = torch.frombuffer(bytearray(shares[FrameType.OUTPUT][0]), dtype=torch.uint8)
        counts = torch.bincount(content, minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 377  # chi-square, 255 degrees, one in 10^6


def test_weights_are_opened_once(servers):
    """A query opens its input and what it computes, never the weights again."""
    _, (upload, _) = recorded(lambda: servers.upload(ONE_WEIGHT, "other"))
    _, (query, _) = recorded(lambda: servers.client.run(Job("dense", {"rows": 3}, uses="other"), {"x": X}))
    assert [len(frame) for frame in upload[FrameType.OPENING]] == [-(-WEIGHT.numel() * 54 // 8)]
    assert [len(frame) for frame in query[FrameType.OPENING]] == [-(-X.numel() * 54 // 8), -(-3 * 7 * 17 // 8)]


def test_a_second_upload_replaces_the_first(servers):
    servers.upload(ONE_WEIGHT, "changing")
    job = Job("dense", {"rows": 3}, uses="changing")
    before = servers.client.run(job, {"x": X}).outputs["y"]
    servers.upload({"weight": Encoded.numbers(-WEIGHT, 16, 54)}, "changing")
    after = servers.client.run(job, {"x": X}).outputs["y"]
    gelu = torch.nn.functional.gelu
    assert (before - gelu(X @ WEIGHT)).abs().max() < 3e-3
    assert (after - gelu(-X @ WEIGHT)).abs().max() < 3e-3


def test_an_upload_that_fails_leaves_the_old_model(servers):
    servers.upload(ONE_WEIGHT, "steady")
    with pytest.raises(InputError):
        servers.provider.run(upload_job(ONE_WEIGHT, "steady"), {"weight": torch.full((16, 7), 1e12)})
    result = servers.client.run(Job("dense", {"rows": 3}, uses="steady"), {"x": X})
    assert (result.outputs["y"] - torch.nn.functional.gelu(X @ WEIGHT)).abs().max() < 3e-3


@pytest.mark.parametrize("networks", NETWORKS)
def test_a_server_that_is_stopped_says_so(tmp_path, networks):
    """Stopping in the middle of a session is an error for everybody else, at once."""
    with trio(settings_in(tmp_path / "identity"), networks=NETWORKS[networks]()) as servers:
        servers.upload(weights())

        class Slow(Caller):
            def _share(self, links, inputs, ready):
                servers.servers["dealer"].stop()
                time.sleep(0.5)
                super()._share(links, inputs, ready)

        with promptly(), pytest.raises((TransportError, ConnectionLostError)):
            servers.caller(Slow).run(QUERY, {"x": X})
        errors = servers.errors(COMPUTING)
        assert all(isinstance(error, TransportError) for error in errors.values())


def test_a_shaped_network_only_takes_longer(tmp_path):
    settings = settings_in(tmp_path / "identity", network="wan")
    with trio(settings) as servers:
        result = servers.client.run(Job("activation", {"shape": [3, 16]}), {"x": X})
        assert (result.outputs["y"] - torch.nn.functional.gelu(X)).abs().max() < 2e-3
        assert result.online_seconds > 0.02 and result.rounds == 1
        assert (
            max(result.reports[role].exchanging for role in COMPUTING) > 0.02
        )  # whoever was there first waited for it all


def test_a_link_is_laid_out_alike_at_both_ends(tmp_path):
    """Of three connections S0 and S1 set one aside for short rounds; T's links use all for what it deals."""
    quick: dict[tuple[str, str], bool] = {}
    record = Record()

    def laid_out(role, settings):
        def note(channel):
            quick[role, channel.peer] = channel._quick is not None
            return channel

        return Changed(record.of(TlsNetwork)(role, settings), note)

    x = torch.linspace(-4, 4, 40 * 2048, dtype=torch.float64).view(40, 2048)
    with trio(settings_in(tmp_path / "identity", connections=3), networks=laid_out) as servers:
        result = servers.client.run(Job("activation", {"shape": [40, 2048]}), {"x": x})
    assert (result.outputs["y"] - torch.nn.functional.gelu(x)).abs().max() < 2e-3
    assert max(map(len, record.sent[DEALER][FrameType.MATERIAL])) > 1 << 20
    between = {(one, other): DEALER not in (one, other) for one in SERVERS for other in SERVERS if one != other}
    assert {pair: quick[pair] for pair in between} == between
    assert not any(quick[pair] for pair in quick.keys() - between.keys())


def test_what_is_dealt_first_is_not_counted_as_computing(tmp_path, monkeypatch):
    """Neither server's clock runs while T deals."""

    class Slow(Dealing):
        def run(self, static):
            time.sleep(0.5)
            return super().run(static)

    monkeypatch.setattr("secformer.engine.redealing.Dealing", Slow)
    with trio(settings_in(tmp_path / "identity", deal_first=True)) as servers:
        result = servers.client.run(Job("activation", {"shape": [3, 16]}), {"x": X})
        assert (result.outputs["y"] - torch.nn.functional.gelu(X)).abs().max() < 2e-3
        assert result.dealer_seconds >= 0.5 > max(result.reports[role].seconds for role in COMPUTING)


def test_results_do_not_depend_on_who_asks(servers):
    """A provider may ask, too."""
    result = servers.provider.run(QUERY, {"x": X})
    assert (result.outputs["y"] - attended(X)).abs().max() < 5e-3

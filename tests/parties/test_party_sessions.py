"""Whole sessions over TLS, the servers as threads: what travels, what is counted, what is kept."""

from __future__ import annotations

import time

import pytest
import torch
from servers import MODEL, QUERY, SERVES, WEIGHT, X, attended, promptly, settings_in, trio, weights

from secformer.engine.program import InputSpec, Program
from secformer.engine.values import Shared
from secformer.errors import ConnectionLostError, InputError, TransportError
from secformer.parties.computing_server import ComputingServer
from secformer.parties.messages import Job
from secformer.parties.server import SERVER_NAMES
from secformer.transport.channel import FrameType
from secformer.transport.frame import HEADER_BYTES

ONE_WEIGHT = {"weight": weights()["weight"]}


class Recording(ComputingServer):
    """Keeps what it sends, by kind."""

    def __init__(self, *arguments) -> None:
        self.sent: dict[FrameType, list[bytes]] = {kind: [] for kind in FrameType}
        super().__init__(*arguments)

    def _dress(self, channel):
        put = channel._put

        def record(kind, sequence, shape, width, payload):
            self.sent[kind].append(payload.numpy().tobytes())
            put(kind, sequence, shape, width, payload)

        channel._put = record
        return super()._dress(channel)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    settings = settings_in(tmp_path_factory.mktemp("deployment") / "identity")
    with trio(settings, computing=Recording) as running:
        running.provider.upload(MODEL, weights(), SERVES)
        yield running


def recorded(servers, action):
    """What S0 and S1 sent during an action."""
    pair = [servers.servers[f"server{party}"] for party in (0, 1)]
    for server in pair:
        server.sent = {kind: [] for kind in FrameType}
    result = action()
    return result, [server.sent for server in pair]


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
        assert result.dealer_bytes == result.declared.dealer_bytes == one.links["assistant"].payload_received
        assert zero.links["assistant"].payload_received == 0  # S0 draws its halves from the seed
        assert 0 < result.online_seconds < result.seconds and 0 < result.dealer_seconds < result.seconds


def test_the_client_sends_one_share_and_a_seed(servers):
    result = servers.client.run(QUERY, {"x": X})
    share = -(-X.numel() * 54 // 8)
    assert share + 32 < result.sent < share + 32 + 1000
    outputs = 2 * -(-attended(X).numel() * 32 // 8)
    assert outputs < result.received < outputs + 3000


def test_the_same_query_twice_shows_nothing_twice(servers):
    """Fresh masks for every query, and fresh shares of every result, though input and weights are the same."""
    runs = [recorded(servers, lambda: servers.client.run(QUERY, {"x": X})) for _ in range(2)]
    (first, sent_first), (second, sent_second) = runs
    assert (first.outputs["y"] - second.outputs["y"]).abs().max() < 4e-3
    for before, after in zip(sent_first, sent_second, strict=True):
        assert len(before[FrameType.OPENING]) == QUERY_ROUNDS == len(after[FrameType.OPENING])
        assert not set(before[FrameType.OPENING]) & set(after[FrameType.OPENING])
        assert before[FrameType.OUTPUT] != after[FrameType.OUTPUT]


QUERY_ROUNDS = 7


def test_result_shares_are_made_anew(tmp_path):
    """A program that returns its input: without new shares the caller would get the old ones, here all zero."""
    form = InputSpec("shared", (4096,), 32)
    echo = {"echo": lambda given, stored: Program("echo", lambda runtime, values: {"y": values["x"]}, {"x": form})}
    nothing = Shared(torch.zeros(4096, dtype=torch.int64), 32)
    settings = settings_in(tmp_path / "identity")
    with trio(settings, catalogues=dict.fromkeys(SERVER_NAMES, echo), computing=Recording) as servers:
        result, sent = recorded(servers, lambda: servers.client.run(Job("echo"), {"x": (nothing, nothing)}))
    assert not result.outputs["y"].any()
    for shares in sent:
        content = torch.frombuffer(bytearray(shares[FrameType.OUTPUT][0]), dtype=torch.uint8)
        counts = torch.bincount(content, minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 377  # chi-square, 255 degrees, one in 10^6


def test_weights_are_opened_once(servers):
    """A query opens its input and what it computes, never the weights again."""
    _, (upload, _) = recorded(servers, lambda: servers.provider.upload("other", ONE_WEIGHT, SERVES))
    _, (query, _) = recorded(servers, lambda: servers.client.run(Job("dense", {"rows": 3}, uses="other"), {"x": X}))
    assert [len(frame) for frame in upload[FrameType.OPENING]] == [-(-WEIGHT.numel() * 54 // 8)]
    assert [len(frame) for frame in query[FrameType.OPENING]] == [-(-X.numel() * 54 // 8), -(-3 * 7 * 17 // 8)]


def test_a_second_upload_replaces_the_first(servers):
    servers.provider.upload("changing", ONE_WEIGHT, SERVES)
    job = Job("dense", {"rows": 3}, uses="changing")
    before = servers.client.run(job, {"x": X}).outputs["y"]
    turned = weights()["weight"]._replace(numbers=-WEIGHT)
    servers.provider.upload("changing", {"weight": turned}, SERVES)
    after = servers.client.run(job, {"x": X}).outputs["y"]
    gelu = torch.nn.functional.gelu
    assert (before - gelu(X @ WEIGHT)).abs().max() < 3e-3
    assert (after - gelu(-X @ WEIGHT)).abs().max() < 3e-3


def test_an_upload_that_fails_leaves_the_old_model(servers):
    servers.provider.upload("steady", ONE_WEIGHT, SERVES)
    bad = weights()["weight"]._replace(numbers=torch.full((16, 7), 1e12))
    with pytest.raises(InputError):
        servers.provider.upload("steady", {"weight": bad}, SERVES)
    result = servers.client.run(Job("dense", {"rows": 3}, uses="steady"), {"x": X})
    assert (result.outputs["y"] - torch.nn.functional.gelu(X @ WEIGHT)).abs().max() < 3e-3


def test_a_server_that_is_stopped_says_so(tmp_path):
    """Stopping in the middle of a session is an error for everybody else, at once."""
    settings = settings_in(tmp_path / "identity")
    with trio(settings) as servers:
        servers.provider.upload(MODEL, weights(), SERVES)

        class Slow(type(servers.client)):
            def _share(self, links, inputs, ready):
                servers.servers["assistant"].stop()
                time.sleep(0.5)
                super()._share(links, inputs, ready)
                self._outputs(links, ready)

        with promptly(), pytest.raises((TransportError, ConnectionLostError)):
            Slow(settings).run(QUERY, {"x": X})
        errors = servers.errors(("server0", "server1"))
        assert all(isinstance(error, TransportError) for error in errors.values())


def test_a_shaped_network_only_takes_longer(tmp_path):
    settings = settings_in(tmp_path / "identity", network="wan")
    with trio(settings) as servers:
        result = servers.client.run(Job("activation", {"shape": [3, 16]}), {"x": X})
        assert (result.outputs["y"] - torch.nn.functional.gelu(X)).abs().max() < 2e-3
        assert result.online_seconds > 0.02 and result.rounds == 1


def test_results_do_not_depend_on_who_asks(servers):
    """A provider may ask, too."""
    result = servers.provider.run(QUERY, {"x": X})
    assert (result.outputs["y"] - attended(X)).abs().max() < 5e-3

"""What is written down of a session: one note, read by the log and by Prometheus, with parts, bytes and outcome."""

from __future__ import annotations

import io
import json
import logging
import re
import urllib.request

import pytest
from servers import QUERY, X, in_one_process, trio, weights

from secformer.deployment import Address
from secformer.errors import SecFormerError, SettingsError
from secformer.parties.launch import free_ports
from secformer.parties.logs import JsonLines
from secformer.parties.messages import Job
from secformer.parties.watching import SessionNote
from secformer.roles import SERVERS
from secformer.settings import Settings

pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")

from secformer.parties.metrics import ServerMetrics


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Three servers that two sessions, and one that fails, have been at; their metrics and the lines of their log."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("secformer.parties.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    settings = Settings(data_folder=tmp_path_factory.mktemp("data"), threads=1)
    with trio(settings, networks=in_one_process()) as servers:
        metrics = {role: ServerMetrics(role) for role in SERVERS}
        for role, server in servers.servers.items():
            server.watch = metrics[role]
            metrics[role].waiting.set_function(lambda server=server: server.waiting)
        servers.upload(weights())
        servers.client.run(QUERY, {"x": X})
        with pytest.raises(SecFormerError):
            servers.client.run(Job("attention", {"rows": 3}, uses="nobody"), {"x": X})
        servers.errors()
        yield metrics, [json.loads(line) for line in log.getvalue().splitlines()]
    logger.removeHandler(handler)


def sessions(lines: list[dict], role: str) -> list[dict]:
    return [line for line in lines if line.get("event") == "session" and line["role"] == role]


@pytest.mark.parametrize("role", SERVERS)
def test_a_line_has_session_fingerprint_model_version_shape_phases_and_bytes(watched, role):
    upload, query = sessions(watched[1], role)
    assert query["program"] == "attention" and re.fullmatch(r"model@[0-9a-f]+", query["model"])
    assert query["caller"] == "client" and query["fingerprint"] == "memory:client"[:16]
    assert re.fullmatch(r"[0-9a-f]{32}", query["session"]) and query["outcome"] == "ok"
    assert list(query["phases"]) == ["queue", "gather", "plan", "agree", "inputs", "compute", "finish"]
    assert query["seconds"] == pytest.approx(sum(query["phases"].values()) - query["phases"]["queue"], abs=1e-4)
    assert min(query["sent"].values()) > 0 and upload["caller"] == "provider"
    assert ("client" in query["sent"]) == (role != "dealer")
    assert query["level"] == "info" and query["time"].endswith("+00:00")


def test_bytes_are_those_the_sockets_counted(watched):
    zero, one, dealer = (sessions(watched[1], role)[-1] for role in ("server0", "server1", "dealer"))
    assert zero["sent"]["server1"] == one["received"]["server0"]
    assert dealer["sent"]["server1"] == one["received"]["dealer"] > zero["received"]["dealer"]


def test_every_line_is_an_object_with_a_message(watched):
    assert all(line["message"] and line["level"] and line["logger"] for line in watched[1])


def sample(metrics: ServerMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def test_prometheus_hears_of_sessions_phases_bytes_and_errors(watched):
    for role in SERVERS:
        found = watched[0][role]
        assert sample(found, "secformer_sessions_total", program="attention", outcome="ok") == 1
        assert sample(found, "secformer_session_seconds_count", program="attention") == 1
        assert sample(found, "secformer_phase_seconds_sum", program="attention", phase="compute") > 0
        assert sample(found, "secformer_running_sessions") == 0
    zero, one = (watched[0][role] for role in ("server0", "server1"))
    assert sample(zero, "secformer_errors_total", code="input.model") == 1
    sent = sample(zero, "secformer_bytes_total", peer="server1", direction="sent")
    assert sent == sample(one, "secformer_bytes_total", peer="server0", direction="received") > 0
    assert sample(zero, "secformer_waiting_callers") == 0


def test_a_program_that_nobody_knows_makes_no_label_of_its_own(tmp_path):
    with trio(Settings(data_folder=tmp_path, threads=1), networks=in_one_process()) as servers:
        server = servers.servers["server0"]
        server.watch = metrics = ServerMetrics("server0")
        with pytest.raises(SecFormerError):
            servers.client.run(Job("my private text"), {"x": X})
        servers.errors(("server0",))
    from prometheus_client import generate_latest

    text = generate_latest(metrics.registry).decode()
    assert "private" not in text and 'program="unknown"' in text


def test_metrics_are_shown_at_their_own_address(tmp_path):
    (port,) = free_ports(1)
    metrics = ServerMetrics("dealer")
    metrics.listen(Address("127.0.0.1", port))
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert 'secformer_server{protocol="' in text and 'role="dealer"' in text
    with pytest.raises(SettingsError, match="metrics cannot be shown"):
        ServerMetrics("dealer").listen(Address("127.0.0.1", port))


def test_the_parts_of_a_session_add_up():
    note = SessionNote("server0", "00", "client", "abc")
    for name, now in (("queue", 1.0), ("gather", 3.0), ("plan", 4.0), ("gather", 5.0), ("", 7.0)):
        note.phase(name, now)
    assert note.phases == {"queue": 2.0, "gather": 3.0, "plan": 1.0} and note.seconds == 4.0
    with pytest.raises(AssertionError):
        note.phase("lunch")


def test_an_exception_is_logged_by_its_type_alone():
    try:
        raise ValueError("a private text")
    except ValueError:
        import sys

        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert json.loads(line)["exception"] == "ValueError" and "private" not in line

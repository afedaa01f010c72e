"""Where a recorded query's time goes: every round has its operation, its bytes and its share of the time."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest
from recorded import Servers, Squares
from written_down import Graphs, writing_down

from secformer.engine import recording
from secformer.errors import PeerTimeoutError
from secformer.models.shapes import PRESETS
from secformer.parties.launch import _environment
from secformer.settings import Settings
from secformer.transport.memory import MemoryChannel
from secformer_lab.bench import rounds
from secformer_lab.bench.measured import kind_of
from secformer_lab.bench.model import Arrangement
from secformer_lab.bench.roofline import recorded
from secformer_lab.bench.rounds import Clocked, summed_up

WAIT, EXCHANGE = 0.02, 0.03


def test_a_clocked_run_tells_of_every_round(monkeypatch, tmp_path):
    target, exchange = tmp_path / "rounds.jsonl", MemoryChannel.exchange

    def slow(channel, *given, **how):
        time.sleep(EXCHANGE)
        return exchange(channel, *given, **how)

    monkeypatch.setenv(rounds.FILE, str(target))
    monkeypatch.setattr(recording, "Recorded", Clocked)
    monkeypatch.setattr(Graphs, "wait", lambda graphs: time.sleep(WAIT))
    with writing_down(monkeypatch):
        servers = Servers(Squares())
        for _ in range(3):
            monkeypatch.setattr(MemoryChannel, "exchange", slow)
            _, result, _ = servers.run(servers.subject.input)
            assert (result - servers.subject.expected).abs().max() < 2e-2
    runs = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(runs) == 2  # the first is not recorded
    sizes = [opening.form.packed_bytes for opening in servers.plan.tape.openings]
    for run in runs:
        assert [each["operation"] for each in run["rounds"]] == ["product", "square"]
        assert [each["bytes"] for each in run["rounds"]] == sizes
        for each in run["rounds"]:
            assert each["gpu_ms"] >= 1e3 * WAIT and each["exchange_ms"] >= 1e3 * EXCHANGE and each["host_ms"] > 0
        told = sum(each[name] for each in run["rounds"] for name in ("gpu_ms", "exchange_ms", "host_ms"))
        assert told <= run["total_ms"]


def test_rounds_alike_are_summed_up():
    each = {"operation": "gelu", "bytes": 10, "gpu_ms": 1.0, "exchange_ms": 2.0, "host_ms": 0.5}
    other = {**each, "operation": "softmax", "bytes": 7}
    told = summed_up({"total_ms": 11.0, "rounds": [each, {**each, "gpu_ms": 3.0}, other]})
    assert told["graphs"] == 4 and told["bytes_each_way"] == 27
    assert (told["gpu_ms"], told["exchange_ms"], told["host_ms"]) == (5.0, 6.0, 1.5)
    assert told["rounds"] == [{**each, "count": 2, "gpu_ms": 2.0}, {**other, "count": 1}]
    row = {"model": "bert-base", "suite": "exact", "tokens": 8, **told}
    assert kind_of(row) == "recorded"
    assert "| bert-base | exact | 8 | 4 | 11.0 | 1.5 | 5.0 | 6.0 | with launching | 27 |" in recorded([], [row])


@pytest.mark.timeout(300)
def test_servers_with_a_clock_answer_as_any(monkeypatch):
    """On a CPU nothing is recorded, so there is nothing to tell."""
    small = replace(PRESETS["bert-base"], layers=1, heads=2, hidden=128, intermediate=256, vocabulary=64)
    monkeypatch.setitem(PRESETS, "small", small)
    monkeypatch.delenv(rounds.FILE, raising=False)
    row = rounds.measured("small", "fast", 8, Arrangement(runs=1))
    assert row["error"] < 2e-2 and row["rounds"] == []
    assert rounds.FILE not in os.environ


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_the_environment_is_as_it_was_whatever_happens(monkeypatch, before):
    if before is None:
        monkeypatch.delenv(rounds.FILE, raising=False)
    else:
        monkeypatch.setenv(rounds.FILE, before)

    def fail(*given):
        assert os.environ[rounds.FILE].endswith("rounds.jsonl")
        raise PeerTimeoutError("no server")

    monkeypatch.setattr(rounds, "Subject", lambda *given: None)
    monkeypatch.setattr(rounds, "measure", fail)
    with pytest.raises(PeerTimeoutError):
        rounds.measured("bert-base", "fast", 8, Arrangement())
    assert os.environ.get(rounds.FILE) == before


def test_servers_that_are_started_hear_of_the_file(monkeypatch):
    """They are started without the variables of settings."""
    monkeypatch.setenv(rounds.FILE, "there")
    assert _environment(Settings())[rounds.FILE] == "there"


def test_the_command_explains_itself(capsys):
    with pytest.raises(SystemExit) as ended:
        rounds.main(["--help"])
    assert ended.value.code == 0 and "--connections" in capsys.readouterr().out

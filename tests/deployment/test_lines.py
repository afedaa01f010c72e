"""The same by the same commands in five network namespaces, and over lines with 20 ms of delay and 1 % of loss."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from lines import Relay, namespaces
from organisations import Five, through
from secure import load, relative_error

from secformer.deployment import read_deployment

pytestmark = pytest.mark.long
TOLERANCE = 1e-2
DELAY, LOSS = 0.02, 0.01


def works(five: Five, folder) -> float:
    """Push and query by the commands; gives the seconds of a query."""
    build_checkpoint(folder / "checkpoint", "bert", "classification", seed=2, layers=1)
    own = five.hand_over("provider", folder / "checkpoint")
    five["provider"].good("push", own, "--name", "m", "--allow", five.fingerprint("client"))
    with load(own, five["provider"].folder / "cache") as model:
        expected = model.predict(TEXTS, mode="plain")
    started = time.monotonic()
    said = five["client"].good("query", "m", "--format", "json", text="\n".join(TEXTS))
    rows = [json.loads(line) for line in said.splitlines()]
    assert [row["label"] for row in rows] == expected.labels
    assert relative_error(torch.tensor([row["result"] for row in rows]).double(), expected.result) <= TOLERANCE
    return time.monotonic() - started


@pytest.mark.timeout(600)
def test_five_parties_in_five_network_namespaces(tmp_path):
    with ExitStack() as stack:
        try:
            hosts, inside = stack.enter_context(namespaces())
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("network namespaces cannot be made here")
        servers = {role: host for role, host in hosts.items() if role in ("server0", "server1", "dealer")}
        five = Five(tmp_path / "five", servers, inside)
        stack.callback(five.stop)
        five.exchange()
        five.start()
        for role in ("server0", "server1", "dealer", "client"):
            five[role].good("doctor", role)
        works(five, tmp_path)


@pytest.mark.timeout(600)
def test_over_lines_that_delay_and_lose(tmp_path):
    five = Five(tmp_path / "five")
    with ExitStack() as stack:
        stack.callback(five.stop)
        five.exchange()
        file = five["client"].folder / "deployment.toml"
        relays, listening = {}, {}
        for role, place in read_deployment(file).places.items():
            for door, address in place.doors.items():
                relays[role, door] = relay = Relay(address.host, tuple(address), DELAY, LOSS)
                stack.callback(relay.close)
                listening.setdefault(role, {})[f"SECFORMER_LISTEN_{door.upper()}"] = str(address)
        text = through(file, {key: relay.port for key, relay in relays.items()})
        for party in five.parties.values():
            (party.folder / "deployment.toml").write_text(text)
        for role, where in listening.items():
            five[role].start(**where)
            five[role].ready()
        assert works(five, tmp_path) > 10 * DELAY
        assert sum(relay.lost for relay in relays.values()) > 0

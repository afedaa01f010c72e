"""The servers as three processes over TLS: the same programs give what they give in memory and in simulation."""

from __future__ import annotations

import time
from dataclasses import replace

import case
import pytest
import torch
from servers import KEYS, MODEL, QUERY, VALUES, WEIGHT, X, attended, numbers, stored, upload, weights
from small_programs import CATALOGUE, on_python_path, upload_job

from secformer.crypto import dpf
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded, Sharing
from secformer.errors import AgreementError, ConnectionLostError, PeerAbortedError
from secformer.parties.caller import Caller
from secformer.parties.launch import launch
from secformer.parties.messages import Job
from secformer.parties.planner import Planner, caller_forms
from secformer.protocols.lookup import one_hot_rows, table_words
from secformer.ring.fixed_point import decode, encode
from secformer.roles import CLIENT, DEALER, PROVIDER, SERVER1, SERVERS

TABLE = encode(numbers(37, 6), 10, 16)
WORDS = table_words(TABLE, 16)
PLACES = [0, 36, 17, 17]


# name: (job, the caller's inputs in the clear, the result in the clear, allowed distance from it)
CASES = {
    "activation": (
        Job("activation", {"shape": [5, 16]}),
        {"x": numbers(5, 16, size=3)},
        lambda x: torch.nn.functional.gelu(x),
        1e-3,
    ),
    "dense": (
        Job("dense", {"rows": 3}, uses=MODEL),
        {"x": X},
        lambda x: torch.nn.functional.gelu(x @ WEIGHT),
        3e-3,
    ),
    "attention": (QUERY, {"x": X}, attended, 5e-3),
    "lookup": (
        Job("lookup", {"tokens": len(PLACES), "columns": 6, "bits": 16, "scale": 10}, uses=MODEL),
        {"places": one_hot_rows(torch.tensor(PLACES), 37)},
        lambda places: decode(TABLE[PLACES], 10, 16),
        0.0,
    ),
}


def uploaded() -> dict[str, Encoded]:
    return {**weights(), "table": Encoded.ring_elements(WORDS, kind="bits")}


@pytest.fixture(scope="module")
def servers():
    with on_python_path(), launch(module="small_programs") as running:
        upload(Caller(running.network(PROVIDER), running.settings), uploaded())
        yield running


@pytest.fixture(scope="module")
def client(servers):
    return Caller(servers.network(CLIENT), servers.settings)


def planned(job):
    return Planner(CATALOGUE).plan(job, stored({name: part.form.as_wire() for name, part in uploaded().items()}))


def encoded(plan, inputs) -> dict[str, Encoded]:
    """The caller's inputs as the program declares them."""
    return {
        name: Encoded(form, inputs[name] if form.boolean else encode(inputs[name], form.scale, form.width))
        for name, form in caller_forms(plan).items()
    }


def in_memory(job, inputs):
    """The same program in this process: weights opened by a program of their own, then used as wires."""
    plan = planned(job)
    used = {name: part for name, part in uploaded().items() if name in plan.program.inputs}
    wires = _as_wires(used) if used else {}
    return run_locally(plan.program, {**encoded(plan, inputs), **wires}, plan=plan).value("y")


def _as_wires(used: dict[str, Encoded]) -> dict[str, Sharing]:
    plan = Planner(CATALOGUE).plan(upload_job(used, MODEL), None)
    run = run_locally(plan.program, used, plan=plan)
    return {name: Sharing((run.outputs[0][name], run.outputs[1][name]), run.dealt[name]) for name in used}


def simulated(job, inputs):
    plan = planned(job)
    wires = {
        name: Encoded(part.form.as_wire(), part.ring)
        for name, part in uploaded().items()
        if name in plan.program.inputs
    }
    return case.simulated(plan.program, {**encoded(plan, inputs), **wires})["y"]


@pytest.mark.parametrize("name", CASES)
def test_processes_memory_simulation_and_plaintext_agree(client, name):
    job, inputs, reference, allowed = CASES[name]
    given = {"places": dpf.keygen(PLACES, 37)} if name == "lookup" else inputs
    result = client.run(job, given)
    secure, expected = result.outputs["y"], reference(*inputs.values())
    assert (secure - expected).abs().max() <= allowed
    # Each way rounds on its own, so any two differ by no more than twice the distance from the truth.
    assert (secure - in_memory(job, inputs)).abs().max() <= 2 * allowed
    assert (secure - simulated(job, inputs)).abs().max() <= 2 * allowed
    assert (result.rounds, result.online_bytes, result.dealer_bytes) == (
        result.declared.rounds,
        result.declared.online_bytes,
        result.declared.dealer_bytes,
    )


def test_a_lookup_costs_the_client_keys_and_no_rows(client):
    result = client.run(CASES["lookup"][0], {"places": dpf.keygen(PLACES, 37)})
    assert dpf.key_bytes(37, len(PLACES)) * 2 < result.sent < 1500


def test_one_upload_serves_many_queries_and_clients(servers):
    for x in (X, X * 0.5, -X):
        result = Caller(servers.network(CLIENT), servers.settings).run(QUERY, {"x": x})
        assert (result.outputs["y"] - attended(x)).abs().max() < 5e-3
        assert result.online_bytes < KEYS.numel() * 54 // 4 + VALUES.numel() * 35 // 4  # weights are not opened again


def test_logs_name_sessions_and_no_numbers(servers, client):
    client.run(QUERY, {"x": X})
    for role in SERVERS:
        lines = servers.log(role).splitlines()
        assert lines and all(f" {role}: " in line for line in lines)
        assert not any("tensor" in line or "Traceback" in line for line in lines)


def test_a_killed_server_comes_back(servers, client):
    servers.kill(SERVER1)
    started = time.monotonic()
    with pytest.raises((PeerAbortedError, ConnectionLostError)):
        client.run(QUERY, {"x": X})
    assert time.monotonic() - started < 5
    servers.restart(SERVER1)
    upload(Caller(servers.network(PROVIDER), servers.settings), uploaded())
    assert (client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3


def test_a_server_with_other_settings_is_noticed(servers, client):
    servers.restart(DEALER, replace(servers.settings, network="lan"))
    with pytest.raises(AgreementError, match="setting network"):
        client.run(CASES["activation"][0], CASES["activation"][1])
    deadline = time.monotonic() + 5
    while not all("[agreement]" in servers.log(role) for role in SERVERS):
        assert time.monotonic() < deadline, "a server did not notice"
        time.sleep(0.05)
    servers.restart(DEALER)


def test_leaving_the_block_ends_the_servers_cleanly(servers):
    """The last test of this module: nobody needs the servers any more."""
    processes = [each._process for each in servers._processes.values()]
    servers.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert [process.returncode for process in processes] == [0, 0, 0]  # by SIGTERM, in order; -9 were by force
    assert not servers.settings.identity_folder.exists()

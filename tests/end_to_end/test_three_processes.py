"""The servers as three processes over TLS: the same programs give what they give in memory and in simulation."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from servers import KEYS, MODEL, QUERY, SERVES, VALUES, WEIGHT, X, attended, numbers, weights

from secformer.crypto import dpf
from secformer.engine.local import run_locally, share, share_bits
from secformer.engine.program import InputSpec
from secformer.engine.simulating import Simulating
from secformer.engine.values import Bits, Masked, MaskedBits, Shared
from secformer.errors import AgreementError, ConnectionLostError, PeerAbortedError
from secformer.parties.catalogue import Planner, caller_forms, default_catalogue
from secformer.parties.client import Client
from secformer.parties.launch import launch
from secformer.parties.messages import Job
from secformer.parties.provider import Provider, Weight
from secformer.parties.server import SERVER_NAMES
from secformer.protocols.embedding import table_words
from secformer.ring.fixed_point import decode, encode

TABLE = encode(numbers(37, 6), 10, 16)
WORDS = table_words(TABLE, 16)
PLACES = [0, 36, 17, 17]


def one_hot_bytes() -> torch.Tensor:
    rows = torch.zeros(len(PLACES), 5, dtype=torch.int64)
    for row, place in enumerate(PLACES):
        rows[row, place // 8] = 1 << place % 8
    return rows


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
        {"places": one_hot_bytes()},
        lambda places: decode(TABLE[PLACES], 10, 16),
        0.0,
    ),
}


@pytest.fixture(scope="module")
def servers():
    with launch() as running:
        Provider(running.settings).upload(MODEL, {**weights(), "table": Weight(WORDS, 0, 64, "bits")}, SERVES)
        yield running


@pytest.fixture(scope="module")
def client(servers):
    return Client(servers.settings)


def stored_forms():
    forms = {
        name: InputSpec("masked", tuple(weight.numbers.shape), weight.width, weight.scale)
        for name, weight in weights().items()
    }
    return {**forms, "table": InputSpec("masked_bits", tuple(WORDS.shape), 64)}


def in_memory(job, inputs):
    """The same program in this process: weights opened by a program of their own, then used as wires."""
    planner = Planner(default_catalogue())
    plan = planner.plan(job, stored_forms())
    used = [name for name in plan.program.inputs if name in stored_forms()]
    pairs, masks = _as_wires(planner, used) if used else ({}, {})
    for name, form in caller_forms(plan).items():
        given = inputs[name]
        pairs[name] = share(given, form.scale, form.width) if form.kind == "shared" else share_bits(given, form.width)
    return run_locally(plan.program, pairs, masks, plan=plan).value("y")


def _as_wires(planner, used):
    plain = {**weights(), "table": Weight(WORDS, 0, 64, "bits")}
    forms = {
        name: {"shape": list(plain[name].numbers.shape), "scale": plain[name].scale, "width": plain[name].width}
        | {"kind": plain[name].kind}
        for name in used
    }
    plan = planner.plan(Job("upload", {"tensors": forms}), {})
    shares = {
        name: share_bits(plain[name].numbers, 64)
        if plain[name].kind == "bits"
        else share(plain[name].numbers, plain[name].scale, plain[name].width)
        for name in used
    }
    run = run_locally(plan.program, shares, plan=plan)
    return {name: (run.outputs[0][name], run.outputs[1][name]) for name in used}, run.dealt


def simulated(job, inputs):
    plan = Planner(default_catalogue()).plan(job, stored_forms())
    plain = {**weights(), "table": Weight(WORDS, 0, 64, "bits")}
    values = {}
    for name, form in plan.program.inputs.items():
        if form.kind == "shared":
            values[name] = Shared(encode(inputs[name], form.scale, form.width), form.width, form.scale)
        elif form.kind == "bits":
            values[name] = Bits(inputs[name], form.width)
        else:
            absent = torch.empty(form.shape, dtype=torch.int64, device="meta")
            content = plain[name].numbers
            values[name] = (
                MaskedBits(content, absent, form.width)
                if form.kind == "masked_bits"
                else Masked(encode(content, form.scale, form.width), absent, form.width, form.scale)
            )
    result = Simulating().run(plan.program, values)["y"]
    assert isinstance(result, Shared)
    return decode(result.share, result.scale, result.width)


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
        result = Client(servers.settings).run(QUERY, {"x": x})
        assert (result.outputs["y"] - attended(x)).abs().max() < 5e-3
        assert result.online_bytes < KEYS.numel() * 54 // 4 + VALUES.numel() * 35 // 4  # weights are not opened again


def test_logs_name_sessions_and_no_numbers(servers, client):
    client.run(QUERY, {"x": X})
    for role in SERVER_NAMES:
        lines = servers.log(role).splitlines()
        assert lines and all(f" {role}: " in line for line in lines)
        assert not any("tensor" in line or "Traceback" in line for line in lines)


def test_a_killed_server_comes_back(servers, client):
    servers.kill("server1")
    started = time.monotonic()
    with pytest.raises((PeerAbortedError, ConnectionLostError)):
        client.run(QUERY, {"x": X})
    assert time.monotonic() - started < 5
    servers.restart("server1")
    Provider(servers.settings).upload(MODEL, {**weights(), "table": Weight(WORDS, 0, 64, "bits")}, SERVES)
    assert (client.run(QUERY, {"x": X}).outputs["y"] - attended(X)).abs().max() < 5e-3


def test_a_server_with_other_settings_is_noticed(servers, client):
    servers.restart("assistant", replace(servers.settings, network="lan"))
    with pytest.raises(AgreementError, match="setting network"):
        client.run(CASES["activation"][0], CASES["activation"][1])
    deadline = time.monotonic() + 5
    while not all("[agreement]" in servers.log(role) for role in SERVER_NAMES):
        assert time.monotonic() < deadline, "a server did not notice"
        time.sleep(0.05)
    servers.restart("assistant")


def test_leaving_the_block_ends_the_servers_cleanly(servers):
    """The last test of this module: nobody needs the servers any more."""
    processes = [each._process for each in servers._processes.values()]
    servers.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert [process.returncode for process in processes] == [0, 0, 0]  # by SIGTERM, in order; -9 were by force
    assert not servers.settings.identity_folder.exists()

"""Five organisations, no file shared: create, exchange, serve, push and query by the documented commands alone."""

from __future__ import annotations

import csv
import json
import signal
import stat
import subprocess
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import torch
from checkpoints import TEXTS, build_checkpoint
from organisations import Five
from secure import load, relative_error

from secformer.parties.launch import free_ports
from secformer.roles import ROLES, SERVERS

TOLERANCE = 1e-2
NAME = "sentiment"


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    found = Five(tmp_path_factory.mktemp("five"))
    found.exchange()
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    build_checkpoint(folder, "bert", "classification", seed=2, layers=1)
    return folder


@pytest.fixture(scope="module")
def pushed(five, checkpoint):
    """name@version, and what the model gives in the clear."""
    own = five.hand_over("provider", checkpoint)
    (five["provider"].folder / "texts.txt").write_text("\n".join(TEXTS * 8))
    allowed = five.fingerprint("client")
    said = five["provider"].run("push", own, "--name", NAME, "--data", "texts.txt", "--allow", allowed)
    assert said.code == 0, said
    with load(own, five["provider"].folder / "cache") as model:
        return said.out.strip(), model.predict(TEXTS, mode="plain")


LONG = pytest.mark.long


@pytest.mark.parametrize("role", ["server1", *(pytest.param(role, marks=LONG) for role in ROLES if role != "server1")])
def test_the_doctor_finds_nothing(five, role):
    said = five[role].run("doctor", role)
    assert said.code == 0 and "BAD" not in said.out, said


def test_a_client_without_weights_gets_the_right_answers(five, pushed):
    version, expected = pushed
    client = five["client"]
    assert not list(client.folder.rglob("*.safetensors"))
    listed = json.loads(client.good("models", "--json"))
    assert [one["model"] for one in listed] == [version] and listed[0]["readers"] == []
    lines = client.good("query", NAME, "--format", "json", text="\n".join(TEXTS)).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["label"] for row in rows] == expected.labels
    assert {row["model"] for row in rows} == {version}
    assert relative_error(torch.tensor([row["result"] for row in rows]).double(), expected.result) <= TOLERANCE


@LONG  # tests/cli/test_query.py has files and formats without servers
def test_texts_from_a_file_and_answers_into_one(five, pushed):
    version, expected = pushed
    client = five["client"]
    (client.folder / "private.txt").write_text("\n".join(TEXTS))
    client.good("query", version, "--file", "private.txt", "--format", "csv", "--out", "answers.csv")
    with (client.folder / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == expected.labels and {row["model"] for row in rows} == {version}
    plain = [line.split("\t")[0] for line in client.good("query", NAME, "--file", "private.txt").splitlines()]
    assert plain == expected.labels


def test_no_secret_is_readable_by_others_and_none_is_logged(five, pushed):
    five["client"].good("query", NAME, text=TEXTS[2])
    for role in SERVERS:
        party = five[role]
        for path in (party.folder / "data").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert "good film" not in party.log()
        assert five.fingerprint("client")[:16] in party.log()
    assert not list((five["dealer"].folder / "data").rglob("*.wire"))
    assert list((five["server1"].folder / "data").rglob("*.wire"))


@pytest.mark.parametrize(
    ("arguments", "text", "code", "complaint"),
    [
        (("query", f"{NAME}@00000000"), "a cat", "input.model", "its newest is"),
        pytest.param(("query", "nothing"), "a cat", "input.model", "no model 'nothing'", marks=LONG),
        pytest.param(("query", NAME), " \n", "input", "no text was given", marks=LONG),
        pytest.param(("models", "--as", "server0"), "", "transport.identity", "keys create server0", marks=LONG),
    ],
)
def test_what_is_not_there_is_said(five, pushed, arguments, text, code, complaint):
    said = five["client"].run(*arguments, text=text)
    assert said.code == 2 and f"error [{code}]" in said.err and complaint in said.err, said


def test_others_are_told_what_they_may_not(five, pushed):
    version, _ = pushed
    provider, client = five["provider"], five["client"]
    fingerprint = five.fingerprint("client")
    provider.good("access", NAME, "--deny", fingerprint)
    said = client.run("query", NAME, text="a cat")
    assert said.code == 2 and "error [access]" in said.err and "does not list" in said.err
    provider.good("access", NAME, "--allow", fingerprint)
    assert client.run("query", version, text="a cat").code == 0


@LONG  # tests/deployment/test_deaths.py kills them in a smaller deployment
@pytest.mark.parametrize("role", SERVERS)
def test_a_killed_server_comes_back_with_its_models(five, pushed, role):
    five[role].kill()
    started = time.monotonic()
    said = five["client"].run("query", NAME, text="a cat")
    assert said.code == 2 and "error [transport." in said.err, said
    assert time.monotonic() - started < 30  # most of it is the interpreter's start
    five[role].start()
    five[role].ready()
    assert five["client"].run("query", NAME, text="a cat").code == 0


@LONG  # tests/deployment/test_deaths.py freezes them quicker
def test_a_frozen_server_gives_an_error_and_not_a_hang(five, pushed):
    five["dealer"].signal(signal.SIGSTOP)
    try:
        said = five["client"].run("query", NAME, text="a cat")
        assert said.code == 2 and "error [transport." in said.err, said
    finally:
        five["dealer"].signal(signal.SIGCONT)
    assert five["client"].run("query", NAME, text="a cat").code == 0


@pytest.mark.long
def test_pushing_again_is_a_new_version(five, pushed, checkpoint):
    version, _ = pushed
    again = (
        five["provider"].good("push", five["provider"].folder / "checkpoint", "--name", NAME, "--allow", "*").strip()
    )
    assert again != version and again.startswith(f"{NAME}@")
    rows = five["client"].good("query", NAME, "--format", "json", text="a cat")
    assert json.loads(rows)["model"] == again
    rows = five["client"].good("query", version, "--format", "json", text="a cat")
    assert json.loads(rows)["model"] == version
    five["provider"].good("remove", NAME)
    assert json.loads(five["client"].good("models", "--json")) == []
    for role in SERVERS:
        assert not list(Path(five[role].folder / "data").rglob("seeds.json"))


def test_a_gateway_answers_an_application(five, pushed):
    """`secformer gateway` as a process of the client's, asked over HTTP, with a log for machines."""
    pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")
    version, expected = pushed
    client, (port,) = five["client"], free_ports(1)
    with (client.folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            client.command("gateway", NAME, "--listen", f"127.0.0.1:{port}", "--log-format", "json"),
            cwd=client.folder,
            env=client.environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready gateway http://127.0.0.1:{port}\n"
        body = json.dumps({"inputs": TEXTS[0]}).encode()
        asked = Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=100) as reply:
            said = json.loads(reply.read())
            assert reply.headers["X-SecFormer-Model"] == version
        assert said[0]["label"] == expected.labels[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
    lines = [json.loads(line) for line in (client.folder / "gateway.log").read_text().splitlines()]
    assert {"/predict"} <= {line.get("route") for line in lines}
    assert "good film" not in (client.folder / "gateway.log").read_text()

"""The deployment file: what it says, what it refuses, and that it is read again when it changes."""

from __future__ import annotations

import os

import pytest
from commands import command

from secformer.deployment import (
    EXAMPLE,
    Address,
    DeploymentFile,
    Limits,
    Place,
    deployment_text,
    parse_address,
    parse_deployment,
    read_deployment,
)
from secformer.errors import SettingsError

PRINT = "ab" * 32


def test_what_init_writes_is_read_back(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, capfd, "init", "--server0", "s0.org", "--dealer", "::1").code == 0
    text = (tmp_path / "deployment.toml").read_text()
    found = read_deployment(tmp_path / "deployment.toml")
    assert found.address("server0", "callers") == ("s0.org", 27101)
    assert found.address("dealer", "servers") == ("::1", 27110)
    assert found.address("server1", "servers") != found.address("server1", "callers")
    assert found.limits == Limits()
    assert text.count("#") > 10 and "same file at every party" in text
    again = command(monkeypatch, capfd, "init")
    assert again.code == 2 and "exists" in again.err and (tmp_path / "deployment.toml").read_text() == text


def test_limits_are_written_and_read(tmp_path):
    path = tmp_path / "d.toml"
    path.write_text(deployment_text("x", EXAMPLE, Limits(sessions=3, queries_a_minute=7)))
    assert read_deployment(path).limits == Limits(sessions=3, queries_a_minute=7)


GOOD = {
    "server0": {"callers": "a:1"},
    "server1": {"callers": "b:1", "servers": "b:2"},
    "dealer": {"servers": "c:1", "fingerprints": [PRINT]},
}
BAD = {
    "no dealer": ({"dealer": None}, "section .dealer. is missing"),
    "an unknown section": ({"dealers": {}}, "unknown entry 'dealers'"),
    "a door it does not have": ({"dealer": {"callers": "c:1", "servers": "c:2"}}, "unknown entry 'callers'"),
    "a door it lacks": ({"server1": {"callers": "b:1"}}, "servers is missing"),
    "no port": ({"server0": {"callers": "a"}}, "not an address"),
    "a strange port": ({"server0": {"callers": "a:99999"}}, "not an address"),
    "a strange host": ({"server0": {"callers": "a..b:1"}}, "not an address"),
    "half a fingerprint": ({"dealer": {"servers": "c:1", "fingerprints": ["abc"]}}, "64 hexadecimal"),
    "an unknown limit": ({"limits": {"speed": 9}}, "unknown entry 'speed'"),
    "a limit of nothing": ({"limits": {"sessions": 0}}, "limit sessions"),
    "a limit in words": ({"limits": {"sessions": "many"}}, "limit sessions"),
    "lists of two lengths": ({"server0": {"callers": ["a:1", "a:2"]}}, "same number of addresses"),
    "doors of two lengths": (
        {"server1": {"callers": ["b:1", "b:3"], "servers": "b:2"}},
        "callers and servers must list",
    ),
    "an empty list": ({"server0": {"callers": []}}, "the list is empty"),
    "a list of something else": ({"server0": {"callers": [7]}}, "not an address"),
    "limits of another kind": ({"limits": 3}, "must be a section"),
}


def test_several_addresses_a_role_are_as_many_trios(tmp_path):
    given = {
        "server0": {"callers": ["a:1", "a:2"]},
        "server1": {"callers": ["b:1", "c:1"], "servers": ["b:2", "c:2"]},
        "dealer": {"servers": ["d:1", "e:1"]},
    }
    found = parse_deployment(given, "x")
    assert found.trios == 2 and parse_deployment(GOOD, "x").trios == 1
    assert [found.address("server1", "servers", trio) for trio in range(2)] == [("b", 2), ("c", 2)]
    (tmp_path / "d.toml").write_text(deployment_text("x", found.places))
    assert read_deployment(tmp_path / "d.toml").places == found.places


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name):
    changes, complaint = BAD[name]
    given = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(SettingsError, match=complaint):
        parse_deployment(given, "deployment.toml")


def test_addresses():
    assert parse_address("[::1]:5", "x") == Address("::1", 5) and str(Address("::1", 5)) == "[::1]:5"
    assert parse_address("host:5", "x") == ("host", 5) and str(Address("host", 5)) == "host:5"


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SettingsError, match="secformer init"):
        read_deployment(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("= =")
    with pytest.raises(SettingsError, match="not valid TOML"):
        read_deployment(tmp_path / "bad.toml")


def test_fingerprints_are_read_again_when_the_file_changes(tmp_path):
    path = tmp_path / "deployment.toml"
    path.write_text(deployment_text("x", EXAMPLE))
    file = DeploymentFile(path)
    assert file.fingerprints()["dealer"] == ()
    path.write_text(deployment_text("x", {**EXAMPLE, "dealer": Place(EXAMPLE["dealer"].doors, (PRINT,))}))
    os.utime(path, ns=(1, 1))
    assert file.fingerprints()["dealer"] == (PRINT,)
    path.write_text("half a fi")
    assert file.fingerprints()["dealer"] == (PRINT,)  # what was agreed stays until there is a sound file


def test_init_writes_the_ports_that_were_named(monkeypatch, capfd, tmp_path):
    ports = ("--server0-callers", 1001, "--server1-callers", 1002, "--server1-servers", 1003, "--dealer-servers", 1004)
    file = tmp_path / "deployment.toml"
    assert command(monkeypatch, capfd, "init", file, "--server0", "::1", "--dealer", "t.example.org", *ports).code == 0
    found = read_deployment(file)
    assert found.address("server0", "callers") == ("::1", 1001) and found.address("dealer", "servers").port == 1004
    assert [found.address("server1", door).port for door in ("callers", "servers")] == [1002, 1003]
    assert command(monkeypatch, capfd, "init", tmp_path / "other.toml", "--dealer-servers", 70000).code == 2

"""The scripts do what they say: five parties from nothing, three servers, a model, a gateway that answers, and an end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from checkpoints import TEXTS, build_checkpoint

from secformer.parties.launch import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
PARTIES = ("server0", "server1", "dealer", "provider", "client")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def script(tmp_path):
    pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SECFORMER_")}
    environment = {**kept, "SECFORMER": f"{shlex.quote(sys.executable)} -m secformer.cli.main", "HOME": str(tmp_path)}

    def run(name: str, *arguments: object, good: bool = True) -> str:
        command = [str(DEPLOY / name), *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_rehearsal_on_one_machine(script, tmp_path):
    parties = tmp_path / "parties"
    script("prepare.sh", parties)
    gate, *ports = free_ports(5)
    for party in PARTIES:
        assert {path.stat().st_mode & 0o077 for path in (parties / party).rglob("*.key")} == {0}
        file = parties / party / "deployment.toml"
        text = file.read_text()
        assert "fingerprints = []" not in text
        for old, new in zip((27101, 27102, 27112, 27110), ports, strict=True):
            text = text.replace(f":{old}", f":{new}")
        file.write_text(text)
    build_checkpoint(tmp_path / "model", "bert", "classification", layers=1)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 8))
    try:
        assert script("one-machine.sh", "start", parties).count("ready") == 3
        pushed = script(
            *("one-machine.sh", "push", parties, tmp_path / "model", "--name", "mood"),
            *("--data", tmp_path / "texts.txt", "--allow", "*"),
        )
        assert pushed.startswith("mood@")
        script(
            "one-machine.sh",
            "gateway",
            parties,
            "mood",
            "--listen",
            f"127.0.0.1:{gate}",
            "--token",
            parties / "client/token",
        )
        token = (parties / "client" / "token").read_text().strip()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        body = json.dumps({"inputs": TEXTS[0]}).encode()
        with urlopen(Request(f"http://127.0.0.1:{gate}/predict", body, headers), timeout=200) as reply:
            assert reply.headers["X-SecFormer-Model"] == pushed.strip() and len(json.loads(reply.read())) == 3
        assert script("one-machine.sh", "status", parties).count(" runs, process ") == 4
    finally:
        assert script("one-machine.sh", "stop", parties).count("has stopped") == 4
    assert script("one-machine.sh", "status", parties).count("does not run") == 4
    assert not list(tmp_path.rglob("parties/*/pid"))


def test_a_script_without_its_arguments_says_what_they_are(script):
    script("prepare.sh", good=False)
    script("one-machine.sh", "start", good=False)

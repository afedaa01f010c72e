"""Five organisations with a folder each and no file in common, which do everything by the documented commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from secformer.deployment import DOORS, Address, Place, deployment_text, read_deployment
from secformer.parties.launch import free_ports
from secformer.roles import ROLES, SERVERS

HOSTS = {"server0": "127.0.0.2", "server1": "127.0.0.3", "dealer": "127.0.0.4"}


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Organisation:
    """One party: its folder is all it has. `inside` is put before its commands, to run them in a network of its own."""

    def __init__(self, role: str, folder: Path, inside: tuple[str, ...] = ()) -> None:
        self.role, self.folder, self.inside = role, folder, inside
        folder.mkdir(parents=True)
        self.process: subprocess.Popen | None = None

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("SECFORMER_")}
        own = {f"SECFORMER_{name.upper()}_FOLDER": str(self.folder / name) for name in ("identity", "data", "cache")}
        return {**kept, **own, "HOME": str(self.folder), "SECFORMER_THREADS": "1", **more}

    def command(self, *arguments: object) -> list[str]:
        return [*self.inside, sys.executable, "-m", "secformer.cli.main", *map(str, arguments)]

    def run(self, *arguments: object, text: str = "", **environment: str) -> Said:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(**environment),
            input=text,
            capture_output=True,
            text=True,
            timeout=110,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def good(self, *arguments: object, **options: str) -> str:
        said = self.run(*arguments, **options)
        assert said.code == 0, said
        return said.out

    def start(self, **environment: str) -> None:
        """`secformer serve`, until it listens; the log is appended to."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command("serve", self.role),
                cwd=self.folder,
                env=self.environment(**environment),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ready(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready"), self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


class Five:
    """All five; `hosts` is where the servers are called."""

    def __init__(self, folder: Path, hosts: dict[str, str] | None = None, inside: dict | None = None) -> None:
        self.hosts = hosts or HOSTS
        self.parties = {role: Organisation(role, folder / role, (inside or {}).get(role, ())) for role in ROLES}

    def __getitem__(self, role: str) -> Organisation:
        return self.parties[role]

    def exchange(self, **limits: int) -> None:
        """Keys, certificates and the deployment file, from nothing."""
        prints = {role: party.good("keys", "create", role).strip() for role, party in self.parties.items()}
        post = {role: party.good("keys", "export", role) for role, party in self.parties.items()}
        self.write_deployment(prints, **limits)
        for role, party in self.parties.items():
            for other, certificate in post.items():
                if other != role and (role in SERVERS or other in SERVERS):
                    (party.folder / f"{other}.pem").write_text(certificate)
                    party.good("keys", "trust", f"{other}.pem")

    def write_deployment(self, prints: dict[str, str], **limits: int) -> None:
        """As an operator fills in what `secformer init` wrote."""
        hosts = [part for role, host in self.hosts.items() for part in (f"--{role}", host)]
        self["server0"].good("init", *hosts)
        text = (self["server0"].folder / "deployment.toml").read_text()
        ports = iter(free_ports(sum(map(len, DOORS.values()))))
        for role in ("server0", "server1", "dealer"):
            text = text.replace("fingerprints = []", f'fingerprints = ["{prints[role]}"]', 1)
        for port in (27101, 27102, 27112, 27110):
            text = text.replace(f":{port}", f":{next(ports)}")
        for name, value in limits.items():
            lines = [f"{name} = {value}" if line.startswith(f"# {name} =") else line for line in text.splitlines()]
            text = "\n".join(lines) + "\n"
        for party in self.parties.values():
            (party.folder / "deployment.toml").write_text(text)

    def start(self, **environment: str) -> None:
        for role in SERVERS:
            self[role].start(**environment)
        for role in SERVERS:
            self[role].ready()

    def stop(self) -> None:
        for role in SERVERS:
            self[role].kill()

    def fingerprint(self, role: str) -> str:
        from secformer.crypto.identity import certificate_fingerprint

        return certificate_fingerprint(self[role].folder / "identity" / f"{role}.crt")

    def hand_over(self, role: str, folder: Path) -> Path:
        """A folder that this organisation has by itself, such as a checkpoint."""
        return Path(shutil.copytree(folder, self[role].folder / folder.name))


def through(deployment: Path, proxies: dict[tuple[str, str], int]) -> str:
    """The deployment file with other ports, for a line in between."""
    found = read_deployment(deployment)
    places = {
        role: Place(
            {door: Address(at.host, proxies.get((role, door), at.port)) for door, at in place.doors.items()},
            place.fingerprints,
        )
        for role, place in found.places.items()
    }
    return deployment_text(found.name, places, found.limits)

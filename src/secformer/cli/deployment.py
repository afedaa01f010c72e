"""`secformer init` and `secformer doctor`: a deployment file to begin with, and what is wrong with a deployment."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from secformer.cli.output import add_row, show, table
from secformer.crypto.identity import Identity, PinnedPeers, check_validity, load_identity
from secformer.crypto.keyring import WARN_DAYS, entries
from secformer.deployment import (
    DOORS,
    EXAMPLE,
    Address,
    Deployment,
    Place,
    deployment_text,
    parse_address,
    read_deployment,
)
from secformer.errors import InputError, SecFormerError
from secformer.roles import CALLERS, ROLES, SERVERS
from secformer.settings import Settings
from secformer.transport.tls import probe
from secformer.version import __version__

PATIENCE = 4.0
CLOCKS_APART = 120.0
"""Seconds that two clocks may differ: certificates of our own making count from five minutes before they were made."""
SPACE = 1 << 30
"""Bytes that a server's disk should have free."""


def init(
    path: Path, name: str, hosts: Mapping[str, str | None], ports: Mapping[tuple[str, str], int | None] | None = None
) -> None:
    """A commented deployment file; addresses that were not given are examples to be replaced. `ports` are by role and door."""
    if path.exists():
        raise InputError(f"{path} exists: remove it, or name another file")
    places = {role: _place(role, hosts.get(role), ports or {}) for role in EXAMPLE}
    try:
        path.write_text(deployment_text(name, places), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    print(f"wrote {path}; fill in addresses and fingerprints, give the same file to everybody", file=sys.stderr)


def _place(role: str, host: str | None, ports: Mapping[tuple[str, str], int | None]) -> Place:
    doors = {}
    for door, example in EXAMPLE[role].doors.items():
        port = ports.get((role, door))
        doors[door] = parse_address(
            f"{_bracketed(host or example.host)}:{example.port if port is None else port}", role
        )
    return Place(doors)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


# -- doctor ---------------------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    good: bool
    what: str
    advice: str = ""


def doctor(role: str, settings: Settings) -> bool:
    """Look at everything this party depends on; True if nothing is wrong."""
    if role not in ROLES:
        raise InputError(f"unknown role {role!r}: one of {', '.join(ROLES)}")
    found = list(_findings(role, settings))
    made = table(f"secformer {__version__} as {role}", "", "what", "what to do")
    for finding in found:
        add_row(made, "good" if finding.good else "BAD", finding.what, finding.advice)
    show(made)
    return all(finding.good for finding in found)


def _findings(role: str, settings: Settings) -> Iterator[Finding]:
    deployment, finding = _tried(lambda: read_deployment(settings.deployment), f"deployment file {settings.deployment}")
    yield finding
    identity, finding = _tried(lambda: load_identity(role, settings.identity_folder), f"key and certificate of {role}")
    yield finding
    if deployment is None or identity is None:
        return
    yield from _keys(role, identity, deployment, settings)
    yield from _disk(role, settings)
    yield from _peers(role, identity, deployment, settings)


def _tried(action: Callable, what: str) -> tuple:
    try:
        return action(), Finding(True, what)
    except SecFormerError as error:
        return None, Finding(False, what, str(error))


def _keys(role: str, identity: Identity, deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    valid, finding = _tried(lambda: check_validity(identity), "own certificate counts today")
    if valid is not None and valid.days_left < WARN_DAYS:
        finding = Finding(False, f"own certificate ends in {valid.days_left:.0f} days", f"secformer keys rotate {role}")
    yield finding
    named = deployment.fingerprints().get(role, ())
    if role in SERVERS:
        yield Finding(
            identity.fingerprint in named,
            "the deployment file names this certificate",
            "" if identity.fingerprint in named else f"put {identity.fingerprint} under [{role}] in everybody's file",
        )
    pinned = {entry.fingerprint: entry for entry in entries(settings.identity_folder)}
    for entry in pinned.values():
        if role in SERVERS and entry.own and entry.following and entry.role == role:
            known = entry.fingerprint in named
            advice = "" if known else f"put {entry.fingerprint} under [{role}] in everybody's file, beside the old one"
            yield Finding(known, "the deployment file names the next certificate", advice)
    for peer in _talks_to(role):
        prints = deployment.fingerprints()[peer]
        here = [
            entry for entry in pinned.values() if entry.role == peer and (not prints or entry.fingerprint in prints)
        ]
        advice = f"get its certificate and run `secformer keys trust`: {', '.join(one[:16] for one in prints) or 'any'}"
        yield Finding(bool(here), f"the certificate of {peer} is trusted", "" if here else advice)
        for entry in here:
            if entry.warning:
                yield Finding(False, f"the certificate of {peer} {entry.warning}", "tell its operator")
    if role in SERVERS and role != "dealer":
        callers = [entry for entry in pinned.values() if entry.role in CALLERS]
        advice = "" if callers else "trust those of your clients and providers"
        yield Finding(bool(callers), f"{len(callers)} certificates of clients and providers are trusted", advice)


def _talks_to(role: str) -> tuple[str, ...]:
    """The servers whose certificates a party needs."""
    if role in CALLERS:
        return ("server0", "server1")
    return tuple(other for other in SERVERS if other != role)


def _disk(role: str, settings: Settings) -> Iterator[Finding]:
    if role not in SERVERS:
        return
    folder = settings.data_folder
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    yield Finding(
        free > SPACE, f"{free >> 30} GiB free for models", "" if free > SPACE else "free some, or move data_folder"
    )


def _peers(role: str, identity: Identity, deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    peers = PinnedPeers.load_folder(settings.identity_folder, deployment.fingerprints)
    door = "servers" if role in SERVERS else "callers"
    trios = [settings.trio] if role in SERVERS else range(deployment.trios)
    for peer in _talks_to(role):
        for trio in trios:
            yield _reached(identity, peers, peer, deployment.address(peer, door, trio), f"{peer} answers")
    for own in DOORS.get(role, ()):
        address = deployment.address(role, own, settings.trio)
        yield _reached(identity, peers, role, address, f"this server is reached where {own} call it")


def _reached(identity: Identity, peers: PinnedPeers, peer: str, address: Address, what: str) -> Finding:
    """Address, TLS, both certificates, release and clock, in one call."""
    what = f"{what} at {address}"
    try:
        socket.getaddrinfo(*address)  # a call would ask again until its time is over
        news = probe(identity, peers, peer, address, PATIENCE)
    except socket.gaierror:
        return Finding(False, what, "this host name is unknown here")
    except SecFormerError as error:
        return Finding(False, what, str(error))
    apart = abs(news.clock - time.time())
    if apart > CLOCKS_APART:
        return Finding(False, what, f"its clock and this one are {apart:.0f} s apart: set them by NTP")
    if news.release != __version__:
        return Finding(False, what, f"it runs secformer {news.release}, this is {__version__}: install the same")
    return Finding(True, f"{what}: TLS, certificates, release {news.release}, clock within {max(apart, 1):.0f} s")

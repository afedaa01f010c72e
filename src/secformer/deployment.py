"""The deployment file: the public TOML file that is the same at all parties.

    name = "example"

    [server0]                                   # clients and providers call S0
    callers = "s0.example.org:27101"
    fingerprints = ["3f2a…"]                    # SHA-256 of its certificate; two while it is being replaced

    [server1]                                   # clients and providers call S1; S0 calls it at another port
    callers = "s1.example.net:27102"
    servers = "s1.example.net:27112"
    fingerprints = ["9c41…"]

    [dealer]                                    # only servers call the dealer
    servers = "t.example.com:27110"
    fingerprints = ["b0d7…"]

    [limits]                                    # per principal, that is, per certificate
    queries_a_minute = 60

If one S0, one S1 and one dealer are not enough, each entry is a list of addresses, all of one length. The first addresses of
all lists form one *trio* that works together, the second ones another, on the same machines or on others:

    [server0]
    callers = ["s0-0.example.org:27101", "s0-1.example.org:27101"]

Local matters are in the settings (settings.py): listening addresses, and the folders for keys and models.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from secformer.errors import SettingsError
from secformer.roles import DEALER, SERVER0, SERVER1, SERVERS

DOORS: Mapping[str, tuple[str, ...]] = {SERVER0: ("callers",), SERVER1: ("callers", "servers"), DEALER: ("servers",)}
"""Ports ("doors") of each server: one for clients and providers (callers), one for the other servers."""

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Address(NamedTuple):
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one principal. Servers check them before they allocate, trace or deal anything."""

    sessions: int = 32
    """Calls of one principal that may wait or run at the same time."""
    queries_a_minute: int = 600
    """Sessions of any kind that a principal may start per minute."""
    bytes_a_minute: int = 1 << 40
    """Bytes that servers may exchange for a principal per minute."""
    job_tokens: int = 1 << 15
    """Texts times padded length of one query."""
    job_scores: int = 1 << 27
    """Attention scores of one layer of a query: texts × heads × length²."""
    model_layers: int = 512
    model_weights: int = 1 << 33
    """Layers and weights of a model: a card of a few hundred bytes must not make three servers trace for hours."""
    models: int = 64
    """Models that one provider may own."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"deployment: limit {limit.name} must be a whole number of at least 1")


@dataclass(frozen=True)
class Place:
    """Addresses of a server, by door, and the certificates it may present."""

    doors: Mapping[str, Address]
    fingerprints: tuple[str, ...] = ()
    more: tuple[Mapping[str, Address], ...] = ()
    """Addresses in the further trios."""


@dataclass(frozen=True)
class Deployment:
    """Contents of a deployment file."""

    name: str
    places: Mapping[str, Place]
    limits: Limits = field(default_factory=Limits)

    @property
    def trios(self) -> int:
        """Return the number of trios."""
        return 1 + len(self.places[SERVER0].more)

    def address(self, role: str, door: str, trio: int = 0) -> Address:
        """Return the address of a server's door, or of its only door if it lacks this one: it then refuses the call."""
        doors = (self.places[role].doors, *self.places[role].more)[trio]
        return doors.get(door) or next(iter(doors.values()))

    def fingerprints(self) -> dict[str, tuple[str, ...]]:
        """Return role -> fingerprints of the certificates that the role may present."""
        return {role: place.fingerprints for role, place in self.places.items()}


def parse_address(text: str, what: str) -> Address:
    """Parse "host:port", with an IPv6 host in brackets. Raise SettingsError, prefixed by `what`, if the text is no address."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not host.strip() or not port.isdecimal() or not 0 <= int(port) <= 65535 or ".." in host or len(host) > 253:
        raise SettingsError(f"{what}: {text!r} is not an address, write host:port")
    return Address(host, int(port))


def read_deployment(path: Path) -> Deployment:
    """Read the file at `path`. Raise SettingsError that names any unknown or missing entry."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        reason = problem.strerror or "unreadable"
        raise SettingsError(
            f"cannot read the deployment file {path} ({reason}): get it from its author, or create one with `secformer init`"
        ) from None
    except ValueError as problem:  # not UTF-8, or not TOML
        raise SettingsError(f"{path} is not valid TOML ({problem})") from None
    return parse_deployment(data, str(path))


def parse_deployment(data: Mapping[str, Any], source: str) -> Deployment:
    """Return the deployment described by parsed TOML. `source` names the file in errors (SettingsError)."""
    _reject_unknown(data, ("name", "limits", *SERVERS), source)
    missing = [role for role in SERVERS if not isinstance(data.get(role), dict)]
    if missing:
        raise SettingsError(f"{source}: the section [{missing[0]}] is missing")
    limits = data.get("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{source}: limits must be a section, [limits]")
    _reject_unknown(limits, [limit.name for limit in fields(Limits)], f"{source} [limits]")
    places = {role: _place(role, data[role], f"{source} [{role}]") for role in SERVERS}
    if len({len(place.more) for place in places.values()}) > 1:
        raise SettingsError(f"{source}: every role must list the same number of addresses, one per trio")
    return Deployment(str(data.get("name", "")), places, Limits(**limits))


def _place(role: str, data: Mapping[str, Any], source: str) -> Place:
    _reject_unknown(data, (*DOORS[role], "fingerprints"), source)
    for door in DOORS[role]:
        if door not in data:
            raise SettingsError(f'{source}: {door} is missing, write {door} = "host:port"')
    prints = data.get("fingerprints", [])
    if not isinstance(prints, list) or not all(isinstance(one, str) and _FINGERPRINT.fullmatch(one) for one in prints):
        raise SettingsError(f"{source}: fingerprints must be a list of SHA-256 hashes, 64 hexadecimal digits each")
    lists = {door: _addresses(data[door], f"{source}, {door}") for door in DOORS[role]}
    if len({len(addresses) for addresses in lists.values()}) > 1:
        raise SettingsError(f"{source}: callers and servers must list the same number of addresses")
    first, *more = (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))
    return Place(first, tuple(prints), tuple(more))


def _addresses(given: Any, what: str) -> list[Address]:
    """Parse one address or a list of them."""
    if isinstance(given, list) and not given:
        raise SettingsError(f"{what}: the list is empty")
    return [parse_address(one, what) for one in (given if isinstance(given, list) else [given])]


def _reject_unknown(data: Mapping[str, Any], known: Any, source: str) -> None:
    for name in data:
        if name not in known:
            raise SettingsError(f"{source}: unknown entry {name!r}; known entries are {', '.join(known)}")


class DeploymentFile:
    """Deployment file whose fingerprints are read again when it changes, so that new certificates need no restart.

    Addresses and limits stay as they were at the start. A file that has become unreadable changes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.deployment = read_deployment(path)
        self._seen = self._state()
        self._prints = self.deployment.fingerprints()

    def fingerprints(self) -> dict[str, tuple[str, ...]]:
        """Return the fingerprints of each role, from the newest readable version of the file."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            try:
                self._prints = read_deployment(self._path).fingerprints()
            except SettingsError:
                return self._prints
        return self._prints

    def _state(self) -> object:
        try:
            state = os.stat(self._path)
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino


def deployment_text(name: str, places: Mapping[str, Place], limits: Limits | None = None) -> str:
    """Return a deployment file as `secformer init` writes it, with comments on each part."""
    explained = {
        SERVER0: "S0: computes on one share. Clients and providers call it.",
        SERVER1: "S1: computes on the other share, at another organisation. S0 calls it at a separate port.",
        DEALER: "T: deals randomness, at a third organisation. Only S0 and S1 call it; open its port to them alone.",
    }
    lines = [
        "# A SecFormer deployment: the same file at every party. Nothing in it is secret.",
        "# docs/deploy.md explains how each party uses it; `secformer doctor` checks it.",
        "",
        f'name = "{name}"',
    ]
    for role in (SERVER0, SERVER1, DEALER):
        place = places[role]
        lines += ["", f"# {explained[role]}", f"[{role}]"]
        lines += [f"{door} = {_listed(place, door)}" for door in DOORS[role]]
        prints = ", ".join(f'"{one}"' for one in place.fingerprints)
        lines += [
            "# SHA-256 of its certificate, from `secformer keys show`; two while it is being replaced",
            f"fingerprints = [{prints}]",
        ]
    lines += [
        "",
        "# Limits of one principal (one certificate); to change a value, remove its # and edit it.",
        "[limits]",
    ]
    for limit in fields(Limits):
        value = getattr(limits or Limits(), limit.name)
        lines.append(f"{'# ' if limits is None else ''}{limit.name} = {value}")
    return "\n".join(lines) + "\n"


def _listed(place: Place, door: str) -> str:
    quoted = [f'"{doors[door]}"' for doors in (place.doors, *place.more)]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"


EXAMPLE: Mapping[str, Place] = {
    SERVER0: Place({"callers": Address("s0.example.org", 27101)}),
    SERVER1: Place({"callers": Address("s1.example.net", 27102), "servers": Address("s1.example.net", 27112)}),
    DEALER: Place({"servers": Address("t.example.com", 27110)}),
}

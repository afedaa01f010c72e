"""What a person does with keys and certificates: make, show, hand out, trust, replace.

Everything happens in one identity folder (crypto/identity.py has its files). A private key is written once, with mode 0600,
and never copied; what is exchanged between parties is certificates, and what two people compare is their fingerprints.

Replacing a key takes two steps, so that nobody is refused in between:

    rotate   a new key and certificate lie beside the old ones, as <role>.next.*; the others get and trust the certificate
    finish   the new pair takes the place of the old; running servers notice by themselves

Two files cannot be renamed as one. The key goes first, and that is the moment from which the new pair counts: its certificate is
in use under either name (identity.py), and whoever was broken off in between finishes again.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from secformer.crypto.identity import (
    Identity,
    PinnedPeers,
    Validity,
    belong_together,
    check_role,
    client_context,
    fingerprint_of,
    identity_paths,
    load_identity,
    next_identity,
    read_certificate,
    role_named_in,
    self_signed,
    server_context,
    translate_ssl_error,
    validity,
    write_new,
)
from secformer.errors import IdentityError, InputError

WARN_DAYS = 30
"""Days before a certificate ends from which on everybody who looks is told."""
SHORT = 16
"""Letters of a fingerprint that name a file."""


@dataclass(frozen=True)
class Entry:
    """One certificate of a folder."""

    role: str
    fingerprint: str
    validity: Validity
    own: bool
    """Whether its key is here, too."""
    path: Path

    @property
    def following(self) -> bool:
        """Whether it is the next one, not in use yet."""
        return self.path.name.endswith(".next.crt")

    @property
    def warning(self) -> str:
        """What is wrong with its dates, or nothing."""
        if not self.validity.begun:
            return f"not valid before {self.validity.begins:%Y-%m-%d}: compare the clocks"
        if self.validity.days_left <= 0:
            return f"expired on {self.validity.ends:%Y-%m-%d}"
        if self.validity.days_left < WARN_DAYS:
            return f"ends in {self.validity.days_left:.0f} days: rotate it"
        return ""


def entries(folder: Path) -> list[Entry]:
    """All certificates, own ones first."""
    found = [_entry(path) for path in sorted(Path(folder).glob("*.crt"))]
    return sorted(found, key=lambda entry: (not entry.own, entry.role))


def _entry(path: Path) -> Entry:
    der = read_certificate(path)
    own = path.with_suffix(".key").is_file()
    return Entry(path.name.split(".")[0], fingerprint_of(der), validity(der), own, path)


def import_identity(role: str, folder: Path, certificate: Path, key: Path) -> Identity:
    """An identity from an operator's own PEM files, copied once they have been seen to work on both sides of TLS."""
    check_role(role)
    named = role_named_in(read_certificate(certificate))
    if named not in (None, role):
        raise IdentityError(f"{certificate} was made for the role {named}, not {role}")
    identity = Identity(role, Path(folder) / f"{role}.crt", Path(folder) / f"{role}.key")
    for path in (identity.key_path, identity.certificate_path):
        if path.exists():
            raise InputError(f"{path} exists; remove it to give the role {role} a new identity")
    try:
        content = key.read_bytes()
    except OSError as error:
        raise IdentityError(f"the key {key} cannot be read: {error.strerror}") from None
    _try_out(Identity(role, certificate, key, content))
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_new(identity.key_path, content, 0o600)
    write_new(identity.certificate_path, certificate.read_bytes(), 0o644)
    return identity


def _try_out(identity: Identity) -> None:
    """A handshake with itself, in memory: what fails here would fail with every peer."""
    peers = PinnedPeers({identity.role: identity.certificate_path})
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(identity, peers).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(identity, peers).wrap_bio(to_client, to_server)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                reason = translate_ssl_error(error)
                raise IdentityError(
                    f"this certificate does not work for both sides of TLS ({reason}): it needs an EC or RSA key and "
                    "must allow server and client authentication"
                ) from None
        if not waiting:
            return
    raise IdentityError("this certificate does not complete a TLS handshake with itself")


def trust(folder: Path, certificate: Path, role: str | None = None) -> Entry:
    """Pin somebody's certificate; gives what was pinned."""
    der = read_certificate(certificate)
    named = role_named_in(der)
    role = role or named
    if role is None:
        raise InputError(f"{certificate} names no role: say which with --role")
    check_role(role)
    if named not in (None, role):
        raise IdentityError(f"{certificate} was made for the role {named}, not {role}")
    print_ = fingerprint_of(der)
    for entry in entries(folder):
        if entry.fingerprint == print_:
            if entry.role != role:
                raise IdentityError(f"this certificate is pinned for {entry.role} already")
            return entry
    path = Path(folder) / f"{role}.{print_[:SHORT]}.crt"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_over(path, ssl.DER_cert_to_PEM_cert(der).encode(), 0o644)
    return _entry(path)


def distrust(folder: Path, fingerprint: str) -> list[Entry]:
    """Take pins out by the beginning of their fingerprint; whoever listens refuses them within a second."""
    if len(fingerprint) < 8:
        raise InputError("name at least 8 letters of the fingerprint")
    found = [entry for entry in entries(folder) if entry.fingerprint.startswith(fingerprint.lower()) and not entry.own]
    if not found:
        raise InputError(f"no pinned certificate has a fingerprint that begins with {fingerprint}")
    for entry in found:
        entry.path.unlink()
    return found


def rotate(role: str, folder: Path, valid_days: float = 365) -> Identity:
    """The next key and certificate of a role, beside the ones in use."""
    load_identity(role, folder)
    following = next_identity(role, folder)
    if following.key_path.exists():
        raise InputError(f"{following.key_path} exists: finish that rotation, or remove it")
    key, certificate = self_signed(role, None, timedelta(days=valid_days))
    write_new(following.key_path, key, 0o600)
    write_new(following.certificate_path, certificate, 0o644)
    return following


def finish_rotation(role: str, folder: Path) -> Identity:
    """The next pair takes the place of the one in use."""
    current, following = identity_paths(role, Path(folder)), next_identity(role, folder)
    if load_identity(role, folder).certificate_path != following.certificate_path:  # the key has not gone before
        for path in (following.key_path, following.certificate_path):
            if not path.is_file():
                raise InputError(f"{path} is missing: begin with `secformer keys rotate {role}`")
        if not belong_together(following):
            raise IdentityError(f"{following.key_path} is not the key of {following.certificate_path}")
        os.replace(following.key_path, current.key_path)
    os.replace(following.certificate_path, current.certificate_path)
    return current


def _write_over(path: Path, content: bytes, mode: int) -> None:
    """All or nothing: a server may be reading."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    write_new(part, content, mode)
    os.replace(part, path)

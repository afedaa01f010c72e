"""Who is who: a key and a self-signed certificate for each role, pinned by the others.

The parties of a deployment are few and know each other, so there is no certificate authority to trust. Every
role makes its own key, hands its certificate to the others, and they *pin* it: a connection counts as server1
exactly when the peer proves, in TLS 1.3, to hold the key of the certificate filed under server1. Host names
are not checked, for a role may run anywhere.

    files       <folder>/<role>.key             (mode 0600, never leaves the machine)
                <folder>/<role>.crt             (public)
                <folder>/<role>.<anything>.crt  (somebody else in that role)
    in use      server_context / client_context, then verify_peer on every new connection, both sides

Pins that were read from a folder are read again when it changes: a certificate that is taken out is refused from the next
connection on. crypto/keyring.py is how a person changes the folder.

A certificate of our own making names its role. One that an operator brings from elsewhere need not: it stands for the role
it is filed under. Either way the very certificate counts, and nothing that it may have signed.

Both sides must present a certificate. A client in TLS 1.3 may finish its handshake before the server has
refused it; it learns so at its first read, and `translate_ssl_error` names the cause there, too. So after the
handshake the connecting side should read before it writes: writing to a server that has already hung up can
destroy the alert that says why.
"""

import errno
import hashlib
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from secformer.errors import ConnectionLostError, IdentityError, InputError
from secformer.roles import ROLES, SERVERS

_ROLE_URI = "secformer:role:"
# Clocks of two machines differ by minutes: a certificate is valid a little before it was made.
_CLOCK_SKEW = timedelta(minutes=5)
_LOOK_AGAIN = 0.25  # seconds between two looks at a folder of pins

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """A role this machine can act in. Holds paths; the key itself is read by OpenSSL alone.

    `key` is given where it must not lie on a disk: for servers that are started for an occasion.
    """

    role: str
    certificate_path: Path
    key_path: Path
    key: bytes | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate in DER, in hex: what two people compare by telephone."""
        return certificate_fingerprint(self.certificate_path)


def create_identity(
    role: str,
    folder: Path,
    valid_days: float = 365,
    valid_from: datetime | None = None,
) -> Identity:
    """A new key (EC P-256) and its certificate; existing files are never overwritten."""
    identity = identity_paths(role, Path(folder))
    for path in (identity.key_path, identity.certificate_path):
        if path.exists():
            raise InputError(f"{path} exists; remove it to give the role {role} a new identity")
    key, certificate = self_signed(role, valid_from, timedelta(days=valid_days))
    identity.key_path.parent.mkdir(parents=True, exist_ok=True)
    write_new(identity.key_path, key, 0o600)
    write_new(identity.certificate_path, certificate, 0o644)
    return identity


def load_identity(role: str, folder: Path) -> Identity:
    """The identity `create_identity` left in `folder`. Where a new key has taken its place and was broken off before its
    certificate did (keyring.py), that certificate is the one in use."""
    identity = identity_paths(role, Path(folder))
    following = next_identity(role, folder)
    if following.certificate_path.is_file() and not following.key_path.exists():
        moved = replace(identity, certificate_path=following.certificate_path)
        identity = moved if belong_together(moved) else identity
    for path in (identity.key_path, identity.certificate_path):
        if not path.is_file():
            other = "" if role in SERVERS else ", or name the role of this machine with --as"
            raise IdentityError(f"{path} is missing: create it with `secformer keys create {role}`{other}")
    if os.name == "posix" and identity.key_path.stat().st_mode & 0o077:
        raise IdentityError(f"{identity.key_path} can be read by other users: chmod 600 it")
    return identity


def passing_identity(role: str, folder: Path) -> Identity:
    """An identity whose key is in memory alone: only the certificate is written, for the others to pin."""
    paths = identity_paths(role, Path(folder))
    key, certificate = self_signed(role, None, timedelta(days=365))
    paths.certificate_path.parent.mkdir(parents=True, exist_ok=True)
    write_new(paths.certificate_path, certificate, 0o644)
    return Identity(role, paths.certificate_path, paths.key_path, key)


def identity_paths(role: str, folder: Path) -> Identity:
    check_role(role)
    return Identity(role, folder / f"{role}.crt", folder / f"{role}.key")


def next_identity(role: str, folder: Path) -> Identity:
    """What a rotation prepares."""
    return Identity(role, Path(folder) / f"{role}.next.crt", Path(folder) / f"{role}.next.key")


def belong_together(identity: Identity) -> bool:
    """Whether the key is that of the certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(identity.key_path.read_bytes(), None)
        certificate = x509.load_der_x509_certificate(read_certificate(identity.certificate_path))
    except (OSError, ValueError, TypeError, IdentityError):  # TypeError: the key has a password
        return False
    return key.public_key() == certificate.public_key()


def check_role(role: str) -> None:
    if role not in ROLES:
        raise InputError(f"unknown role {role!r}; the roles are {', '.join(ROLES)}")


def write_new(path: Path, content: bytes, mode: int) -> None:
    # The mode is set on creation: at no moment is a key readable by others.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def self_signed(role: str, valid_from: datetime | None, validity: timedelta) -> tuple[bytes, bytes]:
    """(key, certificate), both in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"secformer {role}")])
    start = valid_from or datetime.now(UTC) - _CLOCK_SKEW
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + validity)
    for extension, critical in _extensions(role, key.public_key()):
        builder = builder.add_extension(extension, critical)
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    key_pem = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
    return key_pem, builder.sign(key, hashes.SHA256()).public_bytes(encoding)


def _extensions(role: str, public_key: Any) -> list[tuple[Any, bool]]:
    """(extension, critical), all that strict verification (RFC 5280) asks of an end entity.

    Not a certificate authority, and unable to sign certificates: a trust anchor vouches for itself alone.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

    uses = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign"),
        False,
    )
    uses |= {"digital_signature": True, "crl_sign": False, "encipher_only": False, "decipher_only": False}
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.KeyUsage(**uses), True),
        (x509.ExtendedKeyUsage([Usage.SERVER_AUTH, Usage.CLIENT_AUTH]), False),
        (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(_ROLE_URI + role)]), False),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), False),
    ]


def certificate_fingerprint(path: Path) -> str:
    return fingerprint_of(read_certificate(path))


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate: how a party is called in deployment files, access lists and logs."""
    return hashlib.sha256(der).hexdigest()


@dataclass(frozen=True)
class Validity:
    begins: datetime
    ends: datetime

    @property
    def days_left(self) -> float:
        return (self.ends - datetime.now(UTC)).total_seconds() / 86400

    @property
    def begun(self) -> bool:
        return datetime.now(UTC) >= self.begins


def validity(der: bytes) -> Validity:
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def role_named_in(der: bytes) -> str | None:
    """The role that a certificate of our own making was made for."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return next((uri.removeprefix(_ROLE_URI) for uri in uris if uri.startswith(_ROLE_URI)), None)


def check_validity(identity: Identity) -> Validity:
    """Raise unless this party's own certificate counts today: others would refuse it one by one, with less to say."""
    found = validity(read_certificate(identity.certificate_path))
    renew = f"run `secformer keys rotate {identity.role}`"
    if not found.begun:
        raise IdentityError(
            f"the certificate of {identity.role} begins to count on {found.begins:%Y-%m-%d}: is the clock right?"
        )
    if found.days_left <= 0:
        raise IdentityError(f"the certificate of {identity.role} expired on {found.ends:%Y-%m-%d}: {renew}")
    return found


def read_certificate(path: Path) -> bytes:
    """The one certificate of a PEM file, in DER."""
    try:
        return ssl.PEM_cert_to_DER_cert(path.read_text("ascii"))
    except OSError as error:
        raise IdentityError(f"the certificate {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise IdentityError(f"{path} is not a certificate in PEM") from error


class PinnedPeers:
    """role -> the certificates that stand for it (several while one is being replaced)."""

    generation = 0
    """Grows whenever the pins have changed."""

    def __init__(self, certificates: Mapping[str, Path | Iterable[Path]]) -> None:
        self._roles: dict[str, str] = {}  # fingerprint -> role
        self._der: list[bytes] = []
        for role, paths in certificates.items():
            check_role(role)
            for path in (paths,) if isinstance(paths, (str, Path)) else paths:
                self._pin(role, read_certificate(Path(path)))

    @staticmethod
    def load_folder(folder: Path, named: "Named | None" = None) -> "PinnedFolder":
        """Every <role>.crt and <role>.<anything>.crt in `folder`, as long as it is there."""
        return PinnedFolder(Path(folder), named)

    def refresh(self) -> None:
        """Notice what has changed since the last look."""

    def _pin(self, role: str, der: bytes) -> None:
        other = self._roles.setdefault(fingerprint_of(der), role)
        if other != role:
            raise IdentityError(f"one certificate is pinned for two roles, {other} and {role}")
        self._der.append(der)

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self._roles.values())

    @property
    def certificates(self) -> bytes:
        """All pinned certificates in DER, one after the other, as ssl takes them."""
        return b"".join(self._der)

    def role_of(self, der: bytes) -> str | None:
        """The role a certificate is pinned for."""
        return self._roles.get(fingerprint_of(der))

    def trusts(self, fingerprint: str) -> bool:
        """Whether this certificate is still pinned, now."""
        self.refresh()
        return fingerprint in self._roles

    def __repr__(self) -> str:
        return f"PinnedPeers({', '.join(sorted(self.roles))})"


Named = Callable[[], Mapping[str, Collection[str]]]
"""role -> the fingerprints that the deployment file names for it; a role it does not mention is free."""


class PinnedFolder(PinnedPeers):
    """The pins of a folder. At the start everything in it must be sound; later, what is not is left out and logged."""

    def __init__(self, folder: Path, named: Named | None) -> None:
        self._folder, self._named = folder, named or (dict[str, Collection[str]])
        self._looking = Lock()
        self._looked, self._seen = monotonic(), self._signature()
        super().__init__(self._files())
        self._adopt(self)

    def refresh(self) -> None:
        with self._looking:
            if monotonic() - self._looked < _LOOK_AGAIN:
                return
            self._looked, now = monotonic(), self._signature()
            if now != self._seen:
                self._seen = now
                self._adopt(self._read())
                self.generation += 1

    def _read(self) -> PinnedPeers:
        fresh = PinnedPeers({})
        for role, paths in self._files().items():
            for path in paths:
                try:
                    check_role(role)
                    fresh._pin(role, read_certificate(path))
                except (IdentityError, InputError) as error:
                    _log.warning("a pin is left out: %s", error)
        return fresh

    def _files(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self._folder.glob("*.crt")):
            found.setdefault(path.name.split(".")[0], []).append(path)
        return found

    def _signature(self) -> object:
        """Changes with every file, this party's own key included, and with what the deployment names."""
        kept = [path for path in self._folder.glob("*") if path.suffix in (".crt", ".key")]
        found = []
        for path in sorted(kept):
            try:
                state = path.stat()
            except OSError:  # gone since the list was made
                continue
            found.append((path.name, state.st_mtime_ns, state.st_size, state.st_ino))
        return found, {role: sorted(prints) for role, prints in self._named().items()}

    def _adopt(self, found: PinnedPeers) -> None:
        """A server is who the deployment file says, whatever lies in the folder."""
        named, roles = self._named(), found._roles
        kept = {fingerprint_of(der): der for der in found._der}
        for fingerprint, role in roles.items():
            if named.get(role) and fingerprint not in named[role]:
                del kept[fingerprint]
        self._roles, self._der = {fingerprint: roles[fingerprint] for fingerprint in kept}, list(kept.values())


def server_context(identity: Identity, peers: PinnedPeers) -> ssl.SSLContext:
    """For the side that accepts connections."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, peers)
    context.num_tickets = 0  # a resumed session would not present its certificate again
    return context


def client_context(identity: Identity, peers: PinnedPeers) -> ssl.SSLContext:
    """For the side that connects."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, peers)


def _context(protocol: int, identity: Identity, peers: PinnedPeers) -> ssl.SSLContext:
    if not peers.roles:
        raise IdentityError("no peer certificate is pinned: nobody could be recognised")
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # identity is the pinned certificate, not the address
    context.verify_mode = ssl.CERT_REQUIRED
    # A pinned certificate is trusted by itself, whoever signed it.
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=peers.certificates)
    try:
        with _key_file(identity) as key_path:
            context.load_cert_chain(identity.certificate_path, key_path)
    except OSError as error:  # ssl.SSLError is one
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise IdentityError("too many open files to read the key: raise the limit (ulimit -n)") from error
        raise IdentityError(f"the key and the certificate of {identity.role} do not load or do not match") from error
    return context


@contextmanager
def _key_file(identity: Identity) -> Iterator[Path]:
    """OpenSSL reads keys from files: one in memory where there is such a thing, otherwise one that is gone at once."""
    if identity.key is None:
        yield identity.key_path
    elif hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, identity.key)
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(identity.key)
            file.flush()
            yield Path(file.name)


def verify_peer(connection: ssl.SSLSocket | ssl.SSLObject, expected_role: str, peers: PinnedPeers) -> None:
    """Raises IdentityError unless the peer holds a certificate pinned for exactly `expected_role`."""
    check_role(expected_role)
    der = connection.getpeercert(binary_form=True)
    if not der:
        raise IdentityError(f"the peer that should be {expected_role} presented no certificate")
    role = peers.role_of(der)
    if role != expected_role:
        raise IdentityError(
            f"the peer should be {expected_role}, but its certificate (SHA-256 {fingerprint_of(der)[:16]}...) "
            + (f"is pinned for {role}" if role else "is pinned for no role")
        )
    alternatives: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    named = [value for kind, value in alternatives if kind == "URI" and value.startswith(_ROLE_URI)]
    if named and named != [_ROLE_URI + expected_role]:
        raise IdentityError(f"the certificate pinned for {expected_role} was made for another role")


_THERE = "pin it there (`secformer keys trust`)"
_UNKNOWN = "the peer's certificate is unknown: it is pinned for no role here (`secformer keys trust`)"
# OpenSSL's reason -> what it means here. An "alert" is the peer's complaint about us.
_REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "HTTP_REQUEST": "the peer does not speak TLS (it sent an HTTP request)",
    "HTTPS_PROXY_REQUEST": "the peer does not speak TLS (it sent a proxy request)",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS, or its data was altered on the way",
    "UNSUPPORTED_PROTOCOL": "the peer offers no TLS 1.3",
    "NO_PROTOCOLS_AVAILABLE": "the peer offers no TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer refuses TLS 1.3, or was refused for lacking it",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer presented no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer demands a certificate and got none from us",
    "TLSV1_ALERT_UNKNOWN_CA": f"the peer does not know our certificate: {_THERE}",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"the peer does not accept our certificate: {_THERE}",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"the peer does not accept our certificate: {_THERE}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired: make a new one and pin it at the peers",
}
# X.509 verification codes of OpenSSL (X509_V_ERR_...)
_VERIFICATIONS = {
    9: "the peer's certificate is not valid yet: compare the clocks",
    10: "the peer's certificate has expired: its owner must make a new one, to be pinned here",
    18: _UNKNOWN,
    19: _UNKNOWN,
    20: _UNKNOWN,
    21: _UNKNOWN,
}


def translate_ssl_error(error: OSError) -> IdentityError | ConnectionLostError:
    """What a failed handshake, read or write on a TLS socket means; raise the result `from` the error.

    Timeouts are not for this function: the caller knows what it waited for.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        meaning = _VERIFICATIONS.get(error.verify_code)
        return IdentityError(meaning or f"the peer's certificate is refused: {error.verify_message}")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) or not isinstance(error, ssl.SSLError):
        return ConnectionLostError(f"the peer closed the connection ({type(error).__name__})")
    reason = getattr(error, "reason", None) or "no reason given"
    if reason == "UNEXPECTED_EOF_WHILE_READING":
        return ConnectionLostError("the peer closed the connection without a goodbye")
    return IdentityError(_REASONS.get(reason, f"TLS failed: {reason}"))

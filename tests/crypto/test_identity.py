"""Role certificates over real loopback sockets: who is let in, who is not, and what the error says."""

import pickle
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from secformer.crypto.identity import (
    ROLES,
    Identity,
    PinnedPeers,
    client_context,
    create_identity,
    load_identity,
    server_context,
    translate_ssl_error,
    verify_peer,
)
from secformer.errors import ConnectionLostError, IdentityError, InputError, SecFormerError

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("identities")
    for role in ROLES:
        create_identity(role, folder)
    return folder


@pytest.fixture(scope="module")
def peers(folder) -> PinnedPeers:
    return PinnedPeers.load_folder(folder)


@dataclass
class Side:
    """What one end of a connection saw."""

    error: SecFormerError | None = None
    version: str | None = None


def speak(connection: ssl.SSLSocket, side: Side, role: str, peers: PinnedPeers) -> None:
    """One byte each way. The accepting side speaks first, so that the other reads why it was refused."""
    verify_peer(connection, role, peers)
    side.version = connection.version()
    steps = [lambda: connection.sendall(b"!"), lambda: expect_byte(connection)]
    for step in steps if connection.server_side else reversed(steps):
        step()


def expect_byte(connection: ssl.SSLSocket) -> None:
    if connection.recv(1) != b"!":
        raise ConnectionLostError("closed")


def guarded(side: Side, action: Callable[[], None]) -> None:
    try:
        action()
    except SecFormerError as error:
        side.error = error
    except OSError as error:
        side.error = translate_ssl_error(error)


def connect(
    accepting: Callable[[socket.socket, Side], None], connecting: Callable[[socket.socket, Side], None]
) -> tuple[Side, Side]:
    """Runs both ends over loopback; returns what (the accepting, the connecting) side saw."""
    accepted, connected = Side(), Side()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            raw, _ = listener.accept()
            raw.settimeout(5)
            with raw:
                guarded(accepted, lambda: accepting(raw, accepted))

        thread = threading.Thread(target=accept)
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=5) as raw:
            guarded(connected, lambda: connecting(raw, connected))
        thread.join()
    return accepted, connected


def accepting_as(identity: Identity, peers: PinnedPeers, expected: str):
    def act(raw: socket.socket, side: Side) -> None:
        with server_context(identity, peers).wrap_socket(raw, server_side=True) as connection:
            speak(connection, side, expected, peers)

    return act


def connecting_as(identity: Identity, peers: PinnedPeers, expected: str, context: ssl.SSLContext | None = None):
    def act(raw: socket.socket, side: Side) -> None:
        with (context or client_context(identity, peers)).wrap_socket(raw) as connection:
            speak(connection, side, expected, peers)

    return act


def is_identity_error(side: Side, text: str) -> bool:
    assert isinstance(side.error, IdentityError), side
    return text in str(side.error)


# ---- connections


def test_pinned_roles_meet(folder, peers):
    server, client = connect(
        accepting_as(load_identity("server0", folder), peers, "server1"),
        connecting_as(load_identity("server1", folder), peers, "server0"),
    )
    assert server == client == Side(error=None, version="TLSv1.3")


def test_wrong_role_is_refused_by_the_accepting_side(folder, peers):
    server, client = connect(
        accepting_as(load_identity("server0", folder), peers, "server1"),
        connecting_as(load_identity("dealer", folder), peers, "server0"),
    )
    assert is_identity_error(server, "should be server1") and is_identity_error(server, "for dealer")
    assert isinstance(client.error, ConnectionLostError)


def test_wrong_role_is_refused_by_the_connecting_side(folder, peers):
    server, client = connect(
        accepting_as(load_identity("dealer", folder), peers, "client"),
        connecting_as(load_identity("client", folder), peers, "server0"),
    )
    assert is_identity_error(client, "should be server0")
    assert server.error is not None


def test_unknown_client_certificate(folder, peers, tmp_path):
    stranger = create_identity("server1", tmp_path)
    server, client = connect(
        accepting_as(load_identity("server0", folder), peers, "server1"),
        connecting_as(stranger, peers, "server0"),
    )
    assert is_identity_error(server, "pinned for no role")
    assert is_identity_error(client, "pin it there")


def test_unknown_server_certificate(folder, peers, tmp_path):
    stranger = create_identity("server0", tmp_path)
    server, client = connect(
        accepting_as(stranger, peers, "server1"),
        connecting_as(load_identity("server1", folder), peers, "server0"),
    )
    assert is_identity_error(client, "pinned for no role")
    assert is_identity_error(server, "pin it there")


@pytest.mark.parametrize(
    ("start", "text", "refusal"),
    [(-10, "has expired", "our certificate has expired"), (+1, "not valid yet", "does not accept")],
)
def test_certificate_out_of_its_time(folder, tmp_path, start, text, refusal):
    begins = datetime.now(UTC) + timedelta(days=start)
    late = create_identity("server1", tmp_path, valid_days=5, valid_from=begins)
    both = PinnedPeers({"server0": folder / "server0.crt", "server1": late.certificate_path})
    server, client = connect(
        accepting_as(load_identity("server0", folder), both, "server1"), connecting_as(late, both, "server0")
    )
    assert is_identity_error(server, text)
    assert is_identity_error(client, refusal)
    server, client = connect(
        accepting_as(late, both, "server0"), connecting_as(load_identity("server0", folder), both, "server1")
    )
    assert is_identity_error(client, text)


def unsafe_context(identity: Identity | None, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    if identity:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    return context


def test_tls_1_2_client_is_refused(folder, peers):
    identity = load_identity("server1", folder)
    context = unsafe_context(identity, ssl.TLSVersion.TLSv1_2)
    server, client = connect(
        accepting_as(load_identity("server0", folder), peers, "server1"),
        connecting_as(identity, peers, "server0", context),
    )
    assert is_identity_error(server, "TLS 1.3")
    assert is_identity_error(client, "TLS 1.3")


def test_tls_1_2_server_is_refused(folder, peers):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.load_cert_chain(folder / "server0.crt", folder / "server0.key")

    def accept(raw: socket.socket, side: Side) -> None:
        old.wrap_socket(raw, server_side=True).close()

    _, client = connect(accept, connecting_as(load_identity("server1", folder), peers, "server0"))
    assert is_identity_error(client, "TLS 1.3")


def test_client_without_certificate_is_refused(folder, peers):
    def connect_bare(raw: socket.socket, side: Side) -> None:
        context = unsafe_context(None, ssl.TLSVersion.TLSv1_3)
        with context.wrap_socket(raw) as connection:
            connection.recv(1)

    server, client = connect(accepting_as(load_identity("server0", folder), peers, "server1"), connect_bare)
    assert is_identity_error(server, "no certificate")
    assert is_identity_error(client, "demands a certificate")


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.0\r\n\r\n", b"hello, this is no TLS", bytes(64)])
def test_plaintext_client(folder, peers, greeting):
    def connect_plain(raw: socket.socket, side: Side) -> None:
        raw.sendall(greeting)
        while raw.recv(100):
            pass

    server, _ = connect(accepting_as(load_identity("server0", folder), peers, "server1"), connect_plain)
    assert is_identity_error(server, "does not speak TLS")


def test_plaintext_server(folder, peers):
    def accept(raw: socket.socket, side: Side) -> None:
        raw.sendall(b"220 mail.example.org ESMTP\r\n")
        raw.recv(10000)

    _, client = connect(accept, connecting_as(load_identity("server1", folder), peers, "server0"))
    assert is_identity_error(client, "does not speak TLS")


def test_peer_that_hangs_up(folder, peers):
    def accept(raw: socket.socket, side: Side) -> None:
        raw.recv(10)

    _, client = connect(accept, connecting_as(load_identity("server1", folder), peers, "server0"))
    assert isinstance(client.error, ConnectionLostError)


def test_resumption_is_off_and_only_pins_are_trusted(folder, peers):
    identity = load_identity("server0", folder)
    for context in (server_context(identity, peers), client_context(identity, peers)):
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED and not context.check_hostname
        assert context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.cert_store_stats()["x509"] == len(ROLES)
    assert server_context(identity, peers).num_tickets == 0


def test_a_pin_may_not_vouch_for_others(folder, peers, tmp_path):
    """A certificate signed with a pinned role's key is not accepted: pins are no authorities."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    issuer = x509.load_pem_x509_certificate((folder / "dealer.crt").read_bytes())
    issuer_key = serialization.load_pem_private_key((folder / "dealer.key").read_bytes(), None)
    forged = create_identity("server1", tmp_path)
    own = x509.load_pem_x509_certificate(forged.certificate_path.read_bytes())
    builder = x509.CertificateBuilder(issuer.subject, own.subject, own.public_key(), own.serial_number)
    builder = builder.not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
    for extension in own.extensions:
        if extension.oid != x509.AuthorityKeyIdentifier.oid:
            builder = builder.add_extension(extension.value, extension.critical)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    signed = builder.add_extension(identifier, False).sign(issuer_key, hashes.SHA256())
    forged.certificate_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    server, _ = connect(
        accepting_as(load_identity("server0", folder), peers, "server1"),
        connecting_as(forged, peers, "server0"),
    )
    assert isinstance(server.error, IdentityError)


# ---- files


def test_files_and_modes(tmp_path):
    identity = create_identity("provider", tmp_path / "new" / "place")
    assert identity.key_path.name == "provider.key" and identity.certificate_path.name == "provider.crt"
    assert stat.S_IMODE(identity.key_path.stat().st_mode) == 0o600
    assert load_identity("provider", tmp_path / "new" / "place") == identity
    assert b"PRIVATE" not in identity.certificate_path.read_bytes()
    assert len(identity.fingerprint) == 64 and "PRIVATE" not in repr(identity)


def test_certificate_content(folder):
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((folder / "server1.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["secformer:role:server1"]
    assert len(list(names)) == 1  # no host: a role may run anywhere
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime == timedelta(days=365)


def test_identities_are_not_overwritten(tmp_path):
    first = create_identity("client", tmp_path)
    before = first.key_path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        create_identity("client", tmp_path)
    first.certificate_path.unlink()
    with pytest.raises(InputError, match="exists"):
        create_identity("client", tmp_path)
    assert first.key_path.read_bytes() == before


def test_unknown_role(tmp_path, peers):
    for role in ("server2", "", "../client"):
        with pytest.raises(InputError):
            create_identity(role, tmp_path)
    with pytest.raises(InputError):
        PinnedPeers({"nobody": []})
    assert list(tmp_path.iterdir()) == []


def test_loading_what_is_missing_or_open_to_others(tmp_path):
    with pytest.raises(IdentityError, match="missing"):
        load_identity("client", tmp_path)
    identity = create_identity("client", tmp_path)
    identity.key_path.chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_identity("client", tmp_path)


def test_key_of_another_certificate(folder, peers, tmp_path):
    other = create_identity("server0", tmp_path)
    mixed = Identity("server0", folder / "server0.crt", other.key_path)
    with pytest.raises(IdentityError, match="match"):
        server_context(mixed, peers)


def test_pins(folder, tmp_path):
    with pytest.raises(IdentityError, match="two roles"):
        PinnedPeers({"server0": folder / "server0.crt", "server1": folder / "server0.crt"})
    with pytest.raises(IdentityError, match="cannot be read"):
        PinnedPeers({"server0": tmp_path / "absent.crt"})
    (tmp_path / "server0.crt").write_text("not a certificate")
    with pytest.raises(IdentityError, match="PEM"):
        PinnedPeers.load_folder(tmp_path)
    with pytest.raises(IdentityError, match="nobody"):
        client_context(load_identity("server0", folder), PinnedPeers({}))


def test_two_certificates_for_one_role(folder, tmp_path):
    replacement = create_identity("server1", tmp_path)
    (tmp_path / "server1.next.crt").write_bytes((folder / "server1.crt").read_bytes())
    (tmp_path / "server0.crt").write_bytes((folder / "server0.crt").read_bytes())
    pins = PinnedPeers.load_folder(tmp_path)
    assert pins.roles == {"server0", "server1"} and repr(pins) == "PinnedPeers(server0, server1)"
    for identity in (replacement, load_identity("server1", folder)):
        server, client = connect(
            accepting_as(load_identity("server0", folder), pins, "server1"),
            connecting_as(identity, pins, "server0"),
        )
        assert server.error is None and client.error is None


def test_certificate_filed_under_another_role(folder):
    swapped = PinnedPeers({"server0": folder / "server0.crt", "server1": folder / "dealer.crt"})
    server, _ = connect(
        accepting_as(load_identity("server0", folder), swapped, "server1"),
        connecting_as(load_identity("dealer", folder), swapped, "server0"),
    )
    assert is_identity_error(server, "made for another role")


# ---- translation


def test_other_errors_are_translated():
    assert isinstance(translate_ssl_error(ConnectionResetError()), ConnectionLostError)
    assert isinstance(translate_ssl_error(BrokenPipeError()), ConnectionLostError)
    assert isinstance(translate_ssl_error(ssl.SSLZeroReturnError()), ConnectionLostError)
    assert isinstance(translate_ssl_error(ssl.SSLEOFError()), ConnectionLostError)
    assert isinstance(translate_ssl_error(ssl.SSLError()), IdentityError)
    assert pickle.loads(pickle.dumps(translate_ssl_error(ConnectionResetError()))).code == "transport.lost"

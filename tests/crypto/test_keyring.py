"""Keys as a person handles them: made, shown, handed out, trusted, replaced, taken back."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from commands import command
from talking import Deployment, both

from secformer.crypto import keyring
from secformer.crypto.identity import (
    PinnedPeers,
    certificate_fingerprint,
    check_validity,
    create_identity,
    load_identity,
    server_context,
)
from secformer.deployment import EXAMPLE, deployment_text
from secformer.errors import IdentityError, InputError, PeerTimeoutError
from secformer.transport.channel import FrameType
from secformer.transport.tls import connect, probe
from secformer.version import __version__

REVOKED_WITHIN = 1.0
NOTICED = 0.3
"""Seconds: pins are looked at every quarter of one."""


@pytest.fixture
def secformer(monkeypatch, capfd, tmp_path):
    """The command with an identity folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, folder="identity"):
        monkeypatch.setenv("SECFORMER_IDENTITY_FOLDER", str(tmp_path / folder))
        return command(monkeypatch, capfd, *arguments)

    return run


def test_two_parties_exchange_certificates_by_commands_alone(secformer, tmp_path):
    for role, folder in (("server0", "here"), ("client", "there")):
        made = secformer("keys", "create", role, folder=folder)
        assert made.code == 0 and len(made.out.strip()) == 64
        assert secformer("keys", "export", role, "--out", tmp_path / f"{role}.pem", folder=folder).out == made.out
    trusted = secformer("keys", "trust", tmp_path / "client.pem", folder="here")
    assert trusted.code == 0 and "telephone" in trusted.err
    shown = secformer("keys", "show", folder="here")
    assert trusted.out.strip() in shown.out and "this machine" in shown.out and "trusted" in shown.out
    assert PinnedPeers.load_folder(tmp_path / "here").roles == {"server0", "client"}
    again = secformer("keys", "trust", tmp_path / "client.pem", folder="here")
    assert again.code == 0 and len(list((tmp_path / "here").glob("client*"))) == 1


def test_the_key_never_leaves(secformer, tmp_path):
    secformer("keys", "create", "dealer")
    key = tmp_path / "identity" / "dealer.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    outputs = [secformer("keys", "show"), secformer("keys", "export", "dealer")]
    content = key.read_text().splitlines()[1]
    assert all(content not in one.out + one.err and "PRIVATE" not in one.out for one in outputs)


def test_refusals_are_one_line(secformer, tmp_path):
    secformer("keys", "create", "client")
    (tmp_path / "nothing.pem").write_text("no certificate")
    for arguments, complaint in (
        (("create", "client"), "exists"),
        (("create", "nobody"), "unknown role"),
        (("create", "server0", "--certificate", "x.pem"), "both"),
        (("trust", "nothing.pem"), "not a certificate"),
        (("trust", "absent.pem"), "cannot be read"),
        (("distrust", "abcdef"), "at least 8"),
        (("distrust", "0123456789"), "no pinned certificate"),
        (("export", "server1"), "keys create server1"),
        (("rotate", "client", "--finish"), "begin with"),
    ):
        outcome = secformer("keys", *arguments)
        assert outcome.code == 2 and complaint in outcome.err and len(outcome.err.strip().splitlines()) == 1, outcome


def test_a_certificate_other_than_the_deployment_names_is_not_trusted(secformer, tmp_path):
    named = create_identity("server1", tmp_path / "real").fingerprint
    other = create_identity("server1", tmp_path / "false").certificate_path
    text = deployment_text("x", EXAMPLE)
    (tmp_path / "deployment.toml").write_text(text.replace("fingerprints = []", f'fingerprints = ["{named}"]', 2))
    refused = secformer("keys", "trust", other)
    assert refused.code == 2 and "names another certificate" in refused.err
    assert not list((tmp_path / "identity").glob("*.crt"))
    assert secformer("keys", "trust", tmp_path / "real" / "server1.crt").code == 0


def test_a_servers_next_key_is_named_before_it_is_used(secformer, tmp_path, monkeypatch):
    monkeypatch.setattr("secformer.cli.deployment.PATIENCE", 0.1)  # nobody answers
    old = create_identity("server1", tmp_path / "identity").fingerprint
    file, text = tmp_path / "deployment.toml", deployment_text("x", EXAMPLE)

    def name(*fingerprints):
        server1 = text.index("[server1]")
        listed = ", ".join(f'"{one}"' for one in fingerprints)
        file.write_text(text[:server1] + text[server1:].replace("fingerprints = []", f"fingerprints = [{listed}]", 1))

    name(old)
    begun = secformer("keys", "rotate", "server1")
    following = begun.out.strip()
    assert begun.code == 0 and "deployment file" in begun.err
    assert "this machine, next" in secformer("keys", "show").out
    pem = tmp_path / "next.pem"
    secformer("keys", "export", "server1", "--next", "--out", pem)
    refused = secformer("keys", "trust", pem, folder="peers")
    assert refused.code == 2 and "first add the new fingerprint" in refused.err
    refused = secformer("keys", "rotate", "server1", "--finish")
    assert refused.code == 2 and following in refused.err
    advice = secformer("doctor", "server1").out
    assert f"put {following} under [server1]" in " ".join(advice.replace("│", " ").split())
    name(old, following)
    assert secformer("keys", "trust", pem, folder="peers").code == 0
    done = secformer("keys", "rotate", "server1", "--finish")
    assert done.code == 0 and done.out.strip() == following


# Validity


def test_an_end_that_is_near_is_warned_of_and_one_that_has_come_is_an_error(secformer, tmp_path):
    create_identity("client", tmp_path / "identity", valid_days=5)
    create_identity("server0", tmp_path / "old", valid_days=1, valid_from=datetime.now(UTC) - timedelta(days=3))
    early = create_identity("server1", tmp_path / "early", valid_from=datetime.now(UTC) + timedelta(days=3))
    assert "ends in 5 days" in secformer("keys", "show").err
    assert "expired on" in secformer("keys", "trust", tmp_path / "old" / "server0.crt").err
    assert check_validity(load_identity("client", tmp_path / "identity")).days_left < 6
    with pytest.raises(IdentityError, match="server0 expired on"):
        check_validity(load_identity("server0", tmp_path / "old"))
    with pytest.raises(IdentityError, match="is the clock right"):
        check_validity(early)


# An operator's own PEM


def openssl(folder, *options):
    key, certificate = folder / "own.key", folder / "own.pem"
    base = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    files = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=operator"]
    subprocess.run([*base, *files, *options], check=True, capture_output=True)
    return certificate, key


LEAF = ("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature")


@pytest.mark.parametrize("options", [LEAF, ()], ids=["a leaf", "as openssl makes it"])
def test_an_operators_own_certificate_works(secformer, tmp_path, options):
    certificate, key = openssl(tmp_path, *options)
    made = secformer("keys", "create", "server1", "--certificate", certificate, "--key", key)
    assert made.code == 0, made.err
    assert made.out.strip() == certificate_fingerprint(certificate)
    folder = tmp_path / "identity"
    assert stat.S_IMODE((folder / "server1.key").stat().st_mode) == 0o600
    deployment = Deployment(tmp_path / "peers", ("server0",))
    assert secformer("keys", "trust", certificate, folder="peers").code == 2  # it names no role
    assert secformer("keys", "trust", certificate, "--role", "server1", folder="peers").code == 0
    keyring.trust(folder, tmp_path / "peers" / "server0.crt")
    own, pins = load_identity("server1", folder), PinnedPeers.load_folder(folder)
    session = os.urandom(16)
    with deployment.listen() as listener:
        ends = both(
            lambda: listener.accept("server1", session, timeout=5),
            lambda: connect(own, pins, "server0", listener.address, session, timeout=5),
        )
        assert ends[0].principal == own.fingerprint
        for end in ends:
            end.close()


def test_a_certificate_that_cannot_serve_is_refused_at_once(secformer, tmp_path):
    certificate, key = openssl(tmp_path, *LEAF, "-addext", "extendedKeyUsage=serverAuth")
    made = secformer("keys", "create", "server1", "--certificate", certificate, "--key", key)
    assert made.code == 2 and "must allow server and client authentication" in made.err
    assert not (tmp_path / "identity").exists()


def test_a_key_of_another_certificate_is_refused(tmp_path):
    one, other = create_identity("client", tmp_path / "a"), create_identity("client", tmp_path / "b")
    with pytest.raises(IdentityError, match="do not match"):
        keyring.import_identity("client", tmp_path / "c", one.certificate_path, other.key_path)
    with pytest.raises(IdentityError, match="made for the role client"):
        keyring.import_identity("server0", tmp_path / "c", one.certificate_path, one.key_path)


# While a listener is running


def call(deployment, listener, role="server1"):
    return both(
        lambda: listener.accept(role, b"s" * 16, timeout=2),
        lambda: deployment.connect(listener, role=role, session=b"s" * 16, timeout=2),
    )


def worked(ends) -> bool:
    good = all(hasattr(end, "close") for end in ends)
    for end in ends:
        if hasattr(end, "close"):
            end.close()
    return good


def answered(deployment, listener) -> bool:
    try:
        return bool(probe(deployment.identities["server1"], deployment.peers, "server0", listener.address, 2.0).release)
    except IdentityError:
        return False


def soon(happened) -> bool:
    """Whether it did, within the second that is promised."""
    deadline = time.monotonic() + REVOKED_WITHIN
    while not (found := happened()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_pins_are_read_again_while_a_listener_runs(tmp_path):
    """Trusted without a restart; taken out, refused within a second; and trusted again."""
    deployment, guest = Deployment(tmp_path / "all", ("server0",)), Deployment(tmp_path / "guest", ("server1",))
    keyring.trust(guest.folder, deployment.identities["server0"].certificate_path)
    with deployment.listen() as listener:
        for _ in range(2):
            assert not answered(guest, listener)
            pinned = keyring.trust(deployment.folder, guest.identities["server1"].certificate_path)
            assert soon(lambda: answered(guest, listener)) and worked(call(guest, listener))
            keyring.distrust(deployment.folder, pinned.fingerprint)
            assert soon(lambda: not answered(guest, listener))
            with pytest.raises(IdentityError):
                guest.connect(listener, session=b"s" * 16)


def test_who_waits_in_the_lobby_is_let_go_when_its_pin_is(tmp_path):
    deployment = Deployment(tmp_path / "all", ("server0", "server1"))
    outcome = []
    with deployment.listen() as listener:

        def dial():
            try:
                outcome.append(deployment.connect(listener, session=b"s" * 16, timeout=5))
            except Exception as error:
                outcome.append(error)

        waiting = threading.Thread(target=dial)
        waiting.start()
        assert soon(lambda: any(caller.complete for caller in listener._lobby.values()))
        deployment.identities["server1"].certificate_path.unlink()
        time.sleep(NOTICED)
        with pytest.raises(PeerTimeoutError, match="did not call"):
            listener.accept("server1", b"s" * 16, timeout=0.1)
        waiting.join(5)
    assert isinstance(outcome[0], Exception)


def test_a_broken_pin_is_left_out_and_the_others_count(tmp_path, caplog):
    deployment = Deployment(tmp_path / "all", ("server0", "server1"))
    with deployment.listen() as listener:
        (deployment.folder / "client.broken.crt").write_text("half a certif")
        (deployment.folder / "strange.crt").write_text("")
        time.sleep(NOTICED)
        assert worked(call_without_loading(deployment, listener))
    assert "a pin is left out" in caplog.text


def call_without_loading(deployment, listener):
    own = deployment.identities["server1"]
    pins = PinnedPeers({"server0": deployment.identities["server0"].certificate_path})
    return both(
        lambda: listener.accept("server1", b"t" * 16, timeout=2),
        lambda: connect(own, pins, "server0", listener.address, b"t" * 16, timeout=2),
    )


def test_a_key_is_replaced_under_a_running_listener(tmp_path):
    """Nobody is refused at any moment, and in the end the new certificate is the one that answers."""
    server, caller = Deployment(tmp_path / "server", ("server0",)), Deployment(tmp_path / "caller", ("server1",))
    keyring.trust(server.folder, caller.identities["server1"].certificate_path)
    old = keyring.trust(caller.folder, server.identities["server0"].certificate_path)
    with server.listen() as listener:
        assert worked(call(caller, listener))
        following = keyring.rotate("server0", server.folder)
        with pytest.raises(InputError, match="finish that rotation"):
            keyring.rotate("server0", server.folder)
        new = keyring.trust(caller.folder, following.certificate_path)
        assert worked(call(caller, listener))
        keyring.finish_rotation("server0", server.folder)
        time.sleep(NOTICED)
        ends = call(caller, listener)
        assert ends[1].principal == new.fingerprint != old.fingerprint
        assert worked(ends)
        keyring.distrust(caller.folder, old.fingerprint)
        assert worked(call(caller, listener))
    assert load_identity("server0", server.folder).fingerprint == new.fingerprint
    assert not list(server.folder.glob("*.next.*"))


@pytest.mark.parametrize("broken_off", [1, 2])
def test_a_rotation_that_is_broken_off_leaves_a_pair_that_works(tmp_path, monkeypatch, broken_off):
    """Before the first of two renames it is the old pair, behind it the new one; and finishing again finishes."""
    folder = tmp_path / "server"
    old, following = create_identity("server0", folder).fingerprint, keyring.rotate("server0", folder).fingerprint
    rename, done = os.replace, []

    def broken(*paths):
        done.append(paths)
        if len(done) == broken_off:
            raise KeyboardInterrupt
        rename(*paths)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        keyring.finish_rotation("server0", folder)
    monkeypatch.undo()
    left = load_identity("server0", folder)
    assert left.fingerprint == (old if broken_off == 1 else following)
    server_context(left, PinnedPeers({"server0": left.certificate_path}))  # key and certificate belong together
    finished = keyring.finish_rotation("server0", folder)
    assert finished == load_identity("server0", folder) and finished.fingerprint == following
    assert sorted(path.name for path in folder.iterdir()) == ["server0.crt", "server0.key"]


def test_a_next_pair_of_two_makings_is_not_taken_up(tmp_path):
    old = create_identity("client", tmp_path).fingerprint
    following = keyring.rotate("client", tmp_path)
    following.key_path.write_bytes(create_identity("client", tmp_path / "other").key_path.read_bytes())
    with pytest.raises(IdentityError, match="is not the key of"):
        keyring.finish_rotation("client", tmp_path)
    following.key_path.unlink()  # given up, half of it
    assert load_identity("client", tmp_path).fingerprint == old


def test_another_folder_by_a_flag(secformer, tmp_path):
    flag = ("--identity", tmp_path / "elsewhere")
    made = secformer("keys", "create", "client", *flag)
    assert made.code == 0 and (tmp_path / "elsewhere" / "client.key").is_file()
    assert made.out.strip() in secformer("keys", "show", *flag).out
    pem = tmp_path / "client.pem"
    assert secformer("keys", "export", "client", "--out", pem, *flag).code == 0
    assert secformer("keys", "rotate", "client", *flag).code == 0
    assert secformer("keys", "rotate", "client", "--finish", *flag).code == 0
    assert secformer("keys", "trust", pem, *flag).code == 0
    assert secformer("keys", "distrust", made.out.strip(), *flag).code == 0
    assert not (tmp_path / "identity").exists()


def test_whoever_is_known_may_look_and_leaves_no_warning(tmp_path, caplog):
    """`doctor` calls every door, also those where this role has no business."""
    deployment = Deployment(tmp_path / "all", ("server0", "client"))
    with deployment.listen(roles=("server1",)) as listener:
        for role in ("client", "server0"):
            news = probe(deployment.identities[role], deployment.peers, "server0", listener.address, 2.0)
            assert news.release == __version__
    assert caplog.text == ""


def test_both_ends_know_whom_they_talk_to(tmp_path):
    deployment = Deployment(tmp_path / "all", ("server0", "server1"))
    with deployment.channels() as (zero, one):
        assert zero.principal == deployment.identities["server1"].fingerprint
        assert one.principal == deployment.identities["server0"].fingerprint
        zero.send(FrameType.CONTROL, b"x")
        one.receive(FrameType.CONTROL)

"""`secformer keys …`: make, show, hand out, trust and replace the keys of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from secformer.cli.output import add_row, show, table
from secformer.crypto import keyring
from secformer.crypto.identity import certificate_fingerprint, create_identity, load_identity
from secformer.deployment import read_deployment
from secformer.errors import IdentityError, InputError
from secformer.roles import SERVERS
from secformer.settings import Settings

_NAME_IT = "Add its fingerprint to the deployment file, beside the old one, at everybody's. "


def create(role: str, settings: Settings, days: float, certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise InputError("an identity of your own is a certificate and its key: give both --certificate and --key")
    folder = settings.identity_folder
    if certificate is not None and key is not None:
        made = keyring.import_identity(role, folder, certificate, key)
    else:
        made = create_identity(role, folder, days)
    _say(f"made the identity of {role} in {folder}; the key stays there")
    print(made.fingerprint)


def show_all(settings: Settings) -> None:
    """Own certificates first; warnings go to standard error, so that they stand out."""
    made = table("", "role", "whose", "fingerprint (SHA-256)", "valid until")
    found = keyring.entries(settings.identity_folder)
    if not found:
        raise InputError(f"{settings.identity_folder} holds no certificate: begin with `secformer keys create ROLE`")
    for entry in found:
        whose = ("this machine, next" if entry.following else "this machine") if entry.own else "trusted"
        add_row(made, entry.role, whose, entry.fingerprint, f"{entry.validity.ends:%Y-%m-%d}")
    show(made)
    for entry in found:
        if entry.warning:
            _say(f"warning: {entry.role} {entry.fingerprint[: keyring.SHORT]}: {entry.warning}")


def export(role: str, settings: Settings, out: Path | None, following: bool) -> None:
    """The certificate in PEM, for the others. Never the key."""
    path = load_identity(role, settings.identity_folder).certificate_path
    if following:
        path = path.with_name(f"{role}.next.crt")
        if not path.is_file():
            raise InputError(f"{path} is missing: begin with `secformer keys rotate {role}`")
    text = path.read_text("ascii")
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise InputError(f"the certificate cannot be written to {out}: {error.strerror}") from None
    _say(f"wrote {out}; its fingerprint, to be compared by telephone:")
    print(certificate_fingerprint(path))


def trust(certificate: Path, settings: Settings, role: str | None) -> None:
    entry = keyring.trust(settings.identity_folder, certificate, role)
    try:
        _check_named(entry, settings)
    except IdentityError:
        entry.path.unlink()
        raise
    _say(f"trusted as {entry.role}; compare this fingerprint with its owner by telephone:")
    print(entry.fingerprint)
    if entry.warning:
        _say(f"warning: this certificate {entry.warning}")


def _check_named(entry: keyring.Entry, settings: Settings) -> None:
    """A server's certificate must be the one that the deployment file names, if there is a file and it names one."""
    if not settings.deployment.is_file():
        return
    named = read_deployment(settings.deployment).fingerprints().get(entry.role)
    if named and entry.fingerprint not in named:
        raise IdentityError(
            f"{settings.deployment} names another certificate for {entry.role} ({named[0][: keyring.SHORT]}...): ask which "
            "of the two is right. If its key is being replaced, first add the new fingerprint to the file, beside the old one"
        )


def distrust(fingerprint: str, settings: Settings) -> None:
    for entry in keyring.distrust(settings.identity_folder, fingerprint):
        _say(f"no longer trusted: {entry.role} {entry.fingerprint}; running servers refuse it within a second")


def rotate(role: str, settings: Settings, days: float, finish: bool) -> None:
    folder = settings.identity_folder
    if finish:
        _check_next(role, settings)
        made = keyring.finish_rotation(role, folder)
        _say(f"{role} uses its new key from now on; others may now stop trusting the old certificate")
    else:
        made = keyring.rotate(role, folder, days)
        _say(
            f"the next certificate of {role} is ready. {_NAME_IT if role in SERVERS else ''}Hand it out "
            f"(`secformer keys export {role} --next`), wait until everybody trusts it, then run "
            f"`secformer keys rotate {role} --finish`"
        )
    print(made.fingerprint)


def _check_next(role: str, settings: Settings) -> None:
    """The others know a server by the deployment file: its next certificate must be named there before it is used."""
    path = settings.identity_folder / f"{role}.next.crt"
    if role not in SERVERS or not path.is_file() or not settings.deployment.is_file():
        return
    following, named = certificate_fingerprint(path), read_deployment(settings.deployment).fingerprints()[role]
    if named and following not in named:
        raise IdentityError(
            f"{settings.deployment} does not name {following} for {role} yet: add it beside the old one in everybody's "
            "file, and let everybody trust it, before you finish"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr)

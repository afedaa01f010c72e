"""`secformer gateway NAME…`: the gateway as a process, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from secformer.deployment import Address, parse_address
from secformer.errors import InputError, SettingsError
from secformer.gateway.guard import Token, is_loopback
from secformer.gateway.routes import make_app
from secformer.roles import CLIENT
from secformer.settings import Settings
from secformer.transport.tls_network import TlsNetwork

_log = logging.getLogger(__name__)

TOKEN_LETTERS = 32
"""The least a token must have: less could be guessed."""
_GRACE = 10  # seconds for requests under way when the gateway is stopped


def run(names: Sequence[str], settings: Settings) -> None:
    """Serve applications until told to stop; says one line on standard output when it listens."""
    if not names:
        raise InputError("name a model to offer; `secformer models` lists those that you may use")
    address = parse_address(settings.gateway_listen, "setting gateway_listen")
    token = read_token(settings, address)
    app = make_app(names, TlsNetwork(CLIENT, settings), settings, token)
    options = _https(settings)
    if token is not None and not options and not is_loopback(address.host):
        _log.warning("tokens and texts come over plain HTTP: put TLS before it, or give gateway_certificate")
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        **options,
    )
    _Server(config, f"ready gateway {'https' if options else 'http'}://{address}").run()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, line: str) -> None:
        super().__init__(config)
        self._line = line

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(self._line, flush=True)


def read_token(settings: Settings, address: Address) -> Token | None:
    """From its file. Beyond this machine there has to be one."""
    if not settings.gateway_token:
        if not is_loopback(address.host):
            raise SettingsError(
                f"{address} is reached from elsewhere: name a gateway_token file, or listen at a loopback address "
                "(`secformer gateway --new-token FILE` makes one)"
            )
        return None
    path = Path(settings.gateway_token).expanduser()
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise SettingsError(f"{path} can be read by other users: chmod 600 it")
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SettingsError(f"the token cannot be read from {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} holds no token: letters and digits are expected") from None
    if len(text) < TOKEN_LETTERS or not text.isprintable() or " " in text:
        raise SettingsError(f"{path} holds no token of at least {TOKEN_LETTERS} letters in one line")
    return Token(text)


def write_token(path: Path) -> None:
    """A new token, which nobody can guess, in a file that nobody else can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN_LETTERS) + "\n")
    except OSError as error:
        raise InputError(f"the token cannot be written to {path}: {error.strerror}") from None


def _https(settings: Settings) -> dict[str, Any]:
    if not settings.gateway_certificate and not settings.gateway_key:
        return {}
    files = {"ssl_certfile": settings.gateway_certificate, "ssl_keyfile": settings.gateway_key}
    for name in files.values():
        if not name or not Path(name).expanduser().is_file():
            raise SettingsError("gateway_certificate and gateway_key go together, and must be files that exist")
    return {option: str(Path(name).expanduser()) for option, name in files.items()}

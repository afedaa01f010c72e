"""One of the three servers as a process: `python -m secformer.parties.serve ROLE`, until SIGTERM or SIGINT.

Settings come from the environment and the file (settings.py). One line on standard output says that it listens. With
`--stop-with-parent` it also ends when its standard input does, and with `--remove=FOLDER` removes the folder that its parent made
and could not; with `--key-from-input` it reads its private key from there first, so that the key of a server that is started for
an occasion never lies on a disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread
from typing import NoReturn

from secformer.crypto.identity import Identity, Validity
from secformer.crypto.keyring import WARN_DAYS
from secformer.deployment import parse_address
from secformer.errors import IdentityError, InputError, SecFormerError, SettingsError
from secformer.parties.logs import set_up
from secformer.parties.memory import keep_freed_memory
from secformer.parties.planner import CATALOGUE, Catalogue
from secformer.parties.server import Server
from secformer.roles import COMPUTING, DEALER, SERVERS
from secformer.settings import Settings, load_settings
from secformer.transport.network import Network
from secformer.transport.tls_network import TlsNetwork

_log = logging.getLogger(__name__)

READY = "ready"
STOP_WITH_PARENT = "--stop-with-parent"
KEY_FROM_INPUT = "--key-from-input"
REMOVE = "--remove="
ORPHANED = b"\xff"  # a signal writes its number
_KEY_ENDS = b"-----END PRIVATE KEY-----\n"
_KEY_LIMIT = 1 << 14


def make_server(role: str, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> Server:
    if role == DEALER:
        from secformer.parties.dealing_server import DealingServer

        return DealingServer(network, settings, catalogue)
    if role in COMPUTING:
        from secformer.parties.computing_server import ComputingServer

        return ComputingServer(COMPUTING.index(role), network, settings, catalogue)
    raise InputError(f"unknown role {role!r}: serve as {', '.join(SERVERS)}")


def serve(
    role: str,
    settings: Settings,
    stop_with_parent: bool = False,
    catalogue: Catalogue = CATALOGUE,
    identity: Identity | None = None,
) -> bool:
    """Serve sessions until told to stop; says one line on standard output when it listens. Whether its parent is gone."""
    set_up(settings)
    keep_freed_memory()
    import torch

    if settings.threads:
        torch.set_num_threads(settings.threads)
    stopping, ask_to_stop = os.pipe()
    os.set_blocking(ask_to_stop, False)
    signal.set_wakeup_fd(ask_to_stop, warn_on_full_buffer=False)  # at once, whichever thread the signal comes to
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    torch.zeros(1, device="meta").add(1)  # imports for seconds at the first operation without data: not in a session
    if role not in SERVERS:
        raise InputError(f"unknown role {role!r}: serve as {', '.join(SERVERS)}")
    network = TlsNetwork(role, settings, identity)
    _warn_of_end(role, network.validity)
    if network.unnamed and not stop_with_parent:  # who starts all three itself has pinned what it made
        _log.warning("%s: the deployment file names no fingerprint of %s: fill it in", role, ", ".join(network.unnamed))
    with make_server(role, network, settings, catalogue) as server:
        if settings.metrics:
            show_metrics(server, settings.metrics, network.validity)
        print(f"{READY} {role} {server.address}", flush=True)
        if stop_with_parent:
            Thread(target=_stop_at_end_of_input, args=(ask_to_stop,), daemon=True).start()
        return os.read(stopping, 1) == ORPHANED


def show_metrics(server: Server, where: str, validity: Validity) -> None:
    """To Prometheus, at an address of their own."""
    try:
        from secformer.parties.metrics import ServerMetrics
    except ImportError:
        raise SettingsError("metrics need the package prometheus-client: pip install 'secformer[gateway]'") from None
    metrics = ServerMetrics(server.role)
    metrics.waiting.set_function(lambda: server.waiting)
    metrics.stock_items.set_function(lambda: len(server.stock.notes()))
    metrics.stock_bytes.set_function(lambda: server.stock.size)
    metrics.lanes.set(server.settings.lanes)
    metrics.days_left.set_function(lambda: validity.days_left)
    server.watch = metrics
    metrics.listen(parse_address(where, "setting metrics"))


def _warn_of_end(role: str, validity: Validity) -> None:
    if validity.days_left < WARN_DAYS:
        _log.warning("the certificate of %s ends in %.0f days: rotate it", role, validity.days_left)


def identity_from_input(role: str, settings: Settings) -> Identity:
    """The key that whoever started this server wrote into its input; the certificate lies in the folder."""
    key = b""
    while not key.endswith(_KEY_ENDS):
        piece = os.read(0, 1)
        if not piece or len(key) > _KEY_LIMIT:
            raise IdentityError("no private key came by standard input")
        key += piece
    paths = Identity(role, settings.identity_folder / f"{role}.crt", settings.identity_folder / f"{role}.key")
    return replace(paths, key=key)


def _stop_at_end_of_input(ask_to_stop: int) -> None:
    """Whoever started this server holds the other end of its input, and drops it by dying."""
    while os.read(0, 4096):  # not sys.stdin: its lock, held here, would hold up the end of the process
        pass
    os.write(ask_to_stop, ORPHANED)


def main(arguments: Sequence[str], catalogue: Catalogue = CATALOGUE) -> None:
    """The process of one server."""
    try:
        role, settings = arguments[0], load_settings()
        identity = identity_from_input(role, settings) if KEY_FROM_INPUT in arguments else None
        if serve(role, settings, STOP_WITH_PARENT in arguments, catalogue, identity):
            for folder in (each.removeprefix(REMOVE) for each in arguments if each.startswith(REMOVE)):
                shutil.rmtree(folder, ignore_errors=True)
        end(0)
    except SecFormerError as error:
        print(f"error [{error.code}]: {' '.join(str(error).split())}", file=sys.stderr)
        end(2)


def end(code: int) -> NoReturn:
    """Leave without unwinding the interpreter: threads that still wait on sockets would be cut off in C++."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])

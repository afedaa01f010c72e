"""One of the three servers as a process: `python -m secformer.parties.serve ROLE`, until SIGTERM or SIGINT.

Settings come from the environment and the file (settings.py). One line on standard output says that it listens. With
`--stop-with-parent` it also ends when its standard input does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from threading import Thread
from typing import NoReturn

from secformer.errors import InputError, SecFormerError
from secformer.parties.planner import CATALOGUE, Catalogue
from secformer.parties.server import Server
from secformer.roles import COMPUTING, DEALER, SERVERS
from secformer.settings import Settings, load_settings
from secformer.transport.network import Network
from secformer.transport.tls_network import TlsNetwork

READY = "ready"
STOP_WITH_PARENT = "--stop-with-parent"


def make_server(role: str, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> Server:
    if role == DEALER:
        from secformer.parties.dealing_server import DealingServer

        return DealingServer(network, settings, catalogue)
    if role in COMPUTING:
        from secformer.parties.computing_server import ComputingServer

        return ComputingServer(COMPUTING.index(role), network, settings, catalogue)
    raise InputError(f"unknown role {role!r}: serve as {', '.join(SERVERS)}")


def serve(role: str, settings: Settings, stop_with_parent: bool = False, catalogue: Catalogue = CATALOGUE) -> None:
    """Serve sessions until told to stop; says one line on standard output when it listens."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
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
    with make_server(role, TlsNetwork(role, settings), settings, catalogue) as server:
        print(f"{READY} {role} {server.address}", flush=True)
        if stop_with_parent:
            Thread(target=_stop_at_end_of_input, args=(ask_to_stop,), daemon=True).start()
        os.read(stopping, 1)


def _stop_at_end_of_input(ask_to_stop: int) -> None:
    """Whoever started this server holds the other end of its input, and drops it by dying."""
    while os.read(0, 4096):  # not sys.stdin: its lock, held here, would hold up the end of the process
        pass
    os.write(ask_to_stop, b".")


def main(arguments: Sequence[str], catalogue: Catalogue = CATALOGUE) -> None:
    """The process of one server."""
    try:
        serve(arguments[0], load_settings(), STOP_WITH_PARENT in arguments, catalogue)
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

"""`secformer serve`: one of the three servers, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import sys
from threading import Event, Thread
from typing import TYPE_CHECKING

from secformer.errors import InputError
from secformer.settings import Settings

if TYPE_CHECKING:
    from secformer.parties.server import Server


def serve(role: str, settings: Settings, stop_with_parent: bool = False) -> None:
    """Serve sessions until told to stop; says one line on standard output when it listens."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    import torch

    if settings.threads:
        torch.set_num_threads(settings.threads)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _warm_up()
    with make_server(role, settings) as server:
        host, port = server.address
        print(f"ready {role} {host}:{port}", flush=True)
        if stop_with_parent:
            Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
        stop.wait()


def _warm_up() -> None:
    """Torch imports a good part of itself at the first operation without data, for seconds: not in a session."""
    import torch

    torch.zeros(1, device="meta").add(1)


def make_server(role: str, settings: Settings) -> Server:
    if role == "assistant":
        from secformer.parties.assistant_server import AssistantServer

        return AssistantServer(settings)
    if role in ("server0", "server1"):
        from secformer.parties.computing_server import ComputingServer

        return ComputingServer(int(role[-1]), settings)
    raise InputError(f"unknown role {role!r}: serve as assistant, server0 or server1")


def _stop_at_end_of_input(stop: Event) -> None:
    """Whoever started this server holds the other end of its input, and drops it by dying."""
    while os.read(0, 4096):  # not sys.stdin: its lock, held here, would hold up the end of the process
        pass
    stop.set()

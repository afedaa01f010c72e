"""Lines between organisations: a network namespace for each, or a relay that delays and loses as a real line would."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from secformer.roles import ROLES

SEGMENT = 1400


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def namespaces() -> Iterator[tuple[dict[str, str], dict[str, tuple[str, ...]]]]:
    """(host by role, how to run a command as that role): five machines on one switch, and nothing else in reach."""
    tag = f"sf{os.getpid() % 10000}"
    names = {role: f"{tag}-{role}" for role in ROLES}
    switch = f"{tag}-switch"
    made: list[str] = []
    try:
        for name in (switch, *names.values()):
            _ip("netns", "add", name)
            made.append(name)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        hosts = {}
        for number, (role, name) in enumerate(names.items(), 1):
            hosts[role] = f"10.77.0.{number}"
            _ip("-n", switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{hosts[role]}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield hosts, {role: ("ip", "netns", "exec", name) for role, name in names.items()}
    finally:
        for name in made:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


class Relay:
    """Passes connections on, each direction late by `delay` seconds. A lost segment arrives a round trip later, as TCP's fast
    retransmission would have it, and everything behind it waits."""

    def __init__(self, host: str, target: tuple[str, int], delay: float, loss: float) -> None:
        self._target, self._delay, self._loss = target, delay, loss
        self._server = socket.create_server((host, 0))
        self.port = self._server.getsockname()[1]
        self.lost = 0
        self._random = random.Random(3)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                for source, sink in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    waiting: SimpleQueue = SimpleQueue()
                    threading.Thread(target=self._read, args=(source, waiting), daemon=True).start()
                    threading.Thread(target=self._write, args=(sink, waiting), daemon=True).start()

    def _read(self, source: socket.socket, waiting: SimpleQueue) -> None:
        last = 0.0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                segments = -(-len(data) // SEGMENT)
                lost = any(self._random.random() < self._loss for _ in range(segments))
                self.lost += lost
                last = max(last, time.monotonic() + self._delay + (2 * self._delay if lost else 0.0))
                waiting.put((last, data))
        waiting.put((time.monotonic() + self._delay, b""))

    def _write(self, sink: socket.socket, waiting: SimpleQueue) -> None:
        with suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(due - time.monotonic(), 0.0))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    def close(self) -> None:
        self._server.close()

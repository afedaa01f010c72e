"""What an opening costs beyond its bytes, measured against the bare means it is built on, in the same run.

In memory: the time of one opening of one element between two threads, against a hand-off: one thread puts an item into
a queue, the other, which waits for it, gets it. Both are measured in short alternating batches, and the lower quartiles
are compared, because whatever else the machine does only ever adds time. The two servers share an interpreter here: an
opening is the work of both of them, one after the other, and two hand-offs. All of it runs on one core, so that neither
side pays for waking another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue, SimpleQueue
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch

from secformer.crypto.prg import Seed
from secformer.engine.computing import Computing, seeded_material
from secformer.engine.form import shared
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Shared, need
from secformer.roles import COMPUTING
from secformer.transport.memory import memory_pair

ALLOWED_HANDOFFS = 5.0
SMALL_SHAPE, SMALL_WIDTH = (1,), 20


@dataclass(frozen=True)
class SmallOpening:
    """Seconds of an opening of one element, of a hand-off through `queue.Queue`, and of one through `SimpleQueue`."""

    opening_seconds: float
    handoff_seconds: float
    simple_handoff_seconds: float

    @property
    def handoffs(self) -> float:
        """How many hand-offs an opening is worth."""
        return self.opening_seconds / self.handoff_seconds

    @property
    def simple_handoffs(self) -> float:
        return self.opening_seconds / self.simple_handoff_seconds


def measure_small_opening(batches: int = 25, batch: int = 200) -> SmallOpening:
    plan = trace(_openings(batch))
    with _on_one_core():
        return _measure(plan, batches, batch)


def _measure(plan: Plan, batches: int, batch: int) -> SmallOpening:
    kinds: list[Callable[[], float]] = [
        lambda: _opening_seconds(plan, batch),
        lambda: _handoff_seconds(Queue, batch),
        lambda: _handoff_seconds(SimpleQueue, batch),
    ]
    for kind in kinds:
        kind()  # imports, caches, the first thread
    samples = [[kind() for kind in kinds] for _ in range(batches)]
    return SmallOpening(*(quantiles(column, n=4)[0] for column in zip(*samples, strict=True)))


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Where the system lets a thread choose; threads started inside stay there too."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _openings(count: int) -> Program:
    def body(runtime: Runtime, values: Inputs) -> Outputs:
        for _ in range(count):
            runtime.open(need(values["x"], Shared))
        return {}

    return Program("openings", body, {"x": shared(SMALL_SHAPE, SMALL_WIDTH)})


def _opening_seconds(plan: Plan, count: int) -> float:
    session = os.urandom(16)
    channels, common = memory_pair(*COMPUTING, session), Seed.from_os()
    value = {"x": Shared(torch.zeros(SMALL_SHAPE, dtype=torch.int64), SMALL_WIDTH)}
    servers = []
    for party, channel in enumerate(channels):
        own = Seed.from_os()
        material = seeded_material(own, session, torch.device("cpu"))  # never asked for: nothing is dealt
        servers.append(Computing(party, plan, channel, own, common, material))
    return _together(lambda: servers[0].run(value), lambda: servers[1].run(value)) / count


def _handoff_seconds(kind: Callable[[], Any], count: int) -> float:
    """One way: half of there and back."""
    there, back = kind(), kind()

    def answer() -> None:
        for _ in range(count):
            there.get()
            back.put(None)

    def ask() -> None:
        for _ in range(count):
            there.put(None)
            back.get()

    return _together(answer, ask) / (2 * count)


def _together(first: Callable[[], Any], second: Callable[[], Any]) -> float:
    """Seconds until both are done, one of them in a second thread."""
    other = threading.Thread(target=first)
    other.start()
    start = perf_counter()
    second()
    other.join()
    return perf_counter() - start

"""All three servers in one process, as threads joined by in-memory channels: for tests, debugging and small runs.

The same steps as between machines: trace, agree on the tape, seeds from the OS, deal, compute.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.computing import Computing, ReceivedMaterial, SeededMaterial
from secformer.engine.dealing import Dealing
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.tape import SERVER_LINKS
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Bits, Shared, Value
from secformer.errors import TransportError
from secformer.ring.fixed_point import decode, encode, reduce
from secformer.transport.channel import Channel, Counters
from secformer.transport.memory import memory_pair

Wrap = Callable[[Channel], Channel]

DEALER_BUFFER = 256 << 20
"""Bytes of corrections that may wait for S1 before T is held back."""


@dataclass
class Run:
    """What came out at each party, what the servers' link counted, and the plan that was followed."""

    plan: Plan
    outputs: tuple[Outputs, Outputs]
    dealt: Outputs
    counters: tuple[Counters, Counters]
    dealer: Counters

    def value(self, name: str) -> Tensor:
        """The reconstructed result, as float64 (arithmetic) or integer words (Bits)."""
        zero, one = self.outputs[0][name], self.outputs[1][name]
        return reconstruct(zero, one)


def reconstruct(zero: Value, one: Value) -> Tensor:
    """Both shares together: only tests and the client may do this."""
    if isinstance(zero, Shared) and isinstance(one, Shared):
        return decode(zero.share + one.share, zero.scale, zero.width)
    if isinstance(zero, Bits) and isinstance(one, Bits):
        return reduce(zero.share ^ one.share, zero.width)
    raise TypeError(f"only shares can be reconstructed, not {type(zero).__name__}")


def share(real: Tensor, scale: int, width: int = 64) -> tuple[Shared, Shared]:
    """Encode and share a real tensor: one half is drawn from a fresh stream, the other is the rest."""
    return share_ring(encode(real, scale, width), width, scale)


def share_ring(ring: Tensor, width: int = 64, scale: int = 0) -> tuple[Shared, Shared]:
    half = _fresh(ring, width)
    return Shared(half, width, scale), Shared(reduce(ring - half, width), width, scale)


def share_bits(words: Tensor, width: int = 1) -> tuple[Bits, Bits]:
    half = _fresh(words, width)
    return Bits(half, width), Bits(reduce(words ^ half, width), width)


def _fresh(like: Tensor, width: int) -> Tensor:
    stream = Stream(Seed.from_os(), os.urandom(16), "local", "sharing", like.device)
    return stream.draw(0, tuple(like.shape), width)


@dataclass
class _Worker:
    """A thread that keeps its result or its error, and closes its channels when it fails so that nobody waits."""

    target: Callable[[], Outputs]
    channels: tuple[Channel, ...]
    result: Outputs = field(default_factory=dict)
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.target()
        except BaseException as error:
            self.error = error
            for channel in self.channels:
                channel.abort(error)
                channel.close()

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join()


def run_locally(
    program: Program,
    inputs: Mapping[str, tuple[Value, Value]],
    static: Mapping[str, Value] | None = None,
    *,
    plan: Plan | None = None,
    wrap: Wrap = lambda channel: channel,
    device: torch.device | str = "cpu",
) -> Run:
    """Run a program on real shares. `static` is T's view of wires dealt earlier; `wrap` may record or shape a link."""
    plan = plan or trace(program)
    session = os.urandom(16)
    seeds = (Seed.from_os(), Seed.from_os())
    device = torch.device(device)
    to_one, to_zero = memory_pair("server0", "server1", session)
    links = (wrap(to_one), wrap(to_zero))
    dealer_out, dealer_in = memory_pair("assistant", "server1", session, receive_buffer=DEALER_BUFFER)
    own: list[Inputs] = [{name: pair[party] for name, pair in inputs.items()} for party in (0, 1)]
    zero = _computing(0, plan, links[0], SeededMaterial(seeds[0], session, device), seeds[0], session, device)
    one = _computing(1, plan, links[1], ReceivedMaterial(dealer_in, device), seeds[1], session, device)
    dealing = dealer(plan, dealer_out, seeds, session, device)
    workers = [
        _Worker(lambda: zero.run(own[0]), (links[0],)),
        _Worker(lambda: one.run(own[1]), (links[1], dealer_in)),
        _Worker(lambda: dealing.run(static or {}), (dealer_out,)),
    ]
    _run_all(workers)
    return Run(
        plan,
        (workers[0].result, workers[1].result),
        workers[2].result,
        (links[0].counters, links[1].counters),
        dealer_out.counters,
    )


def _run_all(workers: list[_Worker]) -> None:
    """Run to the end and raise the first cause, not the closed channels that followed from it."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    errors = [worker.error for worker in workers if worker.error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, TransportError))


def _computing(party, plan, link, material, seed, session, device) -> Computing:
    masks = Stream(seed, session, SERVER_LINKS[party], "mask", device)
    return Computing(party, plan, link, masks, material, device)


def dealer(
    plan: Plan, channel: Channel, seeds: tuple[Seed, Seed], session: bytes, device: torch.device | str = "cpu"
) -> Dealing:
    masks = tuple(Stream(seeds[j], session, SERVER_LINKS[j], "mask", device) for j in (0, 1))
    pads = Stream(seeds[0], session, SERVER_LINKS[0], "pad", device)
    return Dealing(plan, channel, (masks[0], masks[1]), pads)

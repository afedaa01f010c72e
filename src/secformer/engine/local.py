"""A program at all three servers in one process, as threads joined by in-memory channels: for tests and benchmarks of
protocols. (Whole sessions with client and provider run in one process on a memory network, see transport/network.py.)

The same steps as between machines: trace, seeds from the OS, deal, compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from secformer.crypto.prg import Seed
from secformer.engine.computing import Computing, received_material, seeded_material
from secformer.engine.dealing import Dealing, Draws
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.sharing import Encoded, Sharing, reconstruct, share
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import form_of
from secformer.errors import TransportError
from secformer.roles import DEALER, SERVER0, SERVER1
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
        return reconstruct(self.outputs[0][name], self.outputs[1][name])


def run_locally(
    program: Program,
    inputs: Mapping[str, Encoded | Sharing],
    *,
    plan: Plan | None = None,
    wrap: Wrap = lambda channel: channel,
    device: torch.device | str = "cpu",
    ahead: bool = False,
) -> Run:
    """Run a program on real shares. `wrap` may record or shape a server's link. `ahead`: the servers first compute what their
    masks alone decide."""
    plan = plan or trace(program)
    session, device = os.urandom(16), torch.device(device)
    own, common = (Seed.from_os(), Seed.from_os()), Seed.from_os()
    sharings = {name: share(given) if isinstance(given, Encoded) else given for name, given in inputs.items()}
    views: list[Inputs] = [{name: sharing.pair[party] for name, sharing in sharings.items()} for party in (0, 1)]
    static = {name: sharing.dealt for name, sharing in sharings.items() if sharing.dealt is not None}
    to_one, to_zero = memory_pair(SERVER0, SERVER1, session)
    links = (wrap(to_one), wrap(to_zero))
    dealer_out, dealer_in = memory_pair(DEALER, SERVER1, session, receive_buffer=DEALER_BUFFER)
    materials = (seeded_material(own[0], session, device), received_material(dealer_in, device))
    servers = [Computing(j, plan, links[j], own[j], common, materials[j], device) for j in (0, 1)]
    dealing = Dealing(plan, dealer_out, Draws.of(own, session, device))
    if ahead:
        for server, view in zip(servers, views, strict=True):
            server.prepare({name: value for name, value in view.items() if form_of(value).is_wire})
    parts = [
        (lambda: servers[0].run(views[0]), (links[0],)),
        (lambda: servers[1].run(views[1]), (links[1], dealer_in)),
        (lambda: dealing.run(static), (dealer_out,)),
    ]
    with ThreadPoolExecutor(len(parts)) as pool:
        futures = [pool.submit(_guarded, action, channels) for action, channels in parts]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:  # the first cause, not the closed channels that followed from it
        raise min(errors, key=lambda error: isinstance(error, TransportError))
    zero, one, dealt = (future.result() for future in futures)
    return Run(plan, (zero, one), dealt, (links[0].counters, links[1].counters), dealer_out.counters)


def _guarded(action: Callable[[], Outputs], channels: tuple[Channel, ...]) -> Outputs:
    """Close the channels of a party that fails, so that nobody waits for it."""
    try:
        return action()
    except BaseException as error:
        for channel in channels:
            channel.abort(error)
            channel.close()
        raise

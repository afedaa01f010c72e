"""S0 and S1: hold one share of everything, and compute.

They differ in who calls whom. S0 takes the callers in their order, invites S1 and calls T; S1 follows. So sessions
have one order at all servers, and two callers at the same moment cannot make S0 and S1 wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from secformer.crypto.prg import Seed, Stream
from secformer.engine.computing import Computing, ReceivedMaterial, SeededMaterial, rerandomise
from secformer.engine.program import Inputs, Outputs
from secformer.engine.tape import SERVER_LINKS
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import FrameError, InputError
from secformer.parties import messages
from secformer.parties.catalogue import Catalogue, caller_forms, result_forms, used_wires
from secformer.parties.links import Links
from secformer.parties.messages import Invitation, Job, Ready, Report, Reports, Step
from secformer.parties.server import Server
from secformer.parties.session import (
    agree,
    facts_of,
    follow,
    gather,
    patience,
    reach,
    receive_seed,
    send_seed,
    since,
    wait_until_dealt,
)
from secformer.parties.sharing import largest_input, receive_inputs, send_outputs
from secformer.parties.store import StoredModel
from secformer.settings import Settings
from secformer.transport.channel import Channel

CALLERS = ("client", "provider")


class Seeds(NamedTuple):
    """`own` is shared with T; `common` with the other computing server, and unknown to T."""

    own: Seed
    common: Seed


class ComputingServer(Server):
    def __init__(self, party: int, settings: Settings, catalogue: Catalogue | None = None) -> None:
        self.party = party
        self.role, self.other = f"server{party}", f"server{1 - party}"
        self.callers = CALLERS if party == 0 else ("server0",)
        self.guests = () if party == 0 else CALLERS
        super().__init__(settings, catalogue)

    def _serve(self, links: Links, caller: Channel) -> str:
        client, job = self._begin(links, caller) if self.party == 0 else self._follow(links, caller)
        messages.send(links["assistant"], job)
        model = self._models.used_by(job)
        plan = self._plan(job, model, client.peer)
        peers = (self.other, "assistant")
        agree(links, peers, facts_of(self.settings, job, model, plan))
        seeds = self._seeds(links)
        client.allow(min(largest_input(caller_forms(plan)), self.settings.message_limit))
        messages.send(client, Ready(plan.tape.digest(), caller_forms(plan), result_forms(plan), plan.cost))
        inputs = receive_inputs(client, caller_forms(plan), self.party, self.device)
        if self.party == 0:
            wait_until_dealt(links, self.settings, plan)
        reach(links, (self.other,), "inputs")  # both begin together
        watcher = (lambda name: messages.send(client, Step(name))) if self.party == 0 else None
        outputs, report = self._compute(links, plan, seeds.own, {**inputs, **used_wires(plan, model.wires)}, watcher)
        self._answer(client, links.session, outputs, seeds.common)
        links.unwatch()
        dealer_report = messages.receive(links["assistant"], Reports)
        reach(links, peers, "done")
        if job.stores is not None:
            wires = {name: wire for name, wire in outputs.items() if isinstance(wire, Masked | MaskedBits)}
            self._models.put(job, links.session, wires)
        messages.send(client, Reports([report, *dealer_report.reports]))
        return f"{job.program} for {client.peer}"

    # Beginning

    def _begin(self, links: Links, client: Channel) -> tuple[Channel, Job]:
        """S0: take the job, then fetch the other servers."""
        with patience(client, self.settings.handshake_timeout):  # others wait behind a caller that says nothing
            job = messages.receive(client, Job)
        for role in ("server1", "assistant"):
            self.dial(links, role)
        gather(links, {"server1": client.peer, "assistant": "server1"})
        messages.send(client, Invitation(client.peer))
        return client, job

    def _follow(self, links: Links, leader: Channel) -> tuple[Channel, Job]:
        """S1: S0 has said who will come."""
        role = follow(leader)
        if role not in CALLERS:
            raise FrameError(f"record: an invitation for {role!r}")
        client = self.expect(links, role, self.settings.handshake_timeout)
        self.dial(links, "assistant")
        return client, messages.receive(client, Job)

    def _plan(self, job: Job, model: StoredModel, caller: str) -> Plan:
        plan = self._planner.plan(job, model.forms)
        stored = len(plan.outputs) > len(result_forms(plan))
        if stored != (job.stores is not None):
            raise InputError(
                f"{job.program} {'makes wires: name' if stored else 'makes no wires: do not name'} a model to store"
            )
        if stored and caller != "provider":
            raise InputError(f"a {caller} cannot store a model: the provider does that")
        return plan

    def _seeds(self, links: Links) -> Seeds:
        own = receive_seed(links["assistant"])
        if self.party == 1:
            return Seeds(own, receive_seed(links[self.other]))
        common = Seed.from_os()
        send_seed(links[self.other], common)
        return Seeds(own, common)

    # Computing

    def _compute(
        self, links: Links, plan: Plan, seed: Seed, inputs: Inputs, watcher: Callable[[str], None] | None
    ) -> tuple[Outputs, Report]:
        masks = Stream(seed, links.session, SERVER_LINKS[self.party], "mask", self.device)
        if self.party == 0:
            material = SeededMaterial(seed, links.session, self.device)
        else:
            material = ReceivedMaterial(links["assistant"], self.device)
        runtime = Computing(self.party, plan, links[self.other], masks, material, self.device)
        runtime.watcher = watcher
        counted = {role: links[role].counters for role in (self.other, "assistant")}
        before, started = {role: replace(counters) for role, counters in counted.items()}, perf_counter()
        outputs = runtime.run(inputs)
        seconds = perf_counter() - started
        if watcher is not None:
            watcher("")
        return outputs, Report(self.role, seconds, {role: since(before[role], counted[role]) for role in counted})

    def _answer(self, client: Channel, session: bytes, outputs: Outputs, common: Seed) -> None:
        """Only what the two shares add up to reaches the caller: they are made anew first."""
        zero = Stream(common, session, "server0-server1", "outputs", self.device)
        send_outputs(client, rerandomise(outputs, zero, self.party))

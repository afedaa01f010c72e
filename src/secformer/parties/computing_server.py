"""S0 and S1: hold one share of everything, and compute.

They differ in who calls whom. S0 takes the callers in their order, invites S1 and calls T; S1 follows. So sessions
have one order at all servers, and two callers at the same moment cannot make S0 and S1 wait for each other.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from secformer.crypto.prg import Seed
from secformer.engine.computing import Computing
from secformer.engine.program import Inputs, Outputs
from secformer.engine.recording import Recorded, Recordings, Session
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import FrameError, InputError
from secformer.parties import messages
from secformer.parties.inputs import largest_input, receive_inputs, send_outputs
from secformer.parties.links import Links
from secformer.parties.messages import Invitation, Job, Ready, Report, Reports, Step
from secformer.parties.planner import CATALOGUE, Catalogue, caller_forms, result_forms, used_wires
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
from secformer.parties.store import StoredModel
from secformer.roles import CALLERS, COMPUTING, DEALER, PROVIDER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Channel, Counters
from secformer.transport.network import Network


class Seeds(NamedTuple):
    """`own` is shared with T; `common` with the other computing server, and unknown to T."""

    own: Seed
    common: Seed


class ComputingServer(Server):
    def __init__(self, party: int, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> None:
        self.party = party
        self.role, self.other = COMPUTING[party], COMPUTING[1 - party]
        self.callers = CALLERS if party == 0 else (SERVER0,)
        self.guests = () if party == 0 else CALLERS
        super().__init__(network, settings, catalogue)
        self._recordings = Recordings(party, self.device)

    def _serve(self, links: Links, caller: Channel) -> str:
        client, job = self._begin(links, caller) if self.party == 0 else self._follow(links, caller)
        messages.send(links[DEALER], job)
        model = self._models.get(job.uses) if job.uses is not None else None
        plan = self._plan(job, model, client.peer)
        peers = (self.other, DEALER)
        agree(links, peers, facts_of(self.settings, job, model, plan))
        seeds = self._seeds(links)
        undealt = replace(links[DEALER].counters)  # a recorded run takes corrections from now on
        run = self._recordings.begin(plan, Session(links[self.other], links[DEALER], seeds.own, seeds.common))
        client.allow(min(largest_input(caller_forms(plan)), self.settings.message_limit))
        messages.send(client, Ready(plan.tape.digest(), caller_forms(plan), result_forms(plan), plan.cost))
        inputs = receive_inputs(client, caller_forms(plan), self.party, self.device)
        if self.party == 0:
            wait_until_dealt(links, self.settings, plan)
        reach(links, (self.other,), "inputs")  # both begin together
        if self.party == 0:
            undealt = replace(links[DEALER].counters)
            run.watcher = lambda name: messages.send(client, Step(name))
        outputs, report = self._compute(links, run, {**inputs, **used_wires(plan, model)}, undealt)
        send_outputs(client, outputs)
        links.unwatch()
        dealer_report = messages.receive(links[DEALER], Reports)
        reach(links, peers, "done")
        if job.stores is not None:
            wires = {name: wire for name, wire in outputs.items() if isinstance(wire, Masked | MaskedBits)}
            self._models.put(job.stores, links.session, wires, str(job.parameters.get("card", "")))
        messages.send(client, Reports([report, *dealer_report.reports]))
        return f"{job.program} for {client.peer}"

    # Beginning

    def _begin(self, links: Links, client: Channel) -> tuple[Channel, Job]:
        """S0: take the job, then fetch the other servers."""
        with patience(client, self.settings.handshake_timeout):  # others wait behind a caller that says nothing
            job = messages.receive(client, Job)
        for role in (SERVER1, DEALER):
            self.dial(links, role)
        gather(links, {SERVER1: client.peer, DEALER: SERVER1})
        messages.send(client, Invitation(client.peer))
        return client, job

    def _follow(self, links: Links, leader: Channel) -> tuple[Channel, Job]:
        """S1: S0 has said who will come."""
        role = follow(leader)
        if role not in CALLERS:
            raise FrameError(f"record: an invitation for {role!r}")
        client = self.expect(links, role, self.settings.handshake_timeout)
        self.dial(links, DEALER)
        return client, messages.receive(client, Job)

    def _plan(self, job: Job, model: StoredModel | None, caller: str) -> Plan:
        plan = self._planner.plan(job, model)
        stored = len(plan.outputs) > len(result_forms(plan))
        if stored != (job.stores is not None):
            raise InputError(
                f"{job.program} {'makes wires: name' if stored else 'makes no wires: do not name'} a model to store"
            )
        if stored and caller != PROVIDER:
            raise InputError(f"a {caller} cannot store a model: the provider does that")
        return plan

    def _seeds(self, links: Links) -> Seeds:
        own = receive_seed(links[DEALER])
        if self.party == 1:
            return Seeds(own, receive_seed(links[self.other]))
        common = Seed.from_os()
        send_seed(links[self.other], common)
        return Seeds(own, common)

    # Computing

    def _compute(
        self, links: Links, run: Computing | Recorded, inputs: Inputs, undealt: Counters
    ) -> tuple[Outputs, Report]:
        """The run and its time; `undealt` is what T's link had counted when its corrections began."""
        before, started = replace(links[self.other].counters), perf_counter()
        outputs = run.run(inputs)
        seconds = perf_counter() - started
        if run.watcher is not None:
            run.watcher("")
        counted = {
            self.other: since(before, links[self.other].counters),
            DEALER: since(undealt, links[DEALER].counters),
        }
        return outputs, Report(self.role, seconds, counted)

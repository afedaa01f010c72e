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
from secformer.errors import FrameError, IdentityError, InputError
from secformer.parties import inquiries, messages
from secformer.parties.disk import check_space
from secformer.parties.inputs import largest_input, receive_files, receive_inputs, send_outputs
from secformer.parties.links import Links
from secformer.parties.messages import Invitation, Job, Ready, Report, Reports, Request, Step
from secformer.parties.planner import CATALOGUE, Catalogue, caller_forms, result_forms, stored_bytes, used_wires
from secformer.parties.server import Arrival, Server
from secformer.parties.session import (
    Visit,
    agree,
    facts_of,
    follow,
    gather,
    reach,
    receive_seed,
    send_seed,
    since,
    wait_until_dealt,
    within,
)
from secformer.parties.store import StoredModel
from secformer.roles import CALLERS, COMPUTING, DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Channel, Counters
from secformer.transport.network import Network

CALLER_RATE = 256 << 10
"""Bytes a second that a caller's line must manage, on top of the time that every caller has."""


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

    def _serve(self, links: Links, arrival: Arrival) -> str:
        client, visit = self._begin(links, arrival) if self.party == 0 else self._follow(links, arrival.channel)
        self._recordings.keep(self._models.holds)
        if visit.job.program in inquiries.INQUIRIES:
            done = inquiries.answer(self._models, links, client, visit, (self.other, DEALER))
            self._recordings.keep(self._models.holds)
            return done
        messages.send(links[DEALER], Request(visit.job, visit.caller, visit.principal, visit.version))
        model = self._model(visit, self._admit(visit))
        plan = self._plan(visit, model)
        agree(links, (self.other, DEALER), facts_of(self.settings, self.limits, visit, model, plan.tape.digest()))
        self._run(links, client, visit, plan, model)
        return f"{visit.job.program} on {model.reference}" if model else visit.job.program

    def _run(self, links: Links, client: Channel, visit: Visit, plan: Plan, model: StoredModel | None) -> None:
        """Everybody agrees: seeds, inputs, the program, and what comes of it."""
        wires, seeds = used_wires(plan, model), self._seeds(links)
        inputs = self._inputs(client, visit, plan, model)
        peers = (self.other, DEALER)
        reach(links, peers, "inputs")  # both begin together, and T deals for nobody who has not brought anything
        undealt = replace(links[DEALER].counters)  # a recorded run takes corrections from now on
        run = self._recordings.begin(plan, wires, Session(links[self.other], links[DEALER], seeds.own, seeds.common))
        if self.party == 0:
            wait_until_dealt(links, self.settings, plan)
            undealt = replace(links[DEALER].counters)
            run.watcher = lambda name: messages.send(client, Step(name))
        outputs, report = self._compute(links, run, {**inputs, **wires}, undealt)
        send_outputs(client, outputs)
        links.unwatch()
        dealer_report = messages.receive(links[DEALER], Reports)
        self._keep(links, peers, visit, (seeds.own,), plan, outputs)
        if model is not None:
            self._models.prune(model.name, model.origin.hex())
        messages.send(client, Reports([report, *dealer_report.reports]))

    # Beginning

    def _first_word(self, channel: Channel) -> Job | None:
        """At S0 a caller says what it wants before its turn comes, and hears at once if it may not have it."""
        if self.party == 1:
            return None
        with within(channel, self.settings.handshake_timeout):
            job = messages.receive(channel, Job)
        self._meter.begin(channel.principal)
        self._admit_any(Visit(job, channel.peer, channel.principal))
        return job

    def _admit_any(self, visit: Visit) -> str | None:
        """The version of the model that is used, if the caller may have what it wants."""
        if visit.job.program in inquiries.INQUIRIES:
            inquiries.check(self._models, visit)
            return None
        kept = self._admit(visit)
        return kept.note.upload if kept else None

    def _begin(self, links: Links, arrival: Arrival) -> tuple[Channel, Visit]:
        """S0: fetch the other servers, and the caller to S1."""
        client, job = arrival.channel, arrival.word
        visit = self._for(links, Visit(job, client.peer, client.principal))
        visit = visit._replace(version=self._admit_any(visit))
        guests = {SERVER1: Invitation(visit.caller, visit.principal, visit.version)}
        self.dial(links, SERVER1)
        if inquiries.needs_dealer(job):
            self.dial(links, DEALER)
            guests[DEALER] = Invitation(SERVER1, links[SERVER1].principal)
        gather(links, guests)
        messages.send(client, guests[SERVER1])
        return client, visit

    def _follow(self, links: Links, leader: Channel) -> tuple[Channel, Visit]:
        """S1: S0 has said who will come, with which certificate."""
        guest = follow(leader)
        if guest.caller not in CALLERS:
            raise FrameError(f"record: an invitation for {guest.caller!r}")
        client = self.expect(links, guest.caller, self.settings.handshake_timeout)
        if client.principal != guest.principal:
            raise IdentityError(f"the {guest.caller} shows server1 another certificate than server0: use one")
        with within(client, self.settings.handshake_timeout):
            job = messages.receive(client, Job)
        visit = self._for(links, Visit(job, guest.caller, guest.principal, guest.version))
        self._admit_any(visit)
        if inquiries.needs_dealer(job):
            self.dial(links, DEALER)
        return client, visit

    def _plan(self, visit: Visit, model: StoredModel | None) -> Plan:
        job = visit.job
        plan = self._planner.plan(job, model)
        stored = len(plan.outputs) > len(result_forms(plan))
        if stored != (job.stores is not None):
            raise InputError(
                f"{job.program} {'makes wires: name' if stored else 'makes no wires: do not name'} a model to store"
            )
        if self.party == 0:
            self._meter.move(visit.principal, plan.cost.online_bytes + plan.cost.dealer_bytes)
        if job.stores is not None:
            check_space(self.settings.data_folder, self._planner.space(job, stored_bytes(plan)))
        return plan

    def _inputs(self, client: Channel, visit: Visit, plan: Plan, model: StoredModel | None) -> Inputs:
        """Ask the caller for its share of everything, and get it within a time that follows from its size."""
        forms, placing = caller_forms(plan), visit.job.stores
        files = placing.files if placing else []
        largest = max([largest_input(forms), *(note.size for note in files)])
        size = sum(form.packed_bytes for form in forms.values()) + sum(note.size for note in files)
        client.allow(min(largest, self.settings.message_limit))
        named = model.reference if model else ""
        messages.send(client, Ready(plan.tape.digest(), forms, result_forms(plan), plan.cost, named))
        with within(client, self.settings.caller_timeout + size / CALLER_RATE):
            inputs = receive_inputs(client, forms, self.party, self.device)
            if placing is not None and files:
                self._models.begin(placing, visit.principal)
                receive_files(client, files, lambda note, content: self._models.stage_file(placing, note, content))
        return inputs

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

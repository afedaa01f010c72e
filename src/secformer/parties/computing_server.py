"""S0 and S1: hold one share of everything, and compute.

They differ in who calls whom. S0 takes the callers in their turn, fetches S1, then T; S1 follows. A session takes its lanes in
this one order, S0's, S1's, T's, so that no two sessions can wait for each other, however many lanes each server has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, Self

from secformer.crypto.prg import Seed
from secformer.engine.computing import Computing, Corrections, received_corrections
from secformer.engine.program import Inputs, Outputs
from secformer.engine.replaying import Recordings, Run
from secformer.engine.session import Session
from secformer.engine.tracing import Plan
from secformer.errors import FrameError, IdentityError, InputError, StoreError
from secformer.parties import inquiries, messages
from secformer.parties.disk import check_space
from secformer.parties.inputs import largest_input, receive_files, receive_inputs, send_outputs
from secformer.parties.links import Links
from secformer.parties.messages import Invitation, Job, Reached, Ready, Report, Reports, Request, Step
from secformer.parties.planner import CATALOGUE, Catalogue, caller_forms, result_forms, stored_bytes, used_wires
from secformer.parties.restocking import STOCK, as_errand, errand_of, parse_wishes, purpose_of
from secformer.parties.server import Arrival, Server
from secformer.parties.session import (
    Visit,
    agree,
    by_operation,
    facts_of,
    follow,
    reach,
    receive_seed,
    send_seed,
    since,
    wait_until_dealt,
    within,
)
from secformer.parties.stock import ItemNote
from secformer.parties.store import StoredModel
from secformer.parties.storekeeper import Callers, Errand, Storekeeper
from secformer.parties.watching import SessionNote
from secformer.roles import CALLERS, COMPUTING, DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Channel, Counters
from secformer.transport.network import Network

_log = logging.getLogger(__name__)

CALLER_RATE = 256 << 10
"""Bytes a second that a caller's line must manage, on top of the time that every caller has."""


class Seeds(NamedTuple):
    """`own` is shared with T; `common` with the other computing server, and unknown to T."""

    own: Seed
    common: Seed


class Dealt(NamedTuple):
    """This server's part of what T dealt ahead of the session: an item of the stock."""

    item: ItemNote
    corrections: Corrections | None = None
    """At S1. S0's halves follow from the item's seed."""
    finish: Callable[[], None] = lambda: None
    """Raises if it was not what T dealt."""


class ComputingServer(Server):
    def __init__(self, party: int, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> None:
        self.party = party
        self.role, self.other = COMPUTING[party], COMPUTING[1 - party]
        self.callers = CALLERS if party == 0 else (SERVER0,)
        self.guests = () if party == 0 else CALLERS
        super().__init__(network, settings, catalogue)
        self._recordings = Recordings(party, self.device)
        wishes = parse_wishes(settings.stock) if party == 0 else []
        self.storekeeper = Storekeeper(wishes, self.stock, self._models, self.restock, self._here)

    def _here(self) -> Callers:
        return Callers(self.running, self.waiting)

    def start(self) -> Self:
        super().start()
        if self.party == 0:
            self.storekeeper.start()
            self._threads.append(self.storekeeper.thread)
        return self

    def stop(self) -> None:
        self.storekeeper.stop()
        super().stop()

    def _serve(self, links: Links, arrival: Arrival, note: SessionNote) -> str:
        begin = self._begin if self.party == 0 else self._follow
        client, visit = begin(links, arrival, note)
        self._recordings.keep(self._models.holds)
        if client is None:
            return self._restocking.run(links, visit)
        if visit.job.program in inquiries.INQUIRIES:
            note.phase("answer")
            done = inquiries.answer(self._models, links, client, visit, (self.other, DEALER))
            self._recordings.keep(self._models.holds)
            return done
        messages.send(links[DEALER], Request(visit.job, visit.caller, visit.principal, visit.version))
        note.phase("plan")
        model = self._model(note, self._admit(visit))
        plan = self._plan(visit, model)
        held = self._hold(links, visit, model, plan)
        note.phase("agree")
        item = held.item.id if held else ""
        facts = facts_of(self.settings, self.limits, visit, model, plan.tape.digest(), item)
        note.stocked = item if agree(links, (self.other, DEALER), facts) else ""
        if visit.item and not note.stocked and self.party == 0:
            self.stock.compared = False  # one of the three lacks it: they have to compare
        links.afterwards.callback(self.storekeeper.look)
        self._run(links, client, visit, plan, model, note, held if note.stocked else None)
        return f"{visit.job.program} on {model.reference}" if model else visit.job.program

    def _run(
        self,
        links: Links,
        client: Channel,
        visit: Visit,
        plan: Plan,
        model: StoredModel | None,
        note: SessionNote,
        held: Dealt | None,
    ) -> None:
        """Everybody agrees: seeds, inputs, the program, and what comes of it."""
        wires, seeds = used_wires(plan, model), self._seeds(links, held)
        note.phase("inputs")
        inputs = self._inputs(client, visit, plan, model)
        peers = (self.other, DEALER)
        reach(links, peers, "inputs")  # both begin together, and T deals for nobody who has not brought anything
        undealt = replace(links[DEALER].counters)  # a recorded run takes corrections from now on
        run = self._recordings.begin(plan, wires, self._session(links, seeds, held))
        links.afterwards.callback(self._recordings.end, run)
        if self.settings.deal_first and held is None and isinstance(run, Computing):
            run.prepare(wires)
        wait_until_dealt(links, self.settings, plan, self.party)
        if self.party == 0:
            undealt = replace(links[DEALER].counters)
            run.watcher = lambda name: messages.send(client, Step(name))
        note.phase("compute")
        outputs, report = self._compute(links, run, plan, {**inputs, **wires}, undealt, held)
        note.phase("finish")
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

    def _begin(self, links: Links, arrival: Arrival, note: SessionNote) -> tuple[Channel | None, Visit]:
        """S0: fetch the other servers, and the caller to S1."""
        client, job = arrival.channel, arrival.word
        self._in_order(links, job)
        visit = self._for(note, Visit(job, client.peer, client.principal))
        visit = visit._replace(version=self._admit_any(visit))
        self._fetch(links, SERVER1)
        if inquiries.needs_dealer(job):
            self._fetch(links, DEALER)
            visit = visit._replace(item=self._take(links, visit))
        self._invite(links, visit)
        messages.send(client, Invitation(visit.caller, visit.principal, visit.version))
        return client, visit

    def _take(self, links: Links, visit: Visit) -> str:
        """An item of the stock for this session, if there is one. It is burned from now on."""
        if visit.version is None or visit.job.stores is not None:
            return ""
        try:
            item = self.stock.take(purpose_of(visit.job, visit.version))
        except StoreError as error:  # what cannot be burned is not used; the session goes on without
            _log.error("server0: an item of the stock cannot be burned: %s", error)
            return ""
        links.afterwards.callback(self.stock.give_up, item)
        return item

    def _invite(self, links: Links, visit: Visit) -> None:
        """Tell the others who will call them, and for what."""
        messages.send(links[SERVER1], Invitation(visit.caller, visit.principal, visit.version, visit.item))
        if inquiries.needs_dealer(visit.job):
            messages.send(links[DEALER], Invitation(SERVER1, links[SERVER1].principal, item=visit.item))

    def _fetch(self, links: Links, role: str) -> None:
        """Wait until another server has a lane for this session; until then the caller is not sent on."""
        messages.receive(self.dial(links, role), Reached)

    def restock(self, errand: Errand) -> None:
        """S0: a session of the servers alone, in which T deals ahead of demand, or the three only compare what they have."""
        network = self._network
        links = Links(network.new_session(network.trio), network.trusts, self.settings.session_timeout)
        visit = Visit(as_errand(errand.job), SERVER0, STOCK, errand.version)
        note = SessionNote(self.role, links.session.hex(), SERVER0, STOCK)
        with self._under_way(links):
            reason = self._account(links, note, lambda: self._lead(links, visit, note))
        if reason is not None:
            raise reason

    def _lead(self, links: Links, visit: Visit, note: SessionNote) -> str:
        note.phase("gather")
        self._for(note, visit)
        self._fetch(links, SERVER1)
        self._fetch(links, DEALER)
        self._invite(links, visit)
        messages.send(links[SERVER1], visit.job)
        messages.send(links[DEALER], Request(visit.job, visit.caller, visit.principal, visit.version))
        note.phase("compute")
        return self._restocking.run(links, visit)

    def _follow(self, links: Links, arrival: Arrival, note: SessionNote) -> tuple[Channel | None, Visit]:
        """S1: S0 has said who will come, with which certificate."""
        guest = follow(arrival.channel)
        if guest.caller == SERVER0:  # nobody: S0 fills the stock
            visit = self._for(note, errand_of(links, guest.version))
            messages.send(self.dial(links, DEALER), Request(visit.job, visit.caller, visit.principal, visit.version))
            note.phase("compute")
            return None, visit
        if guest.caller not in CALLERS:
            raise FrameError(f"record: an invitation for {guest.caller!r}")
        client = self.expect(links, guest.caller, self.settings.handshake_timeout)
        if client.principal != guest.principal:
            raise IdentityError(f"the {guest.caller} shows server1 another certificate than server0: use one")
        with within(client, self.settings.handshake_timeout):
            job = messages.receive(client, Job)
        self._in_order(links, job)
        visit = self._for(note, Visit(job, guest.caller, guest.principal, guest.version, guest.item))
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

    def _hold(self, links: Links, visit: Visit, model: StoredModel | None, plan: Plan) -> Dealt | None:
        """This server's part of an item of the stock; None where there is none, or it cannot be read."""
        note = self._claim(links, visit, model, plan)
        if note is None:
            return None
        if self.party == 0:
            return Dealt(note)
        try:
            corrections = self.stock.material(note)
        except StoreError as error:
            _log.warning("server1: an item of the stock is lost: %s", error)
            return None
        links.afterwards.callback(corrections.close)
        return Dealt(note, corrections, corrections.finish)

    def _seeds(self, links: Links, held: Dealt | None) -> Seeds:
        own = held.item.own_seed() if held else receive_seed(links[DEALER])
        if self.party == 1:
            return Seeds(own, receive_seed(links[self.other]))
        common = Seed.from_os()
        send_seed(links[self.other], common)
        return Seeds(own, common)

    # Computing

    def _session(self, links: Links, seeds: Seeds, held: Dealt | None) -> Session:
        """With what T dealt ahead, or deals in this very session."""
        ahead = self.settings.material_on_device
        if held is not None:
            return Session(links[self.other], *seeds, held.corrections, held.item.streams, ahead)
        corrections = None if self.party == 0 else received_corrections(links[DEALER])
        return Session(links[self.other], *seeds, corrections, ahead=ahead)

    def _compute(
        self, links: Links, run: Run, plan: Plan, inputs: Inputs, undealt: Counters, held: Dealt | None
    ) -> tuple[Outputs, Report]:
        """The run and its time; `undealt` is what T's link had counted when its corrections began."""
        times = links[self.other].round_times = []
        before, started = replace(links[self.other].counters), perf_counter()
        outputs = run.run(inputs)
        if held is not None:
            held.finish()
        seconds = perf_counter() - started
        if run.watcher is not None:
            run.watcher("")
        counted = {
            self.other: since(before, links[self.other].counters),
            DEALER: since(undealt, links[DEALER].counters),
        }
        spent = by_operation(plan.tape, [started, *(ended for _, ended in times)], started + seconds)
        exchanging = sum(ended - begun for begun, ended in times)
        return outputs, Report(self.role, seconds, counted, spent, exchanging)

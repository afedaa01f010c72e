"""T: reads the program on masks and deals, for both servers and with neither's data.

It keeps the seeds of stored models, draws their masks from them when a model is used, and holds the two seeds of the session
under way. It deals only when both servers have the caller's inputs: whoever brings nothing makes nobody work.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from secformer.crypto.prg import Seed
from secformer.engine.program import Outputs
from secformer.engine.redealing import Dealings
from secformer.engine.tracing import Plan
from secformer.errors import AgreementError, FrameError, IdentityError
from secformer.parties import inquiries, messages
from secformer.parties.disk import check_space
from secformer.parties.links import Links
from secformer.parties.messages import Reached, Report, Reports, Request
from secformer.parties.planner import CATALOGUE, Catalogue, used_wires
from secformer.parties.restocking import STOCK
from secformer.parties.server import Arrival, Server
from secformer.parties.session import DIAL_TIMEOUT, Visit, agree, facts_of, follow, reach, send_seed, since
from secformer.parties.store import StoredModel
from secformer.parties.watching import SessionNote
from secformer.roles import CALLERS, COMPUTING, DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Counters
from secformer.transport.network import Network


class DealingServer(Server):
    role = DEALER
    callers = (SERVER0,)
    guests = (SERVER1,)

    def __init__(self, network: Network, settings: Settings, catalogue: Catalogue = CATALOGUE) -> None:
        super().__init__(network, settings, catalogue)
        self._dealings = Dealings(self.device)
        self._restocking = replace(self._restocking, dealings=self._dealings)

    def _serve(self, links: Links, arrival: Arrival, note: SessionNote) -> str:
        visit = self._visit(links, arrival, note)
        self._dealings.keep(self._models.holds)
        if visit.caller == SERVER0:
            note.phase("compute")
            return self._restocking.run(links, visit)
        if visit.job.program in inquiries.INQUIRIES:
            note.phase("answer")
            done = inquiries.answer(self._models, links, None, visit, COMPUTING)
            self._dealings.keep(self._models.holds)
            return done
        note.phase("plan")
        model = self._model(note, self._admit(visit))
        plan = self._planner.plan(visit.job, model)
        if visit.job.stores is not None:
            check_space(self.settings.data_folder, 0)
        held = self._claim(links, visit, model, plan)
        note.phase("agree")
        item = held.id if held else ""
        facts = facts_of(self.settings, self.limits, visit, model, plan.tape.digest(), item)
        note.stocked = item if agree(links, COMPUTING, facts) else ""
        seeds = (Seed.from_os(), Seed.from_os())
        deal = self._wait if note.stocked else self._deal
        outputs, report = deal(links, plan, model, seeds, note)
        note.phase("finish")
        if self.settings.deal_first:
            links[SERVER1].flush()  # what still waits here would be counted as the servers' time
            messages.send(links[SERVER0], Reached("dealt"))
        links.unwatch()
        for role in COMPUTING:
            messages.send(links[role], Reports([report]))
        self._keep(links, COMPUTING, visit, seeds, plan, outputs)
        if model is not None:
            self._models.prune(model.name, model.origin.hex())
        return f"dealt {report.links[SERVER1].payload_sent} bytes of {visit.job.program}"

    def _visit(self, links: Links, arrival: Arrival, note: SessionNote) -> Visit:
        """Who asks for what, as S0 and S1 say it, each by itself."""
        guest = follow(arrival.channel)
        if guest.caller != SERVER1:
            raise FrameError("record: an invitation for somebody other than server1")
        # S1 calls when it has the caller, for whom it has as much patience, and its job.
        other = self.expect(links, SERVER1, 2 * self.settings.handshake_timeout + DIAL_TIMEOUT)
        if other.principal != guest.principal:
            raise IdentityError("server1 shows the dealer another certificate than server0: use one")
        zero, one = (messages.receive(links[role], Request) for role in COMPUTING)
        if zero.job != one.job:
            raise AgreementError("server0 and server1 were given different jobs: the caller must send both the same")
        callers = (SERVER0,) if zero.job.program == STOCK else CALLERS
        if zero != one or zero.caller not in callers:
            raise AgreementError("server0 and server1 were called by different parties, or chose different versions")
        self._in_order(links, zero.job)
        visit = self._for(note, Visit(zero.job, zero.caller, zero.principal, zero.version, guest.item))
        if visit.job.program in inquiries.INQUIRIES:
            inquiries.check(self._models, visit)
        return visit

    def _wait(
        self, links: Links, plan: Plan, model: StoredModel | None, seeds: tuple[Seed, Seed], note: SessionNote
    ) -> tuple[Outputs, Report]:
        """All was dealt ahead: the seeds of this session stay here, unused."""
        note.phase("inputs")
        reach(links, COMPUTING, "inputs")
        note.phase("compute")
        return {}, Report(self.role, 0.0, {SERVER1: Counters()})

    def _deal(
        self, links: Links, plan: Plan, model: StoredModel | None, seeds: tuple[Seed, Seed], note: SessionNote
    ) -> tuple[Outputs, Report]:
        """Fresh seeds, then corrections to S1 as fast as its link takes them."""
        static = used_wires(plan, model)
        for role, seed in zip(COMPUTING, seeds, strict=True):
            send_seed(links[role], seed)
        note.phase("inputs")
        reach(links, COMPUTING, "inputs")
        note.phase("compute")
        channel = links[SERVER1]
        before, started = replace(channel.counters), perf_counter()
        outputs = self._dealings.deal(plan, static, channel, seeds)
        seconds = perf_counter() - started
        return outputs, Report(self.role, seconds, {SERVER1: since(before, channel.counters)})

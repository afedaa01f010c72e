"""T: reads the program on masks and deals, for both servers and with neither's data.

It keeps the seeds of stored models, draws their masks from them when a model is used, and holds the two seeds of the session
under way. It deals only when both servers have the caller's inputs: whoever brings nothing makes nobody work.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from secformer.crypto.prg import Seed
from secformer.engine.dealing import Dealing
from secformer.engine.program import Outputs
from secformer.engine.tracing import Plan
from secformer.errors import AgreementError, FrameError, IdentityError
from secformer.parties import inquiries, messages
from secformer.parties.disk import check_space
from secformer.parties.links import Links
from secformer.parties.messages import Reached, Report, Reports, Request
from secformer.parties.planner import used_wires
from secformer.parties.server import Arrival, Server
from secformer.parties.session import DIAL_TIMEOUT, Visit, agree, facts_of, follow, reach, send_seed, since
from secformer.parties.store import StoredModel
from secformer.roles import CALLERS, COMPUTING, DEALER, SERVER0, SERVER1


class DealingServer(Server):
    role = DEALER
    callers = (SERVER0,)
    guests = (SERVER1,)

    def _serve(self, links: Links, arrival: Arrival) -> str:
        visit = self._visit(links, arrival)
        if visit.job.program in inquiries.INQUIRIES:
            return inquiries.answer(self._models, links, None, visit, COMPUTING)
        model = self._model(visit, self._admit(visit))
        plan = self._planner.plan(visit.job, model)
        if visit.job.stores is not None:
            check_space(self.settings.data_folder, 0)
        agree(links, COMPUTING, facts_of(self.settings, self.limits, visit, model, plan.tape.digest()))
        seeds = (Seed.from_os(), Seed.from_os())
        outputs, report = self._deal(links, plan, model, seeds)
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

    def _visit(self, links: Links, arrival: Arrival) -> Visit:
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
        if zero != one or zero.caller not in CALLERS:
            raise AgreementError("server0 and server1 were called by different parties, or chose different versions")
        visit = self._for(links, Visit(zero.job, zero.caller, zero.principal, zero.version))
        if visit.job.program in inquiries.INQUIRIES:
            inquiries.check(self._models, visit)
        return visit

    def _deal(
        self, links: Links, plan: Plan, model: StoredModel | None, seeds: tuple[Seed, Seed]
    ) -> tuple[Outputs, Report]:
        """Fresh seeds, then corrections to S1 as fast as its link takes them."""
        static = used_wires(plan, model)
        for role, seed in zip(COMPUTING, seeds, strict=True):
            send_seed(links[role], seed)
        reach(links, COMPUTING, "inputs")
        channel = links[SERVER1]
        before, started = replace(channel.counters), perf_counter()
        outputs = Dealing(plan, channel, seeds, self.device).run(static)
        seconds = perf_counter() - started
        return outputs, Report(self.role, seconds, {SERVER1: since(before, channel.counters)})

"""T: reads the program on masks and deals, for both servers and with neither's data.

It holds the masks of stored models in memory, and the two seeds of the session under way.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from secformer.crypto.prg import Seed
from secformer.engine.dealing import Dealing
from secformer.engine.program import Outputs
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import AgreementError, FrameError
from secformer.parties import messages
from secformer.parties.links import Links
from secformer.parties.messages import Job, Reached, Report, Reports
from secformer.parties.planner import used_wires
from secformer.parties.server import Server
from secformer.parties.session import DIAL_TIMEOUT, agree, facts_of, follow, patience, reach, send_seed, since
from secformer.parties.store import StoredModel
from secformer.roles import COMPUTING, DEALER, SERVER0, SERVER1
from secformer.transport.channel import Channel


class DealingServer(Server):
    role = DEALER
    callers = (SERVER0,)
    guests = (SERVER1,)

    def _serve(self, links: Links, caller: Channel) -> str:
        if follow(caller) != SERVER1:
            raise FrameError("record: an invitation for somebody other than server1")
        # S1 calls when it has the caller, for whom it has as much patience.
        self.expect(links, SERVER1, self.settings.handshake_timeout + DIAL_TIMEOUT)
        job = self._job(links)
        model = self._models.get(job.uses) if job.uses is not None else None
        plan = self._planner.plan(job, model)
        agree(links, COMPUTING, facts_of(self.settings, job, model, plan))
        outputs, report = self._deal(links, plan, model)
        if self.settings.deal_first:
            links[SERVER1].flush()  # what still waits here would be counted as the servers' time
            messages.send(links[SERVER0], Reached("dealt"))
        links.unwatch()
        for role in COMPUTING:
            messages.send(links[role], Reports([report]))
        reach(links, COMPUTING, "done")
        if job.stores is not None:
            wires = {name: wire for name, wire in outputs.items() if isinstance(wire, Masked | MaskedBits)}
            self._models.put(job.stores, links.session, wires, str(job.parameters.get("card", "")))
        return f"dealt for {job.program}, {report.links[SERVER1].payload_sent} bytes"

    def _job(self, links: Links) -> Job:
        jobs = []
        for role in COMPUTING:
            with patience(links[role]):  # S1 waits for the caller first
                jobs.append(messages.receive(links[role], Job))
        if jobs[0] != jobs[1]:
            raise AgreementError("server0 and server1 were given different jobs: the caller must send both the same")
        return jobs[0]

    def _deal(self, links: Links, plan: Plan, model: StoredModel | None) -> tuple[Outputs, Report]:
        """Fresh seeds, then corrections to S1 as fast as its link takes them."""
        seeds = (Seed.from_os(), Seed.from_os())
        for role, seed in zip(COMPUTING, seeds, strict=True):
            send_seed(links[role], seed)
        channel = links[SERVER1]
        before, started = replace(channel.counters), perf_counter()
        outputs = Dealing(plan, channel, seeds, self.device).run(used_wires(plan, model))
        seconds = perf_counter() - started
        return outputs, Report(self.role, seconds, {SERVER1: since(before, channel.counters)})

"""T: reads the program on masks and deals, for both servers and with neither's data.

It holds the masks of stored models in memory, and the two seeds of the session under way.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from secformer.crypto.prg import Seed
from secformer.engine.local import dealer
from secformer.engine.program import Outputs
from secformer.engine.tracing import Plan
from secformer.engine.values import Masked, MaskedBits
from secformer.errors import AgreementError, FrameError
from secformer.parties import messages
from secformer.parties.catalogue import used_wires
from secformer.parties.links import Links
from secformer.parties.messages import Job, Reached, Report, Reports
from secformer.parties.server import DIAL_TIMEOUT, Server
from secformer.parties.session import agree, facts_of, follow, patience, reach, send_seed, since
from secformer.parties.store import StoredModel
from secformer.transport.channel import Channel

SERVERS = ("server0", "server1")


class AssistantServer(Server):
    role = "assistant"
    callers = ("server0",)
    guests = ("server1",)

    def _serve(self, links: Links, caller: Channel) -> str:
        if follow(caller) != "server1":
            raise FrameError("record: an invitation for somebody other than server1")
        # S1 calls when it has the caller, for whom it has as much patience.
        self.expect(links, "server1", self.settings.handshake_timeout + DIAL_TIMEOUT)
        job = self._job(links)
        model = self._models.used_by(job)
        plan = self._planner.plan(job, model.forms)
        agree(links, SERVERS, facts_of(self.settings, job, model, plan))
        outputs, report = self._deal(links, plan, model)
        if self.settings.deal_first:
            messages.send(links["server0"], Reached("dealt"))
        links.unwatch()
        for role in SERVERS:
            messages.send(links[role], Reports([report]))
        reach(links, SERVERS, "done")
        wires = {name: wire for name, wire in outputs.items() if isinstance(wire, Masked | MaskedBits)}
        if job.stores is not None:
            self._models.put(job, links.session, wires)
        return f"dealt for {job.program}, {report.links['server1'].payload_sent} bytes"

    def _job(self, links: Links) -> Job:
        jobs = []
        for role in SERVERS:
            with patience(links[role]):  # S1 waits for the caller first
                jobs.append(messages.receive(links[role], Job))
        if jobs[0] != jobs[1]:
            raise AgreementError("server0 and server1 were given different jobs: the caller must send both the same")
        return jobs[0]

    def _deal(self, links: Links, plan: Plan, model: StoredModel) -> tuple[Outputs, Report]:
        """Fresh seeds, then corrections to S1 as fast as its link takes them."""
        seeds = (Seed.from_os(), Seed.from_os())
        for role, seed in zip(SERVERS, seeds, strict=True):
            send_seed(links[role], seed)
        channel = links["server1"]
        before, started = replace(channel.counters), perf_counter()
        outputs = dealer(plan, channel, seeds, links.session, self.device).run(used_wires(plan, model.wires))
        seconds = perf_counter() - started
        return outputs, Report(self.role, seconds, {"server1": since(before, channel.counters)})

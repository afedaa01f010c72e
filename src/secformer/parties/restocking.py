"""How stock is compared and refilled: a session among the servers alone, which S0 begins.

    S0                       S1                          T
    fetches S1, then T; says what to deal
    ------------- each pair compares epoch and items: what not all three have is given up -------------
    plans                    plans                       plans
    ------------- each pair compares version, settings, job, model and tape, as for a query -----------
    seed from T              seed from T                 two fresh seeds, and a name for the item
                             corrections, to the disk    deals, under streams named by the item
    ------------- each pair says that it has staged the item; then that it has committed it -----------

Which shapes, and how many of each, S0's operator names in the setting `stock`: "sentiment 1x32 4, sentiment 8x32 2" keeps four
items for one text of 32 tokens, padded, and two for eight such texts, of the newest version of that model. S1's operator bounds
what lies on its disk.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch

from secformer.crypto.prg import Seed
from secformer.deployment import Limits
from secformer.engine.redealing import Dealings
from secformer.engine.tape import Dealt
from secformer.engine.tracing import Plan
from secformer.errors import FrameError, InputError, SettingsError
from secformer.parties import messages
from secformer.parties.disk import check_space
from secformer.parties.links import Links
from secformer.parties.messages import Inventory, ItemName, Job
from secformer.parties.planner import Planner, query_job, result_forms, used_wires
from secformer.parties.session import Visit, agree, facts_of, reach, receive_seed, send_seed
from secformer.parties.stock import ItemNote, Purpose, Stock, stream_name
from secformer.parties.store import ModelStore, StoredModel
from secformer.roles import COMPUTING, DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import FrameType
from secformer.version import PROTOCOL_VERSION

STOCK = "stock"
"""The name of such a session among programs."""

_WISH = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\s+(\d{1,5})x(\d{1,5})\s+(\d{1,4})")


class Wish(NamedTuple):
    """So many items for texts of this padded length, so many at once."""

    model: str
    batch: int
    tokens: int
    count: int


def parse_wishes(text: str) -> list[Wish]:
    """The setting `stock`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _WISH.fullmatch(part)
        if match is None:
            raise SettingsError(f"setting stock: {part!r} is not like `sentiment 1x32 4`: model, texts x tokens, items")
        found.append(Wish(match[1], *map(int, match.groups()[1:])))
    return found


def purpose_of(job: Job, upload: str) -> Purpose:
    return Purpose(upload, Job(job.program, job.parameters).digest())


def wished_job(wish: Wish, card: str) -> Job:
    """A query as its callers bring it."""
    return query_job(card, wish.model, wish.batch, wish.tokens)


def as_errand(job: Job | None) -> Job:
    """What S0 tells the others: deal for this job ahead of time, or only compare."""
    return Job(STOCK, {"program": job.program, "parameters": dict(job.parameters)}, job.uses) if job else Job(STOCK)


def _wanted(errand: Job) -> Job | None:
    if errand.uses is None:
        return None
    program, parameters = errand.parameters.get("program"), errand.parameters.get("parameters")
    if not isinstance(program, str) or not isinstance(parameters, dict) or errand.stores is not None:
        raise FrameError("record: an errand that names no program")
    return Job(program, parameters, uses=errand.uses)


@dataclass(frozen=True)
class Restocking:
    """One server's part in such sessions."""

    role: str
    stock: Stock
    models: ModelStore
    planner: Planner
    settings: Settings
    limits: Limits
    dealings: Dealings | None = None
    """At T."""

    def run(self, links: Links, visit: Visit) -> str:
        """From the comparison to the end; gives what was done, for the log."""
        peers = [role for role in (*COMPUTING, DEALER) if role != self.role]
        job = _wanted(visit.job)
        self._compare(links, peers, last=job is None)
        if job is None or job.uses is None:
            return "compared the stock"
        kept = self.models.find(job.uses, visit.version)
        model = self.models.get(kept.note.name, kept.note.upload)
        plan = self.planner.plan(job, model)
        if len(plan.outputs) > len(result_forms(plan)):
            raise InputError(f"{job.program} makes wires: nothing is dealt for it ahead of time")
        agree(links, peers, facts_of(self.settings, self.limits, visit, model, plan.tape.digest()))
        note = self._take_in(links, job, model, plan)
        self.stock.stage(note)
        reach(links, peers, "staged")
        self.stock.commit(note.id)
        links.unwatch()  # a peer may be done, and hang up, before its word is read
        reach(links, peers, "stocked")
        return f"stocked {plan.cost.dealer_bytes} bytes for {job.program} on {model.reference}"

    def _compare(self, links: Links, peers: list[str], last: bool) -> None:
        own = Inventory(self.stock.epoch, self.stock.inventory())
        for peer in peers:
            messages.send(links[peer], own)
        theirs = [messages.receive(links[peer], Inventory) for peer in peers]
        common = set(own.items).intersection(*(other.items for other in theirs))
        try:
            self.stock.compare(self.role, [other.epoch for other in theirs], common)
            if last:
                links.unwatch()
            reach(links, peers, "compared")  # one that was rolled back says so instead
        except BaseException:
            self.stock.compared = False
            raise
        self.stock.compared = True

    def _take_in(self, links: Links, job: Job, model: StoredModel, plan: Plan) -> ItemNote:
        """T deals, S1 writes down, S0 has a seed for its halves."""
        upload, epoch = model.origin.hex(), self.stock.epoch + 1
        purpose, tape = purpose_of(job, upload), plan.tape.digest()
        if self.role == DEALER:
            return ItemNote(self._deal(links, model, plan), *purpose, tape, PROTOCOL_VERSION, epoch)
        if self.role == SERVER1:
            self.stock.check_room(plan.cost.dealer_bytes)
            check_space(self.settings.data_folder, plan.cost.dealer_bytes)
        reach(links, (DEALER,), "room")
        item = messages.receive(links[DEALER], ItemName).id
        seed = receive_seed(links[DEALER]).bytes.hex()
        size, sha256 = self._spool(links, item, plan) if self.role == SERVER1 else (0, "")
        return ItemNote(item, *purpose, tape, PROTOCOL_VERSION, epoch, seed, size, sha256)

    def _deal(self, links: Links, model: StoredModel, plan: Plan) -> str:
        assert self.dealings is not None
        item, seeds = os.urandom(16).hex(), (Seed.from_os(), Seed.from_os())
        reach(links, COMPUTING, "room")
        for role, seed in zip(COMPUTING, seeds, strict=True):
            messages.send(links[role], ItemName(item))
            send_seed(links[role], seed)
        self.dealings.deal(plan, used_wires(plan, model), links[SERVER1], seeds, stream_name(item))
        return item

    def _spool(self, links: Links, item: str, plan: Plan) -> tuple[int, str]:
        channel = links[DEALER]

        def receive(entry: Dealt) -> torch.Tensor:
            return channel.receive(FrameType.MATERIAL, shape=entry.form.shape, width=entry.form.width)

        return self.stock.receive(item, plan.tape, receive)


def errand_of(links: Links, version: str | None) -> Visit:
    """S1: what S0 wants of this session, in which no caller takes part."""
    return Visit(messages.receive(links[SERVER0], Job), SERVER0, STOCK, version)

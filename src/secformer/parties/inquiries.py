"""What is asked of the servers beside programs: which models there are, one model's card and files, who may use it, its end.

    models      S0 and S1 tell the caller which models it may use
    describe    S0 and S1 tell it a model's card and the digests of its files, and send the files it wants
    share       all three servers change who owns and who may use a model
    remove      all three servers forget a model, or one version of it

The caller asks both computing servers and compares: one server alone cannot make it use another card, tokenizer or label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from secformer.errors import InputError
from secformer.parties import messages
from secformer.parties.access import check_ownership, check_readers, check_use, may_use, owns
from secformer.parties.links import Links
from secformer.parties.messages import READERS_LIMIT, FileNote, Job, Reached, Reader, Request
from secformer.parties.session import Visit, reach
from secformer.parties.store import AccessNote, Kept, ModelStore
from secformer.roles import DEALER
from secformer.transport.channel import Channel, FrameType

LIST, DESCRIBE, SHARE, REMOVE = "models", "describe", "share", "remove"
CHANGES = (SHARE, REMOVE)
INQUIRIES = (LIST, DESCRIBE, *CHANGES)
LISTED_LIMIT = 2000
"""Models in one answer."""


class ShareParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """What changes; `*` among the readers is every client."""

    allow: Annotated[list[Reader], Meta(max_length=READERS_LIMIT)] = []
    deny: Annotated[list[Reader], Meta(max_length=READERS_LIMIT)] = []
    own: Annotated[list[Reader], Meta(max_length=64)] = []
    disown: Annotated[list[Reader], Meta(max_length=64)] = []


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Listed(Struct, frozen=True, forbid_unknown_fields=True):
    """One model in one version, as a caller may know it."""

    name: str
    upload: str
    owners: list[str]
    readers: list[str]
    """For owners; others see none."""
    weights: int
    """Numbers in all its tensors."""


class Listing(Struct, frozen=True, forbid_unknown_fields=True):
    models: list[Listed]


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    upload: str
    owners: list[str]
    card: str
    files: list[FileNote]


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The caller to a server: send these files."""

    files: Annotated[list[messages.FileName], Meta(max_length=16)]


_PARAMETERS: dict[str, type[Struct]] = {LIST: Nothing, DESCRIBE: Nothing, SHARE: ShareParameters, REMOVE: Nothing}
Kind = TypeVar("Kind", bound=Struct)


def needs_dealer(job: Job) -> bool:
    return job.program not in (LIST, DESCRIBE)


def check(store: ModelStore, visit: Visit) -> None:
    """Whether this caller may ask this; at every server, before anything is done."""
    job = visit.job
    given = _parameters(job, _PARAMETERS[job.program])
    if job.stores is not None or (job.uses is None) != (job.program == LIST):
        raise InputError(f"{job.program} {'names no model' if job.program == LIST else 'names one model'}")
    if job.uses is None:
        return
    kept = store.find(job.uses)
    if job.program == DESCRIBE:
        check_use(kept, visit.caller, visit.principal)
        return
    check_ownership(kept, visit.principal)
    if isinstance(given, ShareParameters):
        check_readers([*given.allow, *given.own])
        if not _changed(kept, given).owners:
            raise InputError("a model keeps at least one owner: name the next before the last one goes")


def answer(store: ModelStore, links: Links, client: Channel | None, visit: Visit, peers: Sequence[str]) -> str:
    """S0's, S1's and T's part, once `check` has passed; gives what was done, for the log."""
    job = visit.job
    if client is not None and needs_dealer(job):
        messages.send(links[DEALER], Request(job, visit.caller, visit.principal, visit.version))
    if job.program == LIST:
        assert client is not None
        links.unwatch()
        messages.send(client, Listing(_listed(store, visit)))
    elif job.program == DESCRIBE:
        assert client is not None and job.uses is not None
        _describe(store, client, store.find(job.uses), links)
    else:
        assert job.uses is not None
        reach(links, peers, "agreed")
        links.unwatch()
        _change(store, store.find(job.uses), job)
        reach(links, peers, "done")
    if client is not None:
        messages.send(client, Reached("done"))
    return f"{job.program} {job.uses or ''}".strip()


def _listed(store: ModelStore, visit: Visit) -> list[Listed]:
    found = [kept for kept in store.all() if may_use(kept, visit.caller, visit.principal)]
    return [_as_listed(kept, visit.principal) for kept in found[:LISTED_LIMIT]]


def _as_listed(kept: Kept, principal: str) -> Listed:
    readers = kept.access.readers if owns(kept, principal) else []
    weights = sum(form.elements for form in kept.note.forms.values())
    return Listed(kept.note.name, kept.note.upload, kept.access.owners, readers, weights)


def _describe(store: ModelStore, client: Channel, kept: Kept, links: Links) -> None:
    note = kept.note
    messages.send(client, Description(note.name, note.upload, kept.access.owners, note.card, note.files))
    wanted = messages.receive(client, Wanted).files
    links.unwatch()
    for name in wanted:
        client.send(FrameType.OUTPUT, store.file(kept, name))


def _change(store: ModelStore, kept: Kept, job: Job) -> None:
    if job.program == REMOVE:
        one = job.uses is not None and "@" in job.uses
        store.remove(kept.note.name, kept.note.upload if one else None)
    else:
        store.share(kept.note.name, _changed(kept, _parameters(job, ShareParameters)))


def _changed(kept: Kept, given: ShareParameters) -> AccessNote:
    owners = [one for one in dict.fromkeys([*kept.access.owners, *given.own]) if one not in given.disown]
    readers = [one for one in dict.fromkeys([*kept.access.readers, *given.allow]) if one not in given.deny]
    return AccessNote(owners, readers)


def _parameters(job: Job, kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(dict(job.parameters), kind, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"parameters: {messages.complaint(error)}") from None

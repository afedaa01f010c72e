"""What parties tell each other besides tensors: small records in msgpack, checked on arrival.

Every record has declared fields and types; an unknown field, a wrong type or a record beyond CONTROL_LIMIT ends the
session. Nothing that arrives is executed: a job names a program that every party has and builds itself.
None of these records is secret, and T may see them all.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from secformer.engine.form import Form
from secformer.engine.ledger import Cost
from secformer.errors import FrameError, InputError
from secformer.transport.channel import Channel, Counters, FrameType, printable
from secformer.transport.frame import CONTROL_LIMIT

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._:/ -]+\Z")]
ModelName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
ModelReference = Annotated[str, Meta(max_length=97, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(@[0-9a-f]{8,32})?\Z")]
"""A name, or name@version: the first digits of the upload that made it."""
Upload = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Item = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]
"""An item of the stock, or none."""
Principal = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9:_-]+\Z")]
Reader = Annotated[str, Meta(max_length=64, pattern=r"^(\*|[A-Za-z0-9:_-]+)\Z")]
"""A principal that may use a model, or * for every client."""
FileName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]

ANYBODY = "*"
READERS_LIMIT = 4096
FILES_LIMIT = 64 << 20
"""Bytes of all files that go with a model: a tokenizer's, for the clients."""


class FileNote(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that is handed out with a model."""

    name: FileName
    size: Annotated[int, Meta(ge=0, le=FILES_LIMIT)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Placing(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the wires of a program are kept. A large model comes in several sessions, which share an upload."""

    name: ModelName
    upload: Upload
    """Names this upload among all; the model's version."""
    readers: Annotated[list[Reader], Meta(max_length=READERS_LIMIT)] = []
    """Who may use the model, beside its owner."""
    finish: bool = True
    """Whether this is the last session of the upload."""
    files: Annotated[list[FileNote], Meta(max_length=16)] = []
    """What the caller sends to S0 and S1 behind the inputs, to be handed out."""


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be computed. Public: all servers see it."""

    program: Name
    """A name in the servers' catalogue."""
    parameters: dict[str, Any] = {}
    """What the program is built with; anything JSON can say."""
    uses: ModelReference | None = None
    """The stored model whose wires are inputs of the program."""
    stores: Placing | None = None
    """Where the program's wires are kept as a model; for the provider alone."""

    def digest(self) -> str:
        return hashlib.sha256(_encode(self)).hexdigest()


class Invitation(Struct, frozen=True, forbid_unknown_fields=True):
    """S0 to S1 and T: a session begins, and the party in this role, with this certificate, will call you. S0 to the caller:
    call S1 now."""

    caller: Name
    principal: Principal
    version: Upload | None = None
    """The upload of the model that is used, where the job leaves the choice to S0."""
    item: Item = ""
    """What S0 has taken from the stock for this session."""


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """S0 and S1 to T: what is to be computed, and for whom. T compares the two."""

    job: Job
    caller: Name
    principal: Principal
    version: Upload | None = None


class Facts(Struct, frozen=True, forbid_unknown_fields=True):
    """What two servers must agree on, item by item, so that a difference can be named."""

    entries: dict[str, str]
    item: Item = ""
    """What this server has of the stock for this session, and has burned."""


class Inventory(Struct, frozen=True, forbid_unknown_fields=True):
    """A server to another: the epoch of its stock, and the items in it."""

    epoch: Annotated[int, Meta(ge=0, lt=1 << 60)]
    items: Annotated[list[Upload], Meta(max_length=1 << 13)]


class ItemName(Struct, frozen=True, forbid_unknown_fields=True):
    """T to S0 and S1: what the next item of the stock is called."""

    id: Upload


class Ready(Struct, frozen=True, forbid_unknown_fields=True):
    """A server to the caller: the servers agree; these inputs are expected, these outputs will come, at this cost."""

    tape: str
    inputs: dict[str, Form]
    outputs: dict[str, Form]
    cost: Cost
    model: str = ""
    """name@version of the model that answers."""


class Encodings(Struct, frozen=True, forbid_unknown_fields=True):
    """The caller to a server: how each input is written (see inputs.py)."""

    by_name: dict[str, str]


class Reached(Struct, frozen=True, forbid_unknown_fields=True):
    """A server to another: I have come this far."""

    point: str


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """S0 to the caller: this part of the program begins now; an empty name, that it is done. Public, as all timing is."""

    name: str


class Report(Struct, frozen=True, forbid_unknown_fields=True):
    """What a server measured while the program ran, by link, named after the party at the other end."""

    role: str
    seconds: float
    links: dict[str, Counters]
    operations: dict[str, float] = {}
    """Seconds by operation, of a server that computes: a round and the work before it are charged where it is opened."""
    exchanging: float = 0.0
    """Seconds of all these between handing over an opening and having the other server's: bytes, the line, waiting for it."""


class Reports(Struct, frozen=True, forbid_unknown_fields=True):
    reports: list[Report]


Record = TypeVar("Record", bound=Struct)


def send(channel: Channel, record: Struct) -> None:
    data = _encode(record)
    if len(data) > CONTROL_LIMIT:
        raise InputError(f"a {type(record).__name__} of {len(data)} bytes exceeds the limit of {CONTROL_LIMIT}")
    channel.send(FrameType.CONTROL, data)


def receive(channel: Channel, kind: type[Record]) -> Record:
    """The peer's next record, which must be of this kind."""
    data = channel.receive(FrameType.CONTROL, limit=CONTROL_LIMIT)
    try:
        return msgspec.msgpack.decode(data.numpy().data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = complaint(error) if isinstance(error, msgspec.ValidationError) else "not msgpack"
        raise FrameError(f"record: {channel.peer} sent a malformed {kind.__name__} ({reason})") from None


def complaint(error: msgspec.ValidationError) -> str:
    """What is wrong with a record, fit for a log: it may quote the name of a field that came from outside."""
    return printable(str(error)[:200])


def _encode(record: Struct) -> bytes:
    """The same bytes on every machine: keys are sorted."""
    try:
        return msgspec.msgpack.encode(record, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"a {type(record).__name__} holds what cannot be sent: {error}") from None

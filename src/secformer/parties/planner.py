"""From a job to a plan: every party builds the program itself, by name, and traces it.

Servers offer two programs: the upload of a model, from its card, and a query to a stored model, from the card it was
uploaded with. Nothing that arrives is executed, and everything that a job can make large is bounded before it is built.

A builder turns a job's parameters and the stored model it uses into a program; benchmarks and tests bring builders of
their own. A program must never return what its caller may not have: whoever runs it gets every result it discloses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from secformer.deployment import Limits
from secformer.engine.form import Form
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Bits, Shared
from secformer.errors import InputError, LimitError, SecFormerError
from secformer.models.config import ModelConfig
from secformer.models.query import check_query
from secformer.parties.messages import Job, complaint
from secformer.parties.store import StoredModel, Wires, card_digest
from secformer.systems import card_from_json

UPLOAD, QUERY = "upload", "query"

PLANS_KEPT = 8
PIECE_BYTES = 16 << 20
"""Packed bytes that one session of an upload carries at the most (a single row may be more)."""

Builder = Callable[[Mapping[str, Any], StoredModel | None], Program]
Catalogue = Mapping[str, Builder]
Size = Annotated[int, Meta(ge=1, le=1 << 16)]
Parameters = TypeVar("Parameters", bound=Struct)


class Piece(NamedTuple):
    """Rows `start` to `stop` of a tensor."""

    tensor: str
    start: Annotated[int, Meta(ge=0)]
    stop: Annotated[int, Meta(ge=1)]


class UploadParameters(Struct, frozen=True, forbid_unknown_fields=True):
    card: Annotated[str, Meta(max_length=1 << 20)]
    pieces: Annotated[list[Piece], Meta(min_length=1, max_length=1 << 14)] | None = None
    """What this session brings of the model; without, all of it."""


class QueryParameters(Struct, frozen=True, forbid_unknown_fields=True):
    card: Annotated[str, Meta(min_length=64, max_length=64)]
    """SHA-256 of the card the caller goes by."""
    batch: Size
    tokens: Size
    asked: Size = 1
    """Tokens of each text that a language model is asked for."""


def query_job(card: str, model: str, batch: int, tokens: int, asked: int = 1) -> Job:
    """The one way to say it: stock is found by the digest of what is said."""
    parameters = {"card": card_digest(card), "batch": batch, "tokens": tokens, "asked": asked}
    return Job(QUERY, parameters, uses=model)


def read_parameters(kind: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    """The parameters as the program declares them, or InputError naming the field."""
    try:
        return msgspec.convert(dict(given), kind, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"parameters: {complaint(error)}") from None


def upload(given: Mapping[str, Any], model: StoredModel | None) -> Program:
    """Open the provider's tensors, or pieces of them, once; their wires are the model."""
    wanted = read_parameters(UploadParameters, given)
    forms = {name: form.as_share() for name, form in card_from_json(wanted.card).static_forms().items()}
    if wanted.pieces is not None:
        forms = {piece_name(piece, forms): _rows(piece, forms) for piece in wanted.pieces}
    return upload_program(forms)


def piece_name(piece: Piece, forms: Mapping[str, Form]) -> str:
    """What a piece is called among a program's inputs: a whole tensor by its own name."""
    whole = piece.tensor in forms and (piece.start, piece.stop) == (0, forms[piece.tensor].shape[0])
    return piece.tensor if whole else f"{piece.tensor}#{piece.start}"


def _rows(piece: Piece, forms: Mapping[str, Form]) -> Form:
    form = forms.get(piece.tensor)
    if form is None or not 0 <= piece.start < piece.stop <= form.shape[0]:
        raise InputError(f"the model has no rows {piece.start} to {piece.stop} of {piece.tensor!r}")
    return form._replace(shape=(piece.stop - piece.start, *form.shape[1:]))


def pieces_of(forms: Mapping[str, Form], limit: int = PIECE_BYTES) -> list[list[Piece]]:
    """A model cut for its upload, a list a session."""
    sessions: list[list[Piece]] = [[]]
    used = 0
    for name in sorted(forms):
        rows, row = forms[name].shape[0], max(1, forms[name].packed_bytes // forms[name].shape[0])
        start = 0
        while start < rows:
            room = (limit - used) // row
            if room < 1 and sessions[-1]:
                sessions.append([])
                used, room = 0, limit // row
            stop = min(rows, start + max(room, 1))
            sessions[-1].append(Piece(name, start, stop))
            used, start = used + (stop - start) * row, stop
    return sessions


def upload_program(forms: Mapping[str, Form]) -> Program:
    """One round, whatever the number of tensors."""

    def body(runtime: Runtime, inputs: Inputs) -> Outputs:
        names = sorted(inputs)
        shares = [value for name in names if isinstance(value := inputs[name], Shared | Bits)]
        with runtime.scope("upload"):
            return dict(zip(names, runtime.open(*shares), strict=True))

    return Program("upload", body, forms)


def query(given: Mapping[str, Any], model: StoredModel | None) -> Program:
    """A query to a stored model, by the card it was uploaded with."""
    wanted = read_parameters(QueryParameters, given)
    if model is None:
        raise InputError("a query names the model it is for")
    if wanted.card != model.digest:
        raise InputError("the stored model has another card than this query goes by: get its card anew")
    return card_from_json(model.card).query_program(wanted.batch, wanted.tokens, wanted.asked)


CATALOGUE: Catalogue = {UPLOAD: upload, QUERY: query}


def check_model(config: ModelConfig, limits: Limits) -> None:
    layer = 4 * config.hidden * config.hidden + 2 * config.hidden * config.intermediate
    parameters = config.layers * layer + (config.vocabulary + config.positions) * config.hidden
    if config.layers > limits.model_layers or parameters > limits.model_weights:
        raise LimitError(f"a model of {config.layers} layers and {parameters} weights is larger than servers take")


def check_shape(config: ModelConfig, batch: int, tokens: int, asked: int, limits: Limits) -> None:
    check_query(config, batch, tokens, asked)
    if batch * tokens > limits.job_tokens or batch * tokens * tokens * config.heads > limits.job_scores:
        raise LimitError(f"{batch} texts of {tokens} tokens are too many for one query: send several")


class Planner:
    """Builds and traces, and keeps the last plans: queries of one shape share one."""

    def __init__(
        self, catalogue: Catalogue, limits: Limits | None = None, suites: tuple[str, ...] | None = None
    ) -> None:
        self._catalogue, self._limits, self._suites = catalogue, limits or Limits(), suites
        self._plans: OrderedDict[tuple[str, bytes], Plan] = OrderedDict()
        self._lock, self._building = Lock(), Lock()

    def knows(self, program: str) -> bool:
        return program in self._catalogue

    def check(self, job: Job, card: str) -> None:
        """Refuse what is too large, from a few numbers, and suites that this server does not accept.

        `card` is the card of the model that is used.
        """
        if self._catalogue.get(job.program) is upload:
            given = read_parameters(UploadParameters, job.parameters).card
            check_model(card_from_json(given, self._suites).config, self._limits)
        elif self._catalogue.get(job.program) is query and card:
            wanted = read_parameters(QueryParameters, job.parameters)
            check_shape(
                card_from_json(card, self._suites).config, wanted.batch, wanted.tokens, wanted.asked, self._limits
            )

    def stored_forms(self, job: Job) -> dict[str, Form] | None:
        """What a model must consist of in the end, where its card says so."""
        if self._catalogue.get(job.program) is not upload:
            return None
        return card_from_json(read_parameters(UploadParameters, job.parameters).card).static_forms()

    def space(self, job: Job, packed: int) -> int:
        """Bytes that the whole upload will take on a server's disk."""
        forms = self.stored_forms(job)
        return packed if forms is None else sum(form.packed_bytes for form in forms.values())

    def plan(self, job: Job, model: StoredModel | None) -> Plan:
        key = Job(job.program, job.parameters).digest(), model.origin if model else b""
        if (plan := self._known(key)) is not None:
            return plan
        with self._building:  # one at a time: lanes that want the same plan get the same
            return self._known(key) or self._keep(key, self._build(job, model))

    def _known(self, key: tuple[str, bytes]) -> Plan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
            return self._plans.get(key)

    def _keep(self, key: tuple[str, bytes], plan: Plan) -> Plan:
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        return plan

    def _build(self, job: Job, model: StoredModel | None) -> Plan:
        builder = self._catalogue.get(job.program)
        if builder is None:
            raise InputError(f"unknown program {job.program!r}: known are {', '.join(sorted(self._catalogue))}")
        try:
            self.check(job, model.card if model else "")
            program = builder(job.parameters, model)
            _check_stored(program, model)
            return trace(program)
        except SecFormerError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # Public parameters that pass their own checks and still make no program, such as shapes that do not fit.
            raise InputError(f"{job.program} cannot be built from these parameters ({type(error).__name__})") from error


def _check_stored(program: Program, model: StoredModel | None) -> None:
    """A program may only speak of wires there are: otherwise its size would be the caller's invention."""
    stored = model.forms if model else {}
    static = {name: form for name, form in program.inputs.items() if form.is_wire}
    if any(stored.get(name) != form for name, form in static.items()):
        raise InputError(f"the stored model is not the one this {program.name} is for: name another, or upload it anew")


def used_wires(plan: Plan, model: StoredModel | None) -> Wires:
    """The stored wires that are inputs of the program."""
    return {name: model.wires[name] for name, form in plan.program.inputs.items() if form.is_wire} if model else {}


def caller_forms(plan: Plan) -> dict[str, Form]:
    """The inputs the caller brings; the others are wires of a stored model."""
    return {name: form for name, form in plan.program.inputs.items() if not form.is_wire}


def stored_bytes(plan: Plan) -> int:
    """Packed size of the wires that are stored."""
    return sum(form.packed_bytes for form in plan.outputs.values() if form.is_wire)


def result_forms(plan: Plan) -> dict[str, Form]:
    """The outputs the caller gets; the others are wires that are stored."""
    return {name: form for name, form in plan.outputs.items() if not form.is_wire}

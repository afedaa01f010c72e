"""Whoever begins a session: brings a job, splits the inputs, gives one share to each server, adds up what comes back.

    caller = Caller(network, settings)
    result = caller.run(Job("query", {...}, uses="model"), inputs)
    result.outputs["result"], result.rounds, result.online_bytes

A client and a provider do the same; they differ in their certificate, and in that only a provider may store a model.
Shares are sent when both servers have said that the three servers agree, and what they agree on is the same.

A caller never waits for a server that is silent: every party says each second that it is there, and one that does not for
`receive_timeout` seconds is given up, as is a session that takes longer than `session_timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import sample
from time import perf_counter
from typing import TypeVar

from torch import Tensor

from secformer.engine.ledger import Cost
from secformer.engine.sharing import reconstruct
from secformer.errors import AgreementError, BusyError, ConnectionLostError, InputError, PeerTimeoutError
from secformer.parties import messages
from secformer.parties.inputs import CallerInput, check_given, receive_outputs, send_encodings, send_part, split
from secformer.parties.links import Links
from secformer.parties.messages import Invitation, Job, Reached, Ready, Report, Reports, Step
from secformer.parties.session import DIAL_TIMEOUT
from secformer.roles import COMPUTING, DEALER, SERVER0, SERVER1
from secformer.settings import Settings
from secformer.transport.channel import Channel, ChannelOptions, Counters, FrameType
from secformer.transport.network import Network

_ELSEWHERE = (BusyError, ConnectionLostError, PeerTimeoutError)
"""What another trio may do better."""

Progress = Callable[[str], None]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Result:
    """What came out, and what it cost: declared by the plan, and counted by every party at its sockets."""

    outputs: dict[str, Tensor] = field(repr=False)
    declared: Cost
    reports: dict[str, Report] = field(repr=False)
    """By role: what S0, S1 and T measured."""
    sent: int
    """Bytes this caller sent, headers included."""
    received: int
    seconds: float
    """From the first call to the last answer."""
    model: str = ""
    """name@version of the model that answered."""

    @property
    def rounds(self) -> int:
        return self.reports[SERVER0].links[SERVER1].rounds

    @property
    def online_bytes(self) -> int:
        """Sent and received by S0 while the program ran: the packed openings."""
        counted = self.reports[SERVER0].links[SERVER1]
        return counted.payload_sent + counted.payload_received

    @property
    def dealer_bytes(self) -> int:
        """What T sent to S1."""
        return self.reports[DEALER].links[SERVER1].payload_sent

    @property
    def online_seconds(self) -> float:
        return max(self.reports[role].seconds for role in COMPUTING)

    @property
    def dealer_seconds(self) -> float:
        return self.reports[DEALER].seconds

    @property
    def operation_seconds(self) -> dict[str, float]:
        """S0's time by operation."""
        return self.reports[SERVER0].operations

    @property
    def exchange_seconds(self) -> float:
        """Of S0's time, what it spent on exchanges with S1, waiting for it included."""
        return self.reports[SERVER0].exchanging

    def to_dict(self) -> dict[str, int | float]:
        """As every party counted it; for JSON."""
        return {
            "rounds": self.rounds,
            "online_bytes": self.online_bytes,
            "dealer_bytes": self.dealer_bytes,
            "client_bytes": self.sent + self.received,
            "seconds": self.online_seconds,
            "dealer_seconds": self.dealer_seconds,
        }


def added(results: Sequence[Result]) -> Result | None:
    """What several sessions of one model cost, one after the other; their outputs are left out."""
    if len(results) < 2:
        return results[0] if results else None
    declared = sum((result.declared for result in results), Cost())
    reports = {role: _added_reports([result.reports[role] for result in results]) for role in results[0].reports}
    sent, received = sum(result.sent for result in results), sum(result.received for result in results)
    return Result({}, declared, reports, sent, received, sum(result.seconds for result in results), results[0].model)


def _added_reports(reports: Sequence[Report]) -> Report:
    links = {}
    for peer in reports[0].links:
        counted = [report.links[peer] for report in reports]
        links[peer] = Counters(*(sum(getattr(one, each.name) for one in counted) for each in fields(Counters)))
    operations: dict[str, float] = {}
    for name, seconds in (item for report in reports for item in report.operations.items()):
        operations[name] = operations.get(name, 0.0) + seconds
    seconds, exchanging = (sum(getattr(report, name) for report in reports) for name in ("seconds", "exchanging"))
    return Report(reports[0].role, seconds, links, operations, exchanging)


class Caller:
    """`run` begins a new session for every job; nothing is kept between them."""

    def __init__(self, network: Network, settings: Settings) -> None:
        self.settings = settings
        self._network = network

    def run(
        self,
        job: Job,
        inputs: Mapping[str, CallerInput],
        progress: Progress = lambda step: None,
        files: Sequence[bytes] = (),
        trio: int | None = None,
    ) -> Result:
        """`progress` hears of every part of the program (a layer, say) as the servers begin it; `files` are those that the
        job says go with a model; `trio` is the one to go to, where it matters."""
        check_given(inputs)
        started = perf_counter()
        links, ready = self._somewhere(trio, lambda links: self._begin(links, job))
        try:
            self._share(links, inputs, ready)
            for content in files:
                for role in COMPUTING:
                    links[role].send(FrameType.INPUT, content)
            while step := messages.receive(links[SERVER0], Step).name:
                progress(step)
            links.unwatch()  # a server may be done, and hang up, before its answers are read
            zero, one = (receive_outputs(links[role], ready.outputs) for role in COMPUTING)
            outputs = {name: reconstruct(zero[name], one[name]) for name in ready.outputs}
            reports = self._reports(links)
        except BaseException as error:
            reason = links.fail(error, _told(error))
            raise reason from (None if reason is error else error)
        links.close()
        sent = sum(channel.counters.wire_sent for channel in links)
        received = sum(channel.counters.wire_received for channel in links)
        return Result(outputs, ready.cost, reports, sent, received, perf_counter() - started, ready.model)

    def consult(self, job: Job, talk: Callable[[Channel], Answer], trio: int | None = None) -> tuple[Answer, Answer]:
        """Ask S0 and S1 something that is no program; gives what each of them says."""
        links, _ = self._somewhere(trio, lambda links: self._call_both(links, job))
        try:
            answers = [talk(links[role]) for role in COMPUTING]
            links.unwatch()
            for role in COMPUTING:
                messages.receive(links[role], Reached)
        except BaseException as error:
            reason = links.fail(error)
            raise reason from (None if reason is error else error)
        links.close()
        return answers[0], answers[1]

    @property
    def trios(self) -> range:
        return range(self._network.trios)

    def _somewhere(self, trio: int | None, begin: Callable[[Links], Answer]) -> tuple[Links, Answer]:
        """A session that has begun. A trio that is full or gone leaves it to the next, in a new session: nothing but the job has
        been said by then."""
        choices = sample(self.trios, len(self.trios)) if trio is None else [trio]
        for left, choice in zip(reversed(range(len(choices))), choices, strict=True):
            session = self._new_session(choice)
            links = Links(session, self._network.trusts, self.settings.session_timeout, reads_on=True)
            try:
                return links, begin(links)
            except BaseException as error:
                reason = links.fail(error, _told(error))
                if not left or not isinstance(reason, _ELSEWHERE):
                    raise reason from (None if reason is error else error)
        raise AssertionError("the last choice raises")

    def _new_session(self, trio: int) -> bytes:
        return self._network.new_session(trio)

    def _call_both(self, links: Links, job: Job) -> None:
        """Wait for our turn at S0, then bring the job to S1, too."""
        first = links.add(self._dial(SERVER0, links.session, self.settings.connect_timeout))
        links.watch()
        messages.send(first, job)
        messages.receive(first, Invitation)
        second = links.add(self._dial(SERVER1, links.session, DIAL_TIMEOUT))
        messages.send(second, job)

    def _begin(self, links: Links, job: Job) -> Ready:
        """What the servers have agreed on."""
        self._call_both(links, job)
        zero, one = (messages.receive(links[role], Ready) for role in COMPUTING)
        if zero != one:
            raise AgreementError("server0 and server1 announce different programs: nothing was sent to them")
        self._check_model(job, zero.model)
        return zero

    def _check_model(self, job: Job, answering: str) -> None:
        """A version that was asked for must be the one that answers."""
        wanted = job.uses or ""
        if "@" in wanted and not _same_version(wanted, answering):
            raise AgreementError(f"{wanted} was asked for, {answering} would answer: nothing was sent")

    def _dial(self, role: str, session: bytes, timeout: float) -> Channel:
        options = ChannelOptions(timeout=self.settings.receive_timeout, message_limit=self.settings.message_limit)
        return self._network.connect(role, session, timeout=timeout, options=options)

    def _share(self, links: Links, inputs: Mapping[str, CallerInput], ready: Ready) -> None:
        parts = split(inputs, ready.inputs, links.session)
        for role, own in zip(COMPUTING, parts, strict=True):
            send_encodings(links[role], own)
        for name in sorted(ready.inputs):
            for role, own in zip(COMPUTING, parts, strict=True):
                send_part(links[role], own[name])

    def _reports(self, links: Links) -> dict[str, Report]:
        records = [messages.receive(links[role], Reports).reports for role in COMPUTING]
        return {report.role: report for reports in records for report in reports}


def _same_version(wanted: str, answering: str) -> bool:
    """Whether both are the same name, and one version begins with the other."""
    (name, _, version), (own_name, _, own) = wanted.partition("@"), answering.partition("@")
    return name == own_name and (own.startswith(version) or version.startswith(own)) and bool(own)


def _told(error: BaseException) -> BaseException:
    """What the servers hear. An input that does not fit is this side's own: its range, its true length and its type
    are no business of theirs."""
    return InputError("the caller's input does not fit the program") if isinstance(error, InputError) else error

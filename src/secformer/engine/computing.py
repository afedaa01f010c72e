"""Reading two: run a program at S0 or S1, on shares.

Masks come from the seed a server shares with T, new shares of results from the one it shares with the other server.
Material comes from the first seed at S0 and from T's corrections at S1; both sources answer the same call, so the party's
index appears only where the formulas have j.

Channel and streams live in the functions made by `_opener` and `_renewer`, not in the runtime that a body is given. A plan that
is run often on a GPU is recorded there (replaying.py): then its exchanges are the seams of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.ahead import Ahead
from secformer.engine.form import Form
from secformer.engine.gate import Gate
from secformer.engine.program import Inputs, Outputs
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tape import Cursor, Dealt, Disclosure, Opening
from secformer.engine.tracing import Plan, opened_form
from secformer.engine.values import (
    Bits,
    Disclosed,
    Masked,
    MaskedBits,
    Rounded,
    Share,
    Shared,
    form_of,
    joined,
    share_of,
    wire_of,
)
from secformer.errors import MaterialError, SecurityError
from secformer.ring import kernels
from secformer.ring.fixed_point import reduce, shift_right
from secformer.ring.kernels.steps import Closed, Closing, material_type
from secformer.ring.packing import unpack
from secformer.roles import DEALER_LINKS, SERVER_LINK
from secformer.transport.channel import Channel, FrameType


class Material(Protocol):
    """This server's half of a dealt value; of several, which are blocks of one, all their rows."""

    def __call__(self, *entries: Dealt) -> Tensor: ...


Corrections = Callable[[Dealt], Tensor]
"""S1's half as T packed it, in the CPU's memory; asked for in the order of the tape."""

JOINED_BYTES = 1 << 30
"""Up to here blocks of rows are laid out and evaluated as one. The most that BERT-large with 512 tokens takes is half of it: 16
heads of 512 x 512 scores, 64 cells for each, counts of two bytes. (A recording lays out all that one of its segments needs.)"""

SAMPLE = 64
"""Elements of a mask in which its top bit must show: it does not with a chance of 2^-64."""


Exchange = Callable[[Any, tuple[int, ...], int], Tensor]
"""Packed bytes of a shape and width to the other server, and its own of the same: one round."""


class Link(Protocol):
    """What a program needs of the channel to the other server."""

    @property
    def session(self) -> bytes: ...

    @property
    def exchange(self) -> Exchange: ...


class Streams(NamedTuple):
    """What a server draws itself in a session: masks, as T does, and new shares of results, as the other server does."""

    masks: Stream
    outputs: Stream
    again: Callable[[], Stream]
    """The masks from their beginning once more, for `Ahead`: what it makes of them stays here."""

    @classmethod
    def of(
        cls, party: int, own: Seed, common: Seed, session: bytes, device: torch.device, dealt: bytes | None = None
    ) -> Streams:
        """`dealt` names what T dealt, where that was ahead of the session."""

        def masks() -> Stream:
            return Stream(own, dealt or session, DEALER_LINKS[party], "mask", device)

        return cls(masks(), Stream(common, session, SERVER_LINK, "output", device), masks)


def seeded_material(seed: Seed, session: bytes, device: torch.device) -> Material:
    """S0's halves: drawn from the seed shared with T."""
    return drawn_material(Stream(seed, session, DEALER_LINKS[0], "pad", device))


def drawn_material(pads: Stream) -> Material:
    def half(entry: Dealt, out: Tensor | None = None) -> Tensor:
        return pads.draw(entry.pad, material_type(entry.kind, entry.form.width), out)

    return lambda *entries: in_one_piece(half, entries, pads.device)


def received_material(channel: Channel, device: torch.device) -> Material:
    """S1's halves: the corrections T streams, in the order of the tape."""
    return corrected_material(received_corrections(channel), device)


def received_corrections(channel: Channel) -> Corrections:
    return lambda entry: channel.receive(FrameType.MATERIAL, shape=entry.form.shape, width=entry.form.width)


def corrected_material(corrections: Corrections, device: torch.device) -> Material:
    def half(entry: Dealt, out: Tensor | None = None) -> Tensor:
        return unpacked_half(corrections(entry).to(device), entry, out)

    return lambda *entries: in_one_piece(half, entries, device)


def unpacked_half(packed: Tensor, entry: Dealt, out: Tensor | None = None) -> Tensor:
    form = entry.form
    kind = material_type(entry.kind, form.width)
    return unpack(packed, form.elements, form.width, kind, out).reshape(form.shape)


def in_one_piece(half: Callable[..., Tensor], entries: Sequence[Dealt], device: torch.device) -> Tensor:
    """What `half` makes of an entry; or, of blocks of rows, writes into the place of each."""
    first = entries[0]
    if len(entries) == 1:
        return half(first)
    sizes = [entry.form.shape[0] for entry in entries]
    kind = material_type(first.kind, first.form.width)
    rows = torch.empty((sum(sizes), *first.form.shape[1:]), dtype=kind, device=device)
    for entry, place in zip(entries, rows.split(sizes), strict=True):
        half(entry, place)
    return rows


def joined_blocks(entries: Sequence[Dealt]) -> list[list[Dealt]]:
    """Dealt values in their order, and of blocks of rows those together that JOINED_BYTES hold, or one."""
    found: list[list[Dealt]] = []
    size = 0
    for entry in entries:
        own = entry.form.elements * material_type(entry.kind, entry.form.width).itemsize
        if entry.block and size + own <= JOINED_BYTES:
            found[-1].append(entry)
            size += own
        else:
            found.append([entry])
            size = own
    return found


class Computing(Runtime):
    """One run of one plan at one server. A second run needs a new session: material is used once.

    `own` is the seed shared with T, `common` the one shared with the other server and unknown to T. `streams` are given where the
    session does not name them: T dealt ahead of it.
    """

    def __init__(
        self,
        party: int,
        plan: Plan,
        channel: Link,
        own: Seed,
        common: Seed,
        material: Material,
        device: torch.device | str = "cpu",
        streams: Streams | None = None,
    ) -> None:
        super().__init__()
        self.party = party
        self.device = torch.device(device)
        self._plan = plan
        self._cursor = Cursor(plan.tape)
        streams = streams or Streams.of(party, own, common, channel.session, self.device)
        self._open = _opener(party, self._cursor, channel.exchange, streams.masks, self.device)  # type: ignore[method-assign]
        self._disclose = _renewer(party, self._cursor, streams.outputs)  # type: ignore[method-assign]
        self._material = material
        self._ahead = _walker(party, plan, streams.again)
        self._made: dict[int, Tensor] = {}
        self._spent = False

    def prepare(self, static: Inputs) -> None:
        """Compute what the masks alone decide (ahead.py) before `run`: for a server that waits for T, which deals in this very
        session. Kernels of a GPU make both products at once."""
        if self.device.type == "cpu":
            self._made = self._ahead(static)

    def run(self, inputs: Inputs) -> Outputs:
        if self._spent:
            raise MaterialError("this session's material is spent: start a new session for every run")
        self._spent = True
        self._plan.program.check_inputs(inputs)
        outputs = self._plan.program.body(self, inputs)
        self._cursor.finish()
        self._plan.program.check_outputs(outputs)
        return outputs

    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        raise AssertionError("made by _opener")

    def _disclose(self, value: Share) -> Disclosed:
        raise AssertionError("made by _renewer")

    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share:
        entries = [self._cursor.next(Dealt, form) for form in gate.materials(*wires)]
        dealt = [self._material(entry) for entry in entries]
        if self._made and entries and (made := self._made.pop(entries[0].index, None)) is not None:
            dealt.append(made)
        return share_of(gate.result(*wires), gate.on(self.device, "evaluate")(self.party, wires, dealt))

    def _apply_by_rows(self, gate: Gate[Any], blocks: Sequence[Sequence[Any]], wires: Sequence[Any]) -> Shared:
        """On a device whose work can be recorded many blocks at once: one launch where dozens would not fill it."""
        if len(blocks) == 1 or kernels.find("graphs", self.device.type) is None:
            return super()._apply_by_rows(gate, blocks, wires)
        entries = [self._cursor.next(Dealt, form) for block in blocks for form in gate.materials(*block)]
        evaluate, parts, start = gate.on(self.device, "evaluate"), [], 0
        for group in joined_blocks(entries):
            stop = start + sum(entry.form.shape[0] for entry in group)
            rows = [wire[start:stop] for wire in wires]
            parts.append(share_of(gate.result(*rows), evaluate(self.party, rows, (self._material(*group),))))
            start = stop
        return joined(parts, 0)

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return shift_right(share + ((1 << bits) - 1) if self.party == 1 else share, bits, width)


# -- what a body cannot reach ---------------------------------------------------------------------------------------------


def _opener(
    party: int, cursor: Cursor, exchange: Exchange, masks: Stream, device: torch.device
) -> Callable[[Sequence[Openable], Sequence[str]], tuple[Masked | MaskedBits, ...]]:
    """`open`: every value under a fresh mask of its own shape and width, one frame each way however many they are."""
    close, reveal = kernels.step("close", device), kernels.step("reveal", device)

    def mask(value: Openable, form: Form, closing: Closing) -> Closed:
        draw = cursor.next(Opening, form).draws[party]
        if draw.shape != form.shape or draw.width != form.width:
            raise SecurityError(f"a mask of {draw.width} bits and shape {draw.shape} does not hide {form}")
        share = value.value.share if isinstance(value, Rounded) else value.share
        closed = close(share, closing, masks.spend(draw))
        check_mask(closed.mask, form)
        return closed

    def open_one(value: Openable) -> Masked | MaskedBits:
        form = opened_form(value)
        closing = _closing(party, value, form)
        half = mask(value, form, closing)
        received = exchange(half.packed, form.shape, form.width)
        return wire_of(form, reveal(half, received, closing), half.mask)

    def open_values(values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        if len(values) == 1:
            return (open_one(values[0]),)
        forms = [opened_form(value) for value in values]
        closings = [_closing(party, value, form) for value, form in zip(values, forms, strict=True)]
        halves = [mask(*item) for item in zip(values, forms, closings, strict=True)]
        received = _exchange(exchange, forms, [half.packed for half in halves])
        return tuple(
            wire_of(form, reveal(half, part, closing), half.mask)
            for form, half, part, closing in zip(forms, halves, received, closings, strict=True)
        )

    return open_values


def _walker(party: int, plan: Plan, masks: Callable[[], Stream]) -> Callable[[Inputs], dict[int, Tensor]]:
    """`Ahead`, on the masks of this session."""
    return lambda static: Ahead(party, plan, masks()).run(static)


def _closing(party: int, value: Openable, form: Form) -> Closing:
    if isinstance(value, Rounded):
        return Closing(party, form.width, False, value.drop, value.value.width)
    return _whole(party, form.width, form.kind == "bits")


_whole = lru_cache(maxsize=256)(Closing)


def check_mask(mask: Tensor, form: Form) -> None:
    """A mask hides what it is added to if it has its shape, element for element, and all of its bits."""
    if mask.shape != form.shape or not mask.is_contiguous():
        raise SecurityError(f"a mask of shape {tuple(mask.shape)} and strides {mask.stride()} does not hide {form}")
    if mask.is_cpu and mask.numel() >= SAMPLE:
        used = int(np.bitwise_or.reduce(mask.numpy().reshape(-1)[:SAMPLE]))
        if not used >> (form.width - 1) & 1:
            raise SecurityError(f"a mask leaves the top bit of {form} open")


def _exchange(exchange: Exchange, forms: list[Form], packed: list[Any]) -> list[Tensor]:
    """Several values in one frame each way."""
    sizes = [form.packed_bytes for form in forms]
    parts = [
        torch.frombuffer(bytearray(part), dtype=torch.uint8) if isinstance(part, bytes) else part for part in packed
    ]
    device = parts[-1].device
    joined = torch.cat([part.to(device) for part in parts])
    return list(exchange(joined, (sum(sizes),), 8).split(sizes))


def _renewer(party: int, cursor: Cursor, stream: Stream) -> Callable[[Share], Disclosed]:
    """`disclose`: S0 adds and S1 subtracts a common number, so the two shares tell the caller their sum alone."""

    def renew(value: Share) -> Disclosed:
        noise = stream.draw(cursor.next(Disclosure, form_of(value)).draw)
        if isinstance(value, Bits):
            return Disclosed(replace(value, share=reduce(value.share ^ noise, value.width)))
        share = value.share + noise if party == 0 else value.share - noise
        return Disclosed(replace(value, share=reduce(share, value.width)))

    return renew

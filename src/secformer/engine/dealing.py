"""Reading three: T reads the program on masks and streams S1's corrections.

T knows both seeds, so it knows every mask and S0's half of every dealt value; it sees no share and no opening (they
are meta tensors here). Corrections are sent in the order of the tape as fast as S1's link takes them: a full link
blocks `send`, which bounds the memory of both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from secformer.crypto.prg import Stream
from secformer.engine.gate import Gate
from secformer.engine.program import Inputs, Outputs
from secformer.engine.runtime import Runtime, content_of
from secformer.engine.tape import Cursor
from secformer.engine.tracing import META, Plan
from secformer.engine.values import Bits, Masked, MaskedBits, Share, Shared, Wire, on_meta
from secformer.errors import MaterialError, ShapeError
from secformer.ring.packing import pack
from secformer.transport.channel import Channel, FrameType


class Dealing(Runtime):
    """`masks` are the streams shared with S0 and with S1, `pads` the one that gives S0 its halves."""

    device = META

    def __init__(self, plan: Plan, channel: Channel, masks: tuple[Stream, Stream], pads: Stream) -> None:
        super().__init__()
        self._plan = plan
        self._cursor = Cursor(plan.tape)
        self._channel = channel
        self._masks = masks
        self._pads = pads
        self._spent = False

    def run(self, static: Inputs) -> Outputs:
        """Deal for one run. `static` holds the wires dealt earlier (weights), with their masks."""
        if self._spent:
            raise MaterialError("this session's material is spent: start a new session for every run")
        self._spent = True
        inputs = {**self._plan.program.placeholders(), **static}
        self._plan.program.check_inputs(inputs)
        outputs = self._plan.program.body(self, inputs)
        self._cursor.finish()
        return outputs

    def _open(self, values: Sequence[Share]) -> tuple[Wire, ...]:
        return tuple(self._open_one(value) for value in values)

    def _open_one(self, value: Share) -> Wire:
        content = content_of(value)
        index = self._cursor.next_opening(content)
        zero, one = (stream.draw(index, content.shape, content.width) for stream in self._masks)
        empty = torch.empty(content.shape, dtype=torch.int64, device=META)
        if isinstance(value, Bits):
            return MaskedBits(empty, zero ^ one, value.width)
        return Masked(empty, zero + one, value.width, value.scale)

    def apply(self, gate: Gate, *wires: Wire) -> Share:
        materials = gate.materials(*wires)
        for material, value in zip(materials, gate.deal(*wires), strict=True):
            if tuple(value.shape) != material.shape:
                raise ShapeError(f"{gate.describe()} dealt shape {tuple(value.shape)}, not {material.shape}")
            pad = self._pads.draw(self._cursor.next_dealt(material), material.shape, material.width)
            correction = value ^ pad if material.boolean else value - pad
            packed = pack(correction, material.width)
            self._channel.send(FrameType.MATERIAL, packed.cpu(), material.shape, material.width)
        empty = [torch.empty(material.shape, dtype=torch.int64, device=META) for material in materials]
        return gate.evaluate(self.party, [on_meta(wire) for wire in wires], empty)

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return share

    def truncate_locally(self, value: Shared, bits: int) -> Shared:
        return replace(value, scale=value.scale - bits)

    def split(self, value: Shared) -> tuple[Bits, Bits]:
        bits = Bits(value.share, value.width)
        return bits, bits

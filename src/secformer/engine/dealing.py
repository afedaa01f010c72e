"""Reading three: T reads the program on masks and streams S1's corrections.

T knows both seeds, so it knows every mask and S0's half of every dealt value; it sees no share and no opening (masks.py).
Corrections are sent in the order of the tape as fast as S1's link takes them: a full link
blocks `send`, which bounds the memory of both sides. Channel and streams are out of a body's reach, as in computing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.form import Form
from secformer.engine.gate import Gate
from secformer.engine.masks import OnMasks
from secformer.engine.program import Inputs, Outputs
from secformer.engine.tape import Cursor, Dealt, Opening
from secformer.engine.tracing import Plan
from secformer.errors import MaterialError, ShapeError
from secformer.ring import kernels
from secformer.roles import DEALER_LINKS
from secformer.transport.channel import Channel, FrameType


class Dealing(OnMasks):
    """One run of one plan at T. `seeds` are those shared with S0 and with S1, `channel` leads to S1. `streams` names the streams
    where the run is yet to come; without, the session does."""

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        seeds: tuple[Seed, Seed],
        device: torch.device | str = "cpu",
        streams: bytes | None = None,
    ) -> None:
        super().__init__(plan)
        streams = streams or channel.session
        self._mask = _masks(self._cursor, streams, seeds, device)
        self._send = _corrections(self._cursor, channel, seeds[0], device, streams)
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

    def _made_of(self, gate: Gate[Any], wires: Sequence[Any]) -> None:
        materials = gate.materials(*wires)
        if materials:
            values = gate.on(wires[0].mask.device, "deal")(*wires)
            for form, value in zip(materials, values, strict=True):
                if tuple(value.shape) != form.shape:
                    raise ShapeError(f"{gate.describe()} dealt shape {tuple(value.shape)}, not {form.shape}")
                self._send(form, value)


# -- what a body cannot reach ---------------------------------------------------------------------------------------------


def _masks(
    cursor: Cursor, name: bytes, seeds: tuple[Seed, Seed], device: torch.device | str
) -> Callable[[Form], Tensor]:
    """The next opening's mask, the sum of what S0 and S1 draw."""
    streams = [Stream(seed, name, pair, "mask", device) for seed, pair in zip(seeds, DEALER_LINKS, strict=True)]

    def draw(form: Form) -> Tensor:
        draws = cursor.next(Opening, form).draws
        zero, one = (stream.draw(draw) for stream, draw in zip(streams, draws, strict=True))
        return zero.bitwise_xor_(one) if form.boolean else zero.add_(one)

    return draw


def _corrections(
    cursor: Cursor, channel: Channel, seed: Seed, device: torch.device | str, name: bytes
) -> Callable[[Form, Tensor], None]:
    """Send S1 its half of a value: what is left when S0's half, the pad, is taken away."""
    pads = Stream(seed, name, DEALER_LINKS[0], "pad", device)

    def send(form: Form, value: Tensor) -> None:
        keystream = pads.spend(cursor.next(Dealt, form).pad)
        packed = kernels.step("correct", value.device)(value, form.width, form.boolean, keystream)
        channel.send(FrameType.MATERIAL, packed.cpu(), form.shape, form.width)

    return send

"""Reading three: T reads the program on masks and streams S1's corrections.

T knows both seeds, so it knows every mask and S0's half of every dealt value; it sees no share and no opening (masks.py).
Corrections are sent in the order of the tape as fast as S1's link takes them: a full link
blocks `send`, which bounds the memory of both sides. Channel and streams are out of a body's reach, as in computing.py. A plan
that T deals for again and again on a GPU is recorded there (redealing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

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
from secformer.transport.channel import FrameType


class Link(Protocol):
    """What T needs of the channel to S1."""

    def send(self, kind: FrameType, payload: Tensor, shape: tuple[int, ...], width: int) -> None: ...


class Draws(NamedTuple):
    """What T draws, as the servers do: the masks of S0 and of S1, and the pads, which are S0's halves of what is dealt."""

    masks: tuple[Stream, Stream]
    pads: Stream

    @classmethod
    def of(cls, seeds: tuple[Seed, Seed], name: bytes, device: torch.device | str = "cpu") -> Self:
        """`seeds` are those shared with S0 and with S1; `name` is the session's, or that of what is dealt ahead of one."""
        zero, one = (Stream(seed, name, pair, "mask", device) for seed, pair in zip(seeds, DEALER_LINKS, strict=True))
        return cls((zero, one), Stream(seeds[0], name, DEALER_LINKS[0], "pad", device))

    @property
    def keys(self) -> tuple[Tensor, ...]:
        return tuple(stream.words for stream in (*self.masks, self.pads) if stream.words is not None)


class Dealing(OnMasks):
    """One run of one plan at T; `channel` leads to S1."""

    def __init__(self, plan: Plan, channel: Link, draws: Draws) -> None:
        super().__init__(plan)
        self._mask = _masks(self._cursor, draws.masks)
        self._send = _corrections(self._cursor, channel, draws.pads)
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


def _masks(cursor: Cursor, streams: tuple[Stream, Stream]) -> Callable[[Form], Tensor]:
    """The next opening's mask, the sum of what S0 and S1 draw."""

    def draw(form: Form) -> Tensor:
        draws = cursor.next(Opening, form).draws
        zero, one = (stream.draw(draw) for stream, draw in zip(streams, draws, strict=True))
        return zero.bitwise_xor_(one) if form.boolean else zero.add_(one)

    return draw


def _corrections(cursor: Cursor, channel: Link, pads: Stream) -> Callable[[Form, Tensor], None]:
    """Send S1 its half of a value: what is left when S0's half, the pad, is taken away."""

    def send(form: Form, value: Tensor) -> None:
        keystream = pads.spend(cursor.next(Dealt, form).pad)
        packed = kernels.step("correct", value.device)(value, form.width, form.boolean, keystream)
        channel.send(FrameType.MATERIAL, packed, form.shape, form.width)

    return send

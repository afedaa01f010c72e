"""Reading two: run a program at S0 or S1, on shares.

Masks come from the seed a server shares with T. Material comes from the same seed at S0 and from T's corrections at
S1; both sources answer the same call, so the party's index appears only where the formulas have j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from secformer.crypto.prg import Seed, Stream
from secformer.engine.gate import Gate, Material
from secformer.engine.program import Inputs, Outputs
from secformer.engine.runtime import Runtime, content_of
from secformer.engine.tape import SERVER_LINKS, Cursor
from secformer.engine.tracing import Plan
from secformer.engine.values import Bits, Masked, MaskedBits, Share, Shared, Wire
from secformer.errors import MaterialError
from secformer.ring import small
from secformer.ring.fixed_point import reduce, shift_right
from secformer.ring.packing import pack, packed_bytes, unpack
from secformer.transport.channel import Channel, FrameType


class MaterialSource(Protocol):
    def get(self, index: int, material: Material) -> Tensor: ...


class SeededMaterial:
    """S0's halves: drawn from the seed shared with T."""

    def __init__(self, seed: Seed, session: bytes, device: torch.device) -> None:
        self._pads = Stream(seed, session, SERVER_LINKS[0], "pad", device)

    def get(self, index: int, material: Material) -> Tensor:
        return self._pads.draw(index, material.shape, material.width)


class ReceivedMaterial:
    """S1's halves: the corrections T streams, in the order of the tape."""

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self._channel = channel
        self._device = device

    def get(self, index: int, material: Material) -> Tensor:
        packed = self._channel.receive(FrameType.MATERIAL, shape=material.shape, width=material.width)
        return unpack(packed.to(self._device), material.elements, material.width).reshape(material.shape)


class Computing(Runtime):
    """One run of one plan at one server. A second run needs a new session: material is used once."""

    def __init__(
        self,
        party: int,
        plan: Plan,
        channel: Channel,
        masks: Stream,
        material: MaterialSource,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.party = party
        self.device = torch.device(device)
        self._plan = plan
        self._cursor = Cursor(plan.tape)
        self._channel = channel
        self._masks = masks
        self._material = material
        self._spent = False

    def run(self, inputs: Inputs) -> Outputs:
        if self._spent:
            raise MaterialError("this session's material is spent: start a new session for every run")
        self._spent = True
        self._plan.program.check_inputs(inputs)
        outputs = self._plan.program.body(self, inputs)
        self._cursor.finish()
        return outputs

    def _open(self, values: Sequence[Share]) -> tuple[Wire, ...]:
        if len(values) == 1 and values[0].share.is_cpu and values[0].share.numel() <= small.LIMIT:
            return (self._open_small(values[0]),)
        halves = [self._mask(value) for value in values]
        packed = [pack(own, value.width) for value, (own, _) in zip(values, halves, strict=True)]
        theirs = self._exchange(values, packed)
        return tuple(
            _wire(value, own, mask, other) for value, (own, mask), other in zip(values, halves, theirs, strict=True)
        )

    def _mask(self, value: Share) -> tuple[Tensor, Tensor]:
        """This server's share under its half of a fresh mask, and that half."""
        content = content_of(value)
        mask = self._masks.draw(self._cursor.next_opening(content), content.shape, content.width)
        return (value.share ^ mask if content.boolean else value.share + mask), mask

    def _exchange(self, values: Sequence[Share], packed: list[Tensor]) -> list[Tensor]:
        """One frame each way, however many values; gives back the other server's masked shares."""
        if len(values) == 1:
            shape, width = tuple(values[0].shape), values[0].width
            received = [self._channel.exchange(packed[0], shape, width)]
        else:
            sizes = [packed_bytes(value._tensor().numel(), value.width) for value in values]
            received = list(self._channel.exchange(torch.cat(packed), (sum(sizes),), 8).split(sizes))
        return [
            unpack(part.to(self.device), value._tensor().numel(), value.width).reshape(value.shape)
            for part, value in zip(received, values, strict=True)
        ]

    def _open_small(self, value: Share) -> Wire:
        """The same bytes for a few elements, without a torch operation: see ring/small.py."""
        content = content_of(value)
        form = small.layout(value.share.numel(), content.width)
        mask = self._masks.draw_array(self._cursor.next_opening(content), form.count, form.width)
        combine = small.xor if content.boolean else small.add
        own = combine(small.join(value.share.numpy(), form), small.join(mask, form), form)
        received = self._channel.exchange(small.squeeze(own, form), content.shape, form.width)
        opened = combine(own, small.spread(received.numpy().tobytes(), form), form)
        public = torch.from_numpy(small.split(opened, form).reshape(content.shape))
        half = torch.from_numpy(mask.reshape(content.shape))
        if isinstance(value, Bits):
            return MaskedBits(public, half, form.width)
        return Masked(public, half, form.width, value.scale)

    def apply(self, gate: Gate, *wires: Wire) -> Share:
        dealt = [self._material.get(self._cursor.next_dealt(material), material) for material in gate.materials(*wires)]
        return gate.evaluate(self.party, wires, dealt)

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        shifted = shift_right(share, bits, width)
        return shifted.add_(1) if self.party == 1 else shifted

    def truncate_locally(self, value: Shared, bits: int) -> Shared:
        sign = 1 if self.party == 0 else -1
        share = sign * torch.div(sign * value.share, 1 << bits, rounding_mode="floor")
        return replace(value, share=share, scale=value.scale - bits)

    def split(self, value: Shared) -> tuple[Bits, Bits]:
        own = Bits(value.share, value.width)
        nothing = Bits(torch.zeros_like(value.share), value.width)
        return (own, nothing) if self.party == 0 else (nothing, own)


def _wire(value: Share, own: Tensor, mask: Tensor, other: Tensor) -> Wire:
    if isinstance(value, Bits):
        return MaskedBits(reduce(own ^ other, value.width), mask, value.width)
    return Masked(reduce(own + other, value.width), mask, value.width, value.scale)


def rerandomise(outputs: Outputs, zero: Stream, party: int) -> Outputs:
    """Fresh shares of the results before they leave for the client: S0 adds and S1 subtracts a common stream, so the
    two shares tell the client their sum and nothing else."""
    fresh: Outputs = {}
    for index, (name, value) in enumerate(sorted(outputs.items())):
        if isinstance(value, Shared):
            noise = zero.draw(index, tuple(value.shape), value.width)
            share = value.share + noise if party == 0 else value.share - noise
            fresh[name] = replace(value, share=reduce(share, value.width))
        elif isinstance(value, Bits):
            noise = zero.draw(index, tuple(value.shape), value.width)
            fresh[name] = replace(value, share=reduce(value.share ^ noise, value.width))
        else:
            fresh[name] = value
    return fresh

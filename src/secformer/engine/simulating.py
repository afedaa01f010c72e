"""Reading four: the program on plain numbers, with the same fixed point: what the servers would give.

A share holds the whole value, a wire's public part too, and masks are absent. A wire is reduced modulo its width, so that a
value outside its range comes out as wrong as it would from a secure run, wherever that does not depend on the masks (where
it does, as in a lift, one of the possible outcomes is taken). Rounding is to the nearest where the servers round by their
shares, so results agree up to the last place.

Every range a program declares is checked as well. What left one is kept as a `Departure`, or raised at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tracing import opened_form
from secformer.engine.values import Bits, Disclosed, Masked, MaskedBits, Rounded, Share, Shared, share_of, wire_of
from secformer.errors import RangeError
from secformer.ring.fixed_point import reduce, signed

TIES = 8
"""Dropped bits up to which a tie, once in 2^bits, goes to the even one: always up would be a bias, and servers have none."""


@dataclass(frozen=True)
class Departure:
    """Values that left a declared range: where, how many, and how far they went."""

    place: str
    count: int
    lowest: float
    highest: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.count} values from {self.lowest:.4g} to {self.highest:.4g} "
            f"leave the range {self.low:.4g} to {self.high:.4g}"
        )


class Simulating(Runtime):
    """`strict`: raise RangeError at the first range that is left, instead of going on as the servers would."""

    def __init__(self, device: torch.device | str = "cpu", strict: bool = False) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.strict = strict
        self.departures: list[Departure] = []

    def run(self, program: Program, inputs: Inputs) -> Outputs:
        program.check_inputs(inputs)
        return program.body(self, inputs)

    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        return tuple(self._open_one(value) for value in values)

    def _open_one(self, value: Openable) -> Masked | MaskedBits:
        form = opened_form(value)
        if isinstance(value, Bits):
            return wire_of(form, reduce(value.share, value.width), form.empty())
        if isinstance(value, Rounded):
            plain = self._drop(value.value.share, value.drop, value.value.width) if value.drop else value.value.share
        else:
            plain = value.share
        return wire_of(form, signed(plain, form.width), form.empty())

    def _disclose(self, value: Share) -> Disclosed:
        return Disclosed(value)

    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share:
        try:
            return share_of(gate.result(*wires), gate.plain(*wires))
        except RangeError as error:
            raise RangeError(f"{self.where or 'program'}: {error}") from None

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        half = 1 << (bits - 1)
        if bits <= TIES:
            return (share + (half - 1) + ((share >> bits) & 1)) >> bits
        return (share + half) >> bits

    def expect(
        self, value: Shared | Masked, low: float, high: float, where: Shared | None = None, unit: float = 1.0
    ) -> None:
        plain = value.share if isinstance(value, Shared) else value.public
        if where is not None:
            plain = plain[(where.share != 0).expand_as(plain)]
        if plain.numel() == 0:
            return
        bounds = [bound / unit * 2.0**value.scale for bound in (low, high)]
        lowest, highest = (int(bound) for bound in torch.aminmax(plain))
        if lowest >= bounds[0] and highest <= bounds[1]:
            return
        count = int(((plain < bounds[0]) | (plain > bounds[1])).sum())
        one = unit * 2.0**-value.scale
        self._depart(Departure(self.where or "program", count, lowest * one, highest * one, low, high))

    def _depart(self, departure: Departure) -> None:
        if self.strict:
            raise RangeError(f"{departure}: calibrate on data like this, and more of it")
        self.departures.append(departure)

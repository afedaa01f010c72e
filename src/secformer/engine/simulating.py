"""Reading four: the program on plain numbers, with the same fixed point, and every declared range checked.

A share holds the whole value, a wire's public part too, and masks are absent. Rounding is to the nearest where the
servers round by their shares, so results agree up to the last place. A value outside its range raises RangeError with
the scope (layer and operation), where a secure run would silently give a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Masked, MaskedBits, Share, Shared, Wire
from secformer.errors import RangeError
from secformer.ring.fixed_point import reduce


class Simulating(Runtime):
    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)

    def run(self, program: Program, inputs: Inputs) -> Outputs:
        program.check_inputs(inputs)
        return program.body(self, inputs)

    def _open(self, values: Sequence[Share]) -> tuple[Wire, ...]:
        return tuple(_plain_wire(value) for value in values)

    def apply(self, gate: Gate, *wires: Wire) -> Share:
        try:
            return gate.plain(*wires)
        except RangeError as error:
            raise RangeError(f"{self.where or 'program'}: {error}") from None

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return (share + (1 << (bits - 1))) >> bits

    def expect(
        self, value: Shared | Masked, low: float, high: float, where: Shared | None = None, unit: float = 1.0
    ) -> None:
        plain = value.share if isinstance(value, Shared) else value.public
        if where is not None:
            plain = plain[(where.share != 0).expand_as(plain)]
        if plain.numel() == 0:
            return
        seen = [unit * int(bound) / 2.0**value.scale for bound in torch.aminmax(plain)]
        if seen[0] < low or seen[1] > high:
            raise RangeError(
                f"{self.where or 'program'}: values from {seen[0]:.4g} to {seen[1]:.4g} leave the calibrated range "
                f"{low:.4g} to {high:.4g}: calibrate on data like this, and more of it"
            )

    def truncate_locally(self, value: Shared, bits: int) -> Shared:
        return replace(value, share=value.share >> bits, scale=value.scale - bits)

    def split(self, value: Shared) -> tuple[Bits, Bits]:
        return Bits(value.share, value.width), Bits(torch.zeros_like(value.share), value.width)


def _plain_wire(value: Share) -> Wire:
    """Arithmetic values are not reduced, so that a later check sees how far one strayed."""
    absent = torch.empty(value.shape, dtype=torch.int64, device="meta")
    if isinstance(value, Bits):
        return MaskedBits(reduce(value.share, value.width), absent, value.width)
    return Masked(value.share, absent, value.width, value.scale)

"""Reading four: the program on plain numbers, with the same fixed point, and every declared range checked.

A share holds the whole value, a wire's public part too, and masks are absent. Rounding is to the nearest where the
servers round by their shares, so results agree up to the last place. A value outside its range raises RangeError with
the scope (layer and operation), where a secure run would silently give a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tracing import opened_form
from secformer.engine.values import Bits, Disclosed, Masked, MaskedBits, Rounded, Share, Shared, share_of, wire_of
from secformer.errors import RangeError
from secformer.ring.fixed_point import reduce


class Simulating(Runtime):
    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)

    def run(self, program: Program, inputs: Inputs) -> Outputs:
        program.check_inputs(inputs)
        return program.body(self, inputs)

    def _open(self, values: Sequence[Openable]) -> tuple[Masked | MaskedBits, ...]:
        return tuple(self._open_one(value) for value in values)

    def _open_one(self, value: Openable) -> Masked | MaskedBits:
        """Arithmetic values are not reduced, so that a later check sees how far one strayed."""
        form = opened_form(value)
        if isinstance(value, Rounded):
            plain = self._drop(value.value.share, value.drop, value.value.width) if value.drop else value.value.share
        else:
            plain = reduce(value.share, value.width) if form.boolean else value.share
        return wire_of(form, plain, form.empty())

    def _disclose(self, value: Share) -> Disclosed:
        return Disclosed(value)

    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share:
        try:
            return share_of(gate.result(*wires), gate.plain(*wires))
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

"""What a server can compute before the query is there, from its masks alone: a walk through the program as T's is.

A product with a static wire, x @ y for a weight y, is [xy]_j = x̂ @ (j·ŷ − [s]_j) − [r]_j @ ŷ + [rs]_j. The second product has
no part of the query in it: r is a mask, ŷ is public. A server that waits for T anyway makes it meanwhile, and is left with one
product instead of two. Nothing is sent and nothing is opened here: shares and openings are meta tensors, as at T.

A mask is drawn here, and again where it hides what is opened. It hides that one value: what is made of it here stays at the
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from secformer.crypto.prg import Stream
from secformer.engine.gate import Gate
from secformer.engine.program import Inputs
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tape import Cursor, Dealt, Disclosure, Opening
from secformer.engine.tracing import META, Plan, opened_form
from secformer.engine.values import Bits, Disclosed, Masked, MaskedBits, Share, Shared, form_of, share_of, wire_of


class Ahead(Runtime):
    """One walk through a plan at S0 or S1, on the masks that it is about to use."""

    device = META

    def __init__(self, party: int, plan: Plan, masks: Stream) -> None:
        super().__init__()
        self._party, self._plan, self._masks = party, plan, masks
        self._cursor = Cursor(plan.tape)
        self._made: dict[int, Tensor] = {}

    def run(self, static: Inputs) -> dict[int, Tensor]:
        """What gates made, by the number of their first dealt value. `static` holds the weights' wires."""
        self._plan.program.body(self, {**self._plan.program.placeholders(), **static})
        self._cursor.finish()
        return self._made

    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        return tuple(self._open_one(value) for value in values)

    def _open_one(self, value: Openable) -> Masked | MaskedBits:
        form = opened_form(value)
        return wire_of(form, form.empty(), self._masks.draw(self._cursor.next(Opening, form).draws[self._party]))

    def _disclose(self, value: Share) -> Disclosed:
        self._cursor.next(Disclosure, form_of(value))
        return Disclosed(value)

    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share:
        dealt = [self._cursor.next(Dealt, form) for form in gate.materials(*wires)]
        if (made := gate.ahead(*wires)) is not None:
            self._made[dealt[0].index] = made
        form = gate.result(*wires)
        return share_of(form, form.empty())

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return share

    def truncate_locally(self, value: Shared, bits: int) -> Shared:
        return replace(value, scale=value.scale - bits)

    def split(self, value: Shared) -> tuple[Bits, Bits]:
        bits = Bits(value.share, value.width)
        return bits, bits

"""What a server can compute before the query is there, from its masks alone (masks.py).

A product with a static wire, x @ y for a weight y, is [xy]_j = x̂ @ (j·ŷ − [s]_j) − [r]_j @ ŷ + [rs]_j. The second product has
no part of the query in it: r is a mask, ŷ is public. A server that waits for T anyway makes it meanwhile, and is left with one
product instead of two. Nothing is sent and nothing is opened here.

A mask is drawn here, and again where it hides what is opened. It hides that one value: what is made of it here stays at the
server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from secformer.crypto.prg import Stream
from secformer.engine.form import Form
from secformer.engine.gate import Gate
from secformer.engine.masks import OnMasks
from secformer.engine.program import Inputs
from secformer.engine.tape import Cursor, Dealt, Opening
from secformer.engine.tracing import Plan


class Ahead(OnMasks):
    """One walk through a plan at S0 or S1, on the masks that it is about to use."""

    def __init__(self, party: int, plan: Plan, masks: Stream) -> None:
        super().__init__(plan)
        self._mask = _masks(party, self._cursor, masks)
        self._made: dict[int, Tensor] = {}

    def run(self, static: Inputs) -> dict[int, Tensor]:
        """What gates made, by the number of their first dealt value. `static` holds the weights' wires."""
        self._plan.program.body(self, {**self._plan.program.placeholders(), **static})
        self._cursor.finish()
        return self._made

    def _made_of(self, gate: Gate[Any], wires: Sequence[Any]) -> None:
        dealt = [self._cursor.next(Dealt, form) for form in gate.materials(*wires)]
        if (made := gate.ahead(*wires)) is not None:
            self._made[dealt[0].index] = made


# -- what a body cannot reach ---------------------------------------------------------------------------------------------


def _masks(party: int, cursor: Cursor, stream: Stream) -> Callable[[Form], Tensor]:
    return lambda form: stream.draw(cursor.next(Opening, form).draws[party])

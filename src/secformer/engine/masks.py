"""A walk through a program on masks: whoever walks knows what hides each opened value and sees no share and no opening.

T walks so to deal (dealing.py), a server to prepare (ahead.py). Shares and openings are meta tensors here: a form
and no content.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.gate import Gate
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tape import Cursor, Disclosure
from secformer.engine.tracing import META, Plan, opened_form
from secformer.engine.values import Disclosed, Masked, MaskedBits, Share, form_of, share_of, wire_of


class OnMasks(Runtime):
    """Subclasses say where masks come from, and what they make of a gate whose wires have them."""

    device = META
    _mask: Callable[[Form], Tensor]
    """That of the next opening."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._cursor = Cursor(plan.tape)

    @abstractmethod
    def _made_of(self, gate: Gate[Any], wires: Sequence[Any]) -> None:
        """What a gate with these masks is worth; the cursor moves past what is dealt for it."""

    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        return tuple(self._open_one(value) for value in values)

    def _open_one(self, value: Openable) -> Masked | MaskedBits:
        form = opened_form(value)
        return wire_of(form, form.empty(), self._mask(form))

    def _disclose(self, value: Share) -> Disclosed:
        self._cursor.next(Disclosure, form_of(value))  # what S0 and S1 draw together
        return Disclosed(value)

    def _apply(self, gate: Gate[Any], wires: Sequence[Any]) -> Share:
        self._made_of(gate, wires)
        form = gate.result(*wires)
        return share_of(form, form.empty())

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return share

"""Reading one: trace a program on meta tensors. Out come the tape and the ledger, in milliseconds, without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.gate import Gate
from secformer.engine.ledger import Cost, Ledger
from secformer.engine.program import Program
from secformer.engine.provenance import PUBLIC, SHARE, made_of, mask_of, masks_in, traced
from secformer.engine.runtime import Openable, Runtime
from secformer.engine.tape import Tape
from secformer.engine.values import (
    Disclosed,
    Masked,
    MaskedBits,
    Rounded,
    Share,
    Shared,
    Value,
    form_of,
    joined,
    share_of,
    wire_of,
)
from secformer.errors import TapeError

META = torch.device("meta")


@dataclass(frozen=True)
class Plan:
    """A traced program: what is dealt, what it costs, what comes out."""

    program: Program
    tape: Tape
    ledger: Ledger
    outputs: dict[str, Form]

    @property
    def cost(self) -> Cost:
        return self.ledger.total

    def __repr__(self) -> str:
        cost = self.cost
        return f"Plan({self.program.name}: {cost.rounds} rounds, {cost.online_bytes:,} B online, {cost.dealer_bytes:,} B dealt)"


class Tracing(Runtime):
    device = META

    def __init__(self, tape: Tape, ledger: Ledger) -> None:
        super().__init__()
        self.tape = tape
        self.ledger = ledger

    def _open(self, values: Sequence[Openable], guests: Sequence[str]) -> tuple[Masked | MaskedBits, ...]:
        scopes = [self.where] * (len(values) - len(guests)) + list(guests)
        wires = tuple(self._open_one(*item) for item in zip(values, scopes, strict=True))
        self.tape.rounds += 1
        self.ledger.at(scopes[0]).rounds += 1
        return wires

    def _open_one(self, value: Openable, scope: str) -> Masked | MaskedBits:
        form = opened_form(value)
        self._check_share(value.value if isinstance(value, Rounded) else value)
        self.ledger.at(scope).add_opening(form)
        mark = mask_of(self.tape.add_opening(scope, form).name)
        return wire_of(form, traced(form.shape, PUBLIC), traced(form.shape, mark))

    def _disclose(self, value: Share) -> Disclosed:
        self._check_share(value)
        if SHARE not in made_of(value.share):
            raise TapeError(
                f"{self.where}: a result is made of public parts alone: with a mask they would tell a secret"
            )
        self.tape.add_disclosure(self.where, form_of(value))
        return Disclosed(value)

    def _check_share(self, value: Share) -> None:
        if masks_in(value.share):
            raise TapeError(f"{self.where}: a share was made of a mask: gates use masks, programs do not")

    def _apply_by_rows(self, gate: Gate[Shared], blocks: Sequence[Sequence[Any]], wires: Sequence[Any]) -> Shared:
        if len(gate.materials(*wires)) != 1:
            raise TapeError(f"{self.where}: {gate.describe()} is not dealt one value: it cannot be applied by rows")
        return joined([self._apply(gate, block, number) for number, block in enumerate(blocks)], 0)  # type: ignore[arg-type]

    def _apply(self, gate: Gate[Any], wires: Sequence[Any], block: int = 0) -> Share:
        cost = self.ledger.at(self.where)
        sources = tuple(sorted(set().union(*(masks_in(wire.mask) for wire in wires))))
        if not sources:
            raise TapeError(f"{self.where}: {gate.describe()} is given wires that come from no opening")
        cost.add_work(*gate.work(*wires))
        for form in gate.materials(*wires):
            cost.add_dealt(form)
            self.tape.add_dealt(self.where, gate.describe(), sources, form, block)
        form = gate.result(*wires)
        return share_of(form, traced(form.shape, SHARE))

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return torch.empty_like(share)


def opened_form(value: Openable) -> Form:
    """The form of the share that is opened."""
    return value.form if isinstance(value, Rounded) else form_of(value)


def trace(program: Program) -> Plan:
    """A program that would break a rule of the threat model is refused here, and never runs."""
    static = tuple(f"input {name}" for name, form in program.inputs.items() if form.is_wire)
    runtime = Tracing(Tape(program.describe(), static), Ledger())
    inputs = {name: _marked(name, value) for name, value in program.placeholders().items()}
    outputs = program.body(runtime, inputs)
    runtime.check_arrived()
    program.check_outputs(outputs)
    forms = {name: form_of(out.value if isinstance(out, Disclosed) else out) for name, out in outputs.items()}
    return Plan(program, runtime.tape, runtime.ledger, forms)


def _marked(name: str, value: Value) -> Value:
    shape = tuple(value.shape)
    if isinstance(value, Masked | MaskedBits):
        return replace(value, public=traced(shape, PUBLIC), mask=traced(shape, mask_of(f"input {name}")))
    return replace(value, share=traced(shape, SHARE))

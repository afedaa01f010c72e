"""Reading one: trace a program on meta tensors. Out come the tape and the ledger, in milliseconds, without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secformer.engine.gate import Gate
from secformer.engine.ledger import Cost, Ledger
from secformer.engine.program import InputSpec, Program
from secformer.engine.runtime import Runtime, content_of
from secformer.engine.tape import Tape
from secformer.engine.values import Bits, Masked, MaskedBits, Share, Shared, Wire, merge_sources

META = torch.device("meta")


@dataclass(frozen=True)
class Plan:
    """A traced program: what is dealt, what it costs, what comes out."""

    program: Program
    tape: Tape
    ledger: Ledger
    outputs: dict[str, InputSpec]

    @property
    def cost(self) -> Cost:
        return self.ledger.total


class Tracing(Runtime):
    device = META

    def __init__(self, tape: Tape, ledger: Ledger) -> None:
        super().__init__()
        self.tape = tape
        self.ledger = ledger

    def _open(self, values: Sequence[Share]) -> tuple[Wire, ...]:
        cost = self.ledger.at(self.where)
        wires = tuple(self._open_one(value, cost) for value in values)
        self.tape.rounds += 1
        cost.rounds += 1
        return wires

    def _open_one(self, value: Share, cost: Cost) -> Wire:
        content = content_of(value)
        cost.add_opening(content)
        sources = (self.tape.add_opening(self.where, content).name,)
        empty = torch.empty(content.shape, dtype=torch.int64, device=META)
        if isinstance(value, Bits):
            return MaskedBits(empty, empty, value.width, sources)
        return Masked(empty, empty, value.width, value.scale, sources)

    def apply(self, gate: Gate, *wires: Wire) -> Share:
        cost = self.ledger.at(self.where)
        sources = merge_sources(*wires)
        dealt = []
        for material in gate.materials(*wires):
            cost.add_dealt(material)
            self.tape.add_dealt(self.where, gate.describe(), sources, material)
            dealt.append(torch.empty(material.shape, dtype=torch.int64, device=META))
        return gate.evaluate(self.party, wires, dealt)

    def _drop(self, share: Tensor, bits: int, width: int) -> Tensor:
        return torch.empty_like(share)

    def truncate_locally(self, value: Shared, bits: int) -> Shared:
        return replace(value, scale=value.scale - bits)

    def split(self, value: Shared) -> tuple[Bits, Bits]:
        empty = torch.empty_like(value.share)
        return Bits(empty, value.width), Bits(empty, value.width)


def trace(program: Program) -> Plan:
    """Trace and verify: a program that would break a rule of the threat model never runs."""
    static = tuple(f"input {name}" for name, spec in program.inputs.items() if spec.kind.startswith("masked"))
    runtime = Tracing(Tape(program.describe(), static), Ledger())
    outputs = program.body(runtime, program.placeholders())
    runtime.tape.verify()
    forms = {name: InputSpec.of(value) for name, value in outputs.items()}
    return Plan(program, runtime.tape, runtime.ledger, forms)

"""A program: a protocol, the shapes of what goes in, and the settings it was built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, Masked, MaskedBits, Shared, Value
from secformer.errors import AgreementError, DtypeError, ShapeError

KINDS: dict[type, str] = {Shared: "shared", Bits: "bits", Masked: "masked", MaskedBits: "masked_bits"}

Inputs = Mapping[str, Value]
Outputs = dict[str, Value]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The public form of an input: everything but its content."""

    kind: str
    shape: tuple[int, ...]
    width: int = 64
    scale: int = 0

    @staticmethod
    def of(value: Value) -> InputSpec:
        return InputSpec(KINDS[type(value)], tuple(value.shape), value.width, getattr(value, "scale", 0))

    def placeholder(self, name: str) -> Value:
        empty = torch.empty(self.shape, dtype=torch.int64, device="meta")
        sources = (f"input {name}",)
        if self.kind == "shared":
            return Shared(empty, self.width, self.scale)
        if self.kind == "bits":
            return Bits(empty, self.width)
        if self.kind == "masked":
            return Masked(empty, empty, self.width, self.scale, sources)
        return MaskedBits(empty, empty, self.width, sources)


@dataclass(frozen=True)
class Program:
    """`body` maps inputs to outputs through a runtime. `settings` is hashed into the tape with the inputs' forms."""

    name: str
    body: Callable[[Runtime, Inputs], Outputs]
    inputs: Mapping[str, InputSpec]
    settings: str = field(default="")

    def describe(self) -> str:
        return f"{self.name}\n{sorted(self.inputs.items())!r}\n{self.settings}"

    def placeholders(self) -> dict[str, Value]:
        return {name: spec.placeholder(name) for name, spec in self.inputs.items()}

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise unless `inputs` have exactly the declared names, kinds, shapes and widths."""
        if set(inputs) != set(self.inputs):
            raise AgreementError(f"{self.name} takes the inputs {sorted(self.inputs)}, not {sorted(inputs)}")
        for name, spec in self.inputs.items():
            if InputSpec.of(inputs[name]) != spec:
                raise ShapeError(f"{self.name}: input {name!r} is {InputSpec.of(inputs[name])}, not {spec}")
            if inputs[name]._tensor().dtype != torch.int64:
                raise DtypeError(f"{self.name}: input {name!r} must hold int64 ring elements")

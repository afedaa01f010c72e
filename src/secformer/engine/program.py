"""A program: a protocol, the forms of what goes in, how fine its results may be, and the settings it was built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from secformer.engine.form import Form
from secformer.engine.runtime import Runtime
from secformer.engine.values import Disclosed, Masked, MaskedBits, Value, form_of, share_of, wire_of
from secformer.errors import AgreementError, DtypeError, ShapeError, TapeError

Inputs = Mapping[str, Value]
Outputs = dict[str, Disclosed | Masked | MaskedBits]
"""What goes to the caller, and what stays with the servers as wires (an uploaded model)."""


@dataclass(frozen=True)
class Program:
    """`body` maps inputs to outputs through a runtime. Everything else is hashed into the tape."""

    name: str
    body: Callable[[Runtime, Inputs], Outputs]
    inputs: Mapping[str, Form]
    results: Mapping[str, int] = field(default_factory=dict)
    """The outputs that are disclosed, each with the finest scale it may have: no finer than it is accurate."""
    settings: str = ""

    def describe(self) -> str:
        return f"{self.name}\n{sorted(self.inputs.items())!r}\n{sorted(self.results.items())!r}\n{self.settings}"

    def placeholders(self) -> dict[str, Value]:
        """Inputs without content."""
        return {name: _placeholder(form) for name, form in self.inputs.items()}

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise unless `inputs` have exactly the declared names and forms."""
        if set(inputs) != set(self.inputs):
            raise AgreementError(f"{self.name} takes the inputs {sorted(self.inputs)}, not {sorted(inputs)}")
        for name, form in self.inputs.items():
            if form_of(inputs[name]) != form:
                raise ShapeError(f"{self.name}: input {name!r} is {form_of(inputs[name])}, not {form}")
            if inputs[name]._tensor().dtype != torch.int64:
                raise DtypeError(f"{self.name}: input {name!r} must hold int64 ring elements")

    def check_outputs(self, outputs: Outputs) -> None:
        """Raise unless everything that leaves was disclosed, under a declared name and no finer than declared."""
        for name, value in outputs.items():
            if not isinstance(value, Disclosed | Masked | MaskedBits):
                raise TapeError(f"{self.name}: output {name!r} is a bare {type(value).__name__}: disclose it")
            if not isinstance(value, Disclosed):
                continue
            scale = getattr(value.value, "scale", 0)
            if name not in self.results or scale > self.results[name]:
                raise TapeError(
                    f"{self.name}: output {name!r} at scale {scale} is not declared, or finer than declared: "
                    "what is finer than the result is accurate tells about something else"
                )


def _placeholder(form: Form) -> Value:
    return wire_of(form, form.empty(), form.empty()) if form.is_wire else share_of(form, form.empty())

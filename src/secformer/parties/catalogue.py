"""From a job to a plan: every party builds the program itself, by name, and traces it.

A builder turns a job's parameters and the forms of the stored wires it uses into a program. A program must never
return what its caller may not have: whoever runs it gets every share among its outputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from secformer.engine.program import InputSpec, Program
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Wire
from secformer.errors import InputError, SecFormerError
from secformer.parties.messages import Job, complaint

Builder = Callable[[Mapping[str, Any], Mapping[str, InputSpec]], Program]
Catalogue = Mapping[str, Builder]

PLANS_KEPT = 8
CALLER_KINDS = ("shared", "bits")
"""Kinds of value that travel to and from a caller; wires stay with the servers."""

Parameters = TypeVar("Parameters", bound=msgspec.Struct)


def read_parameters(kind: type[Parameters], given: Mapping[str, Any]) -> Parameters:
    """The parameters as the program declares them, or InputError naming the field."""
    try:
        return msgspec.convert(dict(given), kind, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"parameters: {complaint(error)}") from None


class Planner:
    """Builds and traces, and keeps the last plans: queries of one shape share one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._plans: OrderedDict[str, Plan] = OrderedDict()

    def plan(self, job: Job, stored: Mapping[str, InputSpec]) -> Plan:
        key = f"{Job(job.program, job.parameters).digest()} {sorted(stored.items())!r}"
        if key not in self._plans:
            self._plans[key] = self._build(job, stored)
        self._plans.move_to_end(key)
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return self._plans[key]

    def _build(self, job: Job, stored: Mapping[str, InputSpec]) -> Plan:
        builder = self._catalogue.get(job.program)
        if builder is None:
            raise InputError(f"unknown program {job.program!r}: known are {', '.join(sorted(self._catalogue))}")
        try:
            program = builder(job.parameters, stored)
            _check_stored(program, stored)
            return trace(program)
        except SecFormerError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # Public parameters that pass their own checks and still make no program, such as shapes that do not fit.
            raise InputError(f"{job.program} cannot be built from these parameters ({type(error).__name__})") from error


def _check_stored(program: Program, stored: Mapping[str, InputSpec]) -> None:
    """A program may only speak of wires there are: otherwise its size would be the caller's invention."""
    static = {name: spec for name, spec in program.inputs.items() if spec.kind not in CALLER_KINDS}
    if any(stored.get(name) != spec for name, spec in static.items()):
        raise InputError(f"the stored model is not the one this {program.name} is for: name another, or upload it anew")


def used_wires(plan: Plan, wires: Mapping[str, Wire]) -> dict[str, Wire]:
    """The stored wires that are inputs of the program."""
    return {name: wire for name, wire in wires.items() if name in plan.program.inputs}


def caller_forms(plan: Plan) -> dict[str, InputSpec]:
    """The inputs the caller brings; the others are wires of a stored model."""
    return {name: spec for name, spec in plan.program.inputs.items() if spec.kind in CALLER_KINDS}


def result_forms(plan: Plan) -> dict[str, InputSpec]:
    """The outputs the caller gets; the others are wires that are stored."""
    return {name: spec for name, spec in plan.outputs.items() if spec.kind in CALLER_KINDS}


def default_catalogue() -> dict[str, Builder]:
    """Every program this release knows."""
    from secformer.parties import model_programs, programs

    return {
        "upload": programs.upload,
        "encoder": model_programs.encoder,
        "layer": model_programs.layer,
        "activation": programs.activation,
        "dense": programs.dense,
        "attention": programs.attention,
        "lookup": programs.lookup_rows,
    }

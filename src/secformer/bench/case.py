"""A case: one protocol on inputs of one size, with everything that is promised about it.

The same cases are measured by `secformer bench protocols` and checked by the tests: the secure result against the
plaintext within `bound`, against the simulation within `rounding`, and the declared cost against the traced one and the
counted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.bench.costs import Declared
from secformer.bench.secrets import Forced, Secret, Sharing
from secformer.engine.local import Run, Wrap, run_locally
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan
from secformer.engine.values import Shared, Value
from secformer.ring.fixed_point import decode

Secrets = Mapping[str, Secret]
RESULT = "result"


@dataclass(frozen=True)
class Paper:
    """The row of the paper's Table 1: rounds, and bits both ways an element."""

    rounds: int
    bits: int


@dataclass(frozen=True)
class Case:
    protocol: str
    flavour: str
    """`wire` (ours) or `table1` (the paper's)."""
    program: Program
    inputs: Callable[[int], Secrets]
    """Plain inputs for a seed."""
    reference: Callable[..., Tensor]
    """The plaintext result, from the real values of the inputs in their order."""
    bound: float
    """Largest error against the plaintext; relative to it if `relative`."""
    rounding: float
    """Largest difference between a secure run and the simulation, measured in the same way."""
    elements: int
    """What costs are divided by: elements of the result, rows of a row function, tokens of a lookup."""
    declared: Declared
    relative: bool = False
    paper: Paper | None = None

    def share(self, secrets: Secrets, forced: Forced | None = None) -> dict[str, Sharing]:
        return {name: secret.share(forced) for name, secret in secrets.items()}

    def run(
        self, sharings: Mapping[str, Sharing], plan: Plan | None = None, wrap: Wrap = lambda channel: channel
    ) -> Run:
        """On real shares, in memory."""
        static = {name: sharing.dealt for name, sharing in sharings.items() if sharing.dealt is not None}
        pairs = {name: sharing.pair for name, sharing in sharings.items()}
        return run_locally(self.program, pairs, static, plan=plan, wrap=wrap)

    def simulate(self, secrets: Secrets) -> Tensor:
        plain = {name: secret.plain() for name, secret in secrets.items()}
        return _read(Simulating().run(self.program, plain)[RESULT])

    def exact(self, secrets: Secrets) -> Tensor:
        return self.reference(*(secret.real for secret in secrets.values()))

    def error(self, result: Tensor, exact: Tensor) -> float:
        """The largest one; exact integers are compared as integers."""
        difference = (result - exact).abs().to(torch.float64)
        return float((difference / exact.abs() if self.relative else difference).max())


def _read(value: Value) -> Tensor:
    if isinstance(value, Shared):
        return decode(value.share, value.scale, value.width)
    return value._tensor()


def make_case(
    protocol: str,
    body: Callable[[Runtime, Any], Value],
    inputs: Callable[[int], Secrets],
    reference: Callable[..., Tensor],
    elements: int,
    declared: Declared,
    *,
    flavour: str = "wire",
    bound: float = 0.0,
    rounding: float = 0.0,
    relative: bool = False,
    paper: Paper | None = None,
) -> Case:
    """A case with one result; exact unless a bound is stated. The inputs' forms are those of seed 0."""

    def program_body(runtime: Runtime, values: Inputs) -> Outputs:
        return {RESULT: body(runtime, values)}

    specs = {name: secret.spec() for name, secret in inputs(0).items()}
    program = Program(f"{flavour} {protocol}", program_body, specs)
    return Case(protocol, flavour, program, inputs, reference, bound, rounding, elements, declared, relative, paper)

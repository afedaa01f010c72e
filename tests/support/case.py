"""A case: one protocol on inputs of one size, with everything that is promised about it.

The same cases are measured by `secformer-lab bench protocols` and checked by the tests: the secure result against the
plaintext within `bound`, against the simulation within `rounding`, and the cost written down from the formulas against the
traced one and the counted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secformer.engine.form import Form
from secformer.engine.local import Run, Wrap, run_locally
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded, Forced, Sharing, share
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan
from secformer.engine.values import Disclosed, Share, Shared
from secformer.ring.fixed_point import decode

Secrets = Mapping[str, Encoded]
RESULT = "result"
FINEST = 64


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
    relative: bool = False
    paper: Paper | None = None

    def share(self, secrets: Secrets, forced: Forced | None = None) -> dict[str, Sharing]:
        return {name: share(secret, forced) for name, secret in secrets.items()}

    def run(
        self, sharings: Mapping[str, Sharing], plan: Plan | None = None, wrap: Wrap = lambda channel: channel
    ) -> Run:
        """On real shares, in memory."""
        return run_locally(self.program, sharings, plan=plan, wrap=wrap)

    def simulate(self, secrets: Secrets) -> Tensor:
        return simulated(self.program, secrets)[RESULT]

    def exact(self, secrets: Secrets) -> Tensor:
        return self.reference(*(secret.real for secret in secrets.values()))

    def error(self, result: Tensor, exact: Tensor) -> float:
        """The largest one; exact integers are compared as integers."""
        difference = (result - exact).abs().to(torch.float64)
        return float((difference / exact.abs() if self.relative else difference).max())


def revealing(
    name: str, body: Callable[[Runtime, Any], Mapping[str, Share]], forms: Mapping[str, Form], settings: str = ""
) -> Program:
    """A program for measurements and tests: whatever its body returns is disclosed as it is, to the last bit."""

    def disclose(runtime: Runtime, inputs: Inputs) -> Outputs:
        return {key: runtime.disclose(value) for key, value in body(runtime, inputs).items()}

    return Program(name, disclose, forms, _AnyName(), settings)


class _AnyName(dict):
    """Every name is a result, at any scale."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return FINEST


def simulated(program: Program, secrets: Secrets) -> dict[str, Tensor]:
    """A program's results on plain numbers."""
    outputs = Simulating().run(program, {name: secret.plain() for name, secret in secrets.items()})
    return {name: _read(value) for name, value in outputs.items() if isinstance(value, Disclosed)}


def _read(value: Disclosed) -> Tensor:
    held = value.value
    return decode(held.share, held.scale, held.width) if isinstance(held, Shared) else held.share


def make_case(
    protocol: str,
    body: Callable[[Runtime, Any], Share],
    inputs: Callable[[int], Secrets],
    reference: Callable[..., Tensor],
    elements: int,
    *,
    flavour: str = "wire",
    bound: float = 0.0,
    rounding: float = 0.0,
    relative: bool = False,
    paper: Paper | None = None,
) -> Case:
    """A case with one result; exact unless a bound is stated. The inputs' forms are those of seed 0."""
    forms = {name: secret.form for name, secret in inputs(0).items()}
    program = revealing(f"{flavour} {protocol}", lambda runtime, values: {RESULT: body(runtime, values)}, forms)
    return Case(protocol, flavour, program, inputs, reference, bound, rounding, elements, relative, paper)


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    """Test data, uniform in [low, high], with the corners of the range in the first places; not for shares or masks."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(low, high + 1, shape, generator=generator)
    corners = [corner for corner in (low, high, 0, -1, 1) if low <= corner <= high]
    flat = values.view(-1)
    for place, corner in enumerate(corners[: flat.numel()]):
        flat[place] = corner
    return values

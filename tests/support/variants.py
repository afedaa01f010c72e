"""Run a variant of a function on two real shares and in simulation; both must agree and cost what was traced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from case import revealing
from simulation import simulation
from torch import Tensor

from secformer.engine.form import Form, shared
from secformer.engine.local import Run, run_locally
from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Shared

SCALE = 16
UNIT = 2.0**-SCALE


def line(low: float, high: float, count: int = 400) -> Tensor:
    """Points that 16 fraction bits hold exactly."""
    return on_grid(torch.linspace(low, high, count, dtype=torch.float64))


def on_grid(real: Tensor) -> Tensor:
    return torch.round(real / UNIT) * UNIT


def number(real: Tensor, scale: int = SCALE) -> Encoded:
    return Encoded.numbers(real, scale)


def wire(real: Tensor, scale: int = SCALE) -> Encoded:
    return Encoded.numbers(real, scale, kind="masked")


def program(function: Callable[..., Shared], forms: dict[str, Form]) -> Program:
    return revealing("variant", lambda runtime, inputs: {"y": function(runtime, *inputs.values())}, forms)


def plan_of(function: Callable[..., Shared], *shapes: tuple[int, ...]) -> Plan:
    return trace(program(function, {str(place): shared(shape, 64, SCALE) for place, shape in enumerate(shapes)}))


def simulate(function: Callable[..., Shared], *secrets: Encoded | Tensor, strict: bool = False) -> Tensor:
    """`strict`: RangeError where a range is left."""
    return simulation(*_built(function, secrets), strict).results["y"]


def departures(function: Callable[..., Shared], *secrets: Encoded | Tensor) -> list[str]:
    """What left its range, in words."""
    program, named = _built(function, secrets)
    runtime = Simulating()
    runtime.run(program, {name: secret.plain() for name, secret in named.items()})
    return [str(departure) for departure in runtime.departures]


def secure(function: Callable[..., Shared], *secrets: Encoded | Tensor) -> Run:
    """On shares; the links must have carried exactly what the plan declares."""
    run = run_locally(*_built(function, secrets))
    cost = run.plan.cost
    for counters in run.counters:
        assert counters.payload_sent == counters.payload_received == cost.opened_bytes
        assert counters.rounds == cost.rounds
    assert run.dealer.payload_sent == cost.dealer_bytes
    return run


def check(function: Callable[..., Shared], expected: Tensor, bound: Tensor | float, *secrets: Encoded | Tensor) -> Run:
    """Within `bound` of what is expected, on shares and in simulation."""
    run = secure(function, *secrets)
    for result in (run.value("y"), simulate(function, *secrets)):
        assert result.shape == expected.shape
        error = (result - expected).abs()
        assert (error <= bound).all(), f"off by {error.max():.2e}"
    return run


def _built(
    function: Callable[..., Shared], secrets: tuple[Encoded | Tensor, ...]
) -> tuple[Program, dict[str, Encoded]]:
    """The program and its inputs, named by their place, so that a program reads them in order."""
    named = {
        str(place): number(secret) if isinstance(secret, Tensor) else secret for place, secret in enumerate(secrets)
    }
    return program(function, {name: secret.form for name, secret in named.items()}), named

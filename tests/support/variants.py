"""Run a variant of a function on two real shares and in simulation; both must agree and cost what was traced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from secformer.bench.secrets import Number, Secret, Wire
from secformer.engine.local import Run, run_locally
from secformer.engine.program import InputSpec, Program
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Shared
from secformer.ring.fixed_point import decode, encode

SCALE = 16
UNIT = 2.0**-SCALE


def line(low: float, high: float, count: int = 400) -> Tensor:
    """Points that 16 fraction bits hold exactly."""
    return on_grid(torch.linspace(low, high, count, dtype=torch.float64))


def on_grid(real: Tensor) -> Tensor:
    return torch.round(real / UNIT) * UNIT


def number(real: Tensor, scale: int = SCALE) -> Number:
    return Number(encode(real, scale), 64, scale)


def wire(real: Tensor, scale: int = SCALE) -> Wire:
    return Wire(encode(real, scale), 64, scale)


def program(function: Callable[..., Shared], specs: dict[str, InputSpec]) -> Program:
    return Program("variant", lambda runtime, inputs: {"y": function(runtime, *inputs.values())}, specs)


def plan_of(function: Callable[..., Shared], *shapes: tuple[int, ...]) -> Plan:
    specs = {str(place): InputSpec("shared", shape, 64, SCALE) for place, shape in enumerate(shapes)}
    return trace(program(function, specs))


def simulate(function: Callable[..., Shared], *secrets: Secret | Tensor) -> Tensor:
    named = _named(secrets)
    built = program(function, {name: secret.spec() for name, secret in named.items()})
    result = Simulating().run(built, {name: secret.plain() for name, secret in named.items()})["y"]
    assert isinstance(result, Shared)
    return decode(result.share, result.scale, result.width)


def secure(function: Callable[..., Shared], *secrets: Secret | Tensor) -> Run:
    """On shares; the links must have carried exactly what the plan declares."""
    named = _named(secrets)
    built = program(function, {name: secret.spec() for name, secret in named.items()})
    sharings = {name: secret.share() for name, secret in named.items()}
    static = {name: sharing.dealt for name, sharing in sharings.items() if sharing.dealt is not None}
    run = run_locally(built, {name: sharing.pair for name, sharing in sharings.items()}, static)
    cost = run.plan.cost
    for counters in run.counters:
        assert counters.payload_sent == counters.payload_received == cost.opened_bytes
        assert counters.rounds == cost.rounds
    assert run.dealer.payload_sent == cost.dealer_bytes
    return run


def check(function: Callable[..., Shared], expected: Tensor, bound: Tensor | float, *secrets: Secret | Tensor) -> Run:
    """Within `bound` of what is expected, on shares and in simulation."""
    run = secure(function, *secrets)
    for result in (run.value("y"), simulate(function, *secrets)):
        assert result.shape == expected.shape
        error = (result - expected).abs()
        assert (error <= bound).all(), f"off by {error.max():.2e}"
    return run


def _named(secrets: tuple[Secret | Tensor, ...]) -> dict[str, Secret]:
    """Named by their place, so that a program reads them in order."""
    return {
        str(place): number(secret) if isinstance(secret, Tensor) else secret for place, secret in enumerate(secrets)
    }

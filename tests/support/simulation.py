"""A program on plain numbers: its results, and what left its range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from secformer.engine.program import Program
from secformer.engine.sharing import Encoded
from secformer.engine.simulating import Departure, Simulating
from secformer.engine.values import Disclosed, Shared
from secformer.ring.fixed_point import decode


class Simulation(NamedTuple):
    results: dict[str, Tensor]
    departures: list[Departure]


def simulation(program: Program, secrets: Mapping[str, Encoded], strict: bool = False) -> Simulation:
    """`strict`: RangeError where a range is left."""
    runtime = Simulating(strict=strict)
    outputs = runtime.run(program, {name: secret.plain() for name, secret in secrets.items()})
    held = {name: output.value for name, output in outputs.items() if isinstance(output, Disclosed)}
    results = {
        name: decode(value.share, value.scale, value.width) if isinstance(value, Shared) else value.share
        for name, value in held.items()
    }
    return Simulation(results, runtime.departures)

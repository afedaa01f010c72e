"""The protocols of the paper's Table 1, as it has them: Beaver openings of 64 bits, local truncation.

Bounds are those of the approximations the paper takes (see the protocol files); ranges are where they hold. Where Table 1
prints other costs than the steps of its algorithms have, both are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from case import Case, Paper, integers, make_case
from torch import Tensor

from secformer.engine.sharing import Encoded
from secformer_lab.paper.sine import PERIOD
from secformer_lab.paper.table1 import TABLE1

SCALE = 16
UNIT = 2.0**-SCALE


def table1_cases(rows: int, columns: int) -> list[Case]:
    shape, side = (rows, columns), (rows, rows)  # square matrices, as the paper counts them
    return [
        _case("add", [shape, shape], (-100, 100), torch.add),
        _case("sin", [shape], (-100, 100), _sine, bound=6 * UNIT),
        _case("square", [shape], (-16, 16), torch.square, bound=UNIT),
        _case("mul", [shape, shape], (-16, 16), torch.mul, bound=UNIT),
        _case("matmul", [side, side], (-16, 16), torch.matmul, bound=UNIT),
        _case("lt", [shape, shape], (-100, 100), _less_than),
        # relative error x²/2^9 of the power, and of its rounded base 2^(8−15)
        _case("exp", [shape], (-2, 2), torch.exp, bound=0.03, relative=True),
        _case("rsqrt", [shape], (0.125, 32), torch.rsqrt, bound=0.005, relative=True),
        _case("div", [shape], (0.5, 8), torch.reciprocal, bound=4e-4),
    ]


def _less_than(x: Tensor, y: Tensor) -> Tensor:
    return (x < y).to(torch.float64)


def _sine(x: Tensor) -> Tensor:
    return torch.sin(x * (2 * math.pi / PERIOD))


def _case(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    window: tuple[float, float],
    reference: Callable[..., Tensor],
    *,
    bound: float = 0.0,
    relative: bool = False,
) -> Case:
    entry = TABLE1[name]
    low, high = (round(end * 2**SCALE) for end in window)
    names = [f"x{number}" for number in range(len(shapes))]

    def inputs(seed: int) -> dict[str, Encoded]:
        return {
            key: Encoded.ring_elements(integers(seed + place, shape, low, high), SCALE)
            for place, (key, shape) in enumerate(zip(names, shapes, strict=True))
        }

    return make_case(
        name,
        lambda runtime, values: entry.function(runtime, *(values[key] for key in names)),
        inputs,
        reference,
        math.prod(shapes[0]),
        flavour="table1",
        bound=bound,
        rounding=2 * bound,
        relative=relative,
        paper=Paper(entry.paper_rounds, entry.paper_bits),
    )

"""The protocols of the paper's Table 1, as it has them: Beaver openings of 64 bits, local truncation.

Bounds are those of the approximations the paper takes (see the protocol files); ranges are where they hold. Declared
costs follow the steps of each algorithm; where Table 1 prints other figures, both are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secformer.bench import costs
from secformer.bench.case import Case, Paper, make_case
from secformer.bench.costs import Declared, dealing, opening
from secformer.bench.secrets import Number, integers
from secformer.protocols.sine import PERIOD
from secformer.protocols.table1 import TABLE1

SCALE = 16
UNIT = 2.0**-SCALE


def table1_cases(rows: int, columns: int) -> list[Case]:
    shape, n = (rows, columns), rows * columns
    mul, square = _products(n, 2), _products(n, 1)
    root_step, division_step = square + mul + mul, square + mul
    side = (rows, rows)  # square matrices, as the paper counts them
    return [
        _case("add", [shape, shape], (-100, 100), torch.add, dealing()),
        _case("sin", [shape], (-100, 100), _sine, costs.fourier(n, 21, 1), bound=6 * UNIT),
        _case("square", [shape], (-16, 16), torch.square, square, bound=UNIT),
        _case("mul", [shape, shape], (-16, 16), torch.mul, mul, bound=UNIT),
        _case("matmul", [side, side], (-16, 16), torch.matmul, _products(rows * rows, 2), bound=UNIT),
        _case("lt", [shape, shape], (-100, 100), _less_than, costs.adder(n)),
        # relative error x²/2^9 of the power, and of its rounded base 2^(8−15)
        _case("exp", [shape], (-2, 2), torch.exp, square.times(8), bound=0.03, relative=True),
        _case(
            "rsqrt", [shape], (0.125, 32), torch.rsqrt, square.times(8) + root_step.times(3), bound=0.005, relative=True
        ),
        _case("div", [shape], (0.5, 8), torch.reciprocal, square.times(8) + division_step.times(10), bound=4e-4),
    ]


def _products(elements: int, operands: int) -> Declared:
    """Π_Mul (and Π_MatMul) opens two values and has one dealt, Π_Square one."""
    return opening(*[(elements, 64)] * operands) + dealing((elements, 64))


def _less_than(x: Tensor, y: Tensor) -> Tensor:
    return (x < y).to(torch.float64)


def _sine(x: Tensor) -> Tensor:
    return torch.sin(x * (2 * math.pi / PERIOD))


def _case(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    window: tuple[float, float],
    reference: Callable[..., Tensor],
    declared: Declared,
    *,
    bound: float = 0.0,
    relative: bool = False,
) -> Case:
    entry = TABLE1[name]
    low, high = (round(end * 2**SCALE) for end in window)
    names = [f"x{number}" for number in range(len(shapes))]

    def inputs(seed: int) -> dict[str, Number]:
        return {
            key: Number(integers(seed + place, shape, low, high), 64, SCALE)
            for place, (key, shape) in enumerate(zip(names, shapes, strict=True))
        }

    return make_case(
        name,
        lambda runtime, values: entry.function(runtime, *(values[key] for key in names)),
        inputs,
        reference,
        math.prod(shapes[0]),
        declared,
        flavour="table1",
        bound=bound,
        rounding=2 * bound,
        relative=relative,
        paper=Paper(entry.paper_rounds, entry.paper_bits),
    )

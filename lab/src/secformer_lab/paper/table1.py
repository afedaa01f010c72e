"""Table 1 of the paper as a registry: each protocol beside the rounds and bits the paper prints for it.

Bits are both directions, an element (for Π_MatMul: an element of an n × n matrix). Two figures cannot be
met: Π_LT takes 8 rounds, not 7, and the bits of Π_rSqrt and Π_Div do not follow from the steps the paper
states. Ours are counted from the tape; the tests and the benchmark print both. t = 3 for Π_rSqrt and 10 for
Π_Div, CrypTen's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from secformer.engine.values import Shared
from secformer_lab.paper import adder, beaver, exponential, newton, sine


class Entry(NamedTuple):
    function: Callable[..., Shared]
    paper_rounds: int
    paper_bits: int


TABLE1: Mapping[str, Entry] = MappingProxyType(
    {
        "add": Entry(beaver.add, 0, 0),
        "sin": Entry(sine.sine, 1, 42),
        "square": Entry(beaver.square, 1, 128),
        "mul": Entry(beaver.multiply, 1, 256),
        "matmul": Entry(beaver.matmul, 1, 256),
        "lt": Entry(adder.less_than, 7, 3456),
        "exp": Entry(exponential.exponential, 8, 1024),
        "rsqrt": Entry(newton.inverse_sqrt, 9 + 3 * newton.INVERSE_SQRT_STEPS, 6400),
        "div": Entry(newton.reciprocal, 16 + 2 * newton.RECIPROCAL_STEPS, 10368),
    }
)

"""Every protocol as a case, (a) on wires and (b) as the paper's Table 1 has it, for one size of matrix."""

from __future__ import annotations

from case import Case
from wire_cases import (
    bit_cases,
    comparison_cases,
    fourier_cases,
    lift_cases,
    linear_cases,
    product_cases,
)

from secformer.errors import ShapeError
from secformer_lab.paper.table1_cases import table1_cases

COUNTERPARTS = {
    "add": "add",
    "sin": "sin",
    "square": "square",
    "multiply": "mul",
    "matmul": "matmul",
    "less_than secrets": "lt",
    "exp": "exp",
    "inverse_sqrt": "rsqrt",
    "reciprocal": "div",
}
"""Protocol on wires → its row of Table 1."""


def wire_cases(rows: int, columns: int) -> list[Case]:
    groups = (linear_cases, product_cases, lift_cases, fourier_cases, comparison_cases, bit_cases)
    return [case for group in groups for case in group(rows, columns)]


def catalogue(rows: int, columns: int) -> list[Case]:
    """All cases on matrices of this size."""
    if rows < 1 or columns < 1:
        raise ShapeError(f"cases need at least one row and one column, not {rows} and {columns}")
    return wire_cases(rows, columns) + table1_cases(rows, columns)

"""The protocols on wires, each on inputs that fill its declared range."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from case import Case, integers, make_case
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded
from secformer.engine.values import Shared
from secformer.protocols import functions, lift, menu
from secformer.protocols import multiply as products
from secformer.protocols.bits import bit_to_arithmetic, both
from secformer.protocols.compare import less_than
from secformer.protocols.fit import FourierFit
from secformer.protocols.fourier import fourier, to_period
from secformer.protocols.lookup import lookup, one_hot_rows, table_words
from secformer.protocols.maximum import empty_from, top_cell

FITS = Path(__file__).with_name("wire_fits.json")
SCALE = 12
LIMIT = 1 << 17
"""Inputs of products: |x| < 32 at 12 fraction bits."""

EXACT = 1 << 52
"""Integers up to here are exact in float64, in which plaintext results are computed."""


def linear_cases(rows: int, columns: int) -> list[Case]:
    """What needs no opening."""
    shape, elements = (rows, columns), rows * columns
    wires = {"x": partial(_wire, 40), "y": partial(_wire, 40)}
    return [
        make_case(
            "add",
            lambda runtime, v: products.unmask(runtime, v["x"] * 3 - v["y"]),
            partial(_draw, wires, {"x": shape, "y": shape}),
            lambda x, y: 3 * x - y,
            elements,
        ),
        make_case(
            "drop",
            lambda runtime, v: runtime.drop(v["x"], 8),
            partial(_draw, {"x": partial(_number, 40)}, {"x": shape}),
            lambda x: x,
            elements,
            bound=2.0 ** (8 - SCALE),
            rounding=2.0 ** (8 - SCALE),
        ),
    ]


def product_cases(rows: int, columns: int) -> list[Case]:
    """Open both sides, multiply two wires: exact modulo 2^40."""
    n, wide, row = rows * columns, (rows, columns), (1, columns)
    tall, batch, batch_tall = (columns, rows), (2, rows, columns), (2, columns, rows)
    return [
        _product("multiply", products.multiply, torch.mul, wide, wide, n),
        _product("multiply broadcast", products.multiply, torch.mul, wide, row, n),
        _product("matmul", products.matmul, torch.matmul, wide, tall, rows * rows),
        _product("matmul batched", products.matmul, torch.matmul, batch, batch_tall, 2 * rows * rows),
        _of_one_wire("square", products.square, lambda x: x * x, wide, n),
        _of_one_wire("row_squares", products.row_squares, _row_squares, wide, rows),
    ]


def lift_cases(rows: int, columns: int) -> list[Case]:
    """Wires of 19 and 18 bits hold |x| < 32 and |y| < 16 at 12 fraction bits; results modulo 2^64 and 2^58."""
    shape, n = (rows, columns), rows * columns
    narrow = partial(_draw, {"x": partial(_number, 19, high=LIMIT - 1)}, {"x": shape})
    factors = {"x": partial(_number, 19, high=LIMIT - 1), "y": partial(_number, 18, limit=LIMIT // 2)}
    pair = partial(_draw, factors, {"x": shape, "y": shape})
    return [
        make_case(
            "lift",
            lambda runtime, v: lift.lift(runtime, *runtime.open(v["x"]), bound=32),
            narrow,
            lambda x: x,
            n,
        ),
        make_case(
            "multiply lifted",
            _multiply_lifted,
            pair,
            torch.mul,
            n,
        ),
        make_case(
            "row_squares lifted",
            lambda runtime, v: lift.row_squares_lifted(runtime, lift.lift_wire(runtime, *runtime.open(v["x"]))),
            narrow,
            _row_squares,
            rows,
        ),
    ]


def _multiply_lifted(runtime: Runtime, values: Any) -> Shared:
    x, y = runtime.open(values["x"], values["y"])
    return lift.multiply_lifted(runtime, lift.lift_wire(runtime, x, 64), lift.lift_wire(runtime, y, 58))


@dataclass(frozen=True)
class Series:
    """How a function is evaluated: its fit, the bits of a period, and the scales of dealt and public factors."""

    function: functions.Function
    fit: FourierFit
    bits: int
    dealt_scale: int
    public_scale: int

    def rounding(self) -> float:
        """One unit of the period times the steepest slope, and twice the 3.5 deviations of all other roundings."""
        x = torch.linspace(self.fit.low, self.fit.high, 20001, dtype=torch.float64)
        value = self.function(x)
        slope = (value.diff() / x.diff()).abs()
        size = value.abs() if self.fit.relative else torch.ones_like(value)
        unit = 1.01 * self.fit.period / 2.0**self.bits
        noise = 2 * self.fit.fixed_point_error(self.dealt_scale, self.public_scale)
        return float((slope / size[1:]).max() * unit + noise / size.min())


def fourier_cases(rows: int, columns: int) -> list[Case]:
    """Functions of one variable with one opening; 1/v and 1/√v a row, on windows of a factor 30."""
    return [
        _series_case("gelu", _fitted("gelu", -10, 10, 1e-4), (rows, columns), 17, 16, 14),
        _series_case("sin", _sine(), (rows, columns), 21, 20, 20),
        _series_case("exp", _fitted("exp", -16, 0, 1e-5), (rows, columns), 22, 22, 20),
        _series_case("reciprocal", _fitted("reciprocal", 1, 30, 2e-5), (rows, 1), 28, 28, 24),
        _series_case("inverse_sqrt", _fitted("inverse_sqrt", 1, 30, 2e-5), (rows, 1), 28, 28, 24),
    ]


def _fitted(name: str, low: float, high: float, error: float) -> FourierFit:
    """Return a stored fit. A search would give other last digits on another processor, and so another tape."""
    found = menu.from_numbers(json.loads(FITS.read_text())[name])
    assert (found.low, found.high) == (low, high) and found.max_error <= error
    return found


def _sine() -> FourierFit:
    return FourierFit(-32.0, 32.0, 2 * math.pi, 0.0, (0.0,), (1.0,), 0.0, relative=False, name="sin")


def _series_case(
    name: str, series_fit: FourierFit, shape: tuple[int, int], bits: int, dealt_scale: int, public_scale: int
) -> Case:
    function = functions.FUNCTIONS.get(name, torch.sin)
    series = Series(function, series_fit, bits, dealt_scale, public_scale)
    rounding, elements, scale = series.rounding(), shape[0] * shape[1], 20
    low, high = round(series_fit.low * 2**scale), round(series_fit.high * 2**scale)

    def body(runtime: Runtime, values: Any) -> Shared:
        narrow = to_period(runtime, values["x"], series_fit, bits)
        (wire,) = runtime.open(narrow)
        return fourier(runtime, wire, series_fit, dealt_scale, public_scale)

    return make_case(
        name,
        body,
        lambda seed: {"x": Encoded.ring_elements(integers(seed, shape, low, high), scale)},
        function,
        elements,
        bound=series_fit.max_error + rounding,
        rounding=rounding,
        relative=series_fit.relative,
    )


def comparison_cases(rows: int, columns: int) -> list[Case]:
    """Exact over the whole range |x − c| < 2^(w−1)."""
    shape, n = (rows, columns), rows * columns
    return [
        _against_constant("less_than 24", shape, 24),
        _against_constant("less_than 64", shape, 64),
        make_case(
            "less_than secrets",
            lambda runtime, v: less_than(runtime, v["x"], v["y"]),
            lambda seed: {
                "x": Encoded.ring_elements(integers(seed, shape, -EXACT, EXACT), SCALE),
                "y": Encoded.ring_elements(integers(seed + 1, shape, -EXACT, EXACT).flip(0), SCALE),
            },
            lambda x, y: (x < y).to(torch.float64),
            n,
        ),
        _maximum(rows, max(2, columns)),
    ]


def _against_constant(name: str, shape: tuple[int, int], width: int) -> Case:
    constant, n = 1.5, shape[0] * shape[1]
    limit = min(1 << (width - 1), EXACT) - (1 << 13)  # room for the constant
    return make_case(
        name,
        lambda runtime, v: less_than(runtime, v["x"], constant),
        lambda seed: {"x": Encoded.ring_elements(integers(seed, shape, -limit, limit), SCALE, width)},
        lambda x: (x < constant).to(torch.float64),
        n,
    )


def _maximum(rows: int, length: int) -> Case:
    """Cells of 2^10 in a window of 2^16; the last cell stays free. One cell too high is within the promise."""
    return make_case(
        "row maximum",
        lambda runtime, v: top_cell(runtime, empty_from(runtime, [(runtime.open(v["x"])[0], 6, 20)])[0]),
        lambda seed: {"x": Encoded.ring_elements(integers(seed, (rows, length), 0, (1 << 16) - (1 << 11)), width=16)},
        lambda x: torch.floor(x.amax(-1, keepdim=True) / 1024),
        rows,
        bound=1.0,
        rounding=1.0,
    )


def bit_cases(rows: int, columns: int) -> list[Case]:
    """GF(2)."""
    shape, n, domain, width = (rows, columns), rows * columns, 37 * rows + 1, 17
    words = (domain, -(-columns * width // 64))

    def table(seed: int) -> Tensor:
        return integers(seed + 1, (domain, columns), -(1 << (width - 1)), (1 << (width - 1)) - 1)

    return [
        make_case(
            "and",
            lambda runtime, v: both(runtime, *runtime.open(v["x"], v["y"])),
            lambda seed: {
                "x": _words(integers(seed, shape, 0, (1 << 32) - 1), 32),
                "y": _words(integers(seed + 1, shape, 0, (1 << 32) - 1), 32),
            },
            torch.bitwise_and,
            n,
        ),
        make_case(
            "bit_to_arithmetic",
            lambda runtime, v: bit_to_arithmetic(runtime, *runtime.open(v["x"])),
            lambda seed: {"x": _words(integers(seed, shape, 0, 1), 1)},
            lambda x: x.to(torch.float64),
            n,
        ),
        make_case(
            "lookup",
            lambda runtime, v: lookup(runtime, v["tokens"], v["table"], columns, width, SCALE),
            lambda seed: {
                "tokens": _words(one_hot_rows(integers(seed, (rows,), 0, domain - 1), domain), 8),
                "table": Encoded.ring_elements(table_words(table(seed), width).reshape(words), kind="masked_bits"),
            },
            lambda tokens, table: _numbers(table, columns, width)[_places(tokens)] * 2.0**-SCALE,
            rows,
        ),
    ]


def _words(words: Tensor, width: int) -> Encoded:
    return Encoded.ring_elements(words, width=width, kind="bits")


def _places(one_hot: Tensor) -> Tensor:
    """Where the one of each row of bytes is."""
    return ((one_hot.unsqueeze(-1) >> torch.arange(8)) & 1).flatten(1).argmax(1)


def _numbers(words: Tensor, columns: int, width: int) -> Tensor:
    """The signed numbers whose bit planes `table_words` made, as float64."""
    bits = ((words.unsqueeze(-1) >> torch.arange(64)) & 1).flatten(1)[:, : columns * width]
    weights = 2.0 ** torch.arange(width, dtype=torch.float64)
    weights[-1] = -weights[-1]
    return bits.unflatten(1, (columns, width)).to(torch.float64) @ weights


Shapes = dict[str, tuple[int, ...]]


def _draw(kinds: Mapping[str, Callable[..., Encoded]], shapes: Shapes, seed: int) -> dict[str, Encoded]:
    return {name: kind(seed + place, shapes[name]) for place, (name, kind) in enumerate(kinds.items())}


def _number(width: int, seed: int, shape: tuple[int, ...], *, limit: int = LIMIT, high: int = 0) -> Encoded:
    return Encoded.ring_elements(integers(seed, shape, -limit, high or limit - 1), SCALE, width)


def _wire(width: int, seed: int, shape: tuple[int, ...]) -> Encoded:
    return Encoded.ring_elements(integers(seed, shape, -LIMIT, LIMIT - 1), SCALE, width, "masked")


def _row_squares(x: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True)


def _product(name, protocol, reference, left, right, elements) -> Case:
    width = 40 + math.ceil(math.log2(left[-1]))
    inputs = partial(_draw, {"x": partial(_number, width), "y": partial(_number, width)}, {"x": left, "y": right})
    return make_case(
        name,
        lambda runtime, v: protocol(runtime, *runtime.open(v["x"], v["y"])),
        inputs,
        reference,
        elements,
    )


def _of_one_wire(name, protocol, reference, shape, elements) -> Case:
    width = 40 + math.ceil(math.log2(shape[-1]))
    return make_case(
        name,
        lambda runtime, v: protocol(runtime, *runtime.open(v["x"])),
        partial(_draw, {"x": partial(_number, width)}, {"x": shape}),
        reference,
        elements,
    )

"""The programs of the default catalogue: an upload, and small pieces of a Transformer over what was uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct

from secformer.engine.program import Inputs, InputSpec, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.values import Bits, MaskedBits, Public, Shared, as_masked, as_shared
from secformer.errors import InputError, ShapeError
from secformer.parties.catalogue import read_parameters
from secformer.protocols.activation import activate_one
from secformer.protocols.attention import ExactSetting, HeadGroup, RowSetting, exact_attention
from secformer.protocols.embedding import lookup
from secformer.protocols.fit import FourierFit, fit
from secformer.protocols.functions import FUNCTIONS, reciprocal
from secformer.protocols.multiply import matmul

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
Width = Annotated[int, Meta(ge=1, le=64)]
Scale = Annotated[int, Meta(ge=0, le=40)]
Shape = Annotated[tuple[Size, ...], Meta(min_length=1, max_length=6)]
Stored = Mapping[str, InputSpec]
Given = Mapping[str, Any]

ELEMENTS_LIMIT = 1 << 31
"""Elements of one tensor: bounds the time to trace a program that somebody else asked for."""

TERMS_LIMIT = 64
"""Terms of a series on a window that a caller chose: a fit takes a second, where 512 terms take minutes."""

INPUT_SCALE, INPUT_WIDTH = 12, 54
RESULT_SCALE, RESULT_WIDTH = 12, 32
MAXIMUM_FLOOR = 2.0**-4  # the row maximum is known to two cells of two octaves, see protocols/maximum.py


def _check_size(shape: tuple[int, ...]) -> None:
    if prod(shape) > ELEMENTS_LIMIT:
        raise ShapeError(f"a tensor of shape {shape} has more than {ELEMENTS_LIMIT} elements: split it")


class TensorForm(Struct, frozen=True, forbid_unknown_fields=True):
    shape: Shape
    width: Width = 64
    scale: Scale = 0
    kind: Literal["shared", "bits"] = "shared"


class UploadParameters(Struct, frozen=True, forbid_unknown_fields=True):
    tensors: Annotated[dict[str, TensorForm], Meta(min_length=1, max_length=4096)]


def upload(given: Given, stored: Stored) -> Program:
    """Open the provider's tensors once; their wires are the model. One round."""
    tensors = read_parameters(UploadParameters, given).tensors
    for form in tensors.values():
        _check_size(form.shape)
    inputs = {name: InputSpec(form.kind, form.shape, form.width, form.scale) for name, form in tensors.items()}

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        names = sorted(values)
        shares = [value for name in names if isinstance(value := values[name], Shared | Bits)]
        with runtime.scope("upload"):
            return dict(zip(names, runtime.open(*shares), strict=True))

    return Program("upload", body, inputs)


class ActivationParameters(Struct, frozen=True, forbid_unknown_fields=True):
    shape: Shape
    function: str = "gelu"
    low: float = -10.0
    high: float = 10.0
    error: Annotated[float, Meta(ge=1e-5)] = 1e-4


def _fit_of(function: str, low: float, high: float, error: float) -> FourierFit:
    if function not in FUNCTIONS:
        raise InputError(f"unknown function {function!r}: known are {', '.join(sorted(FUNCTIONS))}")
    return fit(FUNCTIONS[function], low, high, error=error, dealt_bits=16, max_terms=TERMS_LIMIT, name=function)


def activation(given: Given, stored: Stored) -> Program:
    """g(x) for one of the known functions on a window: one round."""
    wanted = read_parameters(ActivationParameters, given)
    _check_size(wanted.shape)
    series = _fit_of(wanted.function, wanted.low, wanted.high, wanted.error)

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope(wanted.function):
            result = activate_one(runtime, as_shared(values["x"]), series)
            return {"y": runtime.drop_to(result, RESULT_SCALE, RESULT_WIDTH)}

    inputs = {"x": InputSpec("shared", wanted.shape, INPUT_WIDTH, INPUT_SCALE)}
    return Program("activation", body, inputs, series.digest())


class DenseParameters(Struct, frozen=True, forbid_unknown_fields=True):
    rows: Size
    function: str = "gelu"
    low: float = -10.0
    high: float = 10.0
    error: Annotated[float, Meta(ge=1e-5)] = 1e-4


def dense(given: Given, stored: Stored) -> Program:
    """g(x·W) for a stored `weight` (in, out): two rounds."""
    wanted = read_parameters(DenseParameters, given)
    weight = _wire_form(stored, "weight", 2)
    _check_size((wanted.rows, max(weight.shape)))
    series = _fit_of(wanted.function, wanted.low, wanted.high, wanted.error)

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope("linear"):
            (wire,) = runtime.open(as_shared(values["x"]))
            product = matmul(runtime, wire, as_masked(values["weight"]))
        with runtime.scope(wanted.function):
            result = activate_one(runtime, product, series)
            return {"y": runtime.drop_to(result, RESULT_SCALE, RESULT_WIDTH)}

    inputs = {
        "x": InputSpec("shared", (wanted.rows, weight.shape[0]), INPUT_WIDTH, INPUT_SCALE),
        "weight": weight,
    }
    return Program("dense", body, inputs, series.digest())


class AttentionParameters(Struct, frozen=True, forbid_unknown_fields=True):
    rows: Size
    window_bits: Annotated[int, Meta(ge=4, le=9)] = 6
    lowest: float = -24.0
    """The lowest score, in octaves; the window holds 2^window_bits of them, less a margin of 6."""


def attention(given: Given, stored: Stored) -> Program:
    """Softmax(x·K)·V for stored `keys` (in, m), in octaves, and `values` (m, out): true Softmax, seven rounds."""
    wanted = read_parameters(AttentionParameters, given)
    keys, content = _wire_form(stored, "keys", 2), _wire_form(stored, "values", 2)
    count = keys.shape[1]
    _check_size((wanted.rows, count))
    series = fit(
        reciprocal, MAXIMUM_FLOOR, float(max(count, 2)), error=1e-3, relative=True, dealt_bits=24, name="reciprocal"
    )
    setting = ExactSetting((HeadGroup(1, wanted.window_bits, (wanted.lowest,)),), RowSetting(series))

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope("scores"):
            (wire,) = runtime.open(as_shared(values["x"]))
            scores = matmul(runtime, wire, as_masked(values["keys"])).map(lambda tensor: tensor[None, None])
        with runtime.scope("softmax"):
            everywhere = runtime.constant(Public(torch.ones(1, 1, 1, count, dtype=torch.int64)))
            table = as_masked(values["values"]).map(lambda tensor: tensor[None, None])
            result = exact_attention(runtime, scores, table, everywhere, setting)
            return {"y": runtime.drop_to(result, RESULT_SCALE, RESULT_WIDTH).map(lambda tensor: tensor[0, 0])}

    inputs = {
        "x": InputSpec("shared", (wanted.rows, keys.shape[0]), INPUT_WIDTH, INPUT_SCALE),
        "keys": keys,
        "values": content,
    }
    return Program("attention", body, inputs, f"{setting!r}")


class LookupParameters(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Size
    columns: Size
    bits: Annotated[int, Meta(ge=2, le=32)]
    scale: Scale


def lookup_rows(given: Given, stored: Stored) -> Program:
    """Rows of a stored `table` (bit planes, see protocols/embedding.py) at the caller's secret places: two rounds."""
    wanted = read_parameters(LookupParameters, given)
    table = _wire_form(stored, "table", 2, "masked_bits")
    if table.shape[1] != -(-wanted.columns * wanted.bits // 64):
        raise ShapeError(f"{wanted.columns} columns of {wanted.bits} bits do not fit {table.shape[1]} words a row")

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        places, planes = values["places"], values["table"]
        assert isinstance(places, Bits) and isinstance(planes, MaskedBits)
        with runtime.scope("lookup"):
            rows = lookup(runtime, places, planes, wanted.columns, wanted.bits, wanted.scale, RESULT_WIDTH)
        return {"y": rows}

    places = InputSpec("bits", (wanted.tokens, -(-table.shape[0] // 8)), 8)
    return Program("lookup", body, {"places": places, "table": table}, f"{wanted!r}")


def _wire_form(stored: Stored, name: str, dimensions: int, kind: str = "masked") -> InputSpec:
    form = stored.get(name)
    if form is None or form.kind != kind or len(form.shape) != dimensions:
        raise InputError(f"this program uses a stored {name!r} of {dimensions} dimensions: upload a model that has it")
    return form

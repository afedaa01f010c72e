"""Small programs for servers under test: an upload of any tensors, and pieces of a Transformer over what was uploaded.

A test in one process gives CATALOGUE to its servers; `launch(settings, module="small_programs")` runs this file as each of
three processes, once `on_python_path` has put it in their reach.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct

from secformer.engine.form import Form, bits, shared
from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.sharing import Encoded
from secformer.engine.values import Bits, Masked, MaskedBits, Public, Shared, need
from secformer.errors import InputError, ShapeError
from secformer.parties import serve
from secformer.parties.messages import ANYBODY, Job, Placing
from secformer.parties.planner import Catalogue, read_parameters, upload_program
from secformer.parties.store import StoredModel
from secformer.protocols.activation import activate_one
from secformer.protocols.attention import (
    SMALLEST_DENOMINATOR,
    ExactSetting,
    HeadGroup,
    RowSetting,
    exact_attention,
    largest_denominator,
)
from secformer.protocols.fit import FourierFit
from secformer.protocols.functions import FUNCTIONS, reciprocal
from secformer.protocols.lookup import lookup as lookup_rows
from secformer.protocols.multiply import matmul
from secformer_lab.fits.search import fit

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
Width = Annotated[int, Meta(ge=1, le=64)]
Scale = Annotated[int, Meta(ge=0, le=40)]
Shape = Annotated[tuple[Size, ...], Meta(min_length=1, max_length=6)]
Given = Mapping[str, Any]

ELEMENTS_LIMIT = 1 << 31
TERMS_LIMIT = 64

INPUT_SCALE, INPUT_WIDTH = 12, 54
RESULT_SCALE, RESULT_WIDTH = 12, 32


def upload_job(tensors: Mapping[str, Encoded], stores: str) -> Job:
    """The job under which a provider's `run` leaves these tensors with the servers."""
    forms = {
        name: {"shape": list(form.shape), "width": form.width, "scale": form.scale, "kind": form.kind}
        for name, form in ((name, encoded.form.as_share()) for name, encoded in tensors.items())
    }
    return Job("upload", {"tensors": forms}, stores=placing(stores))


def placing(name: str) -> Placing:
    """A new version of a model that everybody may use."""
    return Placing(name, secrets.token_hex(16), [ANYBODY, "memory:provider"])


@contextmanager
def on_python_path() -> Iterator[None]:
    """Processes that are started meanwhile find what this one finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


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


def upload(given: Given, model: StoredModel | None) -> Program:
    """Open the provider's tensors once; their wires are the model. One round."""
    tensors = read_parameters(UploadParameters, given).tensors
    for form in tensors.values():
        _check_size(form.shape)
    return upload_program({name: Form(form.kind, form.shape, form.width, form.scale) for name, form in tensors.items()})


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


def activation(given: Given, model: StoredModel | None) -> Program:
    """g(x) for one of the known functions on a window: one round."""
    wanted = read_parameters(ActivationParameters, given)
    _check_size(wanted.shape)
    series = _fit_of(wanted.function, wanted.low, wanted.high, wanted.error)

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope(wanted.function):
            result = activate_one(runtime, need(values["x"], Shared), series)
            return {"y": runtime.disclose(result, RESULT_SCALE, RESULT_WIDTH)}

    inputs = {"x": shared(wanted.shape, INPUT_WIDTH, INPUT_SCALE)}
    return Program("activation", body, inputs, {"y": RESULT_SCALE}, series.digest())


class DenseParameters(Struct, frozen=True, forbid_unknown_fields=True):
    rows: Size
    function: str = "gelu"
    low: float = -10.0
    high: float = 10.0
    error: Annotated[float, Meta(ge=1e-5)] = 1e-4


def dense(given: Given, model: StoredModel | None) -> Program:
    """g(x·W) for a stored `weight` (in, out): two rounds."""
    wanted = read_parameters(DenseParameters, given)
    weight = _wire_form(model, "weight", 2)
    _check_size((wanted.rows, max(weight.shape)))
    series = _fit_of(wanted.function, wanted.low, wanted.high, wanted.error)

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope("linear"):
            (wire,) = runtime.open(need(values["x"], Shared))
            product = matmul(runtime, wire, need(values["weight"], Masked))
        with runtime.scope(wanted.function):
            result = activate_one(runtime, product, series)
            return {"y": runtime.disclose(result, RESULT_SCALE, RESULT_WIDTH)}

    inputs = {"x": shared((wanted.rows, weight.shape[0]), INPUT_WIDTH, INPUT_SCALE), "weight": weight}
    return Program("dense", body, inputs, {"y": RESULT_SCALE}, series.digest())


class AttentionParameters(Struct, frozen=True, forbid_unknown_fields=True):
    rows: Size
    window_bits: Annotated[int, Meta(ge=6, le=9)] = 6
    """log2 of the octaves that scores may span, less a guard (protocols/attention.py)."""


def attention(given: Given, model: StoredModel | None) -> Program:
    """Softmax(x·K)·V for stored `keys` (in, m), in octaves, and `values` (m, out): true Softmax, seven rounds."""
    wanted = read_parameters(AttentionParameters, given)
    keys, content = _wire_form(model, "keys", 2), _wire_form(model, "values", 2)
    count = keys.shape[1]
    _check_size((wanted.rows, count))
    series = fit(
        reciprocal,
        SMALLEST_DENOMINATOR,
        largest_denominator(count),
        error=1e-3,
        relative=True,
        dealt_bits=24,
        name="reciprocal",
    )
    setting = ExactSetting((HeadGroup(1, wanted.window_bits),), RowSetting(series))

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        with runtime.scope("scores"):
            (wire,) = runtime.open(need(values["x"], Shared))
            scores = matmul(runtime, wire, need(values["keys"], Masked)).map(lambda tensor: tensor[None, None])
        with runtime.scope("softmax"):
            everywhere = runtime.constant(Public(torch.ones(1, 1, 1, count, dtype=torch.int64)))
            table = need(values["values"], Masked).map(lambda tensor: tensor[None, None])
            result = exact_attention(runtime, scores, table, everywhere, setting).map(lambda tensor: tensor[0, 0])
            return {"y": runtime.disclose(result, RESULT_SCALE, RESULT_WIDTH)}

    inputs = {
        "x": shared((wanted.rows, keys.shape[0]), INPUT_WIDTH, INPUT_SCALE),
        "keys": keys,
        "values": content,
    }
    return Program("attention", body, inputs, {"y": RESULT_SCALE}, f"{setting!r}")


class LookupParameters(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Size
    columns: Size
    bits: Annotated[int, Meta(ge=2, le=32)]
    scale: Scale


def lookup(given: Given, model: StoredModel | None) -> Program:
    """Rows of a stored `table` (bit planes, see protocols/lookup.py) at the caller's secret places: two rounds."""
    wanted = read_parameters(LookupParameters, given)
    table = _wire_form(model, "table", 2, "masked_bits")
    if table.shape[1] != -(-wanted.columns * wanted.bits // 64):
        raise ShapeError(f"{wanted.columns} columns of {wanted.bits} bits do not fit {table.shape[1]} words a row")

    def body(runtime: Runtime, values: Inputs) -> Outputs:
        places, planes = need(values["places"], Bits), need(values["table"], MaskedBits)
        with runtime.scope("lookup"):
            rows = lookup_rows(runtime, places, planes, wanted.columns, wanted.bits, wanted.scale, RESULT_WIDTH)
            return {"y": runtime.disclose(rows)}

    places = bits((wanted.tokens, -(-table.shape[0] // 8)), 8)
    return Program("lookup", body, {"places": places, "table": table}, {"y": wanted.scale}, f"{wanted!r}")


def _wire_form(model: StoredModel | None, name: str, dimensions: int, kind: str = "masked") -> Form:
    form = model.forms.get(name) if model else None
    if form is None or form.kind != kind or len(form.shape) != dimensions:
        raise InputError(f"this program uses a stored {name!r} of {dimensions} dimensions: upload a model that has it")
    return form


CATALOGUE: Catalogue = {
    "upload": upload,
    "activation": activation,
    "dense": dense,
    "attention": attention,
    "lookup": lookup,
}


if __name__ == "__main__":
    serve.main(sys.argv[1:], CATALOGUE)

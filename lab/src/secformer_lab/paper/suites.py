"""The paper's systems behind the interface of models/system.py, under the names every command knows.

    suite       GeLU                      Softmax                     LayerNorm
    crypten     tanh by exp, reciprocal   max, exp, Newton            Π_rSqrt, Π_Div
    puma        3 comparisons, 2 polyn.   max, clipped exp, Newton    Π_rSqrt
    mpcformer   Quad                      2Quad, Newton               as crypten
    secformer   segments and Fourier      2Quad, Goldschmidt          Goldschmidt

They compute by Beaver's products with local truncation (encoder.py) behind the same private embedding as ours, on one
engine, so that a table compares protocols and nothing else. η, by which some of their functions are deflated, comes from
the ranges on texts like those to come; what none was measured for has the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from secformer.engine.program import Inputs, Outputs, Program
from secformer.engine.runtime import Runtime
from secformer.engine.tracing import Plan, trace
from secformer.engine.values import Masked, Value, need
from secformer.errors import CalibrationError, ModelError, SettingsError
from secformer.models.config import QUAD_SHIFT, ModelConfig
from secformer.models.embedding import ASKED, Embedding
from secformer.models.plain import OUTSIDE, Functions, forward
from secformer.models.statics import Source, Static
from secformer.models.system import Calibration, Card, System
from secformer.models.tokens import Batch
from secformer.models.weights import Weights
from secformer.protocols.multiply import unmask
from secformer_lab.paper import variants as v
from secformer_lab.paper.beaver import FRACTION_BITS, RING_BITS
from secformer_lab.paper.encoder import RESULT, RESULT_SCALE, BaselineEncoder, Variants

WORD_BITS = FRACTION_BITS + 4
"""Entries of a word table are below 8."""

PUBLISHED_VOCABULARY = 28_996
"""The paper's scripts embed by a one-hot product with this vocabulary (errata, Table 3)."""
PUBLISHED_INTERMEDIATE = 3072
"""And run BERT-LARGE with the feed-forward size of BERT-base."""


@dataclass(frozen=True, repr=False)
class Deflation(Calibration):
    """η by place, which is public, and the extremes it was made from."""

    digest: str
    eta: Mapping[str, float]
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    longest: int | None = None

    def to_data(self) -> dict[str, Any]:
        return {"digest": self.digest, "eta": dict(self.eta), "extremes": dict(self.extremes)}

    def check(self, config: ModelConfig) -> None:
        if not any(place.startswith(f"layers.{config.layers - 1}.") for place in self.eta):
            raise CalibrationError("this calibration was made for a model of another shape: calibrate this one")
        _check_menu(self.eta)


def _check_menu(eta: Mapping[str, float]) -> None:
    for place, value in eta.items():
        if not 0 < value < math.inf or v.half_octave(value) != value:
            raise CalibrationError(f"{place}: η = {value} is not a whole power of √2: calibrate again")


@dataclass(frozen=True)
class BaselineCard(Card):
    system: Baseline
    eta: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _check_menu(dict(self.eta))

    def constants(self) -> Any:
        return dict(self.eta)

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.config, FRACTION_BITS, RING_BITS, WORD_BITS, self.private_table)

    @property
    def encoder(self) -> BaselineEncoder:
        return BaselineEncoder(self.config, self.system.variants(self.config), dict(self.eta))

    def statics(self) -> dict[str, Static]:
        """Every weight is stored as a wire; biases are read back as shares."""
        weights = {
            name: Static(form.as_wire(), lambda source, name=name: source.weights[name])
            for name, form in self.encoder.weight_forms().items()
        }
        return {**self.embedding.statics(), **weights}

    def weights(self, runtime: Runtime, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """The weights among the inputs as the encoder reads them."""
        found: dict[str, Value] = {}
        for name, form in self.encoder.weight_forms().items():
            if name in inputs:
                wire = need(inputs[name], Masked)
                found[name] = wire if form.is_wire else unmask(runtime, wire)
        return found

    def query_program(self, batch: int, tokens: int, asked: int = 1) -> Program:
        def body(runtime: Runtime, inputs: Inputs) -> Outputs:
            with runtime.scope("embedding"), runtime.scope("embedding"):
                embedded, padding = self.embedding.read(runtime, inputs)
            mask = padding.share.map(lambda tensor: tensor.squeeze(-1))  # (batch, n)
            given = {**self.weights(runtime, inputs), "embedding": embedded, "mask": mask}
            if self.config.head == "masked":
                given[ASKED] = inputs[ASKED]
            return self.encoder.body(runtime, given)

        forms = {**self.static_forms(), **self.embedding.query_forms(batch, tokens, asked)}
        return Program(f"baseline {self.suite}", body, forms, {RESULT: RESULT_SCALE}, self.to_json())

    def finish(self, batch: Batch, raw: Tensor) -> Tensor:
        """They pool and normalise among the servers."""
        return raw


@dataclass(frozen=True)
class Baseline(System):
    activations: Mapping[str, v.Unary]
    softmax: v.Softmax
    layernorm: v.LayerNorm

    def adapt(self, config: ModelConfig) -> ModelConfig:
        if config.activation not in self.activations:
            raise ModelError(
                f"suite {self.name} has no protocol for activation '{config.activation}'; "
                f"it has {', '.join(self.activations)}"
            )
        if config.norm_first or config.gated or config.rotary_base or config.distance_span:
            raise ModelError(
                f"suite {self.name} computes layers as BERT has them, not those of model type '{config.family}': use 'exact'"
            )
        if self.softmax.quad and config.softmax == "exact":
            return replace(config, softmax="2quad", quad_shift=QUAD_SHIFT)
        if not self.softmax.quad and config.softmax == "2quad":
            raise SettingsError(f"this checkpoint was distilled for 2Quad, suite {self.name} has Softmax: use 'fast'")
        return config

    def variants(self, config: ModelConfig) -> Variants:
        return Variants(self.activations[config.activation], self.head(config), self.softmax, self.layernorm)

    def head(self, config: ModelConfig) -> v.Unary:
        """A head's activation: tanh, or one of the layers'."""
        return self.activations.get(config.head_activation, v.TANH)

    def functions(self, config: ModelConfig, calibration: Calibration | None) -> Functions:
        assert calibration is None or isinstance(calibration, Deflation)
        eta = {} if calibration is None else calibration.eta
        softmax, norm = self.softmax, self.layernorm
        return Functions(
            activation=self.activations[config.activation].twin,
            softmax_weights=partial(_weights, softmax, config.quad_shift),
            reciprocal=lambda total, place: softmax.reciprocal(total, eta.get(place, softmax.default_eta)),
            inverse_deviation=lambda variance, count, place: norm.inverse_deviation(
                variance, count, eta.get(place, norm.default_eta)
            ),
            pooler=self.head(config).twin,
            transform=self.head(config).twin,
            inverse_length=lambda squared: norm.inverse_length_twin(squared, eta.get("head", norm.head_eta)),
        )

    def calibrate(
        self, weights: Weights, config: ModelConfig, batches: Iterable[Batch], earlier: Calibration | None = None
    ) -> Deflation:
        """η for every place, from the ranges that the suite's own twin meets.

        Newton's methods get the geometric middle of the range, Goldschmidt's its upper end, rounded up to half an octave.
        """
        assert earlier is None or isinstance(earlier, Deflation)
        measured = _Measuring(self, config)
        if earlier is not None:
            measured.eta.update(earlier.eta)
            measured.extremes.update(earlier.extremes)
        found = Deflation(weights.digest, measured.eta, measured.extremes)
        functions = self.functions(config, found)  # a place is observed before its η is looked up
        for batch in batches:
            forward(weights, config, batch, measured.observe, functions)
        return found

    def read_calibration(self, data: Mapping[str, Any]) -> Deflation:
        eta = {str(place): float(value) for place, value in data["eta"].items()}
        extremes = {str(place): (float(low), float(high)) for place, (low, high) in data["extremes"].items()}
        return Deflation(str(data["digest"]), eta, extremes)

    def card(self, config: ModelConfig, calibration: Calibration, private_table: bool = True) -> BaselineCard:
        assert isinstance(calibration, Deflation)
        return BaselineCard(config, self.name, private_table, self, tuple(sorted(calibration.eta.items())))

    def read_card(self, config: ModelConfig, constants: Any, private_table: bool) -> BaselineCard:
        eta = sorted((str(place), float(value)) for place, value in constants.items())
        return BaselineCard(self.adapt(config), self.name, private_table, self, tuple(eta))

    def preset(self, config: ModelConfig) -> BaselineCard:
        return BaselineCard(self.adapt(config), self.name, True, self)

    def source(self, weights: Weights, calibration: Calibration) -> Source:
        return Source(weights)

    def published_plan(self, config: ModelConfig, batch: int, tokens: int) -> Plan:
        config = replace(config, vocabulary=PUBLISHED_VOCABULARY, intermediate=PUBLISHED_INTERMEDIATE)
        encoder = BaselineEncoder(self.adapt(config), self.variants(config), published=True)
        return trace(encoder.program(batch, tokens))


def _weights(softmax: v.Softmax, shift: float, scores: Tensor, keys: Tensor) -> Tensor:
    return softmax.weights(scores, keys, shift)


class _Measuring:
    """Extremes of everything that is deflated, and the η that follow."""

    def __init__(self, suite: Baseline, config: ModelConfig) -> None:
        self.suite, self.config = suite, config
        self.eta: dict[str, float] = {}
        self.extremes: dict[str, tuple[float, float]] = {}

    def observe(self, name: str, layer: int, tensor: Tensor, mask: Tensor) -> None:
        prefix = "" if layer == OUTSIDE else f"layers.{layer}."
        norm, softmax = self.suite.layernorm, self.suite.softmax
        if name.endswith(".variance"):
            count = self.config.norm_size(name.removesuffix(".variance")) if norm.sums else 1
            self._widen(f"{prefix}{name.removesuffix('.variance')}_norm", norm.eta, count * tensor, mask)
        elif name == "squared_norm":
            self._widen("head", norm.eta, tensor, mask)
        elif name == "denominator" and softmax.eta is not None:
            self._widen(f"{prefix}softmax", softmax.eta, tensor, mask)

    def _widen(self, place: str, eta: v.Eta, tensor: Tensor, mask: Tensor) -> None:
        seen = tensor[mask.expand_as(tensor)]
        low, high = self.extremes.get(place, (float("inf"), float("-inf")))
        if not bool(torch.isfinite(seen).all()):
            raise CalibrationError(
                f"{place}: values are not finite. An approximation of suite {self.suite.name} diverges on this model before "
                "that: use suite 'exact'"
            )
        self.extremes[place] = low, high = min(low, float(seen.min())), max(high, float(seen.max()))
        if low <= 0:
            raise CalibrationError(f"{place}: suite {self.suite.name} cannot deflate values down to {low:.3g}")
        self.eta[place] = v.half_octave(eta(low, high))


def _activations(gelu: v.Unary) -> Mapping[str, v.Unary]:
    """The tanh form of GeLU differs from GeLU by less than any of these approximations does."""
    return MappingProxyType({"gelu": gelu, "gelu_new": gelu, "relu": v.RELU, "silu": v.SILU})


CRYPTEN = Baseline("crypten", _activations(v.GELU_CRYPTEN), v.SOFTMAX_CRYPTEN, v.NORM_CRYPTEN)
PUMA = Baseline("puma", _activations(v.GELU_PUMA), v.SOFTMAX_PUMA, v.NORM_PUMA)
MPCFORMER = Baseline("mpcformer", _activations(v.GELU_QUAD), v.QUAD_MPCFORMER, v.NORM_CRYPTEN)
SECFORMER = Baseline("secformer", _activations(v.GELU_SECFORMER), v.QUAD_SECFORMER, v.NORM_SECFORMER)

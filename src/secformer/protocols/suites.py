"""Suites: which variant of every function a system uses, under the names every command knows.

    suite       GeLU                      Softmax                     LayerNorm
    crypten     tanh by exp, reciprocal   max, exp, Newton            Π_rSqrt, Π_Div
    puma        3 comparisons, 2 polyn.   max, clipped exp, Newton    Π_rSqrt
    mpcformer   Quad                      2Quad (or 2ReLU), Newton    as crypten
    secformer   segments and Fourier      2Quad, Goldschmidt          Goldschmidt
    fast        one opening               2Quad on wires              one opening of the variance
    exact       one opening               true Softmax on wires       one opening of the variance

The first four compute by Beaver's products with local truncation (models/baseline.py), the last two, ours, on
wires with exact drops (models/encoder.py). All run on one engine, so that a table compares protocols and
nothing else. Deflations (η) are defaults; a model's own come from its ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

from secformer.engine.runtime import Runtime
from secformer.engine.values import Masked, Shared
from secformer.errors import SettingsError
from secformer.protocols import gelu, goldschmidt, newton
from secformer.protocols import layernorm as norms
from secformer.protocols import softmax as rows
from secformer.protocols.beaver import FRACTION_BITS
from secformer.protocols.rows import scaled

SoftmaxKind = Literal["exact", "2quad", "2relu"]


@dataclass(frozen=True)
class Suite:
    """`activation`, `softmax` and `layernorm` name entries of the VARIANTS of gelu.py, softmax.py and layernorm.py."""

    name: str
    activation: str
    softmax: str
    layernorm: str
    softmax_kind: SoftmaxKind = "exact"
    ours: bool = False
    shift: float = rows.SHIFT
    """c of 2Quad."""
    penalty: float = rows.PENALTY
    """What padding is lowered by before a maximum: twice the largest score."""
    eta_softmax: float = 1.0
    """Deflation of 2Quad's row sums."""
    eta_layernorm: float = 1.0
    """Deflation of variances, of sums of squares under Goldschmidt."""
    softmax_steps: int = goldschmidt.RECIPROCAL_STEPS
    layernorm_steps: int = goldschmidt.INVERSE_SQRT_STEPS
    fraction_bits: int = FRACTION_BITS

    def __post_init__(self) -> None:
        if self.ours:
            return
        registries = {"activation": gelu.VARIANTS, "softmax": rows.VARIANTS, "layernorm": norms.VARIANTS}
        for field, known in registries.items():
            if getattr(self, field) not in known:
                raise SettingsError(
                    f"suite {self.name}: no {field} variant '{getattr(self, field)}'; known are {', '.join(known)}"
                )

    @property
    def uses_goldschmidt(self) -> bool:
        return self.layernorm == "secformer"

    def activate(self, runtime: Runtime, x: Shared) -> Shared:
        """The suite's GeLU."""
        return gelu.VARIANTS[self.activation](runtime, x)

    def attention_weights(
        self,
        runtime: Runtime,
        scores: Shared,
        key_mask: Shared | None,
        eta: float | None = None,
        shift: float | None = None,
    ) -> Shared:
        """The suite's Softmax over the last dimension; `eta` and `shift` replace the suite's own."""
        function = rows.VARIANTS[self.softmax]
        eta, shift = eta or self.eta_softmax, self.shift if shift is None else shift
        if self.softmax == "2quad-goldschmidt":
            return function(runtime, scores, key_mask, shift, eta, self.softmax_steps)
        if self.softmax == "2quad-newton":
            return function(runtime, scores, key_mask, shift, eta)
        if self.softmax == "2relu-newton":
            return function(runtime, scores, key_mask)
        return function(runtime, scores, key_mask, self.penalty)

    def normalise(
        self, runtime: Runtime, x: Shared, gain: Masked | Shared, bias: Shared, epsilon: float, eta: float | None = None
    ) -> Shared:
        """The suite's LayerNorm over the last dimension."""
        function, eta = norms.VARIANTS[self.layernorm], eta or self.eta_layernorm
        if self.uses_goldschmidt:
            return function(runtime, x, gain, bias, epsilon, eta, self.layernorm_steps)
        return function(runtime, x, gain, bias, epsilon, eta)

    def inverse_sqrt(self, runtime: Runtime, x: Shared, eta: float) -> Shared:
        """1/√x as in the suite's LayerNorm: x from 0.1·eta to 64·eta, under Goldschmidt 0.001·eta to 2.9·eta."""
        deflated = scaled(runtime, x, 1 / eta)
        if self.uses_goldschmidt:
            inverse = goldschmidt.inverse_sqrt(runtime, deflated, self.layernorm_steps)
        else:
            inverse = newton.inverse_sqrt(runtime, deflated)
        return scaled(runtime, inverse, eta**-0.5)


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "crypten": Suite("crypten", "crypten", "crypten", "crypten"),
        "puma": Suite("puma", "puma", "puma", "puma"),
        "mpcformer": Suite("mpcformer", "quad", "2quad-newton", "crypten", "2quad", eta_softmax=rows.NEWTON_DEFLATION),
        "secformer": Suite(
            "secformer",
            "secformer",
            "2quad-goldschmidt",
            "secformer",
            "2quad",
            eta_softmax=rows.GOLDSCHMIDT_DEFLATION,
            eta_layernorm=norms.GOLDSCHMIDT_DEFLATION,
        ),
        "fast": Suite("fast", "ours", "2quad", "ours", "2quad", ours=True),
        "exact": Suite("exact", "ours", "exact", "ours", ours=True),
    }
)

PAPER_SUITES = tuple(name for name, suite in SUITES.items() if not suite.ours)


def suite_named(name: str, **changes: Any) -> Suite:
    """A suite by name, with fields changed, such as softmax="2relu-newton", softmax_kind="2relu"."""
    if name not in SUITES:
        close = get_close_matches(name, SUITES, n=1)
        advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(SUITES)}"
        raise SettingsError(f"unknown suite '{name}': {advice}")
    try:
        return replace(SUITES[name], **changes)
    except TypeError as problem:
        raise SettingsError(f"suite {name}: {problem}") from None

"""Suites: which variant of every function a system uses, under the names every command knows.

    suite       GeLU                      Softmax                          LayerNorm                    arithmetic
    crypten     tanh by exp, reciprocal   max, exp, Newton                 Π_rSqrt, Π_Div               Beaver, local truncation
    puma        3 comparisons, 2 polyn.   max, clipped exp, Newton         Π_rSqrt                      as above
    mpcformer   Quad                      2Quad (or 2ReLU), Newton         as crypten                   as above
    secformer   segments and Fourier      2Quad, Goldschmidt               Goldschmidt                  as above
    fast        one opening               2Quad on wires                   one opening of the variance  wires, exact drop
    exact       one opening               true Softmax on wires            one opening of the variance  wires, exact drop

All run on one engine, so that a table compares protocols and nothing else. The first four are models/baseline.py, the
last two models/bert.py. Deflations (η) are defaults; a model's own come from its ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

from secformer.errors import SettingsError
from secformer.protocols import gelu, goldschmidt, layernorm, softmax
from secformer.protocols.beaver import FRACTION_BITS

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
    shift: float = softmax.SHIFT
    """c of 2Quad."""
    penalty: float = softmax.PENALTY
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
        registries = {"activation": gelu.VARIANTS, "softmax": softmax.VARIANTS, "layernorm": layernorm.VARIANTS}
        for field, known in registries.items():
            if getattr(self, field) not in known:
                raise SettingsError(
                    f"suite {self.name}: no {field} variant '{getattr(self, field)}'; known are {', '.join(known)}"
                )

    @property
    def goldschmidt(self) -> bool:
        return self.layernorm == "secformer"


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "crypten": Suite("crypten", "crypten", "crypten", "crypten"),
        "puma": Suite("puma", "puma", "puma", "puma"),
        "mpcformer": Suite(
            "mpcformer", "quad", "2quad-newton", "crypten", "2quad", eta_softmax=softmax.NEWTON_DEFLATION
        ),
        "secformer": Suite(
            "secformer",
            "secformer",
            "2quad-goldschmidt",
            "secformer",
            "2quad",
            eta_softmax=softmax.GOLDSCHMIDT_DEFLATION,
            eta_layernorm=layernorm.GOLDSCHMIDT_DEFLATION,
        ),
        "fast": Suite("fast", "ours", "2quad", "ours", "2quad", ours=True),
        "exact": Suite("exact", "ours", "exact", "ours", ours=True),
    }
)

PAPER_SUITES = tuple(name for name, suite in SUITES.items() if not suite.ours)


def suite_named(name: str, **changes: Any) -> Suite:
    """A suite by name, with fields changed: `suite_named("mpcformer", softmax="2relu-newton", softmax_kind="2relu")`."""
    if name not in SUITES:
        close = get_close_matches(name, SUITES, n=1)
        advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(SUITES)}"
        raise SettingsError(f"unknown suite '{name}': {advice}")
    try:
        return replace(SUITES[name], **changes)
    except TypeError as problem:
        raise SettingsError(f"suite {name}: {problem}") from None

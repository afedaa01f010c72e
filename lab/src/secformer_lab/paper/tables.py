"""The paper's two tables about its protocols, made again.

**Accuracy of GeLU** (its appendix): mean and variance of |y − GeLU(x)| over three intervals, here on an even
grid of points in place of random ones, computed in simulation, which rounds and wraps as the servers do.
CrypTen's row is its erf as coded.

**Traffic** (its Table 3): sent plus received by one party, in GB, of BERT at 512 tokens. "recounted" traces
what the public scripts open (baselines/encoder.py, `published`), "as written" the algorithms as the
paper states them: 13 and 11 steps, Π_Sin with 42 bits, weights opened once, padding masked, the head
included, the embedding left out. Layers are alike, so one and two of them are traced and the rest is added
up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from secformer.engine.runtime import Runtime
from secformer.engine.simulating import Simulating
from secformer.engine.tracing import trace
from secformer.engine.values import Shared
from secformer.models.config import ModelConfig
from secformer.models.shapes import PRESETS
from secformer.protocols.functions import gelu as exact_gelu
from secformer.ring.fixed_point import decode, encode
from secformer_lab.paper import gelu
from secformer_lab.paper.encoder import BaselineEncoder
from secformer_lab.paper.function_cases import by_series
from secformer_lab.paper.suites import (
    CRYPTEN,
    MPCFORMER,
    PUBLISHED_INTERMEDIATE,
    PUBLISHED_VOCABULARY,
    PUMA,
    SECFORMER,
    Baseline,
)

# -- accuracy ------------------------------------------------------------------------------------------------

INTERVALS = (1.0, 5.0, 10.0)
POINTS = 100_001
SCALE = 16

METHODS: Mapping[str, Callable[[Runtime, Shared], Shared]] = MappingProxyType(
    {
        "crypten": gelu.gelu_crypten_erf,
        "crypten tanh": gelu.gelu_crypten,
        "puma": gelu.gelu_puma,
        "mpcformer": gelu.gelu_quad,
        "secformer": gelu.gelu_secformer,
        "ours": by_series("gelu"),
    }
)

PRINTED_ACCURACY: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "crypten": ((0.001, 8.37e-6), (30437.717, 3.28e9), (7480209.5, 1.68e14)),
        "puma": ((0.005, 6.85e-6), (0.003, 1.01e-5), (0.002, 7.06e-6)),
        "secformer": ((0.001, 2.03e-6), (0.005, 3.82e-5), (0.003, 2.54e-5)),
    }
)
"""(mean, variance) on [−1, 1], [−5, 5] and [−10, 10]."""


@dataclass(frozen=True)
class Accuracy:
    """The error of one method on [−bound, bound]; what the paper prints, where it does."""

    method: str
    bound: float
    mean: float
    variance: float
    maximum: float
    printed_mean: float | None = None
    printed_variance: float | None = None


def gelu_accuracy(points: int = POINTS) -> list[Accuracy]:
    return [_accuracy(method, place, bound, points) for method in METHODS for place, bound in enumerate(INTERVALS)]


def _accuracy(method: str, place: int, bound: float, points: int) -> Accuracy:
    x = torch.linspace(-bound, bound, points, dtype=torch.float64)
    error = (simulate(METHODS[method], x) - exact_gelu(x)).abs()
    printed = PRINTED_ACCURACY[method][place] if method in PRINTED_ACCURACY else (None, None)
    return Accuracy(method, bound, error.mean().item(), error.var().item(), error.max().item(), *printed)


def simulate(function: Callable[[Runtime, Shared], Shared], x: Tensor) -> Tensor:
    """function(x) with the fixed point of the servers."""
    value = Shared(encode(x, SCALE), 64, SCALE)
    result = function(Simulating(), value)
    return decode(result.share, result.scale, result.width)


# -- traffic -------------------------------------------------------------------------------------------------

TOKENS = 512
SUITES: Mapping[str, Baseline] = {suite.name: suite for suite in (CRYPTEN, PUMA, MPCFORMER, SECFORMER)}
OPERATIONS = ("gelu", "softmax", "layernorm", "others")
Traffic = dict[str, int]

PRINTED_TRAFFIC: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = MappingProxyType(
    {
        "bert-base": {
            "crypten": (28.689, 50.285, 0.492, 3.463),
            "puma": (28.689, 67.837, 0.477, 3.463),
            "mpcformer": (0.604, 1.895, 0.497, 3.463),
            "secformer": (17.817, 1.844, 0.468, 3.463),
        },
        "bert-large": {
            "crypten": (57.378, 134.093, 1.272, 8.565),
            "puma": (57.378, 180.898, 1.254, 8.565),
            "mpcformer": (0.604, 5.052, 1.282, 8.565),
            "secformer": (35.635, 4.916, 1.248, 8.565),
        },
    }
)
"""GB for GeLU, Softmax, LayerNorm, Others."""

UNEXPLAINED = frozenset(
    {
        *((model, suite, "softmax") for model in PRINTED_TRAFFIC for suite in ("crypten", "puma")),
        *((model, suite, "layernorm") for model in PRINTED_TRAFFIC for suite in ("mpcformer", "secformer")),
        ("bert-large", "puma", "layernorm"),
        ("bert-large", "mpcformer", "gelu"),
    }
)
"""Cells whose recipe is not known. (CrypTen's maximum also finds the argument; LARGE's Quad repeats BASE's figure.)"""


@dataclass(frozen=True)
class Cell:
    """One cell of Table 3, in GB."""

    model: str
    suite: str
    operation: str
    printed: float
    recounted: float
    as_written: float
    explained: bool

    @property
    def deviation(self) -> float:
        return self.recounted / self.printed - 1


def paper_model(name: str, published: bool) -> ModelConfig:
    """The scripts' vocabulary; for the published count also their LARGE, whose intermediate size is 3072."""
    config = replace(PRESETS[name], vocabulary=PUBLISHED_VOCABULARY)
    return replace(config, intermediate=PUBLISHED_INTERMEDIATE) if published else config


def traffic_table(tokens: int = TOKENS) -> list[Cell]:
    return [cell for model in PRINTED_TRAFFIC for suite in SUITES for cell in traffic(model, suite, tokens)]


def traffic(model: str, suite: str, tokens: int = TOKENS) -> list[Cell]:
    """The four cells of one row."""
    recounted = count(paper_model(model, True), suite, tokens, published=True)
    written = count(paper_model(model, False), suite, tokens, published=False)
    printed = PRINTED_TRAFFIC[model][suite]
    return [
        Cell(
            model,
            suite,
            operation,
            printed[place],
            recounted[operation] / 1e9,
            written[operation] / 1e9,
            (model, suite, operation) not in UNEXPLAINED,
        )
        for place, operation in enumerate(OPERATIONS)
    ]


def count(config: ModelConfig, suite: str, tokens: int, published: bool) -> Traffic:
    """Online bytes by operation, both directions."""
    one, two = (_traced(replace(config, layers=layers), suite, tokens, published) for layers in (1, 2))
    return {name: one[name] + (config.layers - 1) * (two[name] - one[name]) for name in OPERATIONS}


def _traced(config: ModelConfig, suite: str, tokens: int, published: bool) -> Traffic:
    system = SUITES[suite]
    encoder = BaselineEncoder(system.adapt(config), system.variants(config), published=published)
    groups = trace(encoder.program(1, tokens)).ledger.grouped()
    found: Traffic = dict.fromkeys(OPERATIONS, 0)
    for operation, cost in groups.items():
        found[operation if operation in found else "others"] += cost.online_bytes
    return found


# -- output --------------------------------------------------------------------------------------------------


def as_dict(accuracy: list[Accuracy], cells: list[Cell]) -> dict[str, Any]:
    return {
        "gelu_accuracy": [asdict(row) for row in accuracy],
        "traffic_gb": [{**asdict(cell), "deviation": cell.deviation} for cell in cells],
    }


def accuracy_table(rows: list[Accuracy]) -> Any:
    from rich.table import Table

    shown = Table(title="GeLU: mean error (variance), the paper's figures in brackets")
    shown.add_column("method")
    for bound in INTERVALS:
        shown.add_column(f"[−{bound:g}, {bound:g}]", justify="right")
    for method in METHODS:
        cells = [_accuracy_cell(row) for row in rows if row.method == method]
        shown.add_row("crypten erf" if method == "crypten" else method, *cells)
    shown.caption = "mpcformer's Quad is another function: its model is distilled for it"
    return shown


def _accuracy_cell(row: Accuracy) -> str:
    measured = f"{row.mean:.2g} ({row.variance:.2e})"
    if row.printed_mean is None:
        return measured
    return rf"{measured} \[{row.printed_mean:g} ({row.printed_variance:.2e})]"


def cell_table(cells: list[Cell]) -> Any:
    from rich.table import Table

    shown = Table(title="Table 3, GB sent and received by one party at 512 tokens")
    for heading in ("model", "suite", "operation", "printed", "recounted", "deviation", "as written"):
        shown.add_column(heading, justify="left" if heading in ("model", "suite", "operation") else "right")
    for cell in cells:
        deviation = f"{100 * cell.deviation:+.2f} %" if cell.explained else "recipe unknown"
        numbers = (f"{cell.printed:.3f}", f"{cell.recounted:.3f}", deviation, f"{cell.as_written:.3f}")
        shown.add_row(cell.model, cell.suite, cell.operation, *numbers)
    return shown

"""Rows of measurements, one JSON object a line, into the file from which the documents are rendered.

python -m secformer_lab.bench.measured docs/results/h200.json models.jsonl exchanges.jsonl ...

A row takes the place of an earlier one of the same kind about the same thing. What the paper's suites would take over a WAN,
which nobody waits for, is planned: `python -m secformer_lab.bench.measured docs/results/h200.json --plan`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secformer.engine.ledger import Cost
from secformer.engine.tracing import trace
from secformer.models.config import ModelConfig
from secformer.models.shapes import PRESETS
from secformer_lab.paper.encoder import BaselineEncoder
from secformer_lab.paper.tables import SUITES

Row = dict[str, Any]

KEYS = {
    "models": ("model", "suite", "tokens", "network", "material", "variant"),
    "exchanges": ("connections", "variant"),
    "dealing": ("model", "suite", "tokens"),
    "layers": ("suite", "tokens"),
    "products": ("batch", "rows", "inner", "columns", "width"),
    "planned": ("model", "suite", "tokens"),
    "recorded": ("model", "suite", "tokens", "state"),
}
"""Kinds of rows, and what each is about."""
DEFAULTS: Row = {"network": "none", "material": "device", "variant": "", "batch": 1}
SIDE_BY_SIDE = "mps"
"""The variant in which kernels of several processes share the GPU instead of taking turns."""
PLANNED_LENGTHS = (128, 512)


def kind_of(row: Row) -> str:
    if "plan" in row:
        return "models"
    if "milliseconds" in row:
        return "exchanges"
    if "gpu_ms" in row:
        return "recorded"
    if "before" in row:
        return "layers"
    if "float64_ms" in row:
        return "products"
    return "dealing" if "dealer_bytes" in row else "planned"


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name, DEFAULTS.get(name)) for name in KEYS[kind_of(row)])


def add(data: dict[str, Any], rows: Iterable[Row]) -> None:
    for row in map(shortened, rows):
        kept = [each for each in data.get(kind_of(row), ()) if key_of(each) != key_of(row)]
        data[kind_of(row)] = [*kept, row]


def here(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows of which this is true; of every model, suite and length the latest, and with kernels side by side if one was."""
    wanted = {"network": DEFAULTS["network"], "material": DEFAULTS["material"], **wanted}
    chosen = [row for row in rows if all(row.get(name, DEFAULTS[name]) == wanted[name] for name in wanted)]
    chosen.sort(key=lambda row: row.get("variant") == SIDE_BY_SIDE)
    return list({(row["model"], row["suite"], row["tokens"]): row for row in chosen}.values())


def shortened(row: Row) -> Row:
    """Four digits, and of a server's notes only those on the fastest replay at S0."""
    zero, *_ = row.pop("fastest_replay", [None])
    replay: Row | None = zero
    if replay is not None:
        row["replay"] = {name: replay[name] for name in replay if name.endswith("_ms") or name == "rounds"}
    return _rounded({name: value for name, value in row.items() if name not in ("session_all", "replays")})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def planned(model: str, suite: str, tokens: int) -> Row:
    """A paper suite's rounds and bytes; layers are alike, so two of them tell of all."""
    config = PRESETS[model]
    one, two = (_cost(replace(config, layers=layers), suite, tokens) for layers in (1, 2))
    more = config.layers - 1
    return {
        "model": model,
        "suite": suite,
        "tokens": tokens,
        "rounds": one.rounds + more * (two.rounds - one.rounds),
        "online_bytes": one.online_bytes + more * (two.online_bytes - one.online_bytes),
    }


def _cost(config: ModelConfig, suite: str, tokens: int) -> Cost:
    system = SUITES[suite]
    encoder = BaselineEncoder(system.adapt(config), system.variants(config))
    return trace(encoder.program(1, tokens)).cost


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="such as docs/results/h200.json")
    parser.add_argument("sources", nargs="*", help="files of rows, a JSON object a line")
    parser.add_argument("--plan", action="store_true", help="the paper's suites, planned")
    given = parser.parse_args(arguments)
    target, sources = given.target, given.sources
    data = json.loads(Path(target).read_text())
    if given.plan:
        rows = [planned("bert-base", suite, tokens) for suite in SUITES for tokens in PLANNED_LENGTHS]
    else:
        rows = [json.loads(line) for source in sources for line in Path(source).read_text().splitlines()]
    add(data, rows)
    Path(target).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

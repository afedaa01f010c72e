"""A model card: card.json for programs, README.md made from it for people, in every folder that training writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secformer.errors import ModelError
from secformer.models.json_files import read_json

FILE = "card.json"
TEXT_FILE = "README.md"


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / FILE).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (folder / TEXT_FILE).write_text(as_text(card), encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any] | None:
    return read_json(folder / FILE) if (folder / FILE).is_file() else None


def add_evaluation(folder: Path, evaluation: Mapping[str, Any]) -> None:
    """Put a measured row into a model's card, in place of an older one of the same mode, suite and data."""
    card = read_card(folder)
    if card is None:
        raise ModelError(f"'{folder}' has no {FILE}: it was not made by finetune or distill")
    same = ("mode", "suite", "data", "examples")
    rows = [row for row in card["evaluations"] if any(row.get(key) != evaluation[key] for key in same)]
    write_card(folder, {**card, "evaluations": [*rows, dict(evaluation)]})


def as_text(card: Mapping[str, Any]) -> str:
    lines = [f"# {card['title']}", "", card["summary"], ""]
    lines += _table("Made from", card["made_from"])
    lines += _table("Settings", card["settings"])
    lines += _evaluations(card)
    if card.get("ranges"):
        lines += _ranges(card["ranges"])
    if card.get("cost"):
        lines += _table("Cost of a query", card["cost"])
    return "\n".join(lines)


def _table(title: str, rows: Mapping[str, Any]) -> list[str]:
    shown = [f"| {key.replace('_', ' ')} | {_shown(value)} |" for key, value in rows.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *shown, ""]


def _evaluations(card: Mapping[str, Any]) -> list[str]:
    heads = ("mode", "suite", "data", "examples", "metric", "value", "labels agree", "flagged", "largest error")
    lines = ["## Measured", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in card["evaluations"]:
        agree = "" if row.get("agreeing") is None else f"{row['agreeing']} of {row['examples']}"
        flagged = "" if row.get("flagged") is None else row["flagged"]
        cells = (row["mode"], row["suite"], row["data"], row["examples"], row["metric"], f"{row['value']:.2f}")
        error = "" if row.get("largest_error") is None else f"{row['largest_error']:.1e}"
        lines.append("| " + " | ".join(map(str, (*cells, agree, flagged, error))) + " |")
    return [*lines, ""]


def _ranges(ranges: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Before and after, a row a layer."""
    lines = ["## Ranges on training texts", ""]
    when = list(ranges)
    names = list(ranges[when[0]])
    heads = [f"{name.replace('_', ' ')}, {time}" for name in names for time in when]
    lines += ["| layer | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for layer in range(max(len(ranges[time][name]) for time in when for name in names)):
        cells = [_interval(ranges[time][name], layer) for name in names for time in when]
        lines.append(f"| {layer} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _interval(layers: list[Any], layer: int) -> str:
    if layer >= len(layers):
        return ""
    low, high = layers[layer]
    return f"{low:g} … {high:g}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_shown(part) for part in value)
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)

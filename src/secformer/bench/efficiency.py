"""Whole inferences beside what others have published: a document out of measured JSON and cited figures.

python -m secformer.bench.efficiency docs/results/h200.json docs/results/published.json > docs/results/efficiency.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from secformer.bench.roofline import table

HEAD = """# Whole inferences

Rendered by `python -m secformer.bench.efficiency` from `{measured}` and `{published}`.

Ours: {machine}.
Three processes over loopback, the dealer's material on the machine before the clock starts, random weights of the true shapes,
private embedding, masks and head included, the result compared with the model in plaintext. Online seconds are the
best of the runs. Traffic is what both servers send together, as the plan counts it and the sockets counted it.

Theirs are cited, not measured here: other machines, other trust, artifacts without embedding, head or mask. The ratio tells
orders of magnitude, no more. The paper counts what one party sends and receives, which is what both send."""

TAIL = """## What is missing

Times by operation, imitated networks, the paper's suites on the same GPU, ten runs each, and plots. Rows say in which state
of the code they were measured (roofline.md); only BERT-large was measured as it stands."""


def ours(data: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The latest row of every model, suite and length."""
    return list({(row["model"], row["suite"], row["tokens"]): row for row in data}.values())


def measured(rows: Iterable[dict[str, Any]]) -> str:
    head = ("model", "suite", "tokens", "online s", "median", "dealing s", "rounds", "online GB", "dealer GB", "error")
    return table(
        head,
        (
            (
                row["model"],
                row["suite"],
                row["tokens"],
                row["online_seconds"],
                row["median_online_seconds"],
                row["dealer_seconds"],
                row["plan"]["rounds"],
                f"{row['plan']['online_bytes'] / 1e9:.3f}",
                f"{row['plan']['dealer_bytes'] / 1e9:.2f}",
                f"{row['max_error']:.1e}",
            )
            for row in rows
        ),
    )


def operations(rows: Sequence[dict[str, Any]]) -> str:
    """Online MB by operation, and rounds."""
    names = list(dict.fromkeys(name for row in rows for name in row["plan"]["by_operation"]))
    lines = []
    for row in rows:
        cells = [row["plan"]["by_operation"].get(name, {"online_bytes": 0, "rounds": 0}) for name in names]
        lines.append(
            (
                f"{row['model']}, {row['suite']}, {row['tokens']}",
                *(f"{cell['online_bytes'] / 1e6:.1f} ({cell['rounds']})" for cell in cells),
            )
        )
    return table(("", *names), lines)


def compared(rows: Sequence[dict[str, Any]], published: Iterable[dict[str, Any]]) -> str:
    lines = []
    for each in published:
        for row in rows:
            if (row["model"], row["tokens"]) == (each["model"], each["tokens"]):
                ratio = each["online_seconds"] / row["online_seconds"]
                traffic = each.get("online_gigabytes")
                lines.append(
                    (
                        each["system"],
                        each["source"],
                        each["tokens"],
                        each["online_seconds"],
                        "" if traffic is None else traffic,
                        f"{row['suite']}: {row['online_seconds']} s, {row['plan']['online_bytes'] / 1e9:.2f} GB",
                        f"{ratio:.0f}",
                    )
                )
    return table(("system", "source", "tokens", "online s", "GB", "ours", "times"), lines)


def render(measured_from: str, published_from: str, data: dict[str, Any], published: Sequence[dict[str, Any]]) -> str:
    rows = ours(data["models"])
    parts = [
        HEAD.format(measured=measured_from, published=published_from, machine=data["machine"]),
        "## Measured",
        measured(rows),
        "## Online MB (rounds) by operation",
        operations(rows),
        "## Beside published figures, BERT-base, one text",
        compared(rows, published),
        TAIL,
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> None:
    measured_from, published_from = arguments
    data, published = (json.loads(Path(name).read_text()) for name in (measured_from, published_from))
    print(render(measured_from, published_from, data, published), end="")


if __name__ == "__main__":
    main(sys.argv[1:])

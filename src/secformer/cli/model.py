"""`secformer run` and `plan`: models from a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from secformer.cli.calibrate import measured
from secformer.engine.tracing import Plan
from secformer.errors import CalibrationError
from secformer.models.cost import client_bytes, plan_dict
from secformer.parties.prediction import Prediction
from secformer.planning import plan_for
from secformer.secure_model import SecureModel

SHOWN_NUMBERS = 6


def run(
    folder: Path,
    texts: list[str],
    pairs: list[str] | None,
    suite: str,
    prompt: str | None,
    calibration: Path | None,
    as_json: bool,
) -> None:
    """Predict in three processes over TLS, and show the plaintext result and the cost beside it."""
    notes = Console(stderr=True)
    model = SecureModel.from_pretrained(folder, suite, calibration=calibration)
    model.check(texts, pairs, prompt=prompt)  # before a calibration that may take minutes
    if not model.calibrated:
        first_calibration(model, notes)
    expected = model.predict(texts, pairs, mode="plain", prompt=prompt)
    with model, steps(notes) as progress:
        secure = model.predict(texts, pairs, mode="secure", prompt=prompt, progress=progress)
    error = float((secure.result - expected.result).abs().max())
    if as_json:
        print(json.dumps(_result_dict(secure, error)))
        return
    console = Console()
    console.print(_result_table(texts, secure, expected))
    for line in _marks(texts, secure):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"largest difference from the plaintext model: {error:.1e}")
    console.print(cost_table({suite: secure}))


def first_calibration(model: SecureModel, notes: Console) -> None:
    """On the built-in sample. A record that cannot be kept still serves this run."""
    notes.print(
        "No calibration for these weights: measuring ranges on built-in sample texts. "
        "`secformer calibrate` with texts like yours makes a better one."
    )
    try:
        measured(model, None, notes)
    except CalibrationError as error:
        if not model.calibrated:
            raise
        notes.print(f"note: {error}; it serves this run only", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def steps(console: Console) -> Iterator[Any]:
    """A line that says what is being done now, with the time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=step)


def _result_dict(prediction: Prediction, error: float) -> dict[str, Any]:
    counted, evidence = prediction.outcome, prediction.evidence
    assert counted is not None
    return {
        "result": prediction.result.tolist(),
        "labels": prediction.labels,
        "marked": prediction.marked,
        "evidence": [evidence.of(text) for text in range(len(prediction.result))] if evidence else None,
        "max_error": error,
        "rounds": counted.rounds,
        "online_bytes": counted.online_bytes,
        "dealer_bytes": counted.dealer_bytes,
        "client_bytes": counted.sent + counted.received,
        "seconds": counted.online_seconds,
        "dealer_seconds": counted.dealer_seconds,
    }


def _marks(texts: list[str], secure: Prediction) -> Iterator[str]:
    """A line for every text whose result may be wrong."""
    for index, text in enumerate(texts):
        if secure.evidence is not None and (found := secure.evidence.describe(index)):
            yield f"text {index + 1} ({_short(text)}): {found}"


def _result_table(texts: list[str], secure: Prediction, expected: Prediction) -> Table:
    table = Table(title="secure result beside the plaintext one", title_justify="left")
    for column in ("text", "secure", "plaintext"):
        table.add_column(column, overflow="fold")
    for index, text in enumerate(texts):
        table.add_row(_short(text), _shown(secure, index), _shown(expected, index))
    return table


def _shown(prediction: Prediction, index: int) -> str:
    if prediction.labels is not None and not isinstance(prediction.labels[index], list):
        logits = "  ".join(f"{number:+.4f}" for number in prediction.result[index].tolist())
        return f"{prediction.labels[index]}  ({logits})"
    if prediction.labels is not None:
        return " ".join(prediction.labels[index])
    numbers = prediction.result[index].flatten().tolist()
    shown = "  ".join(f"{number:+.4f}" for number in numbers[:SHOWN_NUMBERS])
    return shown + ("  …" if len(numbers) > SHOWN_NUMBERS else "")


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cost_table(predictions: dict[str, Prediction]) -> Table:
    table = Table(title="cost as the plan declares it; the sockets counted the same unless shown", title_justify="left")
    table.add_column("run")
    for column in ("rounds", "online bytes", "dealer bytes", "client bytes", "online s", "dealer s"):
        table.add_column(column, justify="right")
    for name, prediction in predictions.items():
        counted = prediction.outcome
        assert counted is not None
        declared = counted.declared
        table.add_row(
            name,
            _both(declared.rounds, counted.rounds),
            _both(declared.online_bytes, counted.online_bytes),
            _both(declared.dealer_bytes, counted.dealer_bytes),
            f"{counted.sent + counted.received:,}",
            f"{counted.online_seconds:.2f}",
            f"{counted.dealer_seconds:.2f}",
        )
    return table


def _both(declared: int, counted: int) -> str:
    return f"{declared:,}" if declared == counted else f"{declared:,} ≠ {counted:,}"


def plan(model: str, tokens: int, batch: int, suite: str, published: bool, as_json: bool) -> None:
    """Trace without weights and print what a query costs."""
    traced = plan_for(model, tokens, batch, suite, published)
    if as_json:
        print(json.dumps(plan_dict(traced)))
    else:
        Console().print(_plan_table(traced, f"{model}, {batch} × {tokens} tokens, suite {suite}"))


def _plan_table(traced: Plan, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("operation", "rounds", "online MB", "dealer MB"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    operations = plan_dict(traced)["by_operation"]
    for name, cost in operations.items():
        megabytes = (f"{cost[part] / 1e6:,.1f}" for part in ("online_bytes", "dealer_bytes"))
        table.add_row(name, str(cost["rounds"]), *megabytes)
    total = traced.cost
    table.add_section()
    table.add_row("total", str(total.rounds), f"{total.online_bytes / 1e6:,.1f}", f"{total.dealer_bytes / 1e6:,.1f}")
    table.caption = f"online: sent plus received by one server; the client moves {client_bytes(traced):,} bytes"
    return table


def closest(vectors: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of the first row to the others."""
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    return unit[1:] @ unit[0]

"""`secformer push`, `models`, `query`, `access` and `remove`: a deployment from the side of providers and clients."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from secformer.cli.model import read_texts, steps
from secformer.errors import InputError
from secformer.models.sample_texts import SENTENCES, documents
from secformer.parties.client import Client
from secformer.parties.library import Library, tokenizer_files
from secformer.parties.prediction import Prediction
from secformer.parties.provider import Provider
from secformer.parties.store import VERSION_DIGITS
from secformer.roles import PROVIDER
from secformer.secure_model import SecureModel
from secformer.settings import Settings
from secformer.transport.tls_network import TlsNetwork

BATCH = 8
"""Texts that are asked about in one session."""
FORMATS = ("text", "json", "csv")


def push(
    folder: Path,
    name: str,
    settings: Settings,
    suite: str,
    data: Path | None,
    calibration: Path | None,
    allow: list[str],
) -> None:
    """Calibrate, fold, and bring the model to the servers as a new version."""
    model = SecureModel.from_pretrained(
        folder, suite, calibration=calibration, settings=settings, uncalibrated=data is not None
    )
    provider = Provider(TlsNetwork(PROVIDER, settings), settings)
    notes = Console(stderr=True)
    with steps(notes) as progress:
        if not model.calibrated:
            texts, pairs = read_texts(data, 1000) if data else ([*SENTENCES, *documents()], None)
            progress(f"measuring ranges on {len(texts)} texts" + ("" if data else " of our own: --data takes yours"))
            model.calibrate(texts, pairs)
        files = tokenizer_files(folder, model.config.family)
        progress("folding the weights")
        folded = model.folded()
        uploaded = provider.upload(name, model.card, folded, allow, files, progress)
    print(f"{name}@{uploaded.version[:VERSION_DIGITS]}")
    if not allow:
        notes.print("nobody but you may use it yet: `secformer access` lets others", markup=False)


def models(role: str, settings: Settings, as_json: bool) -> None:
    """What this party may use, as S0 and S1 both say."""
    found = Library(TlsNetwork(role, settings), settings).models()
    rows = [
        {
            "model": f"{one.name}@{one.upload[:VERSION_DIGITS]}",
            "weights": one.weights,
            "owners": one.owners,
            "readers": one.readers,
        }
        for one in found
    ]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("model", "weights", "owner", "may use it")
    for row in rows:
        owners, readers = (", ".join(one[:16] for one in row[part]) for part in ("owners", "readers"))
        table.add_row(row["model"], f"{row['weights']:,}", owners, readers)
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def access(name: str, settings: Settings, changes: dict[str, list[str]]) -> None:
    if not any(changes.values()):
        raise InputError("say what to change: --allow, --deny, --own or --disown with a fingerprint")
    Provider(TlsNetwork(PROVIDER, settings), settings).share(name, **changes)
    print(f"changed who may use {name}", file=sys.stderr)


def remove(name: str, settings: Settings) -> None:
    Provider(TlsNetwork(PROVIDER, settings), settings).remove(name)
    print(f"removed {name} from all three servers", file=sys.stderr)


def query(
    name: str, settings: Settings, role: str, file: Path | None, pairs: bool, output: str, out: Path | None
) -> None:
    """Ask a model about private texts, without its weights. Texts never come by the command line, where `ps` shows them."""
    if output not in FORMATS:
        raise InputError(f"unknown format {output!r}: choose {', '.join(FORMATS)}")
    texts, seconds = _split(_texts(file), pairs)
    network = TlsNetwork(role, settings)
    with steps(Console(stderr=True)) as progress:
        progress("fetching card and tokenizer from both servers")
        fetched = Library(network, settings).fetch(name)
        client = Client(network, settings, fetched.name, fetched.card, fetched.tokenizer())
        rows: list[dict[str, Any]] = []
        for start in range(0, len(texts), BATCH):
            part = slice(start, start + BATCH)
            answered = client.predict(texts[part], seconds[part] if seconds else None, progress)
            rows += _rows(answered, start)
    _write(rows, output, out)
    print(f"answered by {fetched.name}", file=sys.stderr)


def _texts(file: Path | None) -> list[str]:
    """A text a line, from a file, from what is piped in, or from a person who is asked."""
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read as text: {error}") from None
    elif sys.stdin.isatty():
        lines = list(_asked())
    else:
        lines = sys.stdin.read().splitlines()
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InputError("no text was given: pipe one in, a line each, or name a --file")
    return texts


def _asked() -> Iterator[str]:
    print("a private text a line; an empty line ends:", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            return
        yield line


def _split(texts: Sequence[str], pairs: bool) -> tuple[list[str], list[str] | None]:
    if not pairs:
        return list(texts), None
    halves = [text.split("\t") for text in texts]
    wrong = [number for number, half in enumerate(halves, 1) if len(half) != 2]
    if wrong:
        raise InputError(f"line {wrong[0]} is no pair: write two texts with a tab between")
    return [half[0] for half in halves], [half[1] for half in halves]


def _rows(prediction: Prediction, start: int) -> list[dict[str, Any]]:
    outcome = prediction.outcome
    assert outcome is not None
    labels = prediction.labels or [None] * len(prediction.result)
    numbers = prediction.result.tolist()
    return [
        {"text": start + place + 1, "label": label, "result": result, "model": outcome.model}
        for place, (label, result) in enumerate(zip(labels, numbers, strict=True))
    ]


def _write(rows: list[dict[str, Any]], output: str, out: Path | None) -> None:
    if out is None:
        _as(output)(rows, sys.stdout)
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            _as(output)(rows, file)
    except OSError as error:
        raise InputError(f"the answers cannot be written to {out}: {error.strerror}") from None


def _as(output: str) -> Callable[[list[dict[str, Any]], Any], None]:
    return {"text": _as_text, "json": _as_json, "csv": _as_csv}[output]


def _as_text(rows: list[dict[str, Any]], file: Any) -> None:
    for row in rows:
        label = " ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
        file.write((label if label is not None else " ".join(f"{number:.5f}" for number in row["result"])) + "\n")


def _as_json(rows: list[dict[str, Any]], file: Any) -> None:
    for row in rows:
        file.write(json.dumps(row) + "\n")


def _as_csv(rows: list[dict[str, Any]], file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(["text", "label", "result", "model"])
    for row in rows:
        label = " ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
        writer.writerow([row["text"], label or "", json.dumps(row["result"]), row["model"]])

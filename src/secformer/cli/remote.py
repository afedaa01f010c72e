"""`secformer push`, `models`, `query`, `access` and `remove`: a deployment from the side of providers and clients."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from secformer.cli.calibrate import measured
from secformer.cli.model import first_calibration, steps
from secformer.errors import InputError
from secformer.models.texts import Texts, read_texts
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
    texts: Texts | None,
    few: bool,
    calibration: Path | None,
    allow: list[str],
) -> None:
    """Calibrate, fold, and bring the model to the servers as a new version."""
    model = SecureModel.from_pretrained(
        folder, suite, calibration=calibration, settings=settings, uncalibrated=texts is not None
    )
    provider = Provider(TlsNetwork(PROVIDER, settings), settings)
    notes = Console(stderr=True, soft_wrap=True)
    if texts is not None:
        measured(model, texts, notes, few=few)
    elif not model.calibrated:
        first_calibration(model, notes)
    if model.provenance.weakness:
        notes.print(f"note: {model.provenance.weakness}", markup=False, highlight=False)
    with steps(notes) as progress:
        files = tokenizer_files(folder, model.config.family)
        progress("folding the weights")
        folded = model.folded()
        uploaded = provider.upload(name, model.card, folded, allow, files, progress)
    print(f"{name}@{uploaded.version[:VERSION_DIGITS]}")
    if not allow:
        told = "who may use it stays as it was; of a new name, nobody but you: `secformer access` lets others"
        notes.print(told, markup=False)


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


class Asked(NamedTuple):
    """Private texts, or pairs of them."""

    first: Sequence[str]
    second: Sequence[str] | None

    def __repr__(self) -> str:
        return f"Asked({len(self.first)} texts, hidden)"


def query(
    name: str, settings: Settings, role: str, texts: Asked, prompt: str | None, output: str, out: Path | None
) -> None:
    """Ask a model about private texts, without its weights."""
    network = TlsNetwork(role, settings)
    with steps(Console(stderr=True)) as progress:
        progress("fetching card and tokenizer from both servers")
        fetched = Library(network, settings).fetch(name)
        client = Client(network, settings, fetched.name, fetched.card, fetched.tokenizer())
        rows: list[dict[str, Any]] = []
        marks: list[str] = []
        for start in range(0, len(texts.first), BATCH):
            part = slice(start, start + BATCH)
            pairs = texts.second[part] if texts.second else None
            answered = client.predict(texts.first[part], pairs, progress, prompt=prompt)
            rows += _rows(answered, start)
            marks += _marks(answered, start)
    _write(rows, output, out)
    for line in marks:
        print(line, file=sys.stderr)
    print(f"answered by {fetched.name}", file=sys.stderr)


def asked(file: Path | None, columns: Sequence[str], header: bool | None, pairs: bool) -> Asked:
    """From a file, or else from standard input. Never from the command line, where `ps` shows them."""
    if file is None:
        if columns or header is not None:
            raise InputError("--column and --header are for a --file: standard input has a text a line")
        return _asked_here(pairs)
    if pairs:
        raise InputError("--pairs is for standard input: pairs in a --file are two columns, named by --column")
    texts = read_texts(file, columns, header=header)
    return Asked(texts.first, texts.second)


def _asked_here(pairs: bool) -> Asked:
    """A text a line, from what is piped in or a person who is asked; in pairs, two with a tab between."""
    try:
        lines = list(_typed()) if sys.stdin.isatty() else sys.stdin.read().split("\n")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8") from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InputError("no text was given: pipe one in, a line each, or name a --file")
    return _split(texts) if pairs else Asked(texts, None)


def _typed() -> Iterator[str]:
    print("a private text a line; an empty line ends:", file=sys.stderr)
    for line in sys.stdin:
        if not line.strip():
            return
        yield line


def _split(texts: Sequence[str]) -> Asked:
    halves = [text.split("\t") for text in texts]
    wrong = [number for number, half in enumerate(halves, 1) if len(half) != 2]
    if wrong:
        raise InputError(f"line {wrong[0]} is no pair: write two texts with a tab between")
    return Asked([half[0] for half in halves], [half[1] for half in halves])


def _marks(prediction: Prediction, start: int) -> Iterator[str]:
    """A line for every answer that may be wrong."""
    for place, marked in enumerate(prediction.marked):
        if marked and prediction.evidence is not None:
            yield f"note: text {start + place + 1}: {prediction.evidence.describe(place)}"


def _rows(prediction: Prediction, start: int) -> list[dict[str, Any]]:
    """By text: the answer, whether it is marked, and where ranges were left."""
    outcome, evidence = prediction.outcome, prediction.evidence
    assert outcome is not None
    labels = prediction.labels or [None] * len(prediction.result)
    answers = enumerate(zip(labels, prediction.result.tolist(), prediction.marked, strict=True))
    return [
        {
            "text": start + place + 1,
            "label": label,
            "result": result,
            "marked": marked,
            "evidence": evidence.of(place) if evidence else None,
            "model": outcome.model,
        }
        for place, (label, result, marked) in answers
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


def check_format(output: str) -> None:
    """Before anybody is asked for texts."""
    if output not in FORMATS:
        raise InputError(f"unknown format {output!r}: choose {', '.join(FORMATS)}")


def _as_text(rows: list[dict[str, Any]], file: Any) -> None:
    for row in rows:
        label = " ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
        shown = label if label is not None else " ".join(f"{number:.5f}" for number in row["result"])
        file.write(shown + ("\tmarked" if row["marked"] else "") + "\n")


def _as_json(rows: list[dict[str, Any]], file: Any) -> None:
    for row in rows:
        file.write(json.dumps(row) + "\n")


def _as_csv(rows: list[dict[str, Any]], file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(["text", "label", "result", "marked", "model"])
    for row in rows:
        label = " ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
        writer.writerow([row["text"], label or "", json.dumps(row["result"]), row["marked"], row["model"]])
